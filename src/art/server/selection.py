"""From the trajectories a program hands over to the calls the server recorded.

A trajectory only selects. Its choices name their calls in the `art` field; a choice without the field is
looked for by its text and its log-probabilities, and refused when several calls fit. What cannot be
trained is left out with a status and a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from art.errors import InvalidInput
from art.server.given_choice import GivenChoice
from art.server.ownership import OwnRecords
from art.server.recorded_choices import Pick, RecordedChoices
from art.server.recovery import INTERRUPTED
from art.store.records import RolloutRow
from art.store.store import Store
from art.store.true_text import true_text
from art.types.policy import Fate, Purpose, RolloutStatus
from art.types.tokens import CallRecord, ChoiceRecord
from art.types.wire import TrajectoryIn

SEARCHED_CALLS = 5000
"""Newest calls of the model among which a choice without its art field is looked for."""
UNDELIVERED = ("error", "cancelled")
"""Finish reasons of choices whose call failed, or whose client left before they were whole."""

NO_CHOICE = "the trajectory holds no choice of the model; keep response.choices[0] in messages_and_choices"
NOT_CONTINUED = "not continued"
FAILED = "its call failed before the answer was whole"
LEFT = "its client left before it had the whole answer, and went on from another"
EVALUATION = "its rollout is for evaluation, which is never trained; open it with purpose train"
INFRA = "its rollout ended as infra_error, whose reward is not the agent's"
BARRED = {RolloutStatus.EVALUATED: Fate.EVALUATION, RolloutStatus.INFRA_ERROR: Fate.FILTERED}
"""The fates of choices whose rollout is never trained."""
GONE = "its tokens were deleted after they were trained: the call was redacted, or its content is not kept"
NO_SUCH_CALL = (
    "no call of this server produced this choice; keep the choices as the server returned them,"
    " and train with the server that sampled them"
)


@dataclass(slots=True)
class Selection:
    """The picks of one trajectory, and why there may be none."""

    picks: list[Pick] = field(default_factory=list)
    reason: str = ""
    """Of the first choice that found no call."""
    status: RolloutStatus = RolloutStatus.NO_CALLS
    """What a trajectory without picks is."""
    left_out: dict[Pick, tuple[Fate, str]] = field(default_factory=dict)
    """Choices that are not picked, and why."""
    barred: list[Pick] = field(default_factory=list)
    """Of those, the ones whose rollout is never trained."""


class Selector:
    """Reads one batch. Calls and texts are read once, however many trajectories refer to them."""

    def __init__(self, store: Store, project: str, name: str) -> None:
        self._store = store
        self._project = project
        self._name = name
        self.own = OwnRecords(store, project, name)
        self._recorded: dict[str | None, RecordedChoices] = {}
        """By rollout; None: of the newest calls."""

    async def select(self, trajectory: TrajectoryIn) -> Selection:
        """The calls of one trajectory. InvalidInput when a choice is none, or could be several calls."""
        if trajectory.selects_rollout:
            if trajectory.rollout_id is None:
                raise InvalidInput(
                    "a trajectory selects its whole rollout but names none", hint="set rollout_id"
                )
            return await self.whole_rollout(trajectory.rollout_id)
        found = Selection()
        for choice in choices_of(trajectory):
            pick = await self._find(GivenChoice.read(choice), trajectory.rollout_id)
            if isinstance(pick, str):
                found.reason = found.reason or pick
            elif pick not in found.picks:
                found.picks.append(pick)
        found.reason = found.reason or NO_CHOICE
        return await self._allowed(found)

    async def _allowed(self, found: Selection) -> Selection:
        """The selection without choices that are never trained."""
        for pick in list(found.picks):
            call = await self.own.call(pick[0])
            row = None if call is None else await self.own.rollout(call.rollout_id)
            if call is None or row is None:
                continue
            fate = next(item.fate for item in call.choices if item.index == pick[1])
            refused = barred(row, fate)
            if refused is None:
                continue
            status, reason = refused
            found.picks.remove(pick)
            found.barred.append(pick)
            found.left_out[pick] = BARRED[status], reason
            if len(found.barred) == 1:
                found.status, found.reason = status, reason
        return found

    async def _find(self, choice: GivenChoice, rollout_id: str | None) -> Pick | str:
        """The pick of one choice, or the reason why there is none."""
        mark = choice.art
        if mark is None:
            return await self._match(choice, rollout_id)
        call = await self.own.call(mark.call_id)
        if call is None and (other := await self.own.neighbour(mark.call_id)) is not None:
            return f"the choice belongs to a rollout of {other}; it is trained in a batch of that model"
        if call is None or not any(item.index == mark.choice for item in call.choices):
            return NO_SUCH_CALL
        if not self.own.sampled(call):
            return f"the choice was sampled by {call.version}, not by {self._project}/{self._name}"
        if call.blob is None:
            return GONE
        return call.call_id, mark.choice

    async def _match(self, choice: GivenChoice, rollout_id: str | None) -> Pick | str:
        """Find a choice without its art field: same text, same log-probabilities."""
        essence = choice.message.essence()
        recorded = await self._recorded_in(rollout_id)
        matches = await recorded.matching(essence, choice.logprobs.values() if choice.logprobs else None)
        if len(matches) > 1:
            raise InvalidInput(
                f"a choice fits {len(matches)} recorded calls: {essence[0][:80]!r}",
                cause="it lost its art field, and its text and log-probabilities are not unique",
                hint="keep response.choices[0] as the server returned it (model_dump and copies keep the field)",
            )
        return matches[0] if matches else NO_SUCH_CALL

    async def _recorded_in(self, rollout_id: str | None) -> RecordedChoices:
        """The choices of a rollout of this model; of the model's newest calls where it is no such rollout."""
        if rollout_id is not None and await self.own.rollout(rollout_id) is None:
            rollout_id = None
        if rollout_id not in self._recorded:
            if rollout_id is None:
                found = await self._store.recent_calls(self._project, self._name, SEARCHED_CALLS)
                calls = [(call, await self._said(call, said)) for call, said in found]
            else:
                calls = [
                    (call, await self._said(call, (await self._store.text_of(call.call_id)).completions))
                    for call in await self.own.calls_of(rollout_id)
                ]
            ours = [(call, said) for call, said in calls if self.own.sampled(call)]
            self._recorded[rollout_id] = RecordedChoices(self._store, ours)
        return self._recorded[rollout_id]

    async def _said(self, call: CallRecord, kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The completions of a call as its agent got them, while they are there; `kept` is what the store shows."""
        if call.blob is None or not call.blob.sealed:
            return kept
        text = await true_text(self._store, call)
        return kept if text is None else text.completions

    async def whole_rollout(self, rollout_id: str) -> Selection:
        """What training a whole rollout takes of it: every choice that reached its agent, and no call on the side."""
        calls = await self.own.calls_of(rollout_id)
        found = Selection(reason="the agent made no call")
        ours = [call for call in calls if not call.auxiliary and self.own.sampled(call)]
        continued = {call.parent_call_id for call in ours}
        for call in calls:
            for item in call.choices:
                reason = self._refused(call, item, continued)
                if reason is not None:
                    found.left_out[call.call_id, item.index] = reason
            whole = [item for item in call.choices if (call.call_id, item.index) not in found.left_out]
            path = await self._continued(call, [item.index for item in whole], ours) if whole else None
            for item in whole:
                # A reward of its own says that the choice counts, whatever the agent went on from.
                if item.index == path or item.reward is not None:
                    found.picks.append((call.call_id, item.index))
                else:
                    found.left_out[call.call_id, item.index] = Fate.FILTERED, NOT_CONTINUED
        if calls and not found.picks:
            reasons = sorted({reason for _, reason in found.left_out.values()})
            found.reason = f"none of its calls can be trained: {'; '.join(reasons)}"
        return await self._allowed(found)

    def _refused(
        self, call: CallRecord, choice: ChoiceRecord, continued: set[str | None]
    ) -> tuple[Fate, str] | None:
        """Why a choice of a whole rollout is not taken, as far as it alone tells."""
        if not self.own.sampled(call):
            return Fate.FILTERED, f"sampled by {call.version}, which is another model"
        if call.blob is None:
            return Fate.FILTERED, GONE
        if call.auxiliary:
            return Fate.AUXILIARY, call.auxiliary_reason
        # What was cut off and never continued reached no agent: its tokens earned nothing.
        if choice.finish_reason in UNDELIVERED and call.call_id not in continued:
            return Fate.FILTERED, FAILED if choice.finish_reason == "error" else LEFT
        return None

    async def _continued(self, call: CallRecord, indices: list[int], calls: list[CallRecord]) -> int:
        """Of several siblings, the one a later call's prompt goes on from; the first when none is."""
        if len(indices) == 1 or call.blob is None:
            return indices[0]
        arrays = await self._store.read_arrays(call.blob)
        for child in calls:
            if child.parent_call_id != call.call_id or child.blob is None:
                continue
            prompt = (await self._store.read_arrays(child.blob))["prompt_token_ids"]
            for index in indices:
                past = np.concatenate([arrays["prompt_token_ids"], arrays[f"c{index}.token_ids"]])
                if len(prompt) >= len(past) and np.array_equal(prompt[: len(past)], past):
                    return index
        return indices[0]


def barred(row: RolloutRow, fate: Fate = Fate.PENDING) -> tuple[RolloutStatus, str] | None:
    """Why nothing of a rollout is ever trained, or a choice of this fate is not, whatever hands it over.

    What measured a model must not teach it, and where a part of ART failed the reward is not the agent's. A rollout
    that a restart of the server interrupted may have been complete: the program that hands it over knows.
    """
    if row.purpose is Purpose.EVALUATE or row.status is RolloutStatus.EVALUATED or fate is Fate.EVALUATION:
        return RolloutStatus.EVALUATED, EVALUATION
    if row.status is RolloutStatus.INFRA_ERROR and row.reason != INTERRUPTED:
        return RolloutStatus.INFRA_ERROR, f"{INFRA}: {row.reason}".rstrip(": ")
    return None


def choices_of(trajectory: TrajectoryIn) -> Iterator[dict[str, Any]]:
    """The dumped `Choice`s of a trajectory's histories, in order."""
    histories = [trajectory.messages_and_choices]
    histories += [history.messages_and_choices for history in trajectory.additional_histories]
    for history in histories:
        for item in history:
            if isinstance(item.get("message"), dict) and ("finish_reason" in item or "index" in item):
                yield item
