"""Schedules, chunks and files of supervised fine-tuning, and the requests that are made of them."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import art
from art.backends.sft import sft_config, sft_request
from art.config.sft import AUTO_BATCH_SIZE, TrainSFTConfig, resolve
from art.errors import ConfigError, InvalidInput, NotFound
from art.utils.sft import (
    create_lr_schedule,
    create_sft_dataset_iterator,
    get_file_row_count,
    iterate_file,
    resolve_sft_batch_size,
    train_sft_from_file,
)


def talk(number: int) -> art.Trajectory:
    return art.Trajectory(
        messages_and_choices=[
            {"role": "user", "content": str(number)},
            {"role": "assistant", "content": "yes"},
        ]
    )


def asked(trajectory: art.Trajectory) -> str:
    return str(trajectory.messages()[0]["content"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "examples.jsonl"
    rows = [json.dumps({"messages": talk(number).messages_and_choices}) for number in range(10)]
    path.write_text("\n\n".join(rows) + "\n")
    return path


# -- schedules


def test_schedules_are_their_formulas() -> None:
    assert create_lr_schedule(4, 1.0, "constant") == [1.0] * 4
    assert create_lr_schedule(4, 1.0, "linear") == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert create_lr_schedule(5, 1.0, "linear", warmup_steps=1, min_lr=0.2) == pytest.approx(
        [0.5, 1.0, 0.8, 0.6, 0.4]
    )
    cosine = create_lr_schedule(4, 1.0, "cosine")
    assert cosine == pytest.approx([(1 + math.cos(math.pi * t / 4)) / 2 for t in range(4)])
    assert create_lr_schedule(3, 1.0, "linear", warmup_steps=3) == pytest.approx([0.25, 0.5, 0.75])
    assert create_lr_schedule(0, 1.0) == []
    assert all(rate > 0 for method in ("linear", "cosine") for rate in create_lr_schedule(7, 1e-4, method))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "step"},
        {"warmup_steps": 5},
        {"warmup_steps": -1},
        {"min_lr": 2.0},
        {"total_steps": -1, "warmup_steps": 0},
    ],
)
def test_impossible_schedules_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        create_lr_schedule(**{"total_steps": 4, "peak_lr": 1.0, **options})


# -- chunks


def test_chunks_cover_every_epoch_with_one_schedule() -> None:
    items = [talk(number) for number in range(7)]
    chunks = list(
        create_sft_dataset_iterator(
            items, 2, epochs=2, batch_size=2, peak_lr=1.0, schedule_type="linear", warmup_ratio=0.0
        )
    )
    assert [(one.step, one.epoch, one.epoch_step) for one in chunks] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
    ]
    assert [len(one.trajectories) for one in chunks] == [4, 3, 4, 3]
    rates: list[float] = []
    for one in chunks:
        assert isinstance(one.config.learning_rate, list)
        assert len(one.config.learning_rate) == math.ceil(len(one.trajectories) / 2)
        rates += one.config.learning_rate
    assert rates == pytest.approx(create_lr_schedule(8, 1.0, "linear"))
    for epoch in (chunks[:2], chunks[2:]):
        assert sorted(asked(item) for one in epoch for item in one.trajectories) == list("0123456")
    orders = [
        [asked(item) for one in epoch for item in one.trajectories] for epoch in (chunks[:2], chunks[2:])
    ]
    assert orders[0] != orders[1]
    resumed = list(
        create_sft_dataset_iterator(
            items,
            2,
            epochs=2,
            batch_size=2,
            peak_lr=1.0,
            schedule_type="linear",
            warmup_ratio=0.0,
            initial_step=3,
        )
    )
    assert resumed == chunks[3:]
    (plain,) = create_sft_dataset_iterator(items, 9, shuffle=False)
    assert [asked(item) for item in plain.trajectories] == list("0123456")


# -- files


def test_a_file_is_read_in_a_shuffled_order_that_can_be_resumed(file: Path) -> None:
    assert get_file_row_count(file) == 10
    whole = [asked(item) for item in iterate_file(file, epochs=2, seed=1)]
    assert sorted(whole[:10]) == sorted(whole[10:]) == list("0123456789")
    assert whole[:10] != whole[10:]
    assert whole == [asked(item) for item in iterate_file(str(file), epochs=2, seed=1)]
    assert whole[13:] == [asked(item) for item in iterate_file(file, epochs=2, seed=1, initial_skip=13)]
    assert [asked(item) for item in iterate_file(file, seed=None)] == list("0123456789")
    small = [asked(item) for item in iterate_file(file, shuffle_buffer_size=3)]
    assert sorted(small) == list("0123456789")
    assert small != list("0123456789")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 is no JSON"),
        ('{"prompt": "a"}', "line 2 is no example"),
        ('{"messages": [{"content": "a"}]}', "message without a role"),
        ('{"messages": [{"role": "user", "content": "a"}], "tools": {}}', "no list of tools"),
        ('{"messages": [{"role": "user", "content": "a"}], "functions": [{}]}', "`functions`"),
    ],
)
def test_a_line_that_is_no_example_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{json.dumps({'messages': talk(0).messages_and_choices})}\n{line}\n")
    with pytest.raises(InvalidInput, match=said):
        list(iterate_file(path))


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no file"):
        get_file_row_count(tmp_path / "none.jsonl")


class Taken:
    """Stands for a model: keeps what `train_sft` was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], TrainSFTConfig]] = []

    async def train_sft(self, trajectories: Any, config: TrainSFTConfig, **options: Any) -> None:
        self.calls.append(([asked(item) for item in trajectories], config))


