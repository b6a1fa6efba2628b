"""What lists show and filter of rollouts, kept in rows of its own: small, indexed, and true as soon as the call is.

`rollout_facts` repeats what the lists ask of `rollouts` (triggers keep it), and counts what lies in the calls. Texts
stand apart: their beginnings in `rollout_previews`, all words in `rollout_words`, one document a call, whose rowid is
`id << CALL_BITS | number`. A rollout that is deleted takes all of them with it; `tidy` then makes the index forget its
words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from art.store import call_facts
from art.store.explanations import explanation_of
from art.store.records import CallText, RolloutChange
from art.store.sql import Conn, one, rows
from art.types.tokens import CallRecord

CALL_BITS = 20
"""Of a document's rowid: a million calls of one rollout. Those beyond are not searched."""
EXPLAINED = (1 << CALL_BITS) - 1
"""Where a call's number would stand, for what a judge said of the rollout."""
MERGED_PAGES = 1000
"""Of the index, rewritten in one go (4 MB); other writes wait so long."""

TABLES = (
    """CREATE TABLE rollout_facts (
        id INTEGER PRIMARY KEY, rollout_id TEXT NOT NULL UNIQUE,
        project TEXT NOT NULL, model TEXT NOT NULL, step INTEGER NOT NULL, purpose TEXT NOT NULL,
        status TEXT NOT NULL, group_id TEXT, scenario_id TEXT, member INTEGER NOT NULL, reward REAL,
        created_at REAL NOT NULL, seconds REAL,
        calls INTEGER NOT NULL DEFAULT 0, prompt_tokens INTEGER NOT NULL DEFAULT 0,
        sampled_tokens INTEGER NOT NULL DEFAULT 0, tool_calls INTEGER NOT NULL DEFAULT 0,
        tool_errors INTEGER NOT NULL DEFAULT 0, advantage REAL, batch INTEGER, flag TEXT
    ) STRICT""",
    """CREATE TABLE rollout_previews (
        id INTEGER PRIMARY KEY, asked TEXT NOT NULL, answered TEXT NOT NULL
    ) STRICT""",
    """CREATE VIRTUAL TABLE rollout_words USING fts5 (
        text, tokenize = "unicode61 remove_diacritics 2", columnsize = 0
    )""",
    """INSERT INTO rollout_facts (rollout_id, project, model, step, purpose, status, group_id, scenario_id, member,
        reward, created_at, seconds)
        SELECT rollout_id, project, model, step, purpose, status, group_id, scenario_id, member, reward, created_at,
        ended_at - created_at FROM rollouts ORDER BY created_at, rowid""",
    """CREATE TRIGGER rollout_facts_opened AFTER INSERT ON rollouts BEGIN
        INSERT INTO rollout_facts (rollout_id, project, model, step, purpose, status, group_id, scenario_id, member,
            reward, created_at, seconds)
            VALUES (NEW.rollout_id, NEW.project, NEW.model, NEW.step, NEW.purpose, NEW.status, NEW.group_id,
            NEW.scenario_id, NEW.member, NEW.reward, NEW.created_at, NEW.ended_at - NEW.created_at);
    END""",
    """CREATE TRIGGER rollout_facts_changed AFTER UPDATE OF status, reward, ended_at ON rollouts BEGIN
        UPDATE rollout_facts SET status = NEW.status, reward = NEW.reward, seconds = NEW.ended_at - NEW.created_at
            WHERE rollout_id = NEW.rollout_id;
    END""",
    f"""CREATE TRIGGER rollout_facts_deleted AFTER DELETE ON rollouts BEGIN
        DELETE FROM rollout_words WHERE rowid
            BETWEEN (SELECT id << {CALL_BITS} FROM rollout_facts WHERE rollout_id = OLD.rollout_id)
            AND (SELECT (id + 1 << {CALL_BITS}) - 1 FROM rollout_facts WHERE rollout_id = OLD.rollout_id);
        DELETE FROM rollout_previews WHERE id = (SELECT id FROM rollout_facts WHERE rollout_id = OLD.rollout_id);
        DELETE FROM rollout_facts WHERE rollout_id = OLD.rollout_id;
    END""",
)
"""Of a migration; `fill` comes after them."""

