"""A checkpoint's weights as this machine sees them: there, and what the trainer wrote.

On shared storage a folder that was just published may take a while to appear, or be seen half. So a young checkpoint is
looked at again for a while; an old one whose files are gone or damaged is said to be so at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path

from art.errors import ArtError, InvalidInput, NotFound
from art.types.jobs import CheckpointInfo

WEIGHTS = ("adapter_model.safetensors", "model.safetensors")
"""The file with what was trained: of an adapter, or of a whole model."""
YOUNG_SECONDS = 30.0
"""How long after it was made a checkpoint may still be on its way: NFS shows new files after 3 to 60 s by its defaults,
and the trainer's machine has written all of it before it says so."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
"""Seconds between looks: doubled from the one to the other."""


async def arrived(info: CheckpointInfo) -> None:
    """Return when the weights are there, whole. NotFound or InvalidInput when they are not, and will not be soon."""
    loop = asyncio.get_running_loop()
    # Another machine's clock says when it was made: it must not make this wait longer than a young one's.
    patience = min(YOUNG_SECONDS, info.created_at + YOUNG_SECONDS - time.time())
    deadline, pause, looks = loop.time() + patience, FIRST_PAUSE, 1
    while (problem := await asyncio.to_thread(problem_of, info)) is not None:
        left = deadline - loop.time()
        if left <= 0:
            if looks > 1:
                problem.cause = f"{problem.cause}; looked for {patience:.0f} s, {looks} times".removeprefix(
                    "; "
                )
            raise problem
        await asyncio.sleep(min(pause, left))
        pause, looks = min(2 * pause, LONGEST_PAUSE), looks + 1


def problem_of(info: CheckpointInfo) -> ArtError | None:
    """What is wrong with a checkpoint's weights, or None. Reads all of the file where the manifest says its digest."""
    folder = Path(info.path)
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        return NotFound(
            f"{folder / WEIGHTS[0]} does not exist", hint="give the folder of a published checkpoint"
        )
    if not info.sha256:
        return None
    try:
        with file.open("rb") as handle:
            found = hashlib.file_digest(handle, "sha256").hexdigest()
    except FileNotFoundError:
        return NotFound(f"{file} does not exist", cause="it was deleted just now")
    except OSError as error:
        return InvalidInput(f"{file} cannot be read", cause=str(error))
    if found != info.sha256:
        return InvalidInput(
            f"{file} is not what the trainer wrote",
            cause=f"its sha256 begins with {found[:12]}, the manifest's with {info.sha256[:12]}",
        )
    return None
