"""What the worker drives: an engine that advances a step at a time on one thread."""

from __future__ import annotations

from typing import Any, Protocol

from art.engine.protocol import AdapterCheck, AdapterRef, EngineCapabilities, Sampled, SampleRequest
from art.errors import ArtError

StepEvent = tuple[int, Sampled | ArtError]
"""(request key, what happened). A Sampled with a finish reason or an error is the key's last."""


class StepEngine(Protocol):
    """An engine as the worker drives it, from one thread, a step at a time."""

    capabilities: EngineCapabilities
    stats: dict[str, Any]
    """Replaced whole by the engine's thread, read by the heartbeat's."""

    def submit(self, key: int, request: SampleRequest) -> None:
        """Queue a checked request. ArtError when it cannot be served."""
        ...

    def cancel(self, key: int) -> None:
        """End a request; its last event, "cancelled", comes with the next step. Unknown keys do nothing."""
        ...

    def step(self) -> list[StepEvent] | None:
        """Advance every running request by one token; None when there is none and the worker may wait."""
        ...

    def load_adapter(self, ref: AdapterRef) -> AdapterCheck: ...

    def unload_adapter(self, version: str) -> None: ...

    def probe(self, version: str, token_ids: list[int]) -> list[float]: ...