INDEXES = (
    "CREATE INDEX rollout_facts_by_time ON rollout_facts (project, model, created_at, id)",
    # Covering: what the list of runs sums up over all rollouts.
    "CREATE INDEX rollout_facts_by_status ON rollout_facts (project, model, status, sampled_tokens, created_at, seconds)",
    "CREATE INDEX rollout_facts_by_group ON rollout_facts (project, model, group_id, id)",
    "CREATE INDEX rollout_facts_by_batch ON rollout_facts (project, model, batch)",
    "CREATE INDEX rollout_facts_by_step ON rollout_facts (project, model, step)",
    "CREATE INDEX rollout_facts_by_scenario ON rollout_facts (project, model, scenario_id, step, reward)",
)


def add_call(conn: Conn, call: CallRecord, text: CallText, heard: CallText) -> None:
    """Count a call that was recorded. `text` is what is kept of it; `heard` what was said, of which only numbers are."""
    row = one(conn, "SELECT id, calls FROM rollout_facts WHERE rollout_id = ?", call.rollout_id)
    assert row is not None, "every rollout has its facts"
    conn.execute(
        "UPDATE rollout_facts SET calls = calls + 1, prompt_tokens = MAX(prompt_tokens, ?),"
        " sampled_tokens = sampled_tokens + ?, tool_calls = tool_calls + ?, tool_errors = tool_errors + ? WHERE id = ?",
        (
            call.prompt_token_count,
            sum(choice.token_count for choice in call.choices),
            call_facts.tool_calls(heard),
            call_facts.tool_errors(heard),
            row["id"],
        ),
    )
    _add_text(conn, row["id"], row["calls"], text, main=_is_main(call))


def _is_main(call: CallRecord) -> bool:
    """As far as is known when it is recorded; `judged` says more once the rollout has ended."""
    return not call.auxiliary and not call.auxiliary_asked and call.system_number == 0


def _add_text(conn: Conn, fact: int, number: int, text: CallText, *, main: bool) -> None:
    if text.dropped:
        return
    if main or number == 0:
        conn.execute(
            "INSERT INTO rollout_previews VALUES (?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET answered = excluded.answered",
            (fact, call_facts.asked(text), call_facts.answered(text)),
        )
    words = call_facts.searched(text)
    if words and number < EXPLAINED:
        conn.execute(
            "INSERT INTO rollout_words (rowid, text) VALUES (?, ?)", (fact << CALL_BITS | number, words)
        )


def explained(conn: Conn, rollout_id: str, project: str, body: Mapping[str, Any]) -> None:
    """What a judge said is searched too; `body` is the logged trajectory as it is kept. The newest counts."""
    said = explanation_of([str(line) for line in body.get("logs") or ()], body.get("metadata") or {})
    if not said:
        return
    row = conn.execute(
        "SELECT id FROM rollout_facts WHERE rollout_id = ? AND project = ?", (rollout_id, project)
    ).fetchone()
    if row is not None:
        place = row[0] << CALL_BITS | EXPLAINED
        conn.execute("DELETE FROM rollout_words WHERE rowid = ?", (place,))
        words = said[: call_facts.INDEXED_CHARACTERS]
        conn.execute("INSERT INTO rollout_words (rowid, text) VALUES (?, ?)", (place, words))


def judged(conn: Conn, rollout_id: str) -> None:
    """Which calls are on the side is decided now: the previews are those of the others."""
    found = rows(
        conn,
        "SELECT text FROM calls WHERE rollout_id = ? AND NOT auxiliary ORDER BY number, rowid",
        rollout_id,
    )
    if not found:
        return
    first, last = (CallText.model_validate_json(found[place]["text"]) for place in (0, -1))
    conn.execute(
        "UPDATE rollout_previews SET asked = ?, answered = ?"
        " WHERE id = (SELECT id FROM rollout_facts WHERE rollout_id = ?)",
        (call_facts.asked(first), call_facts.answered(last), rollout_id),
    )


