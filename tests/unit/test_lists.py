"""Lists over a seeded store, held against what the tables say when they are read one by one."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import sqlite3
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import pytest
from readers_kit import asker

from art.config.content import ContentRule
from art.config.train import TrainConfig
from art.errors import InvalidInput, NotFound
from art.store import (
    extremes,
    fate_rows,
    figure_rows,
    group_lists,
    rollout_facts,
    rollout_lists,
    run_lists,
    series,
    step_lists,
)
from art.store.purge import PurgeFilter
from art.store.records import CallText, RolloutRow
from art.store.rollout_lists import Asked
from art.store.rules import redaction_of
from art.store.schema import MIGRATIONS, migrate
from art.store.sealing import Seal
from art.store.sql import Conn
from art.store.store import DATABASE, Store
from art.testing.seeded import Plan, seed
from art.types.policy import Purpose
from art.types.tokens import CallRecord, ChoiceRecord

T = TypeVar("T")
RUN = ("shop", "desk-01")
PLAN = Plan(runs=3, steps=9, groups=3, group_size=5, turns=3, evaluate_every=4, scenarios=7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seed(tmp_path_factory.mktemp("lists") / "art", PLAN)


@pytest.fixture(scope="module")
def ask(folder: Path) -> Callable[[Callable[[Conn], Any]], Any]:
    return asker(folder)


@pytest.fixture(scope="module")
def table(folder: Path) -> list[dict[str, Any]]:
    """Every rollout of RUN with what can be counted in its calls, in the order they were opened in."""
    conn = sqlite3.connect(folder / "server" / DATABASE)
    conn.row_factory = sqlite3.Row
    try:
        rows = [dict(row) for row in conn.execute("SELECT * FROM rollouts ORDER BY rowid")]
        for row in rows:
            calls = conn.execute("SELECT * FROM calls WHERE rollout_id = ?", (row["rollout_id"],)).fetchall()
            row["calls"] = len(calls)
            row["prompt_tokens"] = max(call["prompt_token_count"] for call in calls)
            row["tool_calls"] = sum(call["text"].count('"arguments":"') for call in calls)
            row["tool_errors"] = sum(call["text"].count('{\\"error\\":') for call in calls)
            row["sampled_tokens"] = conn.execute(
                "SELECT SUM(token_count) FROM choices JOIN calls USING (call_id) WHERE rollout_id = ?",
                (row["rollout_id"],),
            ).fetchone()[0]
            row["answer_tokens"] = conn.execute(
                "SELECT token_count FROM choices JOIN calls USING (call_id) WHERE rollout_id = ? AND choice = 0"
                " AND NOT auxiliary ORDER BY number DESC",
                (row["rollout_id"],),
            ).fetchone()[0]
            row["seconds"] = row["ended_at"] - row["created_at"]
            row["text"] = " ".join(call["text"] for call in calls).lower()
        return [row for row in rows if (row["project"], row["model"]) == RUN]
    finally:
        conn.close()


def pages(ask: Any, size: int, **asked: Any) -> list[str]:
    """All rollouts of a list, page after page."""
    found, cursor = [], None
    for _ in range(100):
        options = Asked(limit=size, cursor=cursor, **asked)
        page = ask(lambda conn, options=options: rollout_lists.page(conn, *RUN, options))
        assert len(page.rollouts) <= size
        found += [line.rollout_id for line in page.rollouts]
        cursor = page.next
        if cursor is None:
            assert page.total == len(found)
            return found
    raise AssertionError("the pages never end")


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("sort", get_args(rollout_lists.Sort))
def test_pages_are_the_whole_list_in_order(ask: Any, table: Any, sort: str, descending: bool) -> None:
    sign = -1 if descending else 1
    numbered = list(enumerate(table))
    expected = sorted(
        numbered, key=lambda row: (row[1][sort] is None, sign * (row[1][sort] or 0.0), sign * row[0])
    )
    found = pages(ask, 17, sort=sort, descending=descending)
    assert found == [row["rollout_id"] for _, row in expected]
    assert len(found) > 140


def test_a_line_is_what_was_recorded(ask: Any, table: Any) -> None:
    page = ask(lambda conn: rollout_lists.page(conn, *RUN, Asked(limit=1000)))
    rows = {row["rollout_id"]: row for row in table}
    assert len(page.rollouts) == len(rows)
    for line in page.rollouts:
        row = rows[line.rollout_id]
        for name in ("status", "step", "reward", "group_id", "scenario_id", "member", "reason", "created_at"):
            assert getattr(line, name) == row[name], name
        for name in (
            "calls",
            "prompt_tokens",
            "tool_calls",
            "tool_errors",
            "sampled_tokens",
            "answer_tokens",
        ):
            assert getattr(line, name) == row[name], (name, line)
        assert line.seconds == pytest.approx(row["seconds"])
        assert line.preview
        assert line.metrics["turns"] == row["calls"]
        assert (line.advantage is not None) == (line.status == "trained")
        assert (line.batch is None) == (line.purpose is Purpose.EVALUATE)


def test_filters_and_searches(ask: Any, table: Any) -> None:
    def found(**asked: Any) -> set[str]:
        return set(pages(ask, 50, **asked))

    def rows(holds: Callable[[Any], bool]) -> set[str]:
        return {row["rollout_id"] for row in table if holds(row)}

    bad = rows(lambda row: row["reward"] is not None and row["reward"] < 0 and row["tool_errors"] > 0)
    assert found(filter="reward < 0 and tool_errors > 0") == bad != set()
    paris = rows(lambda row: '"city":"Lima"' in row["metadata"])
    assert found(filter="metadata.city = Lima") == paris != set()
    assert found(status="agent_error") == rows(lambda row: row["status"] == "agent_error") != set()
    assert found(step=2) == rows(lambda row: row["step"] == 2) != set()
    assert found(scenario="order-003") == rows(lambda row: row["scenario_id"] == "order-003") != set()
    (group, batch) = ("desk-01-4-1", "desk-01-4-")
    assert found(group=group) == rows(lambda row: row["group_id"] == group) != set()
    assert found(batch=4) == rows(lambda row: row["rollout_id"].startswith(batch)) != set()
    refund = rows(lambda row: "refund it" in row["text"])
    assert found(search='"refund it"') == refund != set()
    assert found(search="refund it carrier") == refund & rows(lambda row: "carrier" in row["text"])
    assert found(search="telescop*") == rows(lambda row: "telescop" in row["text"])
    both = "text ~ refund and not text ~ carrier"
    assert found(filter=both) == refund - rows(lambda row: "carrier" in row["text"])
    assert found(search="xylophone") == set()
    page = ask(lambda conn: rollout_lists.page(conn, *RUN, Asked(search="refund", limit=3)))
    assert all("\x02refund\x03" in line.hit for line in page.rollouts)


def test_what_matches_is_told_with_its_mean_and_the_names_there_are(ask: Any, table: Any) -> None:
    wrong = [row["reward"] for row in table if '"right":0.0' in row["metrics"] and row["reward"] is not None]
    first = ask(lambda conn: rollout_lists.page(conn, *RUN, Asked(filter="right = 0", limit=5)))
    assert first.metrics == ["right", "turns"]
    assert first.reward_mean == pytest.approx(sum(wrong) / len(wrong))
    behind = ask(
        lambda conn: rollout_lists.page(conn, *RUN, Asked(filter="right = 0", limit=5, cursor=first.next))
    )
    assert (behind.total, behind.reward_mean) == (first.total, first.reward_mean)
    assert ask(lambda conn: rollout_lists.page(conn, *RUN, Asked(filter="right > 9"))).reward_mean is None
    with pytest.raises(InvalidInput) as caught:
        ask(lambda conn: rollout_lists.page(conn, *RUN, Asked(filter="city = Oslo")))
    assert caught.value.hint == "did you mean metadata.city?"


def test_a_cursor_is_of_its_list(ask: Any) -> None:
    page = ask(lambda conn: rollout_lists.page(conn, *RUN, Asked(limit=2)))
    for cursor in (page.next, "x", "W10", page.next + "A", "é"):
        with pytest.raises(InvalidInput, match="cursor"):
            ask(
                lambda conn, cursor=cursor: rollout_lists.page(
                    conn, *RUN, Asked(sort="reward", cursor=cursor)
                )
            )


def test_groups(ask: Any, table: Any) -> None:
    members: dict[str, list[Any]] = defaultdict(list)
    for row in table:
        if row["group_id"] is not None:
            members[row["group_id"]].append(row)
    found: list[Any] = []
    cursor = None
    while True:
        page = ask(lambda conn, cursor=cursor: group_lists.groups(conn, *RUN, limit=4, cursor=cursor))
        found += page.groups
        cursor = page.next
        if cursor is None:
            break
    assert [group.group_id for group in found] == list(reversed(members))
    for group in found:
        rows = members[group.group_id]
        rewards = [row["reward"] for row in rows if row["reward"] is not None]
        assert group.size == sum(group.statuses.values()) == len(rows)
        assert group.reward_mean == pytest.approx(statistics.fmean(rewards))
        assert group.reward_std_dev == pytest.approx(statistics.pstdev(rewards))
        assert (group.reward_min, group.reward_max) == (min(rewards), max(rewards))
        shown = [member.reward for member in group.members]
        assert shown == sorted(rewards, reverse=True) + [None] * (len(rows) - len(rewards))
        assert group.preview
        assert group.batch == int(group.group_id.split("-")[2])
    of_batch = ask(lambda conn: group_lists.groups(conn, *RUN, batch=3))
    assert {group.group_id for group in of_batch.groups} == {f"desk-01-3-{number}" for number in range(3)}
    of_step = ask(lambda conn: group_lists.groups(conn, *RUN, step=0))
    assert {group.group_id for group in of_step.groups} == {f"desk-01-1-{number}" for number in range(3)}
    one = ask(lambda conn: group_lists.group_line(conn, *RUN, "desk-01-3-0"))
    assert one == next(group for group in found if group.group_id == "desk-01-3-0")
    with pytest.raises(NotFound):
        ask(lambda conn: group_lists.group_line(conn, *RUN, "nothing"))


def test_scenarios(ask: Any, table: Any) -> None:
    by_step: dict[str, dict[str, dict[int, list[Any]]]] = defaultdict(
        lambda: {"train": defaultdict(list), "evaluate": defaultdict(list)}
    )
    for row in table:
        by_step[row["scenario_id"]][row["purpose"]][row["step"]].append(row)
    lines = {}
    for sort in get_args(group_lists.ScenarioSort):
        found, cursor = [], None
        while True:
            page = ask(
                lambda conn, cursor=cursor, sort=sort: group_lists.scenarios(
                    conn, *RUN, sort=sort, limit=3, cursor=cursor
                )
            )
            found += page.scenarios
            cursor = page.next
            if cursor is None:
                break
        assert {line.scenario_id for line in found} == set(by_step)
        lines[sort] = found
    for line in lines["change"]:
        means = {
            purpose: {
                step: statistics.fmean(rewards)
                for step, rows in steps.items()
                if (rewards := [row["reward"] for row in rows if row["reward"] is not None])
            }
            for purpose, steps in by_step[line.scenario_id].items()
        }
        assert line.rollouts == sum(
            len(rows) for steps in by_step[line.scenario_id].values() for rows in steps.values()
        )
        assert line.purpose == max(("train", "evaluate"), key=lambda purpose: len(means[purpose])), (
            "like with like, and training where both have as many"
        )
        steps, known = by_step[line.scenario_id][line.purpose], means[line.purpose]
        assert (line.first_step, line.last_step) == (min(steps), max(steps))
        assert line.reward_first == pytest.approx(known[min(known)])
        assert line.reward_last == pytest.approx(known[max(known)])
        assert line.rollouts_last == sum(row["reward"] is not None for row in steps[max(known)])
        right = [json.loads(row["metrics"])["right"] for row in steps[line.last_step]]
        assert line.metrics_last["right"] == pytest.approx(statistics.fmean(right))
        assert line.preview
        detail = ask(lambda conn, name=line.scenario_id: group_lists.scenario(conn, *RUN, name))
        assert [step.step for step in detail.steps] == sorted(step.step for step in detail.steps)
        assert sum(len(step.rollouts) for step in detail.steps) == line.rollouts
        assert all(len({line.purpose for line in step.rollouts}) == 1 for step in detail.steps)
    changes = [abs(line.reward_last - line.reward_first) for line in lines["change"]]
    assert changes == sorted(changes, reverse=True)
    counts = [line.rollouts for line in lines["rollouts"]]
    assert counts == sorted(counts, reverse=True)
    lasts = [line.reward_last for line in lines["reward_last"]]
    assert lasts == sorted(lasts)
    with pytest.raises(NotFound):
        ask(lambda conn: group_lists.scenario(conn, *RUN, "nothing"))


def test_extremes(ask: Any, table: Any) -> None:
    found = ask(lambda conn: extremes.extremes(conn, *RUN, limit=5))
    judged = [row for row in table if row["reward"] is not None and row["purpose"] == "train"]
    judged.sort(key=lambda row: row["created_at"])
    last = {row["group_id"]: row for row in judged}
    told = [
        row for row in judged if row["status"] != "zero_variance" or last[row["group_id"]] is row
    ]  # of a group of equal rewards one stands for all
    assert len(told) < len(judged), "the plan has a batch of equal rewards"
    rewards = sorted(row["reward"] for row in told)
    assert [line.reward for line in found.worst] == rewards[:5]
    assert [line.reward for line in found.best] == rewards[-5:]
    newest = [row["rollout_id"] for row in told if row["reward"] == rewards[-1]][-5:]
    assert [line.rollout_id for line in found.best] == newest[::-1]
    assert found.points.rollout_id == [row["rollout_id"] for row in judged]
    points = np.array([found.points.reward, found.points.sampled_tokens, found.points.tool_errors])
    expected = np.corrcoef(points)[0]
    assert found.correlation_tokens == pytest.approx(expected[1])
    assert found.correlation_tool_errors == pytest.approx(expected[2])
    assert found.correlation_tool_errors < -0.1
    right = [json.loads(row["metrics"])["right"] for row in judged]
    assert found.points.metrics["right"] == right
    links = {link.name: link for link in found.links}
    assert links["metrics.right"].r == pytest.approx(np.corrcoef(right, points[0])[0][1])
    assert links["metrics.right"].within > 0.8
    evaluated = ask(lambda conn: extremes.extremes(conn, *RUN, purpose=Purpose.EVALUATE))
    assert {line.purpose for line in evaluated.best} == {Purpose.EVALUATE}
    assert extremes.correlation([1, 1, 1], [1, 2, 3]) is None
    assert extremes.correlation([1, 2], [1, 2]) is None
    assert extremes.correlation([1e300, -1e300, 0], [3, 1, 2]) == pytest.approx(1.0)


def test_runs_and_one_run(ask: Any, table: Any) -> None:
    found = ask(run_lists.runs)
    assert [line.name for line in found.runs] == ["desk-03", "desk-02", "desk-01"], "the newest change first"
    first = ask(lambda conn: run_lists.runs(conn, limit=2))
    second = ask(lambda conn: run_lists.runs(conn, limit=2, cursor=first.next))
    assert [*first.runs, *second.runs] == found.runs
    assert second.next is None
    assert ask(lambda conn: run_lists.runs(conn, project="nobody")).runs == []
    line = found.runs[-1]
    assert (line.rollouts, line.running, line.state) == (len(table), 0, "idle")
    assert line.sampled_tokens == sum(row["sampled_tokens"] for row in table)
    assert line.rewards[0] == line.reward_first < line.reward_last == line.rewards[-1]
    assert line.cost_usd is not None
    assert line.val_reward_last is not None
    detail = ask(lambda conn: run_lists.run(conn, *RUN))
    assert detail.run == line
    statuses: dict[str, int] = defaultdict(int)
    for row in table:
        statuses[row["status"]] += 1
    assert detail.statuses == statuses
    counted = "SELECT fate, COUNT(*) FROM choices JOIN calls USING (call_id) JOIN rollouts USING (rollout_id)"
    counted += " WHERE model = 'desk-01' GROUP BY fate"
    assert detail.fates == dict(ask(lambda conn: [tuple(row) for row in conn.execute(counted)]))
    assert {"trained", "auxiliary", "evaluation", "filtered"} <= detail.fates.keys()
    figures = {figure.name: figure for figure in detail.figures}
    assert figures["train/reward"].last == line.reward_last
    assert figures["loss/entropy"].count == len(line.rewards)
    options, origin = detail.config["train_call"], detail.config_origin
    assert (options["loss_fn"], origin["train_call.loss_fn"]) == (TrainConfig().loss_fn, "default")
    for option, value in {"learning_rate": 5e-4, "entropy_coef": 0.05}.items():
        assert (options[option], origin[f"train_call.{option}"]) == (value, "chosen by the model's size")
    with pytest.raises(NotFound, match="no run"):
        ask(lambda conn: run_lists.run(conn, "shop", "nothing"))


def test_series_have_bands(ask: Any, table: Any) -> None:
    names = ["train/reward", "val/reward", "loss/entropy", "nothing/here", "train/reward"]
    found = ask(lambda conn: series.series_set(conn, *RUN, names, max_points=500)).series
    assert list(found) == ["train/reward", "val/reward", "loss/entropy"]
    for name in ("train/reward", "val/reward"):
        one = found[name]
        assert one.step == sorted(one.step)
        assert one.low is not None
        assert one.high is not None
        assert all(
            low <= value <= high for low, value, high in zip(one.low, one.value, one.high, strict=True)
        )
    assert found["loss/entropy"].low is None
    rewards = [row["reward"] for row in table if row["reward"] is not None]
    assert min(found["train/reward"].low) >= min(rewards)
    assert max(found["train/reward"].high) <= max(rewards)
    assert len(found["train/reward"].step) == 8, "a batch that trained nothing adds no step"


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 500, 4321])
@pytest.mark.parametrize("most", [10, 60, 101])
def test_thinning_keeps_ends_and_spikes(count: int, most: int) -> None:
    values = [float((number * 7919) % 1000) for number in range(count)]
    values[count // 2], values[count // 3] = 5000.0, -5000.0
    kept = series.thinned(values, most)
    assert len(kept) == min(count, len(kept)) <= most or count <= most
    assert kept == sorted(set(kept))
    assert {0, count - 1} <= set(kept)
    assert {max(values), min(values)} <= {values[place] for place in kept}


def test_steps(ask: Any) -> None:
    found = ask(lambda conn: step_lists.steps(conn, *RUN))
    assert [step.batch for step in found.steps] == list(range(9, 0, -1))
    by_batch = {step.batch: step for step in found.steps}
    nothing = by_batch[7]
    assert (nothing.published, nothing.statuses) == (False, {"zero_variance": 15})
    assert nothing.reason.startswith("no signal")
    assert "data/step_num_groups_trainable" in nothing.warnings
    for step in found.steps:
        assert step.rollouts == sum(step.statuses.values()) == 15
        assert step.groups == 3
        assert step.seconds == pytest.approx(step.metrics["time/step_trainer_s"], abs=1e-3)
        assert ("throughput/avg_actor_tok_per_s" in step.metrics) == step.published
    pages_found = [
        ask(lambda conn: step_lists.steps(conn, *RUN, limit=5)),
    ]
    pages_found.append(ask(lambda conn: step_lists.steps(conn, *RUN, limit=5, cursor=pages_found[0].next)))
    assert list(itertools.chain(*(page.steps for page in pages_found))) == found.steps
    assert pages_found[1].next is None
    assert ask(lambda conn: step_lists.steps(conn, *RUN, batch=7)).steps == [nothing]
    assert nothing.parent_step == nothing.step
    assert all(step.parent_step == step.step - 1 for step in found.steps if step.published)


# -- how facts are kept


KEPT = {
    "rollout_facts": "rollout_id, project, model, step, purpose, status, group_id, scenario_id, member, reward, created_at,"
    " seconds, calls, prompt_tokens, sampled_tokens, tool_calls, tool_errors, batch",
    "run_figures": "project, name, metric, step, time, value",
    "run_fates WHERE count > 0": "project, name, fate, count",
}


def everything(conn: sqlite3.Connection) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: sorted(map(repr, conn.execute(f"SELECT {columns} FROM {name}")))
        for name, columns in KEPT.items()
    }
    texts = "SELECT rollout_id, {} FROM rollout_facts JOIN {} ORDER BY 1, 2"
    previews = texts.format("asked, answered", "rollout_previews USING (id)")
    words = texts.format("text", f"rollout_words ON rollout_words.rowid >> {rollout_facts.CALL_BITS} = id")
    return {**found, "previews": conn.execute(previews).fetchall(), "words": conn.execute(words).fetchall()}


def test_an_older_store_is_filled_as_a_newer_one_was(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "server" / DATABASE, tmp_path / DATABASE)
    conn = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    try:
        kept = everything(conn)
        assert all(len(rows) > 10 for rows in kept.values())
        for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            conn.execute(f"DROP TRIGGER {name}")
        for name in ("rollout_facts", "rollout_previews", "rollout_words", "run_figures", "run_fates"):
            conn.execute(f"DROP TABLE {name}")
        ours = (rollout_facts.TABLES[0], fate_rows.TABLES[0])
        for number, steps in enumerate(MIGRATIONS):
            if any(statement in steps for statement in ours):  # the migration alone, on today's other tables
                conn.execute("DELETE FROM schema_version")
                conn.execute("INSERT INTO schema_version VALUES (?, 0)", (number,))
                migrate(conn, MIGRATIONS[: number + 1])
        filled = everything(conn)
        for name, rows in kept.items():
            assert filled[name] == rows, name
    finally:
        conn.close()


def test_a_purge_takes_the_words_out_of_the_file(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "server"
    root.mkdir()
    shutil.copy(folder / "server" / DATABASE, root / DATABASE)
    word = b"telescope"

    def inside() -> int:
        return sum(file.read_bytes().lower().count(word) for file in root.glob(f"{DATABASE}*"))

    async def main() -> None:
        store = await Store.open(root)
        try:
            names = await store.view(
                lambda conn: [
                    row[0]
                    for row in conn.execute(
                        "SELECT rollout_id FROM rollout_facts WHERE id IN (SELECT rowid >> 20 FROM rollout_words"
                        " WHERE rollout_words MATCH 'telescope')"
                    )
                ]
            )
            assert len(names) > 10
            assert inside() > len(names)
            await store.purge(PurgeFilter(rollout_ids=names))
            left = await store.view(
                lambda conn: conn.execute(
                    "SELECT (SELECT COUNT(*) FROM rollout_facts), (SELECT COUNT(*) FROM rollouts),"
                    " (SELECT COUNT(*) FROM rollout_previews), (SELECT COUNT(DISTINCT rowid >> 20) FROM rollout_words)"
                ).fetchone()
            )
            assert len(set(left)) == 1
            assert left[0] > 100
        finally:
            await store.close()

    asyncio.run(main())
    # The tokenizer's and the logged trajectories of evaluations, whose rollouts were purged too, are gone as well.
    assert inside() == 0


def test_figures_take_what_was_logged_last_but_for_what_trained_nothing() -> None:
    conn = sqlite3.connect(":memory:", isolation_level=None)
    migrate(conn)

    def log(step: int, **data: float) -> None:
        named = {name.replace("__", "/"): value for name, value in data.items()}
        figure_rows.add_logged(conn, "p", "m", step=step, recorded_at="2026-11-30T00:00:00+00:00", data=named)

    def values() -> dict[str, Sequence[float]]:
        found: dict[str, list[float]] = defaultdict(list)
        for metric, _, value in conn.execute("SELECT metric, step, value FROM run_figures ORDER BY step"):
            found[metric].append(value)
        return found

    figure_rows.add_batch(conn, "p", "m", step=1, at=5.0, metrics={"train/reward": 0.1, "loss/train": 2.0})
    log(1, train__reward=0.2, data__step_num_gradient_steps=1)
    log(1, val__reward=0.5)
    log(1, val__reward=0.6)
    figure_rows.add_batch(conn, "p", "m", step=1, at=6.0, metrics={"train/reward": 0.9})
    log(1, train__reward=0.9, data__step_num_gradient_steps=0, train__extra=3)
    found = values()
    assert (found["train/reward"], found["loss/train"], found["val/reward"]) == ([0.2], [2.0], [0.6])
    assert found["train/extra"] == [3.0]


def test_fates_are_counted_as_they_are_met(tmp_path: Path) -> None:
    root = (
        seed(tmp_path / "art", Plan(runs=1, steps=2, groups=2, group_size=3, turns=2, evaluate_every=0))
        / "server"
    )
    counted = "SELECT fate, COUNT(*) FROM choices JOIN calls USING (call_id) JOIN rollouts USING (rollout_id) GROUP BY fate"

    def both(conn: Conn) -> tuple[dict[str, int], dict[str, int]]:
        return fate_rows.fates(conn, *RUN), dict(map(tuple, conn.execute(counted)))

    async def main() -> None:
        store = await Store.open(root)
        try:
            kept, found = await store.view(both)
            assert kept == found
            assert kept["trained"] > 0
            await store.purge(PurgeFilter(rollout_ids=["desk-01-1-0-0", "desk-01-2-1-1"]))
            left, found = await store.view(both)
            assert left == found
            assert sum(left.values()) < sum(kept.values())
        finally:
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("content", ["none", "redacted"])
def test_what_is_not_kept_is_not_found(tmp_path: Path, content: str) -> None:
    rule = ContentRule(content="none") if content == "none" else ContentRule(redact=("email",))

    async def main() -> None:
        (tmp_path / "server").mkdir()
        Seal.load(tmp_path / "server", make=True)
        store = await Store.open(tmp_path / "server", redact=redaction_of(rule, {}))
        try:
            await store.open_rollout(RolloutRow(rollout_id="r", project="shop", model="desk-01", step=0))
            tool = {"role": "tool", "tool_call_id": "c", "content": "Error: ann@example.com is unknown"}
            asked = {"role": "user", "content": "write to ann@example.com"}
            said = {"id": "c", "type": "function", "function": {"name": "write", "arguments": "{}"}}
            for number, tail in enumerate(([asked], [tool])):
                call = CallRecord(call_id=f"c{number}", rollout_id="r", number=number, prompt_token_count=5)
                call.choices.append(ChoiceRecord(index=0, finish_reason="stop", token_count=3))
                text = CallText(
                    tail=tail, completions=[{"role": "assistant", "content": None, "tool_calls": [said]}]
                )
                await store.add_call(call, arrays={"prompt_token_ids": np.zeros(5, np.int32)}, text=text)
            for search in ("ann", "example"):
                page = await store.view(
                    lambda conn, search=search: rollout_lists.page(conn, *RUN, Asked(search=search))
                )
                assert page.rollouts == []
            (line,) = (await store.view(lambda conn: rollout_lists.page(conn, *RUN, Asked()))).rollouts
            assert (line.calls, line.tool_calls, line.tool_errors, line.sampled_tokens) == (2, 2, 1, 6)
            assert "ann" not in line.preview
            found = await store.view(lambda conn: rollout_lists.page(conn, *RUN, Asked(search="unknown")))
            assert len(found.rollouts) == (content == "redacted")
        finally:
            await store.close()

    asyncio.run(main())
