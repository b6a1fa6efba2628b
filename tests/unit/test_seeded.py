"""The seeded store: the same options give the same content, it is what it says, and its tokens spell its texts."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from art.errors import Conflict
from art.store.store import Store
from art.testing.seeded import Plan, seed
from art.tokens.tokenizer import Tokenizer
from art.types.policy import Fate

SMALL = Plan(runs=3, steps=8, groups=2, group_size=4, long_tokens=777, evaluate_every=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seed(tmp_path_factory.mktemp("seeded") / "art", SMALL)


def rows(folder: Path, query: str) -> list[Any]:
    conn = sqlite3.connect(f"file:{folder}/server/art.db?mode=ro", uri=True)
    try:
        return conn.execute(query).fetchall()
    finally:
        conn.close()


def test_the_same_plan_gives_the_same_store(folder: Path, tmp_path: Path) -> None:
    other = seed(tmp_path / "again", SMALL)
    for table in (
        "rollouts",
        "calls",
        "choices",
        "batches",
        "run_figures",
        "rollout_facts",
        "logged_trajectories",
    ):
        found, again = (rows(where, f"SELECT * FROM {table}") for where in (folder, other))
        assert len(found) > 20 or table == "batches"
        assert found == again, table
    blobs = sorted((folder / "server" / "blobs").rglob("*.blob"))
    assert blobs
    assert all(
        blob.read_bytes() == (other / blob.relative_to(folder)).read_bytes()
        for blob in blobs[:: len(blobs) // 9]
    )


def test_it_holds_every_kind_of_thing(folder: Path) -> None:
    count = {
        name: rows(folder, f"SELECT COUNT(*) FROM {query}")[0][0]
        for name, query in {
            "runs": "models",
            "trained": "rollouts WHERE status = 'trained'",
            "equal": "rollouts WHERE status = 'zero_variance'",
            "evaluated": "rollouts WHERE purpose = 'evaluate'",
            "errors": "rollouts WHERE status = 'agent_error'",
            "tool errors": "rollout_facts WHERE tool_errors > 0",
            "aside": "calls WHERE auxiliary",
            "branches": "calls WHERE branch = 2",
            "agents": "calls WHERE agent IS NOT NULL",
            "siblings": "choices WHERE choice = 1",
            "reasoning": "calls WHERE text LIKE '%reasoning_content%'",
            "upstream": "upstream_calls",
            "explained": "logged_trajectories WHERE body LIKE '%RULER explanation%'",
            "forks": "models WHERE notes LIKE '%forked from%'",
            "unpublished": "batches WHERE NOT published",
            "keys": "keys",
            "audit": "audit",
        }.items()
    }
    assert [name for name, found in count.items() if not found] == []
    assert count["runs"] == 3
    (rolled_back,) = rows(
        folder, "SELECT step, (SELECT MAX(step) FROM checkpoints) FROM models WHERE name = 'desk-02'"
    )
    assert rolled_back[0] < rolled_back[1]


def test_tokens_spell_what_was_said(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder / "server" / "base_models" / "seeded")

    async def main() -> None:
        store = await Store.open(folder / "server")
        try:
            calls = await store.calls_of("desk-01-3-1-2")
            assert len(calls) >= 3
            for call in calls:
                assert call.blob is not None
                arrays, text = await store.read_arrays(call.blob), await store.text_of(call.call_id)
                for choice in call.choices:
                    ids = arrays[f"c{choice.index}.token_ids"]
                    assert len(ids) == len(arrays[f"c{choice.index}.logprobs"]) == choice.token_count
                    assert (arrays[f"c{choice.index}.logprobs"] <= 0).all()
                    said = tokenizer.decode(ids.tolist())
                    message = text.completions[choice.index]
                    assert (message["content"] or message["tool_calls"][0]["function"]["arguments"]) in said
                assert len(arrays["prompt_token_ids"]) == call.prompt_token_count
            (long,) = await store.calls_of("desk-03-long")
            assert [choice.token_count for choice in long.choices] == [777]
            first, second = (int(span.version.partition("@")[2]) for span in long.choices[0].spans)
            assert second == first + 1
            assert {choice.fate for choice in long.choices} == {Fate.PENDING}
        finally:
            await store.close()

    asyncio.run(main())


def means(folder: Path, split: str) -> list[tuple[float, float, float]]:
    """Reward, rightness and tokens of the first and the last third of a run's steps."""
    query = f"""SELECT AVG(rollouts.reward), AVG(json_extract(rollouts.metrics, '$.right')), AVG(sampled_tokens)
        FROM rollouts JOIN rollout_facts USING (rollout_id)
        WHERE rollouts.model = 'desk-01' AND rollouts.reward IS NOT NULL AND batch {{}} {split}"""
    return [rows(folder, query.format(where))[0] for where in ("<= 4", ">= 9")]


def test_a_run_learns_and_a_reward_bug_does_not(tmp_path: Path) -> None:
    plan: dict[str, Any] = {"runs": 1, "steps": 12, "turns": 2, "evaluate_every": 0}
    learned = means(seed(tmp_path / "good", Plan(**plan)), "")
    assert learned[1][0] > learned[0][0] + 0.3
    assert learned[1][1] > learned[0][1] + 0.3
    padded = means(seed(tmp_path / "bad", Plan(**plan, reward_bug="length")), "")
    assert padded[1][0] > padded[0][0] + 0.1, "the reward rises"
    assert padded[1][2] > padded[0][2] * 1.3, "with the length"
    assert abs(padded[1][1] - padded[0][1]) < 0.12, "and no more is right"


def test_nothing_is_overwritten(folder: Path) -> None:
    with pytest.raises(Conflict):
        seed(folder, SMALL)


def test_the_command(tmp_path: Path) -> None:
    arguments = ["--runs", "1", "--steps", "2", "--groups", "1", "--turns", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "art.testing.seeded", str(tmp_path / "made"), *arguments],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(tmp_path / "made")
    wrong = subprocess.run(
        [sys.executable, "-m", "art.testing.seeded", str(tmp_path / "wrong"), "--groups", "99"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert "scenarios" in wrong.stderr


@pytest.fixture(scope="module")
def history(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "shop" / "models" / "desk-01" / "history.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_history_has_figures_and_intervals(history: list[dict[str, Any]]) -> None:
    assert len(history) == 10
    evaluated = [row for row in history if "val/reward" in row]
    assert all(
        row["val/reward_ci_low"] <= row["val/reward"] <= row["val/reward_ci_high"] for row in evaluated
    )
    assert {"loss/entropy", "parity/mean", "costs/cum/all", "throughput/avg_actor_tok_per_s"} <= history[
        0
    ].keys()
