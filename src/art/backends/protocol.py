"""What a backend is to a model: a server that serves, records and trains it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from art.types import wire

if TYPE_CHECKING:
    from art.backends.http import Connection
    from art.backends.results import TrainResult
    from art.config.sft import TrainSFTConfig
    from art.model import Model
    from art.trajectories import Trajectory, TrajectoryGroup


@runtime_checkable
class Backend(Protocol):
    """Bound to no event loop: every method may be called from any of them."""

    @property
    def connection(self) -> Connection:
        """The server, as agents' clients and sessions reach it."""
        ...

    async def register(self, model: Model[Any, Any]) -> None:
        """Make the model exist on the server. Idempotent."""
        ...

    async def train(
        self, model: Model[Any, Any], groups: Iterable[TrajectoryGroup], **options: Any
    ) -> TrainResult:
        """One train call: a step when the batch carries signal. Options are `TrainConfig`'s fields."""
        ...

    async def train_sft(
        self,
        model: Model[Any, Any],
        trajectories: Iterable[Trajectory],
        *,
        config: TrainSFTConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> TrainResult:
        """One call of supervised fine-tuning: one step. `_config` holds more fields of TrainSFTConfig."""
        ...

    async def log(self, model: Model[Any, Any], request: wire.LogRequest) -> Mapping[str, Any] | None:
        """Record trajectories and metrics of one split at one step; the row as it is kept, or None without sums."""
        ...

    async def delete_checkpoints(self, model: Model[Any, Any], best_checkpoint_metric: str) -> list[int]:
        """Keep the latest and the best step by a metric of the history; returns the deleted steps."""
        ...

    def close(self) -> Awaitable[None]:
        """Let go of the server. Closed at once; awaiting the result is optional."""
        ...
