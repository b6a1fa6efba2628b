"""What a server does about the end of the one before it, whether it was stopped or killed."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

from art.server.files import write_lines
from art.store.records import ModelRow
from art.store.store import Store
from art.trainer.protocol import SET_ASIDE

logger = logging.getLogger(__name__)

INTERRUPTED = "the server was stopped while it ran"


async def recover(store: Store) -> None:
    """Settle what was in flight. Open jobs are not touched: they are run again.

    Rollouts that ran have lost their sessions: `infra_error`. Checkpoints that were being written are removed.
    A finished checkpoint that nobody recorded, and that no open job will, is set aside, not deleted. The files of a
    deleted one go.
    A history file that lacks a row of the store gets it.
    """
    interrupted = await store.interrupt_running(INTERRUPTED)
    if interrupted:
        logger.warning("%d rollouts were running when the server ended: infra_error", interrupted)
    await store.drop_expired_keys()
    open_jobs = {job.info.job_id for job in await store.open_jobs()}
    for model in await store.list_models():
        known = {row.info.step for row in await store.list_checkpoints(model.project, model.name)}
        deleted = await store.deleted_steps(model.project, model.name)
        await asyncio.to_thread(_tidy, model, known, deleted, open_jobs)
        history = await store.list_history(model.project, model.name)
        await asyncio.to_thread(_complete_history, Path(model.model_dir) / "history.jsonl", history)


def holds_step_of(model_dir: Path, job_id: str, *, after: int) -> bool:
    """Whether a finished checkpoint of the job, of a step after `after`, lies in the model's folder."""
    folders = [folder for folder in (model_dir / "checkpoints").glob("*") if folder.name.isdecimal()]
    return any(int(folder.name) > after and _job_of(folder) == job_id for folder in folders)


def _tidy(model: ModelRow, known: set[int], deleted: set[int], open_jobs: set[str]) -> None:
    checkpoints = Path(model.model_dir) / "checkpoints"
    if not checkpoints.is_dir():
        return
    for folder in sorted(checkpoints.iterdir()):
        if not folder.is_dir():
            continue
        # The trainer writes under another name and renames: plain numbers are whole checkpoints.
        if not folder.name.isdecimal():
            shutil.rmtree(folder, ignore_errors=True)
            logger.warning("removed %s: it was being written when the server ended", folder)
        elif int(folder.name) in deleted:
            # Renamed first: what is half gone must not look like a checkpoint.
            doomed = folder.rename(folder.with_name(f".tmp-deleted-{folder.name}-{time.time_ns()}"))
            shutil.rmtree(doomed, ignore_errors=True)
            logger.warning("removed %s: it was deleted when the server ended", folder)
        elif _unpublished(model, folder, known) and _job_of(folder) not in open_jobs:
            aside = Path(model.model_dir) / SET_ASIDE / f"{folder.name}-{int(time.time())}"
            aside.parent.mkdir(exist_ok=True)
            folder.rename(aside)
            logger.warning("step %s was never published; its files are in %s", folder.name, aside)


def _complete_history(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write history.jsonl anew when the server died between the store's row and the file's line."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    whole = sum(_is_json(line) for line in lines)
    if whole < len(rows):
        write_lines(file, rows)
        logger.warning("%s had %d of %d rows and was written anew", file, whole, len(rows))


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _unpublished(model: ModelRow, folder: Path, known: set[int]) -> bool:
    step = int(folder.name)
    return step > model.step and step not in known


def _job_of(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / "manifest.json").read_text())["job_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
