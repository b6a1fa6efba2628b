"""TLS and proxies: a real server with a certificate of its own CA, our client, and who the audit log says it was."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chat_kit import Served

import art
from art.config.load import load_config
from art.config.server import ServerConfig
from art.errors import ArtError, ConfigError, ServerUnreachable
from art.server.listen import check_host
from art.server.tls import Certificate
from art.testing.server import ArtServer

pytestmark = pytest.mark.absent(
    shutil.which("openssl") is None, reason="openssl, which makes the certificates"
)
ELSEWHERE = "203.0.113.9"
"""Of the addresses that are nobody's (RFC 5737)."""


@dataclass(frozen=True)
class Authority:
    """A CA in a folder."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def sign(self, name: str, alternative: str = "IP:127.0.0.1", *options: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        _certificate(
            cert,
            key,
            name,
            f"subjectAltName={alternative}",
            "-CA",
            str(self.ca),
            "-CAkey",
            str(self.folder / "ca.key"),
            *options,
        )
        return cert, key


def _certificate(cert: Path, key: Path, name: str, extension: str, *options: str) -> None:
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-days",
        "2",
    ]
    command += [
        "-subj",
        f"/CN={name}",
        "-addext",
        extension,
        "-keyout",
        str(key),
        "-out",
        str(cert),
        *options,
    ]
    command += [] if "-passout" in options else ["-nodes"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    key.chmod(0o600)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    _certificate(made.ca, made.folder / "ca.key", "a CA of our own", "keyUsage=keyCertSign,cRLSign")
    return made


@dataclass(frozen=True)
class Secured:
    """A server that speaks TLS, and believes a proxy on this machine."""

    server: ArtServer
    port: int

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def secured(authority: Authority, start_art_server: Any) -> Iterator[Secured]:
    cert, key = authority.sign("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--tls-cert", str(cert), "--tls-key", str(key), "--set", "server.trusted_proxies=127.0.0.1"]
    server = start_art_server(port=port, arguments=arguments)
    yield Secured(server, port)
    server.stop()


def health(backend: art.RemoteBackend) -> Any:
    async def ask() -> Any:
        try:
            return await backend.connection.request("GET", "/api/v1/health")
        finally:
            await backend.close()

    return asyncio.run(ask())


def test_our_client_over_tls(secured: Secured, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    key = secured.server.admin_key
    assert health(art.RemoteBackend(secured.url, key, verify=authority.ca))["status"] == "ok"
    with pytest.raises(ServerUnreachable, match="is not trusted") as untrusted:
        health(art.RemoteBackend(secured.url, key))
    assert "SSL_CERT_FILE" in untrusted.value.hint
    named_otherwise = secured.url.replace("127.0.0.1", "localhost")
    with pytest.raises(ServerUnreachable, match="is not trusted") as other:
        health(art.RemoteBackend(named_otherwise, key, verify=authority.ca))
    assert "localhost" in other.value.cause
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    assert health(art.RemoteBackend(secured.url, key))["status"] == "ok"
    backend = art.RemoteBackend(secured.url, key)
    with httpx2.Client(
        transport=backend.connection.sync_transport
    ) as client:  # as synchronous agents have it
        headers = {"Authorization": f"Bearer {key}"}
        assert client.get(f"{secured.url}/v1/models", headers=headers).status_code == 200


def test_programs_of_this_machine_need_no_certificate(secured: Secured) -> None:
    """server.json names a port of loopback for them; the port of the flag speaks TLS alone."""
    server = secured.server
    assert server.url.startswith("http://127.0.0.1:")
    assert server.port != secured.port
    assert health(art.RemoteBackend(server.url, server.admin_key))["status"] == "ok"
    assert secured.url in server.output.read_text()
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"http://127.0.0.1:{secured.port}/api/v1/health", timeout=30)
    with pytest.raises(ServerUnreachable, match="does not speak TLS"):
        health(art.RemoteBackend(f"https://127.0.0.1:{server.port}", server.admin_key))


def test_the_audit_log_names_who_stands_behind_the_proxy(secured: Secured, served: Served) -> None:
    def made_from(server: ArtServer, forwarded: str) -> str:
        headers = {"Authorization": f"Bearer {server.admin_key}", "X-Forwarded-For": forwarded}
        body = {"role": "infer", "label": "proxied"}
        answer = httpx2.post(f"{server.url}/api/v1/keys", json=body, headers=headers, timeout=30)
        assert answer.status_code == 200
        answer = httpx2.get(f"{server.url}/api/v1/audit?limit=1", headers=headers, timeout=30)
        return str(answer.json()["entries"][0]["detail"]["from"])

    assert made_from(secured.server, ELSEWHERE) == ELSEWHERE
    # What a client itself wrote there stands before the address that the proxy saw.
    assert made_from(secured.server, f"198.51.100.1, {ELSEWHERE}") == ELSEWHERE
    assert made_from(served.server, ELSEWHERE) == "127.0.0.1"  # it was told of no proxy


def test_renewed_files_serve_new_connections(authority: Authority, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(name: str, *, key_too: bool = True) -> bytes:
        made = authority.sign(name)
        shutil.copyfile(made[0], cert)
        if key_too:
            shutil.copyfile(made[1], key)
            key.chmod(0o600)
        return ssl.PEM_cert_to_DER_cert(made[0].read_text())

    first = put("first")
    certificate = Certificate(cert, key)
    client = ssl.create_default_context(cafile=str(authority.ca))

    async def main() -> None:
        server = await asyncio.start_server(_hang_up, "127.0.0.1", 0, ssl=certificate.context)
        port = server.sockets[0].getsockname()[1]

        async def shown() -> bytes:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            return bytes(found)

        assert await shown() == first
        assert not certificate.refresh()  # nothing has changed
        put("half", key_too=False)  # in the middle of a renewal
        assert not certificate.refresh()
        assert await shown() == first
        second = put("second")
        assert certificate.refresh()
        assert await shown() == second
        cert.unlink()
        assert not certificate.refresh()
        assert await shown() == second
        server.close()

    asyncio.run(main())


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


def test_files_that_cannot_serve_are_refused(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.sign("good")
    assert Certificate(cert, key).context.minimum_version >= ssl.TLSVersion.TLSv1_2
    with pytest.raises(ConfigError, match="cannot be used"):
        Certificate(cert, authority.sign("stranger")[1])
    with pytest.raises(ConfigError, match="cannot be used"):  # no question at a terminal
        Certificate(*authority.sign("sealed", "IP:127.0.0.1", "-passout", "pass:secret"))
    with pytest.raises(ConfigError, match="cannot be read"):
        Certificate(tmp_path / "missing.pem")
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="read by everybody"):
        Certificate(cert, key)


def test_beyond_loopback_only_what_is_encrypted_or_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        check_host(ServerConfig(host=host))
    with pytest.raises(ConfigError, match="reached from other machines") as refused:
        check_host(ServerConfig(host="0.0.0.0"))
    assert "plain text" in refused.value.cause
    for way in ("--tls-cert", "--allow-remote", "proxy", "tunnel"):
        assert way in refused.value.hint
    check_host(ServerConfig(host="0.0.0.0", tls_cert=Path("cert.pem")))
    assert not caplog.records
    check_host(ServerConfig(host="0.0.0.0", allow_remote=True))
    assert "can read keys and texts" in caplog.text


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("trusted_proxies", ("*",)),
        ("trusted_proxies", ("0.0.0.0/0",)),
        ("trusted_proxies", ("proxy.example.com",)),
        ("trusted_proxies", ("10.0.0.5/8",)),
        ("tls_key", "key.pem"),
    ],
)
def test_settings_that_would_believe_too_much_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=setting):
        load_config(flags={"server": {setting: value}}, environment={})
    load_config(flags={"server": {"trusted_proxies": ("10.0.0.0/8", "::1")}}, environment={})


def test_a_client_is_told_what_it_cannot_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="plain HTTP"):
        art.RemoteBackend("http://127.0.0.1:7999", "art_x", verify="ca.pem")
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    for file in (broken, tmp_path / "missing.pem"):
        with pytest.raises(ArtError, match="cannot be read"):
            art.RemoteBackend("https://127.0.0.1:7999", "art_x", verify=file)
    art.RemoteBackend("http://gpu.example.com:7999", "art_x")
    assert "can be read on the way" in capsys.readouterr().err
