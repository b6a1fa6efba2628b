"""`art serve` as a process: one folder one server, clear refusals, an orderly end, no torch inside."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chat_kit import says

from art.testing.server import ArtServer

SECONDS = 60


def art(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "art.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, **environment},
        check=False,
    )


def told(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """The command failed with error: and hint:, without a traceback, and said these words."""
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_second_server_on_the_folder_is_shown_the_first(start_art_server: Any) -> None:
    server = start_art_server()
    done = art("serve", "--path", str(server.path), "--port", "0")
    told(done, "runs on", server.url, str(server.process.pid))
    headers = {"Authorization": f"Bearer {server.admin_key}"}
    assert httpx2.get(f"{server.url}/api/v1/health", headers=headers, timeout=30).status_code == 200
    server.stop()


def test_a_port_in_use_is_one_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told(art("serve", "--path", str(tmp_path), "--port", str(port)), f"port {port}", "in use", "--port 0")
    assert not (tmp_path / "server" / "server.json").exists()


def test_a_reachable_host_needs_a_word_of_consent(tmp_path: Path) -> None:
    told(art("serve", "--path", str(tmp_path), "--host", "0.0.0.0", "--port", "0"), "--allow-remote", "TLS")


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--engine", "vlm"], {}, ["engine.kind", "vlm"]),
        (["--config", "/no/such.toml"], {}, ["/no/such.toml"]),
        ([], {"ART_SERVER__PROT": "1"}, ["ART_SERVER__PROT", "'port'"]),
        (["--path", "/proc/nothing"], {}, ["/proc/nothing"]),
    ],
)
def test_settings_that_cannot_work(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], words: list[str]
) -> None:
    done = art("serve", "--path", str(tmp_path), "--port", "0", *arguments, **environment)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_version_and_help() -> None:
    assert art("--version").stdout.startswith("art ")
    assert "serve" in art("--help").stdout
    assert "--deterministic" in art("serve", "--help").stdout
    assert art("sevre").returncode == 2


def test_the_gateway_has_no_torch_and_ends_with_its_workers(
    start_art_server: Any, tiny_model_dir: Path
) -> None:
    """Neither as modules after importing all of it, nor as a library mapped into a serving process."""
    code = (
        "import pkgutil, importlib, sys, art.server, art.cli.serve\n"
        "for module in pkgutil.walk_packages(art.server.__path__, 'art.server.'):\n"
        "    importlib.import_module(module.name)\n"
        "print(sorted(set(sys.modules) & {'torch', 'transformers', 'peft', 'openai'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert done.stdout.strip() == "[]"
    server: ArtServer = start_art_server()
    assert server.process is not None
    register(server, tiny_model_dir)
    chat = {"model": "p/m", "messages": says("hi")}
    assert ask(server, "POST", "/v1/chat/completions", chat).status_code == 200
    assert "libtorch" not in Path(f"/proc/{server.process.pid}/maps").read_text()
    trainer = next(item for item in workers(server) if item["name"] == "trainer")
    assert "libtorch" in Path(f"/proc/{trainer['pid']}/maps").read_text(), "the check sees torch where it is"

    # An orderly stop leaves no process and no address.
    pids = [item["pid"] for item in workers(server)]
    assert len(pids) == 2
    assert server.stop() == 0
    assert not (server.path / "server" / "server.json").exists()
    assert not any(running(pid) for pid in pids)

    # After a start on the same folder the workers end with a gateway that is killed.
    server.start()
    assert ask(server, "POST", "/v1/chat/completions", chat).status_code == 200
    deadline = time.monotonic() + SECONDS
    while len(pids := [item["pid"] for item in workers(server) if item["pid"]]) < 2:
        assert time.monotonic() < deadline, "the trainer of a server with models is started"
        time.sleep(0.1)
    server.kill()
    while any(running(pid) for pid in pids):
        assert time.monotonic() < deadline + SECONDS
        time.sleep(0.05)


def ask(server: ArtServer, method: str, path: str, body: Any = None) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {server.admin_key}"}
    return httpx2.request(method, server.url + path, json=body, headers=headers, timeout=120)


def register(server: ArtServer, base_model: Path) -> None:
    body = {"project": "p", "name": "m", "config": {"base_model": str(base_model)}}
    assert ask(server, "POST", "/api/v1/models", body).status_code == 200


def workers(server: ArtServer) -> list[dict[str, Any]]:
    return list(ask(server, "GET", "/api/v1/health").json()["workers"])


def running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_it_stops_with_its_last_client(tmp_path: Path) -> None:
    """A held file keeps it; a file whose holder is dead does not."""
    clients = tmp_path / "server" / "clients"
    clients.mkdir(parents=True)
    (clients / "dead").write_text("1")
    with (clients / "alive").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        server = ArtServer(tmp_path, arguments=["--stop-with-clients"]).start()
        assert server.process is not None
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(4)
        assert not (clients / "dead").exists()
    try:
        assert server.process.wait(SECONDS) == 0
    finally:
        server.stop()


@pytest.mark.parametrize("arguments", [[], ["--stop-with-clients"]])
def test_it_ends_when_its_folder_is_deleted(tmp_path: Path, arguments: list[str]) -> None:
    """A server without a folder keeps nothing and holds memory: whoever deleted the folder meant it."""
    server = ArtServer(tmp_path / "runs", arguments=arguments).start()
    assert server.process is not None
    try:
        shutil.rmtree(tmp_path / "runs")
        assert server.process.wait(SECONDS) is not None
    finally:
        server.stop()


def test_the_second_signal_stops_at_once(start_art_server: Any, tiny_model_dir: Path) -> None:
    """A stream that would go on for long keeps the first stop waiting, not the second."""
    script = {"token_delay_ms": 200, "default": "tick " * 400}
    server: ArtServer = start_art_server(script=script, environment={"ART_SERVER__STOP_SECONDS": "600"})
    headers = {"Authorization": f"Bearer {server.admin_key}"}
    assert server.process is not None
    with httpx2.Client(base_url=server.url, headers=headers, timeout=120) as client:
        register(server, tiny_model_dir)
        chat = {"model": "p/m", "messages": says("hi"), "stream": True, "max_tokens": 700}
        with client.stream("POST", "/v1/chat/completions", json=chat) as response:
            lines = response.iter_lines()  # held: a dropped iterator would close the response
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                server.process.wait(2)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(SECONDS) == 0


def test_server_json_names_the_running_server(start_art_server: Any) -> None:
    server: ArtServer = start_art_server()
    assert server.process is not None
    state = json.loads((server.path / "server" / "server.json").read_text())
    assert (state["pid"], state["url"]) == (server.process.pid, server.url)
    assert state["version"]
    server.stop()
