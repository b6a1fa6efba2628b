"""Calls and their choices in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art.errors import NotFound
from art.store import rollout_facts
from art.store.damage import reads
from art.store.records import CallText
from art.store.sql import Conn, Row, dumps, insert, loads, one, rows
from art.types.policy import SamplingParams
from art.types.tokens import BlobRef, CallRecord, ChoiceRecord

Answered = tuple[CallRecord, list[dict[str, Any]]]
"""A call and its completions, by choice index."""

_PLAIN = (
    "call_id",
    "rollout_id",
    "parent_call_id",
    "branch",
    "number",
    "agent",
    "dialect",
    "version",
    "purpose",
    "prompt_token_count",
    "reused_token_count",
    "auxiliary_reason",
    "tool_count",
    "system_number",
    "opening_number",
    "started_at",
    "first_token_at",
    "finished_at",
)


def add_call(conn: Conn, call: CallRecord, text: CallText, *, heard: CallText | None = None) -> None:
    """Insert a call and its choices. Its blob must have been appended before.

    `text` is what is kept; `heard` what was said, where that is more: tools and their errors are counted in it.
    """
    values = {name: getattr(call, name) for name in _PLAIN}
    values["auxiliary"] = int(call.auxiliary)
    values["auxiliary_asked"] = None if call.auxiliary_asked is None else int(call.auxiliary_asked)
    values["sampling_asked"] = dumps(call.sampling_asked)
    values["sampling_used"] = call.sampling_used.model_dump_json()
    values["blob"] = None if call.blob is None else call.blob.model_dump_json()
    values["text"] = text.model_dump_json()
    insert(conn, "calls", values)
    for choice in call.choices:
        insert(
            conn,
            "choices",
            {
                "call_id": call.call_id,
                "choice": choice.index,
                "finish_reason": choice.finish_reason,
                "token_count": choice.token_count,
                "spans": dumps([span.model_dump() for span in choice.spans]),
                "fate": choice.fate.value,
                "reason": choice.reason,
                "reward": choice.reward,
                "weight": choice.weight,
            },
        )
    rollout_facts.add_call(conn, call, text, text if heard is None else heard)


def is_hidden(conn: Conn, call_id: str | None) -> bool:
    """Whether a call's tokens are sealed, or were: the prompt of a call that goes on from it holds them too."""
    row = None if call_id is None else one(conn, "SELECT blob FROM calls WHERE call_id = ?", call_id)
    return row is not None and (row["blob"] is None or BlobRef.model_validate_json(row["blob"]).sealed)


@reads("the choice {choice} of the call {call_id}")
def _choice(row: Row) -> ChoiceRecord:
    return ChoiceRecord(
        index=row["choice"],
        finish_reason=row["finish_reason"],
        token_count=row["token_count"],
        spans=loads(row["spans"]),
        fate=row["fate"],
        reason=row["reason"],
        reward=row["reward"],
        weight=row["weight"],
        trained_tokens=row["trained_tokens"],
        trained_step=row["trained_step"],
    )


@reads("the call {call_id} of the rollout {rollout_id}")
def _call(row: Row, choices: list[ChoiceRecord]) -> CallRecord:
    return CallRecord(
        **{name: row[name] for name in _PLAIN},
        auxiliary=bool(row["auxiliary"]),
        auxiliary_asked=None if row["auxiliary_asked"] is None else bool(row["auxiliary_asked"]),
        sampling_asked=loads(row["sampling_asked"]),
        sampling_used=SamplingParams.model_validate_json(row["sampling_used"]),
        blob=None if row["blob"] is None else BlobRef.model_validate_json(row["blob"]),
        choices=choices,
    )


@reads("the call {call_id} of the rollout {rollout_id}")
def text_in(row: Row) -> CallText:
    """The text in a row of `calls`, of which the names are read too."""
    return CallText.model_validate_json(row["text"])


def get_call(conn: Conn, call_id: str) -> CallRecord | None:
    row = one(conn, "SELECT * FROM calls WHERE call_id = ?", call_id)
    if row is None:
        return None
    found = rows(conn, "SELECT * FROM choices WHERE call_id = ? ORDER BY choice", call_id)
    return _call(row, [_choice(choice) for choice in found])


