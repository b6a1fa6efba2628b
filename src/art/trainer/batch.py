"""From a job to what is trained: reads the recorded tokens, and decides every rollout's and choice's fate."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from art.algorithms import advantages
from art.algorithms.shaping import in_range, overlong
from art.config.train import TrainConfig
from art.errors import InvalidInput, InvalidReward, TokensDeleted, TrainingFailed
from art.store.blobs import BlobStore
from art.tokens.samples import SampledChoice
from art.trainer.protocol import ChoiceFate, ChoiceRef, RolloutOutcome, TrainJob, TrainTrajectory
from art.types.policy import Fate, RolloutStatus


@dataclass(slots=True)
class Member:
    """One trajectory of the job, and what was decided about it."""

    index: int
    """Among all trajectories of the job, in order."""
    group_id: str
    trajectory: TrainTrajectory
    choices: list[SampledChoice] = field(default_factory=list)
    status: RolloutStatus | None = None
    """None while it can be trained."""
    reason: str = ""
    advantage: float | None = None
    penalty: float = 0.0
    """What the length of its completions takes from its reward; 0 or less."""

    @property
    def reward(self) -> float:
        return self.trajectory.reward

    @property
    def judged(self) -> float:
        """The reward that is compared with the others'."""
        return self.reward + self.penalty

    def leave_out(self, status: RolloutStatus, reason: str) -> None:
        self.status, self.reason = status, reason


@dataclass(slots=True)
class Batch:
    """A job's members with their fates. The choices of members without a status are trained."""

    members: list[Member]
    fates: list[ChoiceFate]
    """Of choices that are left out; those of the trained ones come with `outcome_fates`."""
    groups: int
    notes: list[str] = field(default_factory=list)

    @property
    def trained(self) -> list[Member]:
        return [member for member in self.members if member.status is None]

    @property
    def choices(self) -> list[SampledChoice]:
        return [choice for member in self.trained for choice in member.choices]

    def rollout_outcomes(self) -> list[RolloutOutcome]:
        """One per trajectory of the job, in its order."""
        return [
            RolloutOutcome(
                rollout_id=member.trajectory.rollout_id,
                group_id=member.group_id,
                status=member.status or RolloutStatus.TRAINED,
                reason=member.reason,
                advantage=member.advantage,
            )
            for member in self.members
        ]

    def choice_fates(self) -> list[ChoiceFate]:
        """Left-out ones first: where a choice was named twice, its last entry says what became of it."""
        return self.fates + [
            ChoiceFate(
                call_id=choice.call_id,
                choice=choice.choice,
                fate=Fate.TRAINED,
                trained_tokens=int(choice.trainable.sum()),
            )
            for choice in self.choices
        ]

    def why_nothing(self) -> str:
        """Why no member can be trained, for a person."""
        counts: dict[str, int] = {}
        for member in self.members:
            if member.status is not None:
                counts[member.status.value] = counts.get(member.status.value, 0) + 1
        listed = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        return f"no signal: {listed}" if listed else "no signal: the batch has no rollouts"

    def reward_deviation(self) -> float:
        """Mean over the trained groups of their rewards' standard deviation."""
        groups: dict[str, list[float]] = {}
        for member in self.trained:
            groups.setdefault(member.group_id, []).append(member.judged)
        rewards = [torch.tensor(values, dtype=torch.float64) for values in groups.values()]
        return sum(advantages.mean_and_deviation(rewards_G)[1] for rewards_G in rewards) / len(rewards)

    def digest(self) -> str:
        """sha256 of what is trained: which recorded bytes, with which advantage and weight."""
        digest = hashlib.sha256()
        for member in self.trained:
            head = (member.trajectory.rollout_id, member.reward, member.advantage, member.trajectory.weight)
            digest.update(repr(head).encode())
            for ref in member.trajectory.choices:
                digest.update(repr((ref.call_id, ref.choice, ref.weight, ref.blob.crc32)).encode())
        return digest.hexdigest()


def load_batch(job: TrainJob, *, max_length: int) -> Batch:
    """Read the job's tokens and decide who is trained. `max_length` bounds a sequence, in tokens.

    Raises InvalidReward for a reward that is not finite, InvalidInput for damaged or impossible records.
    """
    reader = _Reader(job, max_length=max_length)
    batch = Batch(members=[], fates=reader.fates, groups=len(job.groups))
    compared: list[list[Member]] = []
    for group in job.groups:
        members = [
            reader.member(len(batch.members) + offset, group.group_id, trajectory)
            for offset, trajectory in enumerate(group.trajectories)
        ]
        batch.members += members
        if not members:
            batch.notes.append(f"group {group.group_id} is empty and was left out")
        candidates = [member for member in members if member.status is None]
        if _has_signal(candidates, job.config, of=len(members)):
            compared.append(candidates)
    _assign_advantages(compared, job.config)
    for member in batch.members:
        if member.status is not None:
            reader.leave_choices(member)
    return batch


