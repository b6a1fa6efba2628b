"""What the routes of one server share."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from art.config.server import ServerConfig
from art.server.keys import Keys
from art.server.live import Live
from art.server.looks import Looks
from art.server.store_size import StoreSize
from art.server.tokenizers import Tokenizers
from art.store.store import Store

if TYPE_CHECKING:
    from art.server.data_keeper import DataKeeper
    from art.server.engines import EnginePool
    from art.server.jobs import Jobs
    from art.server.quota import Meters
    from art.server.registration import Registration
    from art.server.sessions import Sessions
    from art.server.trainers import WorkerTrainer
    from art.server.upstreams import Upstreams
    from art.server.versions import Versions


@dataclass(slots=True)
class Gateway:
    """Made by `lifetime.py` at start, reached by routes as `request.app.state.gateway`."""

    settings: ServerConfig
    root: Path
    """The server's folder (`--path`), absolute; the store lies in `root / "server"`."""
    url: str
    """`http://host:port`, as clients on this machine reach it."""
    store: Store
    keys: Keys
    engines: EnginePool
    trainer: WorkerTrainer
    versions: Versions
    sessions: Sessions
    jobs: Jobs
    registration: Registration
    upstreams: Upstreams
    keeper: DataKeeper
    meters: Meters
    tls_url: str | None = None
    """`https://host:port` for other machines, where the server has a certificate."""
    read_only: bool = False
    """No engine, no trainer, and nothing is written: `art ui` on the folder of a finished run."""
    started_at: float = field(default_factory=time)
    connections: Sized = ()
    """The HTTP server's, once it runs."""
    live: Live = field(default_factory=Live)
    """Who is told of changes."""
    looks: Looks = field(default_factory=Looks)
    """Whose list is read next."""
    sizes: StoreSize = field(default_factory=StoreSize)
    tokenizers: Tokenizers = field(init=False)

    def __post_init__(self) -> None:
        self.tokenizers = Tokenizers(self.root, self.store, self.versions)
