"""What the trainer found of a step's choices, taken from the file that it left and kept with their tokens."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from art.errors import ArtError
from art.store.records import ModelRow
from art.store.store import Store
from art.store.traces import read_traces, trace_file

logger = logging.getLogger(__name__)


async def keep_traces(store: Store, model: ModelRow, job_id: str, step: int) -> None:
    """Before the job's end is recorded, so that a job that is repeated finds the file again.

    A failure is logged and costs nothing but what a person would have seen.
    """
    file = trace_file(Path(model.model_dir), job_id)
    try:
        if traces := await asyncio.to_thread(read_traces, file):
            await store.remarks.add_traces(traces, step)
        await asyncio.to_thread(file.unlink, missing_ok=True)
    except (ArtError, OSError) as error:
        logger.warning("%s: what the trainer found of its choices was not kept: %s", job_id, error)