def _has_signal(members: Sequence[Member], config: TrainConfig, *, of: int) -> bool:
    """Whether a group's rewards can be compared; where they cannot, its members are left out with the reason.

    `members` are those of the group that can be trained, `of` the number it was handed over with.
    """
    if config.overlong_max_length is not None and config.overlong_buffer is not None:
        for member in members:
            longest = max(len(choice.completion) for choice in member.choices)
            member.penalty = config.overlong_penalty * overlong(
                longest, max_length=config.overlong_max_length, buffer=config.overlong_buffer
            )
    status, reason = RolloutStatus.ZERO_VARIANCE, ""
    rewards_G = torch.tensor([member.judged for member in members], dtype=torch.float64)
    if len(members) == 1:
        alone = "the only rollout of its group"
        if of > 1:
            alone = f"the only one of its group's {of} rollouts that can be trained"
        reason = f"{alone}: there is nothing to compare its reward with"
    elif members and not advantages.has_spread(rewards_G):
        reason = f"all rewards of its group are equal{_spread(rewards_G)}"
    elif members and not in_range(rewards_G, config.group_mean_range):
        mean, _ = advantages.mean_and_deviation(rewards_G)
        status = RolloutStatus.FINISHED
        reason = f"its group's mean reward {mean:g} is outside group_mean_range={config.group_mean_range}"
    if reason:
        for member in members:
            member.leave_out(status, reason)
    return bool(members) and not reason


def _spread(rewards_G: torch.Tensor) -> str:
    """How equal rewards are equal: to the digit, or as far as their size tells them apart."""
    low, high = float(rewards_G.min()), float(rewards_G.max())
    if low == high:
        return f" ({low:g})"
    bound = advantages.tolerance(rewards_G)
    return (
        f" for their size: they differ by {high - low:g}, from {low:.17g} to {high:.17g}, and up to {bound:g} counts"
        " as equal (1e-6 of the largest, at least 1e-6)"
    )


def _assign_advantages(groups: Sequence[Sequence[Member]], config: TrainConfig) -> None:
    """What each rollout is worth beside the others of its group. TrainingFailed for numbers past float32."""
    rewards = [torch.tensor([member.judged for member in group], dtype=torch.float64) for group in groups]
    found = advantages.compare(config.advantages, rewards, normalize=config.normalizes)
    for group, rewards_G, values_G in zip(groups, rewards, found, strict=True):
        if not torch.isfinite(values_G.to(torch.float32)).all():  # float32 is what the loss is computed in
            raise TrainingFailed(
                f"the advantages of group {group[0].group_id} are not finite",
                cause=f"its rewards reach from {min(rewards_G.tolist()):g} to {max(rewards_G.tolist()):g}",
                hint="nothing was published; scale the rewards down, or leave normalize_advantages on",
            )
        balanced_G = advantages.balance(values_G, config.advantage_balance)
        for member, value in zip(group, balanced_G.tolist(), strict=True):
            member.advantage = value


