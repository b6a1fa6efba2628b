"""The reward curve as a PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from art.errors import ConfigError

if TYPE_CHECKING:
    from art.demo.run import Outcome


def available() -> None:
    """ConfigError with the install line when matplotlib is missing: before the training, not after it."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            "the demo draws its reward curve with matplotlib, which is not installed",
            hint="pip install 'agent-reinforcement-trainer[server,demo]'",
        ) from error


def plot_rewards(outcome: Outcome, file: Path) -> Path:
    """Training reward by step, with the held-out means and their 95 % intervals at both ends."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = range(1, len(outcome.rewards) + 1)
    axes.plot(steps, outcome.rewards, marker="o", label="training, mean of the step's runs")
    for step, mean, label in (
        (0, outcome.before, "held-out, 95 % interval"),
        (len(outcome.rewards) + 1, outcome.after, None),
    ):
        low, high = mean.ci95
        axes.errorbar(
            [step],
            [mean.value],
            yerr=[[mean.value - low], [high - mean.value]],
            fmt="s",
            capsize=4,
            color="tab:orange",
            label=label,
        )
    axes.axhline(outcome.best_constant, linestyle=":", color="gray", label="best constant answer")
    axes.set(
        xlabel="step", ylabel="reward", ylim=(-0.05, 1.05), title=f"{outcome.task}: {outcome.base_model}"
    )
    axes.legend(loc="lower right")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    return file
