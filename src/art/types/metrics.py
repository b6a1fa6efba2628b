"""Metric names: the one source of what a figure is called, its unit, what it means, and when to worry.

A name is `section/name`. Sections of `SECTIONS` stand for themselves; every other name gets its split as its section
(`full_name`). `info` finds a name's meaning, also that of a family (`val/*`). What is summed up over a run, and under
which name, is in `types/cumulative`; the families of those sums are made from the step's figures here.

Bands are rules of thumb: past one, look; what to look at stands in `warning`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

from art.types.wire_views import MetricInfo

SPLITS = ("train", "val", "test")
"""Splits that are sections of their own without being asked for."""
SECTIONS: Mapping[str, str] = {
    "train": "Training",
    "val": "Evaluation",
    "test": "Test",
    "reward": "Rewards",
    "loss": "Loss",
    "parity": "Trained against served",
    "offpolicy": "Staleness",
    "pipeline": "Pipeline",
    "throughput": "Throughput",
    "time": "Time",
    "data": "Data",
    "costs": "Costs",
    "discarded": "Discarded",
    "checkpoint": "Checkpoints",
}
"""Sections and their titles, in the order in which a person looks at them."""
POSITION = ("training_step", "step", "recorded_at")
"""Keys of a history row that are no metrics."""

_Better = Literal["up", "down", ""]


def _m(name: str, title: str, unit: str, meaning: str, better: _Better = "", **band: Any) -> MetricInfo:
    return MetricInfo(name=name, title=title, unit=unit, meaning=meaning, direction=better, **band)


_TRAIN = (
    _m("train/reward", "Reward", "", "Mean reward of the rollouts that were handed to the train call.", "up"),
    _m(
        "train/reward_std_dev", "Spread of rewards", "",
        "Standard deviation of rewards inside a group, averaged over groups: what a step learns from.",
        warn_below=1e-6, warning="All rollouts of a scenario get the same reward, so nothing is learned: reward part of the task, or choose other scenarios.",
    ),
    _m(
        "train/exception_rate", "Exceptions", "1", "Share of the rollouts that raised instead of giving a trajectory.", "down",
        warn_above=0.25, warning="The agent fails often; `art ls` and the rollouts' reasons say why.",
    ),
    _m("train/overlong_penalty", "Length penalty", "", "Mean of what overlong_penalty took from the rewards.", "down"),
    _m("train/steps_off_policy", "Steps off policy", "steps", "Published steps between sampling and training, mean over groups.", "down"),
    _m("train/discarded_stale_groups", "Stale groups", "groups", "Groups that were too old to be trained, since the step before.", "down"),
    _m("train/completion_tokens", "Rollout length", "tokens", "Sampled tokens of a rollout, all its answers together, mean over rollouts."),
    _m("train/duration", "Rollout duration", "s", "Seconds of a rollout, mean over rollouts."),
    _m("train/*_duration", "Duration", "s", "Seconds that rollouts spent there (`track_duration`), mean over rollouts."),
    _m("train/group_*", "Group metric", "", "A metric of the program's groups, mean over groups."),
    _m("train/*", "Metric", "", "A metric of the program's rollouts, mean over the rollouts that have it."),
)  # fmt: skip
_EVALUATION = (
    _m("*/reward", "Evaluation reward", "", "Mean reward of the evaluation.", "up"),
    _m("*/reward_std_dev", "Spread of rewards", "", "Standard deviation of rewards inside a group, averaged over groups."),
    _m("*/reward_ci_low", "Lower end", "", "Lower end of the 95 % interval of the mean reward, by resampling scenarios."),
    _m("*/reward_ci_high", "Upper end", "", "Upper end of the 95 % interval of the mean reward, by resampling scenarios."),
    _m(
        "*/exception_rate", "Exceptions", "1", "Share of the evaluation's runs that raised.", "down",
        warn_above=0.25, warning="The agent fails often, so the mean is one of the runs that went well.",
    ),
    _m("*/completion_tokens", "Rollout length", "tokens", "Sampled tokens of a rollout, all its answers together, mean over rollouts."),
    _m("*/duration", "Run duration", "s", "Seconds of a run, mean over runs."),
    _m("*/*_duration", "Duration", "s", "Seconds that runs spent there (`track_duration`), mean over runs."),
    _m("val/group_*", "Group metric", "", "A metric of the evaluation's groups, mean over groups."),
    _m("test/group_*", "Group metric", "", "A metric of the test's groups, mean over groups."),
    _m("val/*", "Metric", "", "A metric of the evaluation's runs, mean over the runs that have it."),
    _m("test/*", "Metric", "", "A metric of the test's runs, mean over the runs that have it."),
    _m("reward/*", "Reward part", "", "A part of the reward, as the program logs it."),
)  # fmt: skip
_LOSS = (
    _m("loss/train", "Loss", "", "Mean loss of the step's updates. Under a policy gradient its sign and trend say little; the reward says more."),
    _m("loss/train_last", "Last loss", "nats", "Loss of the last update of a call of supervised fine-tuning.", "down"),
    _m(
        "loss/entropy", "Entropy", "nats", "Mean entropy of the distribution that each trained token was sampled from.",
        warn_below=0.02, warning="Answers hardly vary any more, so groups have no spread: lower learning_rate, or raise entropy_coef.",
    ),
    _m("loss/kl_policy_ref", "KL to the reference", "nats", "Estimated divergence from the reference, per trained token.", "down",
       warn_above=1.0, warning="The model is far from its reference: raise kl_penalty_coef or lower learning_rate."),
    _m("loss/kl_div", "KL penalty", "nats", "openpipe-art's name of the divergence from the reference.", "down"),
    _m("loss/clip_fraction", "Clipped", "1", "Share of trained tokens whose probability ratio was outside the clip.", "down",
       warn_above=0.3, warning="Much of the step is clipped away: lower learning_rate, or make fewer updates per call."),
    _m("loss/truncated_fraction", "Truncated", "1", "Share of trained tokens whose train/serve ratio was past its bound.", "down",
       warn_above=0.1, warning="What is trained is far from what was sampled: lower max_steps_off_policy, and look at the parity."),
    _m("loss/grad_norm", "Gradient norm", "", "Norm of the gradient before it is clipped to max_grad_norm, mean over updates.",
       warn_above=100.0, warning="Gradients are large: lower learning_rate, or scale the rewards down."),
    _m("loss/learning_rate", "Learning rate", "", "Step size of the optimizer, mean over updates."),
    _m("loss/*", "Loss figure", "", "A figure of the loss, as a loss of the program's own logs it."),
)  # fmt: skip
_PARITY = (
    _m("parity/mean", "Parity gap", "nats", "Mean absolute difference between trainer's and recorded log-probabilities.", "down",
       warn_above=0.06, warning="Near the bound at which a step is refused: temperature, template, adapter or number format differ."),
    _m("parity/p99", "Parity gap, 99 %", "nats", "99th percentile of that difference.", "down",
       warn_above=0.3, warning="Single tokens are far off: look at the tokens by served-against-trained gap."),
    _m("parity/k3", "Parity KL", "nats", "Estimated divergence of the trainer's distribution from the served one.", "down",
       warn_above=4e-3, warning="Trainer and engine compute different models: `art doctor` names the cause."),
    _m("parity/max", "Parity gap, largest", "nats", "Largest of those differences; it has no bound.", "down"),
    _m("parity/tokens", "Parity tokens", "tokens", "Tokens that were compared: those sampled from the step's parent."),
)  # fmt: skip
_OFFPOLICY = (
    _m("offpolicy/mean_steps", "Staleness", "steps", "Published steps between sampling and training, mean over sampled tokens.", "down",
       warn_above=8.0, warning="Tokens are old when they are trained: lower num_rollout_workers or max_steps_off_policy."),
    _m("offpolicy/max_steps", "Staleness, oldest", "steps", "The same of the oldest token of the batch.", "down"),
    _m("offpolicy/*", "Staleness figure", "", "A figure of how old the samples are."),
)  # fmt: skip
_PIPELINE = (
    _m("pipeline/running_groups", "Running groups", "groups", "Groups that ran when the step began."),
    _m("pipeline/waiting_groups", "Waiting groups", "groups", "Finished groups that waited when the step began."),
    _m("pipeline/failed_groups", "Failed groups", "groups", "Groups without a trajectory, since the step before.", "down",
       warn_above=0.0, warning="Whole groups fail: the exceptions of the step's groups say why."),
    _m("discarded/reward", "Reward of discarded", "", "Mean reward of groups that were too old."),
    _m("discarded/steps_off_policy", "Age of discarded", "steps", "Steps between sampling and discarding, mean over groups.", "down"),
    _m("discarded/groups", "Discarded groups", "groups", "Groups that were too old to be trained.", "down"),
    _m("discarded/group_*", "Group metric", "", "A metric of discarded groups, mean over groups."),
    _m("discarded/*", "Discarded", "", "A metric of rollouts that were too old, mean over rollouts."),
    _m("pipeline/tracker_drops", "Reports lost by trackers", "reports",
       "Rows, rollouts and checkpoints that some tracker did not get, since the program began.", "down",
       warn_above=0.0, warning="A tracker is down, wrong, or slower than the run; a line on stderr says which, and why."),
    _m("pipeline/*", "Pipeline figure", "", "A figure of the pipeline, as the program logs it."),
    _m("checkpoint/created_at_unix", "Published at", "s", "When the step was published, in seconds since 1970."),
    _m("checkpoint/eval_completed", "Evaluated", "", "1 on the row of a step whose evaluation has ended."),
    _m("checkpoint/saved", "Saved", "", "1 where the train call published a step, 0 where it did not."),
)  # fmt: skip
_THROUGHPUT = (
    _m("throughput/step_trainer_tok_per_s", "Trainer speed", "tokens/s", "Tokens that the trainer computed per second of its work.", "up"),
    _m("throughput/step_actor_tok_per_s", "Sampling speed", "tokens/s", "Sampled tokens of the batch per second of its rollouts.", "up"),
    _m("throughput/avg_trainer_tok_per_s", "Trainer speed, mean", "tokens/s", "The run's trainer tokens over its trainer seconds.", "up"),
    _m("throughput/avg_actor_tok_per_s", "Sampling speed, mean", "tokens/s", "The run's sampled tokens over its rollout seconds.", "up"),
    _m("throughput/step_trainer_idle_s", "Trainer idle", "s", "Seconds of the step in which the trainer had nothing to do.", "down"),
    _m("throughput/step_actor_idle_s", "Rollouts idle", "s", "Seconds of the step in which no rollout ran; in a pipeline the mean over its workers.", "down"),
    _m("throughput/step_trainer_idle_share", "Trainer idle share", "1", "Share of the step in which the trainer had nothing to do.", "down"),
    _m("throughput/step_actor_idle_share", "Rollouts idle share", "1", "Share of the step in which no rollout ran.", "down"),
    _m("throughput/*", "Speed", "", "A speed, as the program logs it."),
)  # fmt: skip
_TIME = (
    _m("time/wall_clock_sec", "Age of the run", "s", "Seconds since the model was registered, pauses included."),
    _m("time/step_wall_s", "Step", "s", "Seconds since the step before was logged; of the first, since the program used the model.", "down"),
    _m("time/step_trainer_s", "Training", "s", "Seconds of the trainer.", "down"),
    _m("time/step_actor_s", "Rollouts", "s", "Seconds in which at least one rollout of the batch ran.", "down"),
    _m("time/step_eval_s", "Evaluation", "s", "Seconds of the evaluation.", "down"),
    _m("time/cum/*", "Time so far", "s", "Seconds over the whole run."),
    _m("time/*", "Time", "s", "Seconds, as the program logs them."),
)  # fmt: skip
_DATA = (
    _m("data/step_num_scenarios", "Scenarios", "", "Groups of the batch."),
    _m("data/step_num_trajectories", "Rollouts", "", "Rollouts of the batch."),
    _m("data/step_num_groups_submitted", "Groups submitted", "groups", "Groups that were handed over."),
    _m("data/step_num_groups_trainable", "Groups trained", "groups", "Groups of them whose rewards differ.", "up",
       warn_below=0.5, warning="No group has different rewards, so nothing was learned."),
    _m("data/step_num_dropped_trajectories", "Left out", "", "Rollouts of the batch that were not trained.", "down"),
    _m("data/step_num_exceptions", "Exceptions", "", "Rollouts that raised before they were trajectories.", "down"),
    _m("data/step_num_gradient_steps", "Updates", "", "Updates of the optimizer."),
    _m("data/step_num_datums", "Rows", "", "Packed rows that the trainer computed."),
    _m("data/step_trainer_tokens", "Trainer tokens", "tokens", "Tokens that the trainer computed; shared prompts count once."),
    _m("data/step_trained_tokens", "Trained tokens", "tokens", "Sampled tokens that took part in the loss."),
    _m("data/step_actor_tokens", "Sampled tokens", "tokens", "Tokens that the batch's rollouts sampled, calls on the side included."),
    _m("data/step_prompt_tokens", "Prompt tokens", "tokens", "Tokens of the batch's prompts, counted again at each call."),
    _m("data/step_num_calls", "Calls", "", "Calls that the batch's rollouts made."),
    _m("data/step_num_unpriced_calls", "Calls without a price", "", "Calls of paid models whose price nobody knows: they cost something that `costs/` does not hold.", "down",
       warn_above=0.0, warning="Give their prices: register_model_pricing, or [run.prices] in run.toml."),
    _m("data/step_num_trained", "Trained", "", "Rollouts whose tokens took part in the step.", "up"),
    _m("data/step_num_zero_variance", "Equal rewards", "", "Rollouts whose group had no spread of rewards.", "down"),
    _m("data/step_num_stale", "Stale", "", "Rollouts that were sampled too many steps ago.", "down"),
    _m("data/step_num_overlong", "Too long", "", "Rollouts longer than the trainer can take.", "down",
       warn_above=0.0, warning="Raise max_sequence_length, or bound the rollouts' tokens."),
    _m("data/step_num_no_calls", "Without calls", "", "Rollouts that never called the model.", "down",
       warn_above=0.0, warning="The agent talks to another model, or to none."),
    _m("data/step_num_agent_error", "Agent errors", "", "Rollouts that an error of the agent ended.", "down"),
    _m("data/step_num_infra_error", "Infrastructure errors", "", "Rollouts that a failure of ART or of the machine ended.", "down",
       warn_above=0.0, warning="server/logs/ and the rollouts' reasons say what failed."),
    _m("data/step_num_finished", "Left out by a rule", "", "Rollouts that an option of the train call left out.", "down"),
    _m("data/step_num_*", "Rollouts by status", "", "Rollouts of the batch with this status."),
    _m("data/cum/num_unique_scenarios", "Different scenarios", "", "Scenarios with an id that the run has trained on, each once."),
    _m("data/cum/*", "Count so far", "", "A count over the whole run."),
    _m("data/*", "Count", "", "A count, as the program logs it."),
)  # fmt: skip
_COSTS = (
    _m("costs/all", "Cost of the step", "USD", "Everything under costs/ of this row.", "down"),
    _m("costs/gpu", "Machine", "USD", "Seconds of the step at gpu_cost_per_hour_usd.", "down"),
    _m("costs/train", "Models, training", "USD", "Calls of paid models while training, judges included.", "down"),
    _m("costs/eval", "Models, evaluation", "USD", "Calls of paid models while evaluating.", "down"),
    _m("costs/*/judge", "Judges", "USD", "Calls of judges.", "down"),
    _m("costs/*/judge/ruler", "RULER", "USD", "Calls of RULER's judge.", "down"),
    _m("costs/*", "Cost", "USD", "What this cost in the step.", "down"),
    _m("costs/*/*", "Cost", "USD", "What this cost in the step.", "down"),
    _m("costs/*/*/*", "Cost", "USD", "What this cost in the step.", "down"),
    _m("costs/*/*/*/*", "Cost", "USD", "What this cost in the step.", "down"),
    _m("costs/cum/all", "Cost of the run", "USD", "Everything under costs/ so far. Calls without a price are not in it (data/cum/num_unpriced_calls).", "down"),
    _m("costs/cum/*", "Cost so far", "USD", "What this has cost so far.", "down"),
    _m("costs/cum/*/*", "Cost so far", "USD", "What this has cost so far.", "down"),
    _m("costs/cum/*/*/*", "Cost so far", "USD", "What this has cost so far.", "down"),
    _m("costs/cum/*/*/*/*", "Cost so far", "USD", "What this has cost so far.", "down"),
)  # fmt: skip


def _sums(metrics: Iterable[MetricInfo]) -> list[MetricInfo]:
    """What a step's figure comes to over the run: `data/step_x` is summed as `data/cum/x`."""
    found = []
    for metric in metrics:
        section, _, rest = metric.name.partition("/")
        if (
            section in ("data", "time", "throughput")
            and rest.startswith("step_")
            and metric.unit not in ("1", "tokens/s")
        ):
            changes = {
                "name": f"{section}/cum/{rest.removeprefix('step_')}",
                "title": f"{metric.title}, so far",
                "meaning": f"Over the whole run: {metric.meaning[0].lower()}{metric.meaning[1:]}",
                "direction": "",
                "warn_below": None,
                "warn_above": None,
                "warning": "",
            }
            found.append(metric.model_copy(update=changes))
    return found