def test_a_file_trained_in_parts_is_the_file_trained_at_once(file: Path) -> None:
    taken: Any = Taken()
    asyncio.run(train_sft_from_file(taken, file, 2, 3, 1e-3))
    for part in ({"final_step": 4}, {"initial_step": 4}):
        asyncio.run(train_sft_from_file(taken, file, 2, 3, 1e-3, **part))
    (order, config), *parts = taken.calls
    assert len(order) == 20
    assert isinstance(config.learning_rate, list)
    assert len(config.learning_rate) == 7
    assert order == parts[0][0] + parts[1][0]
    assert config.learning_rate == parts[0][1].learning_rate + parts[1][1].learning_rate


@pytest.mark.parametrize(
    "options",
    [
        {"initial_step": 5},
        {"final_step": 0},
        {"epochs": 0},
        {"warmup_ratio": 2},
        {"_config": {"batch_size": 1}},
    ],
)
def test_a_file_cannot_be_trained_with_these(file: Path, options: dict[str, Any]) -> None:
    model: Any = Taken()
    with pytest.raises((InvalidInput, ConfigError)):
        asyncio.run(train_sft_from_file(model, file, batch_size=2, **{"epochs": 1, **options}))
    assert model.calls == []


# -- what is sent


def test_a_repeated_trajectory_is_sent_once() -> None:
    request = sft_request("p", "m", [talk(1), talk(2), talk(1)], TrainSFTConfig())
    assert len(request.examples) == 2
    assert request.order == [0, 1, 0]


def test_choices_histories_and_tools_are_sent() -> None:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c"}],
        },
        "logprobs": {"content": []},
    }
    user = {"role": "user", "content": "q"}
    more = art.History(
        messages_and_choices=[user, {"role": "assistant", "content": None, "trainable": False}]
    )
    tool = {"type": "function", "function": {"name": "f"}}
    given = art.Trajectory(messages_and_choices=[user, choice], tools=[tool], additional_histories=[more])
    (example,) = sft_request("p", "m", [given], TrainSFTConfig()).examples
    first, second = example.conversations
    assert first.messages == [
        user,
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [{"id": "c"}]},
    ]
    assert first.tools == [tool]
    assert second.messages[1] == {"role": "assistant", "content": "", "trainable": False}


def test_what_is_no_trajectory_is_refused() -> None:
    for given, said in (
        ([], "no trajectories"),
        ([art.TrajectoryGroup([talk(1)])], "is a TrajectoryGroup"),
        ([art.Trajectory()], "without messages"),
    ):
        with pytest.raises(InvalidInput, match=said):
            sft_request("p", "m", given, TrainSFTConfig())


def test_the_config_is_resolved_once() -> None:
    resolved, notes = resolve(TrainSFTConfig(), examples=5, parameters=1_000_000)
    assert resolved.batch_size == AUTO_BATCH_SIZE == resolve_sft_batch_size("auto")
    assert resolved.learning_rates == [1e-3] * 3
    assert [note.partition(" ")[0] for note in notes] == ["batch_size", "learning_rate"]
    listed, notes = resolve(TrainSFTConfig(learning_rate=[0.1, 0.2], batch_size=4), examples=5, parameters=1)
    assert (listed.learning_rates, notes) == ([0.1, 0.2], [])
    with pytest.raises(InvalidInput, match="2 learning rates for 5 updates"):
        resolve(TrainSFTConfig(learning_rate=[0.1, 0.2], batch_size=1), examples=5, parameters=1)


def test_options_are_checked_by_name() -> None:
    merged = sft_config(TrainSFTConfig(batch_size=4), {"max_grad_norm": 0.5}, "LocalBackend")
    assert (merged.batch_size, merged.max_grad_norm) == (4, 0.5)
    with pytest.raises(ConfigError, match="LocalBackend cannot train with these options") as failed:
        sft_config(None, {"learning_rat": 1e-4}, "LocalBackend")
    assert "did you mean learning_rate" in str(failed.value.cause)
    with pytest.raises(ConfigError, match=r"is a dict, not an art\.TrainSFTConfig"):
        sft_config({"batch_size": 4}, None, "LocalBackend")  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        TrainSFTConfig(learning_rate=0.0)
    with pytest.raises(ValidationError):
        TrainSFTConfig(batch_size=0)
