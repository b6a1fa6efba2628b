"""The standard figures of a run, drawn with matplotlib (`pip install 'agent-reinforcement-trainer[plot]'`).

Each function returns a figure: a notebook shows it, `figure.savefig("reward.png")` writes it. None shows anything by
itself, opens a window, or changes a style of the program's own.

A run is a model (its history on this machine), a folder with a `history.jsonl` or that file, an `art.FitResult`, or rows of a
history as a list of dicts. `{"a name": run}` gives runs their names.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from art.errors import ConfigError, InvalidInput
from art.types.metrics import info

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from art.trajectories import Trajectory, TrajectoryGroup

Run: TypeAlias = Any
"""A model, a folder or file, a FitResult, or rows."""
Rows: TypeAlias = list[dict[str, Any]]

COLOURS = ("#3451b2", "#cd5b00", "#1a7f37", "#8e4ec6", "#b3261e", "#0d74ce", "#706f6c", "#ab6400")
"""Told apart also by those who see fewer colours: neighbours differ in lightness."""
INK, FAINT = "#1c2024", "#c9ccd4"
SIZE = (7.2, 4.0)
"""Inches."""


def reward_curve(*runs: Run, smoothing: float = 0.0) -> Figure:
    """Training reward by step; the band is the reward minus and plus its spread within a group.

    `smoothing`: weight of the past in an exponential mean, 0 to below 1.
    """
    return curve("train/reward", *runs, smoothing=smoothing, spread="train/reward_std_dev")


def evaluation(*runs: Run, split: str = "val") -> Figure:
    """Evaluation reward by step; the band is the 95 % interval."""
    ends = (f"{split}/reward_ci_low", f"{split}/reward_ci_high")
    return curve(f"{split}/reward", *runs, ends=ends)


def compare(*runs: Run, metric: str = "val/reward", smoothing: float = 0.0) -> Figure:
    """One metric of several runs by step, without bands."""
    return curve(metric, *runs, smoothing=smoothing)


def curve(
    metric: str,
    *runs: Run,
    smoothing: float = 0.0,
    spread: str | None = None,
    ends: tuple[str, str] | None = None,
) -> Figure:
    """One metric by step; the mean where a step has several rows. A band of `spread` around it, or between `ends`."""
    if not 0 <= smoothing < 1:
        raise InvalidInput(f"smoothing is {smoothing}", hint="give 0 (none) to below 1")
    figure, axes = blank()
    named = _named(runs)
    drawn = 0
    for place, (name, rows) in enumerate(named.items()):
        steps, values = series(rows, metric)
        if not steps:
            continue
        colour = COLOURS[place % len(COLOURS)]
        drawn += 1
        low_high = _band(rows, metric, spread, ends)
        if low_high is not None:
            axes.fill_between(*low_high, color=colour, alpha=0.16, linewidth=0)
        smooth = _smoothed(values, smoothing)
        if smoothing:
            axes.plot(steps, values, color=colour, alpha=0.3, linewidth=1)
        axes.plot(steps, smooth, color=colour, linewidth=1.8, label=name, **_marker(len(steps)))
    if not drawn:
        raise InvalidInput(
            f"no run has {metric}", cause=f"runs: {', '.join(named)}", hint="see the names in history.jsonl"
        )
    known = info(metric)
    unit = f" ({known.unit})" if known is not None and known.unit not in ("", "1") else ""
    axes.set_xlabel("step")
    axes.set_ylabel(metric + unit)
    axes.set_title(known.title if known is not None else metric, loc="left", color=INK, fontsize=11)
    _whole_steps(axes)
    if len(named) > 1:
        axes.legend(frameon=False, fontsize=9)
    return figure


def group_spread(groups: Iterable[TrajectoryGroup]) -> Figure:
    """The rewards of each group's rollouts: what there is to learn from. A group whose rewards are all equal is marked."""
    figure, axes = blank()
    found = [[trajectory.reward for trajectory in group] for group in groups]
    if not any(found):
        raise InvalidInput("there are no rollouts to draw", hint="pass groups that have trajectories")
    for place, rewards in enumerate(found):
        if not rewards:
            continue
        equal = max(rewards) == min(rewards)
        colour = COLOURS[4] if equal else COLOURS[0]
        axes.vlines(place, min(rewards), max(rewards), color=FAINT, linewidth=6, zorder=1)
        offsets = [place + 0.24 * (number / max(1, len(rewards) - 1) - 0.5) for number in range(len(rewards))]
        axes.scatter(offsets, rewards, s=18, color=colour, zorder=2, linewidth=0)
        axes.hlines(fmean(rewards), place - 0.3, place + 0.3, color=INK, linewidth=1.2, zorder=3)
    equals = sum(bool(rewards) and max(rewards) == min(rewards) for rewards in found)
    note = f", {equals} with equal rewards (red)" if equals else ""
    axes.set_title(f"Rewards by group{note}", loc="left", color=INK, fontsize=11)
    axes.set_xlabel("group")
    axes.set_ylabel("reward")
    _whole_steps(axes)
    return figure


def reward_against_length(rollouts: Iterable[Trajectory | TrajectoryGroup]) -> Figure:
    """Reward against the length of the answers, to spot a reward that pays for length.

    The length is the mean number of sampled tokens per answer (`metrics["completion_tokens"]`), or the characters of the
    answers where one of the rollouts does not tell its tokens. The title has Pearson's r.
    """
    trajectories = list(_flat(rollouts))
    if not trajectories:
        raise InvalidInput("there are no rollouts to draw", hint="pass trajectories or groups")
    told = all("completion_tokens" in trajectory.metrics for trajectory in trajectories)
    lengths = [_length(trajectory, tokens=told) for trajectory in trajectories]
    rewards = [trajectory.reward for trajectory in trajectories]
    figure, axes = blank()
    axes.scatter(lengths, rewards, s=20, color=COLOURS[0], alpha=0.6, linewidth=0)
    r = correlation(lengths, rewards)
    said = "one of them does not vary" if r is None else f"r = {r:.2f}"
    axes.set_title(f"Reward against length, {said}", loc="left", color=INK, fontsize=11)
    axes.set_xlabel("sampled tokens per answer" if told else "characters of the answers")
    axes.set_ylabel("reward")
    return figure


