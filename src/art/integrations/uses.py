"""Writes down which trackers a model's runs were sent to, for `art doctor --data-flow`."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from pydantic import ValidationError

from art.config.trackers import USES, TrackerUse, TrackerUses
from art.integrations.tracker import About
from art.utils.files import read_json, write_json

logger = logging.getLogger(__name__)
_lock = threading.Lock()


def what_goes(about: About) -> str:
    """What a tracker gets, for a person."""
    parts = ["figures"] if about.figures else []
    parts += (
        ["rollouts with what was said, as the server keeps it"] if about.rollouts and about.content else []
    )
    parts += ["rollouts without what was said"] if about.rollouts and not about.content else []
    parts += ["checkpoints"] if about.checkpoints else []
    return ", ".join(parts)


def note_use(folder: Path, about: About) -> None:
    """Add it to the model's file, in the place of an earlier entry of that name and place."""
    use = TrackerUse(
        name=about.name, place=about.place, what=what_goes(about), leaves=about.leaves, last=time.time()
    )
    path = folder / USES
    with _lock:
        try:
            known = TrackerUses.model_validate(read_json(path) or {})
        except (OSError, ValueError, ValidationError):
            known = TrackerUses()
        others = [item for item in known.trackers if (item.name, item.place) != (use.name, use.place)]
        try:
            write_json(path, TrackerUses(trackers=[*others, use]).model_dump(mode="json"))
        except OSError as error:
            logger.warning("which tracker is used could not be written down: %s", error)
