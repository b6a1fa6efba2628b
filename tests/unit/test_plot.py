"""art.plot: the standard figures, from any form of a run, without touching what is the program's own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import art
from art import plot
from art.errors import InvalidInput

ROWS = [
    {"step": step, "train/reward": step / 10, "train/reward_std_dev": 0.1, "val/reward": 0.5, "val/reward_ci_low": 0.25, "val/reward_ci_high": 0.75}
    for step in range(5)
]  # fmt: skip


def lines(figure: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in figure.axes[0].get_lines()
    }


def band(figure: Any) -> list[tuple[float, float]]:
    [area] = figure.axes[0].collections
    return [tuple(point) for point in area.get_paths()[0].vertices]


def test_a_reward_curve_has_its_spread() -> None:
    figure = plot.reward_curve({"agent": ROWS})
    assert lines(figure) == {"agent": ([0, 1, 2, 3, 4], pytest.approx([0, 0.1, 0.2, 0.3, 0.4]))}
    heights = [y for x, y in band(figure) if x == 2]
    assert (min(heights), max(heights)) == pytest.approx((0.1, 0.3))


def test_an_evaluation_has_its_interval_and_a_mean_where_a_step_has_several_rows() -> None:
    figure = plot.evaluation([*ROWS, {"step": 4, "val/reward": 0.7}])
    [(steps, values)] = lines(figure).values()
    assert (steps[-1], values[-1]) == (4, pytest.approx(0.6))
    assert {y for _, y in band(figure)} == {0.25, 0.75}


def test_smoothing_is_without_the_bias_of_its_start() -> None:
    assert plot._smoothed([1.0, 1.0, 1.0], 0.9) == pytest.approx([1.0, 1.0, 1.0])
    assert plot._smoothed([0.0, 1.0], 0.5) == pytest.approx([0.0, 0.5 / 0.75])


def test_every_form_of_a_run(tmp_path: Path) -> None:
    model: art.Model[Any, Any] = art.Model(name="m", project="p", base_path=str(tmp_path))
    for step in (1, 2):
        asyncio.run(model.log([art.Trajectory(reward=step / 4)], step=step))
    folder = tmp_path / "p" / "models" / "m"
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"step": 3, "val/rew')  # a line that was cut short
    expected = ([1, 2], [0.25, 0.5])
    for run in (model, folder, str(folder / "history.jsonl")):
        assert lines(plot.evaluation(run)) == {"m": expected}
    figure = plot.compare(model, {"m": ROWS})
    assert list(lines(figure)) == ["m", "m (2)"]
    for wrong in (5, tmp_path / "nothing"):
        with pytest.raises(InvalidInput):
            plot.evaluation(wrong)
    with pytest.raises(InvalidInput, match="no run has loss/train"):
        plot.curve("loss/train", model)
    with pytest.raises(InvalidInput, match="smoothing"):
        plot.reward_curve(ROWS, smoothing=1.0)


def test_groups_and_lengths() -> None:
    def member(reward: float, tokens: int) -> art.Trajectory:
        return art.Trajectory(reward=reward, metrics={"completion_tokens": tokens})

    groups = [
        art.TrajectoryGroup([member(0, 1), member(1, 2)]),
        art.TrajectoryGroup([member(0.5, 3), member(0.5, 3)]),
    ]
    assert "1 with equal rewards" in plot.group_spread(groups).axes[0].get_title("left")
    paid = plot.reward_against_length([member(n / 10, n) for n in range(10)])
    assert "r = 1.00" in paid.axes[0].get_title("left")
    spoken = art.Trajectory(reward=1, messages_and_choices=[{"role": "assistant", "content": "four"}])
    figure = plot.reward_against_length([spoken, member(0, 9)])
    assert figure.axes[0].get_xlabel() == "characters of the answers"
    assert plot.correlation([1, 1], [1, 2]) is None
    with pytest.raises(InvalidInput):
        plot.group_spread([])


def test_a_notebook_gets_a_picture_and_the_program_keeps_its_style() -> None:
    code = (
        "import sys, matplotlib\n"
        "def style():  # asking for the backend would load pyplot\n"
        "    return {name: str(matplotlib.rcParams[name]) for name in matplotlib.rcParams if name != 'backend'}\n"
        "before = style()\n"
        "from art import plot\n"
        "figure = plot.reward_curve([{'step': 0, 'train/reward': 1.0}])\n"
        "assert figure._repr_png_().startswith(b'\\x89PNG')\n"
        "assert style() == before and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(art.ArtError, match=r"\[plot\]"):
        plot.reward_curve(ROWS)
