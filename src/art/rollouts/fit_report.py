"""What a fit says: its steps and its result as data, and the sentences a person reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from art.trajectories import TrajectoryGroup
from art.types.policy import RolloutStatus
from art.types.wire import TrajectoryOutcome

EXAMPLES = 2
"""Answers kept of each batch, to show when nothing was learned from it."""
EXAMPLE_CHARACTERS = 60


@dataclass(frozen=True, repr=False)
class FitStep:
    """One batch of a fit, as `on_step` sees it."""

    batch: int
    """Train calls of the model so far, this one included."""
    step: int
    published: bool
    reason: str
    """Why nothing was published; empty otherwise."""
    reward: float | None
    """Mean over the batch's trajectories; None when every run raised."""
    reward_std_dev: float | None
    exceptions: int
    seconds: float
    checkpoint_path: str | None = None
    """Folder of the published checkpoint, on the server's machine."""
    metrics: dict[str, float] = field(default_factory=dict)
    trajectories: list[TrajectoryOutcome] = field(default_factory=list)
    eval_reward: float | None = None
    """Mean over the evaluation that followed; None when there was none."""
    examples: list[str] = field(default_factory=list)
    """Up to two different last answers of the batch's runs, shortened."""

    def __repr__(self) -> str:
        parts = [f"batch={self.batch}", f"step={self.step}", f"published={self.published}"]
        parts += [f"reason={self.reason!r}"] if self.reason else []
        parts += [f"reward={_number(self.reward)}"]
        parts += [f"eval_reward={_number(self.eval_reward)}"] if self.eval_reward is not None else []
        parts += [f"trajectories={len(self.trajectories)}", f"exceptions={self.exceptions}"]
        return f"FitStep({', '.join(parts)}, seconds={self.seconds:.1f})"


@dataclass(frozen=True, repr=False)
class FitResult:
    """What a fit did."""

    step: int
    """The published step."""
    batch: int
    """Train calls of the model so far, those of earlier runs included."""
    steps: list[FitStep]
    """Those of this run; earlier ones are in the model's history."""
    checkpoint_path: str | None = None
    """Folder of the latest checkpoint, on the server's machine."""
    note: str = ""
    """Why this run published nothing and what to do about it; empty when it published."""
    stopped_by: str = ""
    """The budget that ended it before all batches were done; empty otherwise."""
    eval_reward_before: float | None = None
    """Mean over the evaluation before the model's first batch; None where there was none."""

    @property
    def published(self) -> int:
        """How many batches of this run published a step."""
        return sum(step.published for step in self.steps)

    def _repr_html_(self) -> str:
        from art.notebook import fit_html

        return fit_html(self)

    def __repr__(self) -> str:
        parts = [f"step={self.step}", f"batch={self.batch}", f"published={self.published}/{len(self.steps)}"]
        if self.steps:
            first, last = self.steps[0].reward, self.steps[-1].reward
            parts.append(f"reward={_number(first)}->{_number(last)}")
        return f"FitResult({', '.join(parts)}, checkpoint_path={self.checkpoint_path!r})"


def _number(value: float | None) -> str:
    return "None" if value is None else f"{value:.3f}"


# -- sentences


def progress_line(model: str, report: FitStep, steps: int) -> str:
    """One batch in one line."""
    parts = [
        f"{model}: batch {report.batch}/{steps}",
        f"step {report.step}" + ("" if report.published else f" (nothing published: {why(report)})"),
        "no rewards"
        if report.reward is None
        else f"reward {report.reward:.3f} ± {report.reward_std_dev:.3f}",
    ]
    if report.eval_reward is not None:
        parts.append(f"eval {report.eval_reward:.3f}")
    if report.exceptions:
        parts.append(_counted(report.exceptions, "exception"))
    parts.append(f"{report.seconds:.1f} s")
    return "  ".join(parts)


def where_it_stands(model: str, *, batch: int, step: int, steps: int) -> str:
    """What a fit finds when it starts; empty for a model that has not been trained."""
    if batch == 0:
        return ""
    if batch < steps:
        return f"{model}: resuming after batch {batch} of {steps}, at step {step}"
    done = "the one batch is" if batch == 1 else f"all {batch} batches are"
    if batch > steps:
        done = f"{batch} batches, more than steps={steps}, are"
    if step == 0:
        return (
            f"{model}: {done} done already, and nothing was learned from them (step 0 is published); "
            f"steps={batch + 1} or more goes on, another model name is a fresh start"
        )
    return (
        f"{model}: {done} done already and step {step} is published; "
        "give more steps, or another model name for a fresh start"
    )


