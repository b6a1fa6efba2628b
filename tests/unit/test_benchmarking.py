"""art.utils.benchmarking over what models have logged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import art
from art.errors import InvalidInput
from art.testing.seeded import Plan, seed
from art.utils import benchmarking
from art.utils.benchmarking.charts import percentage_comparison_bar_chart, training_progress_chart
from art.utils.benchmarking.load_trajectories import load_trajectories
from art.utils.benchmarking.types import BenchmarkModelKey
from art.utils.trajectory_logging import write_trajectory_groups_parquet


def group(*rewards: float) -> art.TrajectoryGroup:
    members = [
        art.Trajectory(
            messages_and_choices=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text"}]}],
            reward=reward, metrics={"won": reward > 0.5}, metadata={"city": "Paris"},
        )
        for reward in rewards
    ]  # fmt: skip
    return art.TrajectoryGroup(members, metadata={"hard": 1}, metrics={"n": 2})


def load(folder: Path, **options: Any) -> Any:
    return asyncio.run(load_trajectories("p", art_path=folder, **options))


def test_files_of_both_kinds_become_one_frame(tmp_path: Path) -> None:
    model: art.Model[Any, Any] = art.Model(name="small", project="p", base_path=str(tmp_path))
    asyncio.run(model.log([group(0.0, 1.0)], step=1))
    asyncio.run(model.log([group(1.0)], step=2))
    old = tmp_path / "p" / "models" / "old" / "trajectories" / "val" / "0003.parquet"
    write_trajectory_groups_parquet([group(0.25)], old)
    df = load(tmp_path)
    assert df.height == 4
    assert sorted(df["model"].unique()) == ["old", "small"]
    assert df.filter(df["model"] == "old")["step"].to_list() == [3]
    assert df["metric_won"].to_list().count(1.0) == 2
    assert set(df["group_metadata_hard"]) == {"1"}
    assert set(df["group_metric_n"]) == {2.0}
    assert df["messages"][0][1]["content"] == '[{"type": "text"}]'
    assert load(tmp_path, models=["old"]).height == 1
    assert load(tmp_path / "nothing").height == 0

    chart = training_progress_chart(
        df, "reward", [BenchmarkModelKey("small", "Small"), "old"], perfect_score=1.0
    )
    drawn = {line.get_label(): list(line.get_ydata()) for line in chart.axes[0].get_lines()}
    assert drawn["Small"] == [0.5, 1.0]
    assert drawn["old"] == [0.25, 0.25], "a model of one step is a level"
    bars = percentage_comparison_bar_chart(df, "won", ["small", "old"], num_decimals=1)
    assert [bar.get_height() for bar in bars.axes[0].patches] == [100.0, 0.0]
    with pytest.raises(InvalidInput, match="no nothing of small"):
        training_progress_chart(df, "nothing", ["small"])


def test_a_servers_store_is_read(tmp_path: Path) -> None:
    folder = seed(tmp_path / "runs", Plan(runs=1, steps=2, evaluate_every=1))
    df = asyncio.run(load_trajectories("shop", art_path=folder))
    assert df.height > 5
    assert "val" in set(df["split"])


def test_what_is_not_offered_says_what_there_is_instead() -> None:
    with pytest.raises(AttributeError, match="not in this release; instead"):
        benchmarking.load_latest_metrics  # noqa: B018
