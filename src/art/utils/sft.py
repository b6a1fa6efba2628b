"""Supervised fine-tuning from files and lists: learning-rate schedules, chunks, resuming.

A file holds one JSON object a line, as OpenAI's fine-tuning files do: `{"messages": [...], "tools": [...]}`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from art.algorithms.schedules import scheduled_rate
from art.config.optimizer import Schedule
from art.config.sft import TrainSFTConfig, resolve_batch_size
from art.errors import ConfigError, InvalidInput, NotFound
from art.trajectories import Trajectory
from art.utils.console import bars_wanted, console

if TYPE_CHECKING:
    from art.backends.results import TrainResult
    from art.model import TrainableModel

__all__ = [
    "SFTChunk",
    "create_lr_schedule",
    "create_sft_dataset_iterator",
    "get_file_row_count",
    "iterate_file",
    "resolve_sft_batch_size",
    "train_sft_from_file",
]

resolve_sft_batch_size = resolve_batch_size
"""The number that "auto" stands for; any other batch size as it is."""


def create_lr_schedule(
    total_steps: int,
    peak_lr: float,
    method: Schedule = "linear",
    warmup_steps: int = 0,
    min_lr: float = 0.0,
) -> list[float]:
    """The learning rate of each of `total_steps` updates.

    Update s of W warm-up steps has peak * (s + 1) / (W + 1). Behind them, with t = (s - W) / (total_steps - W):
    `linear` min + (peak - min) * (1 - t), `cosine` min + (peak - min) * (1 + cos(pi t)) / 2 (Loshchilov and
    Hutter 2017, arXiv:1608.03983), `constant` peak. No rate is 0: t ends before 1. InvalidInput for what cannot be.
    """
    if method not in get_args(Schedule):
        raise InvalidInput(
            f"there is no schedule {method!r}", hint=f"the schedules are: {', '.join(get_args(Schedule))}"
        )
    if total_steps < 0 or not 0 <= warmup_steps <= total_steps:
        raise InvalidInput(
            f"{warmup_steps} of {total_steps} steps cannot be the warm-up",
            hint="0 <= warmup_steps <= total_steps",
        )
    if not 0 <= min_lr <= peak_lr:
        raise InvalidInput(f"min_lr is {min_lr} and peak_lr {peak_lr}", hint="0 <= min_lr <= peak_lr")

    return [
        scheduled_rate(step, peak_lr, method=method, warmup=warmup_steps, total=total_steps, floor=min_lr)
        for step in range(total_steps)
    ]


@dataclass(frozen=True)
class SFTChunk:
    """What one `train_sft` call is given."""

    trajectories: list[Trajectory]
    config: TrainSFTConfig
    """With the learning rate of each of the chunk's updates."""
    step: int
    """Chunks before it, over all epochs."""
    epoch: int
    epoch_step: int
    """Chunks before it in its epoch."""


