"""`art serve`: run a server in this terminal."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from art.config.server import ServerConfig
    from art.server.state import Gateway

logger = logging.getLogger(__name__)

_UPSTREAM = "Another model to pass requests on to: NAME=URL[,model=...,api_key_env=...]; repeatable."
_REMOTE = "Permit plain HTTP on a host that other machines reach: keys and texts can be read on the way."
_PROXY = "Believe the X-Forwarded-For of this address or network, a proxy's; repeatable."
_DETERMINISTIC = "Make seeded runs repeat themselves, bit by bit; slower."
_REDACT = "Take out of what is stored: standard, or names as email,card (docs/sensitive-data.md)."
_CONTENT = "full, or none: keep numbers and fates, and nothing that anybody said."


def command(
    *,
    path: Annotated[Path | None, typer.Option(help="Folder of the server (default: .art).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one (default: 7999).")] = None,
    engine: Annotated[str | None, typer.Option(help="torch, or scripted for tests (default: torch).")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain (PEM): host and port speak TLS, not plain HTTP.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Its key (PEM), where it is not in the same file.")
    ] = None,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help=_REMOTE)] = False,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A name of this server behind a proxy; repeatable.")
    ] = None,
    behind_proxy: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help=_PROXY)] = None,
    upstream: Annotated[list[str] | None, typer.Option(help=_UPSTREAM)] = None,
    redact: Annotated[str | None, typer.Option(help=_REDACT)] = None,
    content: Annotated[str | None, typer.Option(help=_CONTENT)] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help=_DETERMINISTIC)] = False,
    stop_with_clients: Annotated[
        bool,
        typer.Option("--stop-with-clients", help="Stop when no local program uses it any more."),
    ] = False,
) -> None:
    """Serve models, record rollouts, train.

    Examples:

      art serve --path runs/weather --port 8000

      art serve --host 0.0.0.0 --tls-cert chain.pem --tls-key key.pem
    """
    from art.config.load import load_config
    from art.config.upstreams import parse_flag

    serve = _server()
    flags: dict[str, dict[str, Any]] = {
        "server": {
            "path": path,
            "host": host,
            "port": port,
            "tls_cert": tls_cert,
            "tls_key": tls_key,
            "allow_remote": allow_remote or None,
            "allowed_hosts": tuple(allowed_host) if allowed_host else None,
            "trusted_proxies": tuple(behind_proxy) if behind_proxy else None,
            "stop_with_clients": stop_with_clients or None,
            "deterministic": deterministic or None,
            "redact": redact,
            "content": content,
            "upstreams": dict(map(parse_flag, upstream)) if upstream else None,
        },
        "engine": {"kind": engine},
    }
    loaded = load_config(flags=flags, file=config)
    _log_to(loaded.server)
    asyncio.run(serve(loaded.server, on_ready=_say_ready))


def _server() -> Callable[..., Coroutine[Any, Any, None]]:
    """What runs a server. ConfigError where this machine cannot."""
    from art.errors import ConfigError

    try:
        from art.server.lifetime import serve
    except ModuleNotFoundError as error:
        raise ConfigError(
            "art serve needs packages that are not installed",
            cause=str(error),
            hint="pip install 'agent-reinforcement-trainer[server]'",
        ) from error
    if sys.platform != "linux":
        raise ConfigError(
            "art serve runs on Linux", hint="use a server on a Linux machine with RemoteBackend"
        )
    return serve


def _log_to(settings: ServerConfig) -> None:
    """Log to the terminal and to gateway.log. ConfigError when the folder cannot be written."""
    from art.errors import ConfigError
    from art.server.redacted_logs import formatter

    folder = settings.path / "server" / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(folder / "gateway.log")
    except OSError as error:
        raise ConfigError(
            "the server's folder cannot be used", cause=str(error), hint="choose another with --path"
        ) from error
    handlers: list[logging.Handler] = [logging.StreamHandler(), file]
    lines = formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", settings)
    for handler in handlers:
        handler.setFormatter(lines)
    logging.basicConfig(level=logging.INFO, handlers=handlers)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _say_ready(gateway: Gateway) -> None:
    if gateway.tls_url is not None:
        typer.echo(f"art serve: {gateway.tls_url}  and for programs on this machine")
    typer.echo(f"art serve: {gateway.url}  folder {gateway.root}")
    typer.echo(f"admin key: {gateway.root / 'server' / 'admin.key'}")
    typer.echo(f"dashboard: {gateway.url}/  (art ui {gateway.root} opens it)")
