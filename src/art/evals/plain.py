"""A run on a model that ART does not serve: any OpenAI-compatible service, by its base URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from art.errors import UnsupportedOption
from art.rollouts.recording import Recording, recording_into
from art.rollouts.scope import new_rollout_id

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

    from art.model import Model
    from art.trajectories import MetadataValue


class CountingRecording(Recording):
    """A recording that adds up what the service says it has counted."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0

    def add(self, request: bytes, answer: bytes) -> None:
        super().add(request, answer)
        self.calls += 1
        usage = usage_of(answer)
        self.prompt_tokens += int(usage.get("prompt_tokens") or 0)
        self.completion_tokens += int(usage.get("completion_tokens") or 0)


def usage_of(answer: bytes) -> dict[str, Any]:
    """The `usage` of a chat completion, whole or streamed (the last chunk that has one); {} where it is not told."""
    found: dict[str, Any] = {}
    lines = [answer] if not answer.lstrip().startswith(b"data:") else answer.split(b"\n")
    for line in lines:
        text = line.removeprefix(b"data:").strip()
        try:
            data = json.loads(text) if text else None
        except ValueError:
            continue
        usage = data.get("usage") if isinstance(data, dict) else None
        if isinstance(usage, dict):
            found = usage
    return found


class PlainSession:
    """What an agent may be given of a session (`rollouts.signature.SessionValues`), without a server behind it."""

    def __init__(self, model: Model[Any, Any]) -> None:
        self.model = model
        self.rollout_id = new_rollout_id()
        self.metrics: dict[str, float | int | bool] = {}
        self.metadata: dict[str, MetadataValue] = {}
        self.recording = CountingRecording()

    @contextmanager
    def open(self) -> Iterator[PlainSession]:
        """Calls of our own clients inside the block are counted here."""
        with recording_into(self.recording):
            yield self

    @property
    def base_url(self) -> str:
        """Of the service."""
        return self.model.inference_base_url or str(self.openai_client().base_url).rstrip("/")

    @property
    def api_key(self) -> str:
        """For the service."""
        return self.model.inference_api_key or self.openai_client().api_key

    @property
    def model_name(self) -> str:
        """The name to ask for."""
        return self.model.get_inference_name()

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for an agent that finds its model there."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ART_ROLLOUT_ID": self.rollout_id,
        }

    def openai_client(self) -> AsyncOpenAI:
        """An AsyncOpenAI of the service."""
        from art.backends.clients import plain_client

        return plain_client(self.model)

    def sync_openai_client(self) -> OpenAI:
        """An OpenAI of the service."""
        from openai import DefaultHttpxClient, OpenAI

        from art.backends.clients import Recorder

        hooks = Recorder((self.model.project, self.model.name), self.recording).sync_hooks()
        return OpenAI(
            base_url=self.base_url, api_key=self.api_key, http_client=DefaultHttpxClient(event_hooks=hooks)
        )

    def anthropic_client(self) -> Any:
        """Refused: the service speaks OpenAI's protocol."""
        raise _no_anthropic(self.model.name)

    def sync_anthropic_client(self) -> Any:
        """Refused: the service speaks OpenAI's protocol."""
        raise _no_anthropic(self.model.name)


def _no_anthropic(name: str) -> UnsupportedOption:
    return UnsupportedOption(
        f"{name} is reached by OpenAI's protocol; the agent asks for an Anthropic client",
        hint="evaluate it with an agent that takes an OpenAI client or a base_url",
    )