def create_sft_dataset_iterator(
    trajectories: Iterable[Trajectory],
    chunk_size: int = 10,
    *,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: Schedule = "linear",
    warmup_ratio: float = 0.1,
    shuffle: bool = True,
    seed: int = 42,
    initial_step: int = 0,
    show_progress: bool = True,
) -> Iterator[SFTChunk]:
    """Chunks of `chunk_size` updates, one published step each: `await model.train_sft(c.trajectories, c.config)`.

    The learning rate follows one schedule over all updates of all epochs; `warmup_ratio` of them are its
    warm-up. Each epoch has an order of its own, which depends on `seed` and the epoch alone, so `initial_step`
    (in chunks) resumes where a run stopped. `show_progress` shows a bar on a terminal.
    """
    items = list(trajectories)
    _check_positive(chunk_size=chunk_size, epochs=epochs, batch_size=batch_size)
    per_epoch = -(-len(items) // batch_size)
    rates = _schedule(per_epoch * epochs, peak_lr, schedule_type, warmup_ratio)

    def chunks() -> Iterator[SFTChunk]:
        step = 0
        for epoch in range(epochs):
            order = list(range(len(items)))
            if shuffle:
                random.Random(f"{seed}:{epoch}").shuffle(order)
            for epoch_step, first in enumerate(range(0, per_epoch, chunk_size)):
                last = min(first + chunk_size, per_epoch)
                if step >= initial_step:
                    chosen = order[first * batch_size : last * batch_size]
                    at = epoch * per_epoch
                    config = TrainSFTConfig(
                        learning_rate=rates[at + first : at + last], batch_size=batch_size
                    )
                    yield SFTChunk([items[n] for n in chosen], config, step, epoch, epoch_step)
                step += 1

    if not show_progress or not bars_wanted():
        return chunks()
    from rich.progress import track

    total = max(0, -(-per_epoch // chunk_size) * epochs - initial_step)
    return iter(track(chunks(), "steps", total=total, console=console(), transient=True))


def _schedule(total: int, peak_lr: float, method: Schedule, warmup_ratio: float) -> list[float]:
    if not 0 <= warmup_ratio <= 1:
        raise InvalidInput(f"warmup_ratio is {warmup_ratio}", hint="a share of all updates, from 0 to 1")
    return create_lr_schedule(total, peak_lr, method, warmup_steps=int(total * warmup_ratio))


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise InvalidInput(f"{name} is {value}", hint="give at least 1")


# -- files


def get_file_row_count(file_path: str | Path) -> int:
    """The examples in a file: its lines that are not blank."""
    return sum(1 for _ in _lines(file_path))


def iterate_file(
    file_path: str | Path,
    epochs: int = 1,
    shuffle_buffer_size: int = 10_000,
    seed: int | None = 42,
    initial_skip: int = 0,
) -> Iterator[Trajectory]:
    """The examples of a file, `epochs` times, without reading it into memory.

    A buffer of `shuffle_buffer_size` lines is what is shuffled among; a file that fits is shuffled whole. Each
    epoch has an order of its own, which depends on `seed` and the epoch alone; `seed=None` and a buffer of 1
    keep the file's order. `initial_skip` examples are left out at the beginning, over all epochs. InvalidInput
    names the line that is no example, NotFound the file that is not there.
    """
    _check_positive(epochs=epochs, shuffle_buffer_size=shuffle_buffer_size)
    if initial_skip < 0:
        raise InvalidInput(f"initial_skip is {initial_skip}", hint="give 0 or more")
    found = (
        line
        for epoch in range(epochs)
        for line in _shuffled(_lines(file_path), shuffle_buffer_size, seed, epoch)
    )
    for number, line in islice(found, initial_skip, None):
        yield _example(line, f"{file_path}, line {number}")


def _lines(file_path: str | Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of each line that is not blank."""
    try:
        with Path(file_path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {file_path}", hint="check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{file_path} cannot be read", cause=str(error), hint="a UTF-8 text file"
        ) from error


def _shuffled(
    lines: Iterable[tuple[int, str]], size: int, seed: int | None, epoch: int
) -> Iterator[tuple[int, str]]:
    """Each line once: it changes places with one of the buffer's when it comes."""
    if seed is None or size == 1:
        yield from lines
        return
    rng = random.Random(f"{seed}:{epoch}")
    buffer: list[tuple[int, str]] = []
    for line in lines:
        if len(buffer) < size:
            buffer.append(line)
            continue
        place = rng.randrange(size)
        out, buffer[place] = buffer[place], line
        yield out
    rng.shuffle(buffer)
    yield from buffer


def _example(line: str, where: str) -> Trajectory:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InvalidInput(f"{where} is no JSON", cause=str(error), hint="one JSON object a line") from error
    if not isinstance(row, dict) or not isinstance(row.get("messages"), list) or not row["messages"]:
        raise InvalidInput(
            f"{where} is no example", hint='each line is {"messages": [...]}, perhaps with "tools": [...]'
        )
    if row.get("functions"):
        raise InvalidInput(
            f"{where} has `functions`, which would be ignored",
            cause="that is the API before tools",
            hint='write them as "tools": [{"type": "function", "function": {...}}]',
        )
    messages, tools = row["messages"], row.get("tools")
    if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages):
        raise InvalidInput(
            f"{where} holds a message without a role", hint='{"role": "user", "content": "..."}'
        )
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise InvalidInput(f"{where}: `tools` is no list of tools", hint="as in OpenAI's chat API")
    return Trajectory(messages_and_choices=messages, tools=tools or None)


async def train_sft_from_file(
    model: TrainableModel[Any, Any],
    file_path: str | Path,
    epochs: int = 1,
    batch_size: int | Literal["auto"] = 2,
    peak_lr: float = 2e-4,
    schedule_type: Schedule = "linear",
    *,
    warmup_ratio: float = 0.1,
    initial_step: int = 0,
    final_step: int | None = None,
    _config: Mapping[str, Any] | None = None,
    verbose: bool = False,
    shuffle_buffer_size: int = 10_000,
) -> TrainResult:
    """Train on a file's examples, `epochs` times: one call, one published step.

    Steps of the schedule are optimizer updates of `batch_size` examples. `initial_step` and `final_step` cut a
    part out of them, so that a long file can be trained in several calls: each goes on where the last one
    stopped, with its learning rate and its examples, as one call would. `_config` holds more fields of TrainSFTConfig.
    """
    size = resolve_batch_size(batch_size)
    _check_positive(epochs=epochs, batch_size=size)
    rows = get_file_row_count(file_path)
    if not rows:
        raise InvalidInput(f"{file_path} holds no examples", hint="one JSON object a line")
    total = -(-rows * epochs // size)
    last = total if final_step is None else min(final_step, total)
    if not 0 <= initial_step < last:
        raise InvalidInput(
            f"there is nothing to train from step {initial_step} to {last}",
            cause=f"{rows} examples, {epochs} times, in batches of {size} are {total} steps",
            hint="0 <= initial_step < final_step",
        )
    taken = {"learning_rate", "batch_size"} & (_config or {}).keys()
    if taken:
        raise ConfigError(
            f"_config holds {' and '.join(sorted(taken))}, which would be overridden",
            hint="set peak_lr, schedule_type, warmup_ratio and batch_size",
        )
    rates = _schedule(total, peak_lr, schedule_type, warmup_ratio)[initial_step:last]
    examples = iterate_file(
        file_path, epochs, shuffle_buffer_size=shuffle_buffer_size, initial_skip=initial_step * size
    )
    config = TrainSFTConfig(learning_rate=rates, batch_size=size)
    chosen = islice(examples, (last - initial_step) * size)
    return await model.train_sft(chosen, config, _config=_config, verbose=verbose)
