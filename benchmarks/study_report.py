"""What the learning study found: figures and bars of all runs there are, a picture for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from bench_demo import bar
from study_runs import DEFAULTS, FEWER_SEEDS, RUNS

from art.demo.cold import TASK as COLD
from art.evals.intervals import Mean, improved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GUESS_REWARD, GUESS_SECONDS = 0.75, 900.0
Results = Mapping[str, Mapping[str, Any]]
"""By the run's name."""


def families(results: Results) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """The results of each task and variant, seed by seed."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in RUNS:
        if run.name in results:
            found.setdefault((run.task, run.variant), []).append(results[run.name])
    return found


def figures(results: Results) -> dict[str, Any]:
    """Mean and spread over seeds of what was measured on held-out scenarios."""
    return {
        f"{task} {variant}": summary(group) for (task, variant), group in sorted(families(results).items())
    }


def summary(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the runs of one task and variant; standard deviations are over seeds."""
    moments = {
        moment: [result["evaluations"][moment]["mean"] for result in group]
        for moment in group[0]["evaluations"]
    }
    seconds = [result["seconds"] for result in group]
    data: dict[str, Any] = {
        "seeds": [result["settings"]["seed"] for result in group],
        "held_out_runs": group[0]["evaluations"]["after"]["runs"],
        "steps": [len(result["steps"]) for result in group],
        "seconds": {"mean": fmean(seconds), "longest": max(seconds)},
    }
    for moment, values in moments.items():
        data[moment] = {
            "mean": fmean(values),
            "standard_deviation": stdev(values) if len(values) > 1 else None,
            "lowest": min(values),
            "highest": max(values),
        }
    if "groups_with_signal" in group[0]:
        data["groups_with_signal"] = {
            moment: [sum(result["groups_with_signal"][moment][place] for result in group) for place in (0, 1)]
            for moment in moments
        }
    return data


def bars(results: Results) -> list[dict[str, Any]]:
    """What must hold."""
    found = figures(results)
    lines = [
        bar("runs that are missing", float(len(RUNS) - len(results)), 0.0, least=False),
        bar("runs that did not improve", float(sum(map(unimproved, results.values()))), 0.0, least=False),
    ]
    if guess := found.get(f"guess {DEFAULTS}"):
        lines += [
            bar("guess: held-out mean", guess["after"]["mean"], GUESS_REWARD, least=True),
            bar("guess: seconds, longest", guess["seconds"]["longest"], GUESS_SECONDS, least=False),
        ]
    if chilled := found.get(f"{COLD.name} {DEFAULTS}"):
        signal = {moment: have / of for moment, (have, of) in chilled["groups_with_signal"].items()}
        gain = chilled["after"]["mean"] - chilled["taught"]["mean"]
        lines += [
            bar("cold: share of groups with a signal before", signal["before"], 0.0, least=False),
            bar("cold: the same after the demonstrations", signal["taught"], 0.5, least=True),
            bar("cold: gain by training after the demonstrations", gain, 0.0, least=True),
        ]
    return lines


def unimproved(result: Mapping[str, Any]) -> bool:
    """True for a run after which the model is not better by more than chance explains."""
    before, after = (
        Mean(one["mean"], one["standard_error"], one["runs"])
        for one in (result["evaluations"][moment] for moment in ("before", "after"))
    )
    return not improved(before, after)


def draw(results: Results, folder: Path) -> list[Path]:
    """A picture for each task that has a result, and one that compares losses; their files."""
    found = families(results)
    files = [
        picture({f"{task}, {len(group)} seeds": group}, f"{task} on the defaults", folder / f"{task}.png")
        for (task, variant), group in found.items()
        if variant == DEFAULTS
    ]
    compared = {
        variant: [result for result in group if result["settings"]["seed"] in FEWER_SEEDS]
        for (task, variant), group in found.items()
        if task == "weather"
    }
    if len(compared) > 1:
        files.append(picture(compared, "weather by loss", folder / "weather-losses.png", every_seed=False))
    return files


def picture(
    groups: Mapping[str, Sequence[Mapping[str, Any]]], title: str, file: Path, *, every_seed: bool = True
) -> Path:
    """Reward by step: mean and standard deviation over seeds, each seed, and the held-out rewards at both ends."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    last = max(len(result["steps"]) for group in groups.values() for result in group)
    for number, (label, group) in enumerate(groups.items()):
        curves(axes, group, label=label, colour=f"C{number}", last=last, every_seed=every_seed)
    axes.set(
        xlabel="train calls (a seed that ended early keeps its last value)",
        ylabel="reward, 0 to 1",
        ylim=(-0.03, 1.03),
        title=f"{title}\nlines: the step's own runs; squares: held-out, mean ± standard deviation over seeds",
    )
    axes.title.set_fontsize("medium")
    axes.grid(alpha=0.2)
    axes.legend(loc="lower right")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110, metadata={"Software": None})  # the same data give the same bytes
    return file


def curves(
    axes: Axes,
    group: Sequence[Mapping[str, Any]],
    *,
    label: str,
    colour: str,
    last: int,
    every_seed: bool,
) -> None:
    """The seeds of one setting, over `last` steps."""
    rewards = [[step["reward"] for step in result["steps"]] for result in group]
    held = [seed + seed[-1:] * (last - len(seed)) for seed in rewards]
    means = [fmean(column) for column in zip(*held, strict=True)]
    spreads = [deviation(column) for column in zip(*held, strict=True)]
    x = range(1, last + 1)
    if every_seed:
        for seed in rewards:
            axes.plot(range(1, len(seed) + 1), seed, color=colour, alpha=0.3, linewidth=0.8)
    axes.plot(x, means, color=colour, linewidth=2, label=label)
    low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    *earlier, final = group[0]["evaluations"]
    places = {moment: 1 - len(earlier) + number for number, moment in enumerate(earlier)} | {final: last + 1}
    for moment, place in places.items():
        values = [result["evaluations"][moment]["mean"] for result in group]
        axes.errorbar(
            [place], [fmean(values)], yerr=[deviation(values)], fmt="s", capsize=4, color=colour, markersize=5
        )


def deviation(values: Sequence[float]) -> float:
    """Standard deviation over seeds; 0 for one seed."""
    return stdev(values) if len(values) > 1 else 0.0
