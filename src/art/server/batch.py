"""A batch as it was handed over, turned into what the trainer gets and what is left out."""

from __future__ import annotations

import uuid

from art.config.train import TrainConfig
from art.server.credit import Credit, credit_of, parts_of
from art.server.recorded_choices import Pick
from art.server.selection import NOT_CONTINUED, Selector, barred
from art.store.records import JobSpec, RewardChange, SelectedTrajectory
from art.store.rollout_rows import FAILED
from art.store.store import Store
from art.store.total_rows import digest
from art.types.jobs import ChoiceFate, ChoiceRef, TrainGroup, TrainTrajectory
from art.types.policy import Fate, RolloutStatus
from art.types.wire import GroupIn, TrajectoryIn, TrajectoryOutcome

ALL_DUPLICATE = "every choice of it is in an earlier trajectory of the batch, and is trained there"
NOT_SELECTED = "recorded, but no trajectory of the batch holds it"


class Batch:
    """Collects groups in order; `spec` is the result."""

    def __init__(self, store: Store, project: str, name: str, config: TrainConfig) -> None:
        self.spec = JobSpec(config=config)
        self.rewards: list[RewardChange] = []
        self._selector = Selector(store, project, name)
        self._taken: set[Pick] = set()
        self._labels: set[str] = set()
        self._left_out: dict[Pick, tuple[Fate, str]] = {}

    async def add(self, number: int, group: GroupIn) -> None:
        """Select the calls of one group. InvalidInput when a choice could be several calls."""
        if not group.trajectories:
            self.spec.notes.append(f"group {number} is empty and was left out")
        self.spec.raised += len(group.exceptions)
        self.spec.scenarios += _scenarios(group)
        groups: dict[str, TrainGroup] = {}
        for index, trajectory in enumerate(group.trajectories):
            selected = SelectedTrajectory(group=number, index=index)
            fresh = await self._place(trajectory, selected)
            self.spec.trajectories.append(selected)
            self.rewards += [
                RewardChange(
                    rollout_id=rollout_id,
                    reward=trajectory.reward,
                    metrics=trajectory.metrics,
                    metadata=trajectory.metadata,
                )
                for rollout_id in selected.rollout_ids
                if not await self._failed(rollout_id)
            ]
            if selected.label is not None:
                for name, part in await self._parts(selected.label, trajectory.reward, fresh):
                    group_id = f"{number}/{name}" if name else str(number)
                    found = groups.setdefault(name, TrainGroup(group_id=group_id, trajectories=[]))
                    found.trajectories.append(part)
        self.spec.groups += groups.values()

    async def _place(self, trajectory: TrajectoryIn, selected: SelectedTrajectory) -> list[Pick]:
        """Fill `selected`; the picks that no earlier trajectory has."""
        selection = await self._selector.select(trajectory)
        self._left_out |= selection.left_out
        fresh = [pick for pick in selection.picks if pick not in self._taken]
        self._taken.update(fresh)
        named = fresh or selection.barred
        owners = [call.rollout_id for pick in named if (call := await self._selector.own.call(pick[0]))]
        given = trajectory.rollout_id
        row = await self._selector.own.rollout(given) if given is not None else None
        if row is not None and not (fresh and barred(row)):
            owners.insert(0, row.rollout_id)
        selected.rollout_ids = list(dict.fromkeys(owners))
        if fresh:
            selected.label = self._label(selected.rollout_ids[0])
        else:
            selected.outcome = TrajectoryOutcome(
                group=selected.group,
                index=selected.index,
                rollout_id=given,
                status=RolloutStatus.NO_CALLS if selection.picks else selection.status,
                reason=ALL_DUPLICATE if selection.picks else selection.reason,
            )
        return fresh

    async def _failed(self, rollout_id: str) -> bool:
        """A failure of ART or of the machine is no reward, whatever the program hands over."""
        row = await self._selector.own.rollout(rollout_id)
        refused = barred(row) if row is not None else None
        return refused is not None and refused[0] is RolloutStatus.INFRA_ERROR

    def _label(self, rollout_id: str) -> str:
        """The rollout's id, made unique when several trajectories select calls of one rollout."""
        label = rollout_id
        while label in self._labels:
            label = f"{rollout_id}#{uuid.uuid4().hex[:8]}"
        self._labels.add(label)
        return label

    async def _parts(self, label: str, reward: float, picks: list[Pick]) -> list[tuple[str, TrainTrajectory]]:
        """What the trainer gets of one trajectory: by the name of each comparison, what takes part in it."""
        credited: list[tuple[ChoiceRef, Credit, int]] = []
        for call_id, index in picks:
            call = await self._selector.own.call(call_id)
            assert call is not None, "a pick names a recorded call"
            assert call.blob is not None, "a recorded call has its arrays"
            choice = next(item for item in call.choices if item.index == index)
            ref = ChoiceRef(
                call_id=call_id,
                choice=index,
                blob=call.blob,
                temperature=call.sampling_used.temperature,
                version=call.version,
                weight=choice.weight,
            )
            row = await self._selector.own.rollout(call.rollout_id)
            assert row is not None, "a pick's rollout is this model's"
            calls = await self._selector.own.calls_of(call.rollout_id)
            credit = credit_of(call, choice, calls=calls, agents=row.agent_rewards, reward=reward)
            credited.append((ref, credit, choice.token_count))
        parts = parts_of(credited, by_tokens=self.spec.config.loss_aggregation == "rollout")
        return [
            (
                part.name,
                TrainTrajectory(
                    rollout_id=label, reward=part.reward, choices=part.choices, weight=part.weight
                ),
            )
            for part in parts
        ]

    async def finish(self) -> JobSpec:
        """Give a fate to every recorded choice of the batch's rollouts that nothing selected."""
        called = {call_id for call_id, _ in self._taken}
        await self._note_failed(called)
        rollouts = dict.fromkeys(
            rollout_id for item in self.spec.trajectories for rollout_id in item.rollout_ids
        )
        for call_id, _ in self._left_out:  # a trajectory may hold choices of several rollouts
            call = await self._selector.own.call(call_id)
            rollouts |= {} if call is None else {call.rollout_id: None}
        for rollout_id in rollouts:
            await self._note_unheard(rollout_id)
            for call in await self._selector.own.calls_of(rollout_id):
                for choice in call.choices:
                    pick = (call.call_id, choice.index)
                    if pick in self._taken or choice.fate is not Fate.PENDING:
                        continue
                    fate, reason = Fate.FILTERED, NOT_CONTINUED if call.call_id in called else NOT_SELECTED
                    if call.auxiliary:
                        fate, reason = Fate.AUXILIARY, call.auxiliary_reason
                    fate, reason = self._left_out.get(pick, (fate, reason))
                    self.spec.fates.append(
                        ChoiceFate(call_id=call.call_id, choice=choice.index, fate=fate, reason=reason)
                    )
        return self.spec

    async def _note_failed(self, call_ids: set[str]) -> None:
        """Rollouts that are trained though they did not end well: the program decided it, and it is said."""
        found = {call.rollout_id for name in call_ids if (call := await self._selector.own.call(name))}
        rows = [row for name in found if (row := await self._selector.own.rollout(name))]
        for status in FAILED:
            count = sum(row.status is status for row in rows)
            if count:
                self.spec.notes.append(
                    f"{count} of the rollouts ended as {status.value}; the reward that was handed over is trained"
                )

    async def _note_unheard(self, rollout_id: str) -> None:
        """A reward for an agent that made no call changes nothing, so it is said."""
        row = await self._selector.own.rollout(rollout_id)
        labels = {call.agent for call in await self._selector.own.calls_of(rollout_id)}
        for label in sorted(set(row.agent_rewards) - labels) if row is not None else ():
            self.spec.notes.append(
                f"rollout {rollout_id}: the agent {label!r} has a reward and made no call (X-ART-Agent)"
            )


def _scenarios(group: GroupIn) -> list[str]:
    """The scenario that the program names in the metadata of a group or of its trajectories, as a digest."""
    metadata = [group.metadata, *(trajectory.metadata for trajectory in group.trajectories)]
    named = (item.get("scenario_id") for item in metadata)
    found = next((name for name in named if name is not None), None)
    return [] if found is None else [digest(str(found))]