_STEP = (*_THROUGHPUT, *_TIME, *_DATA)
METRICS: tuple[MetricInfo, ...] = (
    *_TRAIN, *_EVALUATION, *_LOSS, *_PARITY, *_OFFPOLICY, *_PIPELINE, *_STEP, *_sums(_STEP), *_COSTS,
)  # fmt: skip
"""All that is known, families included: a `*` stands for one part of a name, or for a piece of one."""


def full_name(name: str, split: str) -> str:
    """A metric's name in a row of `split`: as it is when its section stands for itself, else `{split}/{name}`."""
    section, slash, _ = name.partition("/")
    return name if slash and (section in SECTIONS or section == split) else f"{split}/{name}"


@lru_cache(maxsize=4096)
def info(name: str) -> MetricInfo | None:
    """What is known of a metric, under its own name; None for a name that no family holds.

    Of several families the one with the longest fixed text wins.
    """
    family = _entry(name)
    if family is None or family.name == name:
        return family
    return family.model_copy(update={"name": name, "title": _title(family, name)})


def _entry(name: str) -> MetricInfo | None:
    """Its own entry, else its family's."""
    found = [metric for metric in METRICS if metric.name == name]
    if not found:
        found = [metric for metric, pattern in _PATTERNS if pattern.fullmatch(name)]
        found.sort(key=lambda metric: len(metric.name.replace("*", "")), reverse=True)
    return found[0] if found else None


