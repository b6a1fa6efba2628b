"""What the figures of a run come to, as the store keeps it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

import pytest

import art
from art.errors import ConfigError
from art.store import step_rows, total_rows
from art.store.schema import migrate

RUN = ("p", "m")


@pytest.fixture
def conn() -> Iterator[sqlite3.Connection]:
    conn = sqlite3.connect(":memory:", isolation_level=None)
    conn.row_factory = sqlite3.Row
    migrate(conn)
    yield conn
    conn.close()


def test_a_store_that_kept_no_sums_goes_on_from_its_batches(conn: sqlite3.Connection) -> None:
    for batch in (1, 2):
        metrics = json.dumps(
            {"data/step_num_trajectories": 8.0, "time/step_trainer_s": 0.5, "loss/train": 1.0}
        )
        conn.execute(
            "INSERT INTO batches VALUES ('p', 'm', ?, ?, 0, 1, 1, '', ?, 0.0)", (batch, f"j{batch}", metrics)
        )
    added = total_rows.add(conn, *RUN, {"data/step_num_trajectories": 4.0, "step": 3, "recorded_at": "now"})
    assert added == {"data/cum/num_trajectories": 20.0}
    assert total_rows.get(conn, *RUN) == {"data/cum/num_trajectories": 20.0, "time/cum/trainer_s": 1.0}
    assert total_rows.get(conn, "p", "other") == {}


def test_scenarios_are_counted_once_and_their_names_are_not_kept(conn: sqlite3.Connection) -> None:
    named = [total_rows.digest(name) for name in ("a secret scenario", "b", "b")]
    assert total_rows.meet(conn, *RUN, [], named) == {total_rows.SCENARIOS: 2.0}
    assert total_rows.meet(conn, *RUN, [], named[:1]) == {total_rows.SCENARIOS: 2.0}
    assert total_rows.meet(conn, "p", "other", [], []) == {}
    assert "secret" not in "".join(str(tuple(row)) for row in conn.execute("SELECT * FROM run_scenarios"))


@pytest.mark.parametrize(
    ("intervals", "since", "seconds"),
    [
        ([], 0.0, 0.0),
        ([(1.0, 2.0), (1.5, 3.0), (5.0, 6.0)], 0.0, 3.0),
        ([(5.0, 6.0), (1.0, 10.0)], 0.0, 9.0),
        ([(1.0, 4.0)], 3.0, 1.0),
        ([(1.0, 2.0)], 3.0, 0.0),
        ([(4.0, 3.0)], 0.0, 0.0),
    ],
)
def test_time_in_which_a_rollout_ran(
    intervals: list[tuple[float, float]], since: float, seconds: float
) -> None:
    assert step_rows.covered(intervals, since) == seconds


@pytest.mark.parametrize("cost", [-1.0, float("inf"), float("nan")])
def test_an_hour_of_a_machine_costs_something_that_can_be_counted(cost: float) -> None:
    with pytest.raises(ConfigError, match="gpu_cost_per_hour_usd"):
        art.RemoteBackend("http://127.0.0.1:1", "key", gpu_cost_per_hour_usd=cost)
    assert art.RemoteBackend("http://127.0.0.1:1", "key").gpu_cost_per_hour_usd is None