# -- data


def series(rows: Rows, metric: str) -> tuple[list[int], list[float]]:
    """(steps, values) of a metric, the mean where a step has several rows."""
    found: dict[int, list[float]] = {}
    for row in rows:
        step, value = row.get("step", row.get("training_step")), row.get(metric)
        if isinstance(step, int) and isinstance(value, int | float):
            found.setdefault(step, []).append(float(value))
    steps = sorted(found)
    return steps, [fmean(found[step]) for step in steps]


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's r; None where one of them does not vary."""
    mean_a, mean_b = fmean(first), fmean(second)
    a, b = [value - mean_a for value in first], [value - mean_b for value in second]
    scale = (sum(value * value for value in a) * sum(value * value for value in b)) ** 0.5
    return sum(x * y for x, y in zip(a, b, strict=True)) / scale if scale else None


def _named(runs: Sequence[Run]) -> dict[str, Rows]:
    if not runs:
        raise InvalidInput("no run is given", hint="reward_curve(model), or reward_curve({'a name': rows})")
    found: dict[str, Rows] = {}
    for number, run in enumerate(runs, start=1):
        pairs = run.items() if isinstance(run, Mapping) else [_named_run(run, number)]
        for name, one in pairs:
            label, again = str(name), 2
            while label in found:
                label, again = f"{name} ({again})", again + 1
            found[label] = one if isinstance(one, list) else _rows(one)
    return found


def _named_run(run: Run, number: int) -> tuple[str, Rows]:
    if isinstance(run, str | Path):
        path = Path(run)
        return (path.parent if path.name == "history.jsonl" else path).name, _rows(run)
    return str(getattr(run, "name", f"run {number}")), _rows(run)


def _rows(run: Run) -> Rows:
    if isinstance(run, list):
        return run
    if isinstance(run, str | Path):
        return _read(Path(run))
    if hasattr(run, "files"):
        rows: Rows = run.files().history()
        return rows
    if hasattr(run, "steps"):
        measured = [
            ("val/reward", "eval_reward"),
            ("train/reward", "reward"),
            ("train/reward_std_dev", "reward_std_dev"),
        ]
        return [
            {"step": one.batch, **one.metrics, **{name: getattr(one, field) for name, field in measured}}
            for one in run.steps
        ]
    raise InvalidInput(
        f"a {type(run).__name__} is no run",
        hint="pass a model, a folder with a history.jsonl, an art.FitResult, or rows as a list of dicts",
    )


def _read(path: Path) -> Rows:
    file = path / "history.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise InvalidInput(
            f"{file} does not exist", hint="a model's folder is <path>/<project>/models/<name>"
        )
    rows = []
    for line in file.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # a line that was cut short
    return [row for row in rows if isinstance(row, dict)]


def _band(
    rows: Rows, metric: str, spread: str | None, ends: tuple[str, str] | None
) -> tuple[list[int], list[float], list[float]] | None:
    """(steps, low, high) of the steps that have a band."""
    values = dict(zip(*series(rows, metric), strict=True))
    if spread is not None:
        around = dict(zip(*series(rows, spread), strict=True))
        steps = sorted(values.keys() & around.keys())
        low = [values[step] - around[step] for step in steps]
        high = [values[step] + around[step] for step in steps]
        return (steps, low, high) if steps else None
    if ends is not None:
        lows, highs = (dict(zip(*series(rows, name), strict=True)) for name in ends)
        steps = sorted(values.keys() & lows.keys() & highs.keys())
        return (steps, [lows[step] for step in steps], [highs[step] for step in steps]) if steps else None
    return None


def _smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Exponential mean with the bias of its start taken out (Kingma and Ba 2015, section 3)."""
    found, mean = [], 0.0
    for number, value in enumerate(values, start=1):
        mean = weight * mean + (1 - weight) * value
        found.append(mean / (1 - weight**number))
    return found


def _flat(rollouts: Iterable[Trajectory | TrajectoryGroup]) -> Iterable[Trajectory]:
    for item in rollouts:
        members: Any = getattr(item, "trajectories", [item])
        yield from members


def _length(trajectory: Trajectory, *, tokens: bool) -> float:
    if tokens:
        return float(trajectory.metrics["completion_tokens"])
    said = (message for message in trajectory.messages() if message.get("role") == "assistant")
    return float(sum(len(str(message.get("content") or "")) for message in said))


# -- drawing


def blank() -> tuple[Figure, Axes]:
    """An empty figure in the style of all of them. ConfigError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "art.plot needs matplotlib",
            cause=str(error),
            hint="pip install 'agent-reinforcement-trainer[plot]'",
        ) from error

    class Chart(Figure):
        """A figure that a notebook shows, whether or not the program uses pyplot."""

        def _repr_png_(self) -> bytes:
            target = io.BytesIO()
            self.savefig(target, format="png", dpi=110)
            return target.getvalue()

    figure = Chart(figsize=SIZE, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.set_facecolor("white")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color=FAINT, linewidth=0.6, alpha=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _whole_steps(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _marker(points: int) -> dict[str, Any]:
    """Single points would be invisible as a line."""
    return {"marker": "o", "markersize": 4} if points <= 12 else {}
