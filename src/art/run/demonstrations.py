"""Supervised fine-tuning before the first batch, once in the life of a model."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from art.config.sft import TrainSFTConfig
from art.run.display import Display
from art.run.progress import Progress
from art.utils.sft import iterate_file

if TYPE_CHECKING:
    from art.config.load import Loaded
    from art.config.run import SftSection
    from art.model import TrainableModel

STATE_KEY = "_run_demonstrations"
"""In the model's state: the batch count before they were trained, and their digest."""


async def train(model: TrainableModel[Any, Any], loaded: Loaded, progress: Progress, display: Display) -> int:
    """Train on the demonstrations unless that was done; how many batches of the model they take.

    The state is written before the call is made: the batch counter then says whether it was.
    """
    info = await model.info()
    before: dict[str, Any] | None = (model.read_state() or {}).get(STATE_KEY)
    done = before is not None and info.batch > before["batch"]
    settings = loaded.sft
    if settings.file is None:
        return int(done)
    digest = _digest(settings)
    if done:
        assert before is not None
        if before["digest"] != digest:
            note = (
                "the demonstrations have changed since they were trained; another model name trains on them"
            )
            display.say(f"{model.name}: {note}", event="note", text=note)
        return 1
    progress.enter("demonstrations")
    model.merge_state({STATE_KEY: {"batch": info.batch, "digest": digest}})
    examples = list(iterate_file(settings.file, settings.epochs, seed=loaded.run.seed))
    fields = {name: getattr(settings, name) for name in TrainSFTConfig.model_fields}
    result = await model.train_sft(examples, TrainSFTConfig(**fields))
    line = f"{model.name}: {len(examples)} demonstrations trained, step {result.step}"
    display.say(
        line, event="demonstrations", examples=len(examples), step=result.step, metrics=result.metrics
    )
    return 1


def _digest(settings: SftSection) -> str:
    assert settings.file is not None
    text = settings.file.read_bytes() + settings.model_dump_json(exclude={"file"}).encode()
    return hashlib.sha256(text).hexdigest()
