"""The HTTP servers of one gateway: one per socket, all with the same application."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

from art.config.server import ServerConfig
from art.server.app import build_app
from art.server.connections import Connections, bound_buffers
from art.server.listen import Listening
from art.server.state import Gateway
from art.server.tls import Certificate


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: stopping is the lifetime's business."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Doors:
    """Answers on all sockets of `listening` until `close`."""

    def __init__(self, gateway: Gateway, listening: Listening) -> None:
        app, settings = build_app(gateway), gateway.settings
        self._certificate = listening.certificate
        self._doors = [(HttpServer(_config(app, settings, None)), listening.plain)]
        if listening.tls is not None:
            self._doors.append((HttpServer(_config(app, settings, listening.certificate)), listening.tls))
        for _, sock in self._doors:
            bound_buffers(sock)
        self._connections = gateway.connections = Connections(
            [server.server_state.connections for server, _ in self._doors],
            silent_seconds=settings.silent_client_seconds,
        )

    async def up(self) -> None:
        """Returns when every socket is answered."""
        for server, _ in self._doors:
            await server.up.wait()

    async def serve(self) -> None:
        """Answer until closed. One that ends by itself closes the others, and its error is raised."""
        watching = [asyncio.create_task(self._connections.watch(), name="connections")]
        if self._certificate is not None:
            watching.append(asyncio.create_task(self._certificate.watch(), name="certificate"))
        serving = [
            asyncio.create_task(server.serve(sockets=[sock]), name="http") for server, sock in self._doors
        ]
        try:
            await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
            self.close()
            await asyncio.gather(*serving)
        finally:
            for task in (*watching, *serving):
                task.cancel()

    def close(self, *, force: bool = False) -> None:
        """Take no more requests and let the running ones end; with `force`, not even those."""
        for server, _ in self._doors:
            server.should_exit = True
            server.force_exit = server.force_exit or force


def _config(app: Starlette, settings: ServerConfig, certificate: Certificate | None) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        lifespan="off",
        ws="none",
        server_header=False,
        # Otherwise uvicorn believes every program on this machine, and an environment variable, who it speaks for.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(settings.stop_seconds),
    )
    config.load()
    if certificate is not None:
        config.ssl = certificate.context
    return config
