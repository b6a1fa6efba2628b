"""Demonstrations as `train_sft` hands them over: checked, and each different one once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from art.backends.options import bad_values
from art.config.sft import TrainSFTConfig
from art.errors import ConfigError, InvalidInput
from art.trajectories import Trajectory, as_dict, is_choice
from art.types.wire_sft import SftConversation, SftExample, SubmitSft


def sft_config(config: TrainSFTConfig | None, more: Mapping[str, Any] | None, backend: str) -> TrainSFTConfig:
    """`config` with the options of `more` on top. ConfigError names an option that is unknown or impossible."""
    if config is not None and not isinstance(config, TrainSFTConfig):
        raise ConfigError(
            f"config is a {type(config).__name__}, not an art.TrainSFTConfig",
            hint="art.TrainSFTConfig(learning_rate=2e-4, batch_size=4)",
        )
    if more is not None and not isinstance(more, Mapping):
        raise ConfigError(
            f"_config is a {type(more).__name__}, not a mapping of options",
            hint="its options are the fields of art.TrainSFTConfig",
        )
    values = {} if config is None else config.model_dump(exclude_unset=True)
    try:
        return TrainSFTConfig.model_validate({**values, **(more or {})})
    except ValidationError as error:
        raise bad_values(error, backend) from error


def sft_request(
    project: str, name: str, trajectories: Iterable[Trajectory], config: TrainSFTConfig
) -> SubmitSft:
    """The request of a call. InvalidInput for what is no trajectory, and for none at all.

    A trajectory that comes several times (several epochs) is sent once.
    """
    examples: list[SftExample] = []
    known: dict[str, int] = {}
    order: list[int] = []
    for number, trajectory in enumerate(trajectories):
        if not isinstance(trajectory, Trajectory):
            raise InvalidInput(
                f"trajectories[{number}] is a {type(trajectory).__name__}, not a Trajectory",
                hint="art.Trajectory(messages_and_choices=[...]); of a group, its `trajectories`",
            )
        example = _example(trajectory)
        text = example.model_dump_json()
        if text not in known:
            known[text] = len(examples)
            examples.append(example)
        order.append(known[text])
    if not order:
        raise InvalidInput("train_sft was given no trajectories", hint="pass at least one demonstration")
    return SubmitSft(project=project, name=name, examples=examples, order=order, config=config)


def _example(trajectory: Trajectory) -> SftExample:
    """The trajectory's histories; empty ones say nothing."""
    given = [(trajectory.messages_and_choices, trajectory.tools)]
    given += [(more.messages_and_choices, more.tools) for more in trajectory.additional_histories]
    conversations = [
        SftConversation(
            messages=[_message(item) for item in items],
            tools=None if tools is None else [as_dict(tool) for tool in tools],
        )
        for items, tools in given
        if items
    ]
    if not conversations:
        raise InvalidInput(
            "a trajectory without messages teaches nothing",
            hint='art.Trajectory(messages_and_choices=[{"role": "user", ...}, {"role": "assistant", ...}])',
        )
    return SftExample(conversations=conversations)


_OF_AN_ANSWER = ("content", "tool_calls", "reasoning_content", "reasoning")


def _message(item: object) -> dict[str, Any]:
    """A message as it is; a choice as its message, with what the model thought."""
    data = as_dict(item)
    if is_choice(item):
        message = data["message"]
        kept = {name: message[name] for name in _OF_AN_ANSWER if message.get(name)}
        return {"role": "assistant", "content": "", **kept}
    return {**data, "content": ""} if data.get("content") is None else data