def calls_of(conn: Conn, rollout_id: str) -> list[CallRecord]:
    """A rollout's calls in the order they were recorded."""
    choices: dict[str, list[ChoiceRecord]] = {}
    found = rows(
        conn,
        "SELECT choices.* FROM choices JOIN calls USING (call_id) WHERE rollout_id = ? ORDER BY choice",
        rollout_id,
    )
    for row in found:
        choices.setdefault(row["call_id"], []).append(_choice(row))
    calls = rows(conn, "SELECT * FROM calls WHERE rollout_id = ? ORDER BY number, rowid", rollout_id)
    return [_call(row, choices.get(row["call_id"], [])) for row in calls]


def text_of(conn: Conn, call_id: str) -> CallText:
    """The text of a call; NotFound when there is no such call."""
    row = one(conn, "SELECT call_id, rollout_id, text FROM calls WHERE call_id = ?", call_id)
    if row is None:
        raise NotFound(f"there is no call {call_id}")
    return text_in(row)


def history_of(conn: Conn, call_id: str) -> list[dict[str, Any]]:
    """All messages that a call was given, oldest first; none when there is no such call."""
    found = rows(
        conn,
        """WITH RECURSIVE chain (parent, text, depth) AS (
            SELECT parent_call_id, text, 0 FROM calls WHERE call_id = ?
            UNION ALL
            SELECT calls.parent_call_id, calls.text, depth + 1 FROM calls JOIN chain ON calls.call_id = chain.parent
        ) SELECT text FROM chain ORDER BY depth DESC""",
        call_id,
    )
    texts = [CallText.model_validate_json(row["text"]) for row in found]
    messages: list[dict[str, Any]] = []
    for parent, text in zip([None, *texts], texts, strict=False):
        if parent is not None:
            messages.append(parent.completions[text.parent_choice])
        messages += text.tail
    return messages


def recent_calls(conn: Conn, project: str, model: str, limit: int) -> list[Answered]:
    """The newest calls of a model, newest first: where a choice without its art field is looked for."""
    found = rows(
        conn,
        "SELECT call_id, json_extract(text, '$.completions') AS said FROM calls JOIN rollouts USING (rollout_id)"
        " WHERE project = ? AND model = ? ORDER BY calls.rowid DESC LIMIT ?",
        project,
        model,
        limit,
    )
    calls = [(get_call(conn, row["call_id"]), loads(row["said"])) for row in found]
    return [(call, said) for call, said in calls if call is not None]


def judge(conn: Conn, rollout_id: str, verdicts: Mapping[str, str | None]) -> None:
    """Per call of the rollout, why it is a call on the side, or None for one that is not."""
    conn.executemany(
        "UPDATE calls SET auxiliary = ?, auxiliary_reason = ? WHERE call_id = ? AND rollout_id = ?",
        [
            (int(reason is not None), reason or "", call_id, rollout_id)
            for call_id, reason in verdicts.items()
        ],
    )
    rollout_facts.judged(conn, rollout_id)


def set_auxiliary(conn: Conn, rollout_id: str, asked: Mapping[str, bool]) -> None:
    """What the caller says of calls. NotFound for one that is not the rollout's."""
    for call_id, said in asked.items():
        done = conn.execute(
            "UPDATE calls SET auxiliary_asked = ? WHERE call_id = ? AND rollout_id = ?",
            (int(said), call_id, rollout_id),
        )
        if not done.rowcount:
            raise _not_its_call(rollout_id, call_id)


def set_rewards(conn: Conn, rollout_id: str, rewards: Mapping[str, float]) -> None:
    """Rewards by call id, or by `<call id>/<choice>`. NotFound for what is not the rollout's."""
    for name, reward in rewards.items():
        call_id, _, choice = name.partition("/")
        done = conn.execute(
            "UPDATE choices SET reward = ? WHERE call_id IN"
            " (SELECT call_id FROM calls WHERE call_id = ? AND rollout_id = ?) AND (? = '' OR choice = ?)",
            (reward, call_id, rollout_id, choice, choice),
        )
        if not done.rowcount:
            raise _not_its_call(rollout_id, name)


def _not_its_call(rollout_id: str, name: str) -> NotFound:
    return NotFound(
        f"the rollout {rollout_id} has no call {name}",
        hint="the call id stands in the `art` field of the choice; a choice is <call id>/<index>",
    )


def set_finish_reasons(conn: Conn, call_id: str, reasons: Mapping[int, str]) -> None:
    """How the choices of a call ended for the client, once that is known."""
    conn.executemany(
        "UPDATE choices SET finish_reason = ? WHERE call_id = ? AND choice = ?",
        [(reason, call_id, choice) for choice, reason in reasons.items()],
    )