class _Reader:
    """Reads choices, remembering which were named before."""

    def __init__(self, job: TrainJob, *, max_length: int) -> None:
        self._job = job
        self._max_length = max_length
        self._blobs = BlobStore(Path(job.blob_dir))
        self._seen: set[tuple[str, int]] = set()
        self.fates: list[ChoiceFate] = []

    def member(self, index: int, group_id: str, trajectory: TrainTrajectory) -> Member:
        """The trajectory with its trainable choices, or with the status that leaves it out."""
        _check_numbers(trajectory)
        member = Member(index=index, group_id=group_id, trajectory=trajectory)
        if not trajectory.choices:
            member.leave_out(RolloutStatus.NO_CALLS, "the agent made no call to the model being trained")
            return member
        reasons: set[str] = set()
        for ref in trajectory.choices:
            fate, reason = self._refuse(ref)
            if fate is Fate.STALE:
                member.leave_out(RolloutStatus.STALE, reason)
            elif fate is None:
                try:
                    choice = self._read(ref, index)
                except TokensDeleted as error:
                    reasons.add(error.message)
                    self._record(ref.call_id, ref.choice, Fate.FILTERED, error.message)
                    continue
                fate, reason = self._unfit(choice)
                if fate is Fate.OVERLONG:
                    member.leave_out(RolloutStatus.OVERLONG, reason)
                elif fate is None:
                    member.choices.append(choice)
            if fate in (Fate.DUPLICATE, Fate.FILTERED):
                reasons.add(reason)
                self._record(ref.call_id, ref.choice, fate, reason)
        if not member.choices and member.status is None:
            member.leave_out(
                RolloutStatus.NO_CALLS, f"none of its calls can be trained: {'; '.join(sorted(reasons))}"
            )
        return member

    def leave_choices(self, member: Member) -> None:
        """The fates of a left-out member's choices: the status says why."""
        fate = {RolloutStatus.STALE: Fate.STALE, RolloutStatus.OVERLONG: Fate.OVERLONG}.get(
            member.status or RolloutStatus.NO_CALLS, Fate.FILTERED
        )
        decided = {(entry.call_id, entry.choice) for entry in self.fates}
        for ref in member.trajectory.choices:
            if (ref.call_id, ref.choice) not in decided:
                self._record(ref.call_id, ref.choice, fate, member.reason)

    def _record(self, call_id: str, choice: int, fate: Fate, reason: str) -> None:
        self.fates.append(ChoiceFate(call_id=call_id, choice=choice, fate=fate, reason=reason))

    def _refuse(self, ref: ChoiceRef) -> tuple[Fate | None, str]:
        """What the reference alone tells."""
        key = (ref.call_id, ref.choice)
        if key in self._seen:
            return Fate.DUPLICATE, "named twice in this batch; it counts once"
        self._seen.add(key)
        if ref.temperature <= 0:
            return Fate.FILTERED, "sampled at temperature 0, which is no sample of the policy"
        lineage, step = _parse_version(ref.version)
        if lineage not in ("", self._job.name, f"{self._job.project}/{self._job.name}"):
            return Fate.FILTERED, f"sampled by another model ({ref.version})"
        bound = self._job.config.max_steps_off_policy
        if bound is not None and step is not None and self._job.parent_step - step > bound:
            behind = self._job.parent_step - step
            return Fate.STALE, f"sampled {behind} steps ago; max_steps_off_policy is {bound}"
        return None, ""

    def _read(self, ref: ChoiceRef, rollout: int) -> SampledChoice:
        arrays = self._blobs.read(ref.blob)
        try:
            prompt, completion = arrays["prompt_token_ids"], arrays[f"c{ref.choice}.token_ids"]
            logprobs = arrays[f"c{ref.choice}.logprobs"]
        except KeyError as error:
            raise InvalidInput(
                f"call {ref.call_id} has no choice {ref.choice} in its token record",
                cause=f"no array {error}",
                hint="its record does not belong to the rollout; leave the trajectory out",
            ) from error
        trainable = arrays.get(f"c{ref.choice}.trainable")
        if trainable is None:
            trainable = np.ones(len(completion), dtype=np.bool_)
        if not len(completion) == len(logprobs) == len(trainable):
            raise InvalidInput(
                f"call {ref.call_id}: tokens and log-probabilities differ in number",
                hint="its record is damaged; leave the trajectory out",
            )
        _, step = _parse_version(ref.version)
        return SampledChoice(
            call_id=ref.call_id,
            choice=ref.choice,
            rollout=rollout,
            prompt=prompt.astype(np.int64),
            completion=completion.astype(np.int64),
            logprobs=logprobs.astype(np.float32),
            trainable=trainable.astype(np.bool_),
            temperature=ref.temperature,
            on_policy=step == self._job.parent_step,
            weight=ref.weight,
        )

    def _unfit(self, choice: SampledChoice) -> tuple[Fate | None, str]:
        """What only the tokens tell."""
        if choice.length > self._max_length:
            return Fate.OVERLONG, f"a sequence of {choice.length} tokens; the limit is {self._max_length}"
        if not len(choice.prompt):
            return Fate.FILTERED, "its prompt is empty, so nothing predicts its first token"
        if not len(choice.completion):
            return Fate.FILTERED, "no token was sampled"
        if not choice.trainable.any():
            return Fate.FILTERED, "all its tokens were forced by a grammar"
        if not np.isfinite(choice.logprobs[choice.trainable]).all():
            return Fate.FILTERED, "its recorded log-probabilities are not finite"
        return None, ""


def _check_numbers(trajectory: TrainTrajectory) -> None:
    if not math.isfinite(trajectory.reward):
        raise InvalidReward(
            f"rollout {trajectory.rollout_id} has the reward {trajectory.reward}",
            hint="a reward is a finite number",
        )
    weights = [trajectory.weight, *(ref.weight for ref in trajectory.choices)]
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise InvalidInput(
            f"rollout {trajectory.rollout_id} has a weight that is negative or not finite",
            hint="weights are 0 or more; a negative signal is a low reward",
        )


def _parse_version(version: str) -> tuple[str, int | None]:
    """(`project/name`, step) of `project/name@step`; the step is None where none is written."""
    lineage, _, step = version.rpartition("@") if "@" in version else (version, "", "")
    return lineage, int(step) if step.isdigit() else None