def trained(conn: Conn, changes: Iterable[RolloutChange], batch: int) -> None:
    """The rollouts took part in a train call. Ones that nobody grouped before are a group of it."""
    conn.executemany(
        "UPDATE rollout_facts SET batch = ?, advantage = COALESCE(?, advantage), group_id = COALESCE(group_id, ?)"
        " WHERE rollout_id = ?",
        [
            (
                batch,
                change.advantage,
                None if change.group is None else f"{batch}:{change.group}",
                change.rollout_id,
            )
            for change in changes
        ],
    )


def remember_to_tidy(conn: Conn) -> None:
    """Rollouts are being deleted, and the index still holds their words. Part of the same transaction, so that a server
    which is killed before it has tidied up does so at the next purge."""
    conn.execute("PRAGMA user_version = 1")


def must_tidy(conn: Conn) -> bool:
    """Whether words of deleted rollouts may be in the index."""
    return bool(conn.execute("PRAGMA user_version").fetchone()[0])


def tidy(conn: Conn, *, first: bool) -> bool:
    """Rewrite a piece of the index without the words of what was deleted; True while there is more to do.

    `first` begins: from then on all of the index is rewritten, piece by piece.
    """
    before = conn.total_changes
    conn.execute(
        "INSERT INTO rollout_words (rollout_words, rank) VALUES ('merge', ?)",
        (-MERGED_PAGES if first else MERGED_PAGES,),
    )
    more = (
        conn.total_changes - before >= 2
    )  # fewer: nothing was left (sqlite.org/fts5.html, the merge command)
    if not more:
        conn.execute("PRAGMA user_version = 0")
    return more


def fill(conn: Conn) -> None:
    """Count all calls of a store that was written before there were facts; a part of the migration."""
    conn.execute(
        "UPDATE rollout_facts SET calls = found.calls, prompt_tokens = found.prompt FROM"
        " (SELECT rollout_id, COUNT(*) AS calls, MAX(prompt_token_count) AS prompt FROM calls GROUP BY rollout_id)"
        " AS found WHERE found.rollout_id = rollout_facts.rollout_id"
    )
    conn.execute(
        "UPDATE rollout_facts SET sampled_tokens = found.tokens FROM (SELECT rollout_id, SUM(token_count) AS tokens"
        " FROM calls JOIN choices USING (call_id) GROUP BY rollout_id) AS found"
        " WHERE found.rollout_id = rollout_facts.rollout_id"
    )
    _fill_texts(conn)
    _fill_batches(conn)
    for rollout_id, project, body in conn.execute(
        "SELECT rollout_id, project, body FROM logged_trajectories WHERE rollout_id IS NOT NULL ORDER BY id"
    ).fetchall():
        explained(conn, rollout_id, project, json.loads(body))


def _fill_texts(conn: Conn) -> None:
    for fact, rollout_id in conn.execute("SELECT id, rollout_id FROM rollout_facts ORDER BY id").fetchall():
        calls, errors = 0, 0
        found = conn.execute(
            "SELECT auxiliary, auxiliary_asked, system_number, text FROM calls WHERE rollout_id = ?"
            " ORDER BY number, rowid",
            (rollout_id,),
        ).fetchall()
        for number, (auxiliary, said, system, body) in enumerate(found):
            text = CallText.model_validate_json(body)
            calls += call_facts.tool_calls(text)
            errors += call_facts.tool_errors(text)
            _add_text(conn, fact, number, text, main=not auxiliary and not said and system == 0)
        conn.execute(
            "UPDATE rollout_facts SET tool_calls = ?, tool_errors = ? WHERE id = ?", (calls, errors, fact)
        )


def _fill_batches(conn: Conn) -> None:
    found = conn.cursor().execute(
        "SELECT batch, spec FROM jobs WHERE batch IS NOT NULL AND status = 'succeeded' ORDER BY batch"
    )
    for batch, spec in found:
        changes = [
            (batch, f"{batch}:{item.get('group', 0)}", rollout_id)
            for item in json.loads(spec).get("trajectories", ())
            for rollout_id in item.get("rollout_ids", ())
        ]
        conn.executemany(
            "UPDATE rollout_facts SET batch = ?, group_id = COALESCE(group_id, ?) WHERE rollout_id = ?",
            changes,
        )
