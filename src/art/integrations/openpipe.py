"""OpenPipe's request logs: a JSONL file in the form that OpenPipe exports and imports (`input`, `output`, `tags`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from art.config.trackers import OpenPipeOptions
from art.integrations.seen import CallSeen, RolloutBatch, RolloutSeen
from art.integrations.tracker import About, PublishedStep, Row, RunInfo

FILE = "openpipe.jsonl"


class OpenPipeTracker:
    """Writes; sends nothing. The service's own report route takes the same three parts."""

    def __init__(self, options: OpenPipeOptions) -> None:
        self._options = options
        self._path = Path(FILE)
        self._run: RunInfo | None = None

    @property
    def about(self) -> About:
        """The file."""
        place = f"{FILE} of the model" if self._options.file is None else str(self._options.file)
        return About(
            name="openpipe",
            place=place,
            leaves=False,
            figures=False,
            rollouts=True,
            content=self._options.content,
        )

    def start(self, run: RunInfo) -> None:
        """Open the file, readable by its owner alone; a resumed run adds to it."""
        self._run = run
        self._path = self._options.file or run.folder / FILE
        self._path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))

    def log(self, row: Row) -> None:
        """Never called: `about.figures` is False."""
        raise AssertionError("it takes no figures")

    def rollouts(self, batch: RolloutBatch) -> None:
        """A line for each call."""
        lines = [json.dumps(line, ensure_ascii=False) for line in self._lines(batch)]
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def _lines(self, batch: RolloutBatch) -> Iterator[dict[str, Any]]:
        assert self._run is not None, "rollouts follow a start"
        project = self._run.project
        for rollout in batch.rollouts:
            for call in rollout.calls:
                yield {
                    "input": _request(call),
                    "output": _answer(call),
                    "tags": _tags(call, rollout, batch, project),
                }

    def artifact(self, checkpoint: PublishedStep) -> None:
        """Never called: `about.checkpoints` is False."""
        raise AssertionError("a request log takes no checkpoints")

    def close(self, seconds: float) -> None:
        """Every line is in the file."""


def _request(call: CallSeen) -> dict[str, Any]:
    asked = {
        "temperature": call.temperature,
        "top_p": call.top_p,
        "max_tokens": call.max_tokens,
        "seed": call.seed,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    return {"model": call.model, "messages": list(call.input), **given}


def _answer(call: CallSeen) -> dict[str, Any]:
    prompt, sampled = call.input_tokens or 0, call.output_tokens or 0
    message = call.output or {"role": "assistant", "content": ""}
    reason = call.finish_reasons[0] if call.finish_reasons else "stop"
    return {
        "id": call.call_id,
        "object": "chat.completion",
        "created": int(call.started),
        "model": call.version,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
        },
    }


def _tags(call: CallSeen, rollout: RolloutSeen, batch: RolloutBatch, project: str) -> dict[str, str]:
    """Texts all of them, as OpenPipe's tags are."""
    tags = {
        "project": project,
        "step": batch.step,
        "split": batch.split,
        "rollout_id": rollout.rollout_id,
        "scenario_id": rollout.scenario_id,
        "reward": rollout.reward,
        "fate": call.fate,
        "agent": call.agent,
    }
    return {name: str(value) for name, value in tags.items() if value not in ("", None)}
