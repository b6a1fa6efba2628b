"""Trajectories and groups as data."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle

import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.backends.handover import groups_to_wire, trajectory_to_wire
from art.errors import ArtError, InvalidInput, InvalidReward
from art.utils.summary import summarize


def choice(content: str | None = "Paris", **extra: object) -> Choice:
    message = {"role": "assistant", "content": content, **extra}
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "stop",
            "message": message,
            "logprobs": {"content": [{"token": "P", "logprob": -0.25, "bytes": None, "top_logprobs": []}]},
            "token_ids": [5, 6],
            "art": {"call_id": "c1", "choice": 0, "version": "p/m@3"},
        }
    )


TOOL_CALL = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf, "high", object()])
def test_a_reward_that_is_no_finite_number_is_refused_where_it_arises(bad: object) -> None:
    with pytest.raises(InvalidReward, match="finite number"):
        art.Trajectory(reward=bad)  # type: ignore[arg-type]
    trajectory = art.Trajectory()
    with pytest.raises(InvalidReward) as caught:
        trajectory.reward = bad  # type: ignore[assignment]
    assert caught.value.cause
    assert caught.value.hint
    assert trajectory.reward == 0.0


def test_a_reward_that_slipped_in_is_refused_by_place_when_it_is_handed_over() -> None:
    trajectory = art.Trajectory.model_construct(**{**dict(art.Trajectory()), "reward": math.nan})
    group = art.TrajectoryGroup()
    group.trajectories += [art.Trajectory(reward=1), trajectory]
    with pytest.raises(InvalidReward, match="trajectory 1 of group 0"):
        groups_to_wire([group])


def test_messages_are_what_an_api_takes() -> None:
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "user", "content": "capital?"},
            choice(None, tool_calls=[TOOL_CALL], reasoning="hm"),
            {"role": "tool", "tool_call_id": "t1", "content": None},
            choice("Paris"),
            choice("again").message,
        ]
    )
    assert trajectory.messages() == [
        {"role": "user", "content": "capital?"},
        {"role": "assistant", "content": "", "tool_calls": [TOOL_CALL]},
        {"role": "tool", "tool_call_id": "t1", "content": ""},
        {"role": "assistant", "content": "Paris"},
        {"role": "assistant", "content": "again"},
    ]
    history = art.History(messages_and_choices=trajectory.messages_and_choices)
    assert history.messages() == trajectory.messages()
    assert trajectory.for_logging()["messages"] == trajectory.messages()


def test_choices_survive_dump_copy_and_pickle_with_their_token_fields() -> None:
    trajectory = art.Trajectory(messages_and_choices=[choice()], reward=2)
    kept = [
        copy.deepcopy(trajectory),
        trajectory.model_copy(deep=True),
        pickle.loads(pickle.dumps(trajectory)),
        art.Trajectory.model_validate_json(trajectory.model_dump_json()),
        art.Trajectory(**trajectory.model_dump()),
    ]
    for other in kept:
        [item] = trajectory_to_wire(other).messages_and_choices
        assert item["art"] == {"call_id": "c1", "choice": 0, "version": "p/m@3"}
        assert other.reward == 2


def test_a_known_choice_is_sent_without_its_tokens_and_an_unknown_one_with_them() -> None:
    known = choice()
    unknown = Choice.model_validate({**known.model_dump(), "art": None})
    sent = trajectory_to_wire(art.Trajectory(messages_and_choices=[known, unknown])).messages_and_choices
    assert "logprobs" not in sent[0]
    assert "token_ids" not in sent[0]
    assert sent[1]["logprobs"]["content"][0]["logprob"] == -0.25


@pytest.mark.parametrize("item", ["hello", 3, ["a"]])
def test_what_is_neither_message_nor_choice_is_refused(item: object) -> None:
    with pytest.raises(InvalidInput, match="neither a message nor a choice"):
        trajectory_to_wire(art.Trajectory(messages_and_choices=[item]))  # type: ignore[list-item]


def test_a_session_without_reward_is_not_taken_for_zero() -> None:
    unset = art.Trajectory(rollout_id="r1", selects_rollout=True)
    with pytest.raises(InvalidReward, match="has no reward"):
        trajectory_to_wire(unset)
    unset.reward = 0
    assert trajectory_to_wire(unset).reward == 0


def test_a_misspelt_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="rewards"):
        art.Trajectory(rewards=1)  # type: ignore[call-arg]


def test_groups_of_trajectories_are_groups_at_once() -> None:
    error = ValueError("lost")
    group = art.TrajectoryGroup(
        [art.Trajectory(reward=1), error, art.Trajectory(reward=2)], metadata={"city": "Oslo"}, logs=["a"]
    )
    assert len(group) == 2
    assert [trajectory.reward for trajectory in group] == [1, 2]
    assert [(kept.type, kept.message) for kept in group.exceptions] == [("builtins.ValueError", "lost")]
    for other in (copy.copy(group), copy.deepcopy(group), pickle.loads(pickle.dumps(group))):
        assert other == group
    assert art.TrajectoryGroup.model_validate_json(group.model_dump_json()).metadata == {"city": "Oslo"}
    assert len(art.TrajectoryGroup([])) == 0


def test_a_group_of_awaitables_is_awaitable_and_keeps_what_it_was_given() -> None:
    async def run() -> art.TrajectoryGroup:
        async def rollout(value: float) -> art.Trajectory:
            return art.Trajectory(reward=value)

        return await art.TrajectoryGroup((rollout(i) for i in range(3)), metadata={"k": 1}, logs=["x"])

    group = asyncio.run(run())
    assert isinstance(group, art.TrajectoryGroup)
    assert (group.metadata, group.logs) == ({"k": 1}, ["x"])
    assert [trajectory.reward for trajectory in group] == [0, 1, 2]


@pytest.mark.parametrize("wrong", [[art.Trajectory()], [[art.Trajectory()]], [None]])
def test_only_groups_are_handed_over(wrong: list[object]) -> None:
    with pytest.raises(ArtError, match="not a TrajectoryGroup"):
        groups_to_wire(wrong)  # type: ignore[arg-type]


def test_durations_add_up() -> None:
    async def run() -> art.Trajectory:
        trajectory = art.Trajectory()
        for _ in range(2):
            async with trajectory.track_duration("model"):
                await asyncio.sleep(0.002)
        return trajectory.finish()

    metrics = asyncio.run(run()).metrics
    assert metrics["model_duration"] >= 0.004
    assert metrics["duration"] >= metrics["model_duration"]


def test_a_summary_averages_over_those_that_carry_a_metric() -> None:
    groups = [
        art.TrajectoryGroup(
            [
                art.Trajectory(reward=0, metrics={"found": True, "reward": 9}),
                art.Trajectory(reward=1, metrics={"found": False, "data/tokens": 4}),
                ValueError("x"),
            ],
            metrics={"hard": 3},
        ),
        art.TrajectoryGroup([art.Trajectory(reward=2)]),
    ]
    assert summarize(groups, "val") == {
        "val/reward": 1.0,
        "val/reward_std_dev": 0.5,
        "val/found": 0.5,
        "data/tokens": 4.0,
        "val/group_hard": 3.0,
        "val/exception_rate": 0.25,
        "val/reward_ci_low": 0.5,  # of the groups, whose means are 0.5 and 2
        "val/reward_ci_high": 2.0,
    }
    assert "train/reward_ci_low" not in summarize(groups, "train")
    assert summarize([], "val") == {}