def stopped(model: str, *, batch: int, steps: int) -> str:
    """What a fit says that is cancelled, by Ctrl-C for one."""
    return f"{model}: stopped after batch {batch} of {steps}; run again, it goes on there"


def ended_early(model: str, reason: str, *, batch: int, steps: int) -> str:
    """What a fit says that its budget ended; empty for one that is done."""
    if not reason or batch >= steps:
        return ""
    return f"{model}: {reason}; ended after batch {batch} of {steps}, a larger budget goes on there"


def why(report: FitStep) -> str:
    """Why a batch published nothing, in words; the server's own reason where the runs do not tell."""
    counts = Counter(_WORDS[outcome.status] for outcome in report.trajectories if outcome.status in _WORDS)
    if sum(counts.values()) < len(report.trajectories) or not counts:
        return report.reason
    if set(counts) == {_WORDS[RolloutStatus.ZERO_VARIANCE]}:
        return equal_rewards([report])
    return ", ".join(f"{_counted(count, 'run')} {words}" for words, count in counts.items())


_WORDS = {
    RolloutStatus.ZERO_VARIANCE: "without another reward to compare with",
    RolloutStatus.NO_CALLS: "made no call that can be trained",
    RolloutStatus.OVERLONG: "longer than the model's context",
    RolloutStatus.STALE: "sampled from a step too old",
    RolloutStatus.AGENT_ERROR: "ended in an error of the agent",
    RolloutStatus.INFRA_ERROR: "ended in a failure that is not the agent's",
}


def equal_rewards(reports: Sequence[FitStep]) -> str:
    """How the rewards of batches were equal: all of them, or those of each group."""
    runs = sum(len(report.trajectories) for report in reports)
    rewards = {report.reward for report in reports}
    if len(rewards) == 1 and not any(report.reward_std_dev for report in reports):
        if runs == 1:
            return "a group of one run has nothing to compare its reward with"
        return f"all {runs} runs got the same reward ({rewards.pop() or 0:g})"
    return "the runs of each scenario got the same reward"


def nothing_learned(model: str, done: Sequence[FitStep]) -> str:
    """What to tell when no batch published anything; empty when one did, or none was run."""
    if not done or any(report.published for report in done):
        return ""
    outcomes = [outcome for report in done for outcome in report.trajectories]
    batches = _counted(len(done), "batch", "batches")
    if any(outcome.status is not RolloutStatus.ZERO_VARIANCE for outcome in outcomes) or not outcomes:
        reasons = "; ".join(dict.fromkeys(why(report) for report in done))
        return f"{model}: nothing was learned in {batches}: {reasons}"
    examples = list(dict.fromkeys(text for report in done for text in report.examples))[:EXAMPLES]
    said = f" Two of the answers: {examples[0]!r} and {examples[1]!r}." if len(examples) == 2 else ""
    if len(examples) == 1:
        said = f" The answer was always the like of {examples[0]!r}."
    return (
        f"{model}: nothing was learned in {batches}: {equal_rewards(done)}.{said} "
        "Only differences between the runs of one scenario teach: give part of the reward for part of the "
        "task, choose scenarios that the model sometimes gets right, or run more rollouts per group."
    )


def examples_of(groups: Iterable[TrajectoryGroup]) -> list[str]:
    """Up to two different last answers of the groups' runs, each on one short line."""
    found: list[str] = []
    for trajectory in (trajectory for group in groups for trajectory in group):
        turns = [turn for turn in trajectory.messages() if turn.get("role") == "assistant"]
        text = " ".join(str(turns[-1].get("content") or "").split()) if turns else ""
        short = text if len(text) <= EXAMPLE_CHARACTERS else f"{text[:EXAMPLE_CHARACTERS]}…"
        if short and short not in found:
            found.append(short)
        if len(found) == EXAMPLES:
            break
    return found


def _counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
