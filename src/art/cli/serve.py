"""`art serve`: run a server in this terminal."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art.cli._settings import Set, merged, only, parsed

if TYPE_CHECKING:
    from art.config.server import ServerConfig
    from art.server.state import Gateway

logger = logging.getLogger(__name__)

JSON_LINES = "art.cli._output:Serving"
SECTIONS = ("server", "engine", "trainer")
_REMOTE = "Permit plain HTTP on a host that other machines reach: keys and texts can be read on the way."
_DETERMINISTIC = "Make seeded runs repeat themselves, bit by bit; slower."
_REDACT = "Take out of what is stored: standard, or names as email,card (docs/sensitive-data.md)."
_CONTENT = "full, or none: keep numbers and fates, and nothing that anybody said."


def command(
    *,
    path: Annotated[Path | None, typer.Option(help="Folder of the server (default: .art).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one (default: 7999).")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None,
    set_: Set = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain (PEM): host and port speak TLS, not plain HTTP.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Its key (PEM), where it is not in the same file.")
    ] = None,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help=_REMOTE)] = False,
    redact: Annotated[str | None, typer.Option(help=_REDACT)] = None,
    content: Annotated[str | None, typer.Option(help=_CONTENT)] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help=_DETERMINISTIC)] = False,
    # Of programs that start a server, and of no person: LocalBackend, and tests.
    stop_with_clients: Annotated[bool, typer.Option("--stop-with-clients", hidden=True)] = False,
    engine: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Say where it answers as one line of JSON (art schema).")
    ] = False,
) -> None:
    """Serve models, record rollouts, train, and show the dashboard.

    What has no flag here is set by --set, by the environment (ART_SERVER__STOP_SECONDS) or in a TOML file. The first
    Ctrl-C lets a training step in progress end, the second stops at once.

    Examples:

      art serve --path runs/weather --port 8000

      art serve --host 0.0.0.0 --tls-cert chain.pem --tls-key key.pem --set server.allowed_hosts=art.example.com
    """
    from art.config.load import load_config

    serve = _server()
    flags: dict[str, dict[str, Any]] = {
        "server": {
            "path": path,
            "host": host,
            "port": port,
            "tls_cert": tls_cert,
            "tls_key": tls_key,
            "allow_remote": allow_remote or None,
            "stop_with_clients": stop_with_clients or None,
            "deterministic": deterministic or None,
            "redact": redact,
            "content": content,
        },
        "engine": {"kind": engine},
    }
    more = only(parsed(set_ or []), SECTIONS)
    if upstreams := more.get("server", {}).get("upstreams"):
        more["server"]["upstreams"] = _upstreams(upstreams)
    loaded = load_config(flags=merged(more, flags), file=config)
    _log_to(loaded.server)
    asyncio.run(serve(loaded.server, on_ready=_say_json if as_json else _say_ready))


def _upstreams(given: Any) -> Any:
    """`--set server.upstreams.NAME=URL,model=...`, or setting by setting."""
    from art.config.upstreams import parse_flag

    if not isinstance(given, dict):
        return given
    whole = [f"{name}={value}" for name, value in given.items() if isinstance(value, str)]
    return {**given, **dict(map(parse_flag, whole))}


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


def _say_json(gateway: Gateway) -> None:
    from art.cli._output import Serving

    ready = Serving(
        url=gateway.url,
        tls_url=gateway.tls_url,
        path=str(gateway.root),
        admin_key_file=str(gateway.root / "server" / "admin.key"),
        pid=os.getpid(),
    )
    typer.echo(ready.model_dump_json())
