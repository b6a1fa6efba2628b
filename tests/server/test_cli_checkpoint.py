"""`art checkpoint`: steps, where they come from, and the latest, as a person sees and changes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from train_kit import Trained

from art.cli.checkpoint import ancestors
from art.types.wire import Checkpoint

MODEL = "p/lined"


@pytest.fixture(scope="module")
def lined(taught: Trained) -> Trained:
    """A model whose step 2 was rolled back to 1 before step 3 was trained."""
    taught.register("lined")

    def train(step: int) -> None:
        done = taught.train(
            [taught.group([0.0, 1.0], model=MODEL)], name="lined", config={"learning_rate": 1e-3}
        )
        assert done["step"] == step

    train(1)
    train(2)
    art(taught, "rollback", "1", "--yes")
    train(3)
    return taught


def art(server: Trained, *arguments: str, exit_status: int = 0, typed: str = "") -> Any:
    command = [sys.executable, "-m", "art.cli", "checkpoint", *arguments]
    done = subprocess.run(
        [*command, "--model", MODEL, "--url", server.server.url],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "ART_API_KEY": server.server.admin_key},
        input=typed,
    )
    assert done.returncode == exit_status, done.stderr + done.stdout
    return done


def steps(server: Trained) -> list[tuple[int, int | None]]:
    found = server.api("GET", f"models/{MODEL}/checkpoints")["checkpoints"]
    return [(one["step"], one["parent_step"]) for one in found]


def test_where_a_step_comes_from(lined: Trained) -> None:
    assert steps(lined) == [(0, None), (1, 0), (2, 1), (3, 1)]
    listed = art(lined, "list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["0", "1", "2", "*"]
    assert "after 1" in listed[3]
    assert "reward 0.500" in listed[3]
    told = json.loads(art(lined, "lineage", "--json").stdout)
    assert [one["step"] for one in told["steps"]] == [3, 1, 0]
    assert told["deleted"] is None


def test_rolling_back_asks_and_can_be_undone(lined: Trained) -> None:
    refused = art(lined, "rollback", "2", typed="n\n", exit_status=1)
    assert f"step 2 of {MODEL} instead of 3" in refused.stderr
    assert "is at step 2 (was 3)" in art(lined, "rollback", "2", typed="y\n").stdout
    assert lined.api("GET", f"models/{MODEL}")["step"] == 2
    assert "is at step 3 (was 2)" in art(lined, "rollback", "3", "--yes").stdout
    assert "9" in art(lined, "rollback", "9", "--yes", exit_status=1).stderr


def test_a_deleted_parent_ends_the_line(lined: Trained) -> None:
    assert "in use" in art(lined, "delete", "1", "3", "--yes", exit_status=1).stderr
    assert len(steps(lined)) == 4
    done = art(lined, "delete", "1", "7", "--yes")
    assert done.stdout == "deleted 1\n"
    assert "no step 7" in done.stderr
    lineage = art(lined, "lineage").stdout.splitlines()
    assert lineage[-1].split() == ["1", "deleted,", "or", "of", "another", "model"]
    assert len(lineage) == 2


def test_a_line_ends_at_what_is_not_there() -> None:
    made = {
        step: Checkpoint(step=step, path="", created_at=0.0, parent_step=parent) for step, parent in [(4, 2)]
    }
    found, missing = ancestors(made, 4)
    assert ([one.step for one in found], missing) == ([4], 2)
    assert ancestors({}, 4) == ([], 4)