def in_order(names: Iterable[str]) -> list[str]:
    """As a person looks at them: by section, in it as they stand here, and those that nobody knows at the end."""
    sections = list(SECTIONS)

    def place(name: str) -> tuple[int, int, str]:
        section, entry = name.partition("/")[0], _entry(name)
        last = len(sections) if section not in SECTIONS else sections.index(section)
        return last, len(METRICS) if entry is None else METRICS.index(entry), name

    return sorted(names, key=place)


def by_section(names: Iterable[str]) -> dict[str, list[str]]:
    """The same under the titles of their sections; a section that nobody knows is called by its own name."""
    found: dict[str, list[str]] = {}
    for name in in_order(names):
        section = name.partition("/")[0]
        found.setdefault(SECTIONS.get(section, section), []).append(name)
    return found


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(map(re.escape, name.split("*"))))


_PATTERNS = [(metric, _pattern(metric.name)) for metric in METRICS if "*" in metric.name]


def _title(family: MetricInfo, name: str) -> str:
    """The family's title; where its last part is the open one, that part of the name. With its split, where the same figure
    of another split would be called the same."""
    section, _, rest = name.partition("/")
    title = family.title
    if "*" in family.name.rpartition("/")[2]:
        title = rest.rpartition("/")[2].removeprefix("step_").removeprefix("num_").replace("_", " ")
    split = section in (*SPLITS, "discarded") or section not in SECTIONS
    return f"{title} ({section})" if split and name != "val/reward" else title


def state_of(name: str, value: float) -> Literal["ok", "warning"]:
    """Where a value lies against the band of its metric."""
    known = info(name)
    if known is None:
        return "ok"
    low = known.warn_below is not None and value < known.warn_below
    high = known.warn_above is not None and value > known.warn_above
    return "warning" if low or high else "ok"
