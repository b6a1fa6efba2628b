"""Charts over the frame of `load_trajectories`. Each returns a matplotlib figure and shows nothing by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from art.errors import InvalidInput
from art.plot import COLOURS, FAINT, INK, blank
from art.utils.benchmarking.types import BenchmarkModelKey, key_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from polars import DataFrame


def training_progress_chart(
    df: DataFrame,
    metric_name: str,
    models: Iterable[BenchmarkModelKey | str],
    title: str | None = None,
    x_label: str = "step",
    y_label: str | None = None,
    *,
    perfect_score: float | None = None,
    legend_loc: str = "best",
) -> Figure:
    """The mean of a metric (`reward`, or one of the trajectories') by step; a model of one step is a dashed level."""
    figure, axes = blank()
    for place, key in enumerate(map(key_of, models)):
        steps, values = _means(df, metric_name, key)
        colour = COLOURS[place % len(COLOURS)]
        if len(steps) == 1:
            axes.axhline(values[0], color=colour, linestyle="--", linewidth=1.5, label=key.label)
        else:
            axes.plot(steps, values, color=colour, linewidth=1.8, marker="o", markersize=3.5, label=key.label)
    if perfect_score is not None:
        axes.axhline(perfect_score, color=FAINT, linewidth=1.2, label="perfect")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label or metric_name)
    axes.set_title(title or metric_name, loc="left", color=INK, fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc=legend_loc)
    return figure


def percentage_comparison_bar_chart(
    df: DataFrame,
    metric_name: str,
    models: Iterable[BenchmarkModelKey | str],
    title: str | None = None,
    y_label: str | None = None,
    *,
    perfect_score: float = 1.0,
    num_decimals: int = 0,
) -> Figure:
    """The mean of a metric at each model's last step, in percent of `perfect_score`."""
    figure, axes = blank()
    keys = [key_of(model) for model in models]
    shares = [_means(df, metric_name, key)[1][-1] / perfect_score * 100 for key in keys]
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(keys))]
    bars = axes.bar(range(len(keys)), shares, color=colours, width=0.6)
    axes.bar_label(bars, labels=[f"{share:.{num_decimals}f} %" for share in shares], fontsize=9, color=INK)
    axes.set_xticks(range(len(keys)), [key.label for key in keys])
    axes.set_ylim(0, max(100.0, *shares) * 1.08)
    axes.set_ylabel(y_label or "% of a perfect score")
    axes.set_title(title or metric_name, loc="left", color=INK, fontsize=11)
    return figure


def _means(df: DataFrame, metric: str, key: BenchmarkModelKey) -> tuple[list[int], list[float]]:
    """(steps, means over the trajectories that have the metric). InvalidInput where there are none."""
    column = metric if metric in df.columns else f"metric_{metric}"
    values: dict[int, list[float]] = {}
    if column in df.columns and {"model", "split", "step"} <= set(df.columns):
        for model, split, step, value in df.select("model", "split", "step", column).iter_rows():
            if (model, split) == (key.name, key.split) and value is not None:
                values.setdefault(step, []).append(float(value))
    if not values:
        raise InvalidInput(
            f"there is no {metric} of {key.name} in the split {key.split}",
            cause=f"the frame's columns: {', '.join(df.columns)}",
            hint="BenchmarkModelKey(name, split=...) names another split",
        )
    steps = sorted(values)
    return steps, [sum(values[step]) / len(values[step]) for step in steps]
