"""LocalBackend: a server on this machine, started and stopped with the programs that use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.backends.child import START_SECONDS, ChildServer
from art.backends.http import Endpoint
from art.backends.server import TRAIN_SECONDS, ServerBackend
from art.errors import UnsupportedOption
from art.utils.console import say
from art.utils.threads import in_thread

if TYPE_CHECKING:
    from art.model import Model


class ChildEndpoint:
    """Finds the child server from an event loop, without blocking it; Ctrl-C need not wait for a start."""

    def __init__(self, child: ChildServer) -> None:
        self._child = child
        self._known: Endpoint | None = None

    async def locate(self) -> Endpoint:
        if self._known is None:
            self._known = await in_thread(self._child.endpoint)
        return self._known

    async def recover(self) -> None:
        await in_thread(self._child.recover)
        self._known = await in_thread(self._child.endpoint)

    def forget(self) -> None:
        """The child was released; a later use starts anew."""
        self._known = None


class LocalBackend(ServerBackend):
    """Trains and serves on this machine.

    The server (`art serve`) is a process of its own; it starts at first use, is shared by all programs on
    the same folder, is started again should it die, and stops a moment after the last program has let go.

    `path`: the folder of models and records; by default `.art` in the repository's root, else here.
    `gpu_cost_per_hour_usd`: what an hour of this machine costs; steps get their share of it as `costs/gpu`.
    `deterministic`: seeded runs repeat themselves bit by bit, at a cost in speed (docs/deterministic.md).
    `serve_args`, `serve_environment`: further arguments and variables for `art serve`, used when this program is the
    one that starts it.
    """

    def __init__(
        self,
        *,
        in_process: bool = False,
        path: str | Path | None = None,
        gpu_cost_per_hour_usd: float | None = None,
        serve_args: Sequence[str] = (),
        start_timeout: float = START_SECONDS,
        train_timeout: float = TRAIN_SECONDS,
        deterministic: bool = False,
        serve_environment: Mapping[str, str] | None = None,
    ) -> None:
        if in_process:
            raise UnsupportedOption(
                "LocalBackend does not support in_process=True",
                cause="the server, the engine and the trainer are processes of their own",
                hint="leave in_process out; to debug the server run `art serve` yourself and use RemoteBackend",
            )
        root = Path(path) if path is not None else default_path(Path.cwd())
        self._child = ChildServer(
            root.absolute(),
            serve_args=serve_args,
            start_seconds=start_timeout,
            deterministic=deterministic,
            environment=serve_environment,
        )
        self._located = ChildEndpoint(self._child)
        super().__init__(
            self._located, train_timeout=train_timeout, gpu_cost_per_hour_usd=gpu_cost_per_hour_usd
        )

    @property
    def automatic_gpu_cost_per_hour_usd(self) -> float | None:
        """openpipe-art's name of `gpu_cost_per_hour_usd`. Nothing is guessed from the machine."""
        return self.gpu_cost_per_hour_usd

    @property
    def path(self) -> Path:
        """The folder of models and records."""
        return self._child.root

    @property
    def started_server(self) -> bool:
        """Whether this backend started the server that it uses; False before first use."""
        return self._child.started

    def base_path(self) -> str | None:
        return str(self._child.root)

    async def _experimental_fork_checkpoint(
        self,
        model: Model[Any, Any],
        from_model: str,
        from_project: str | None = None,
        from_s3_bucket: str | None = None,
        not_after_step: int | None = None,
        verbose: bool = False,
        prefix: str | None = None,
    ) -> None:
        """openpipe-art's name of `fork`. UnsupportedOption for a checkpoint in a bucket."""
        if from_s3_bucket is not None or prefix is not None:
            raise UnsupportedOption(
                "LocalBackend does not support from_s3_bucket and prefix",
                cause="checkpoints are folders of the server",
                hint="copy the checkpoint's folder here and start with TrainableModel(initial_adapter=<folder>)",
            )
        step = await self.fork(model, from_model, from_project=from_project, not_after_step=not_after_step)
        if verbose:
            say(f"{model.name}: forked from {from_model}@{step}")

    def _release(self) -> None:
        self._child.release()
        self._located.forget()


def default_path(start: Path) -> Path:
    """`.art` in the root of the git repository around `start`, else in `start`."""
    for folder in (start, *start.parents):
        if (folder / ".git").exists():
            return folder / ".art"
    return start / ".art"
