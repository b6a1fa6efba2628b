"""Settings: flag over environment over file over default; unknown names refused with the nearest one."""

from __future__ import annotations

from pathlib import Path

import pytest

from art.config.load import load_config
from art.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    file = folder / "art.toml"
    file.write_text(text)
    return file


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = write(
        tmp_path, "[server]\nport = 1\nhost = '127.0.0.2'\nstop_seconds = 3\n[engine]\nmax_batch = 4\n"
    )
    environment = {
        "ART_SERVER__PORT": "2",
        "ART_SERVER__HOST": "127.0.0.3",
        "ART_WORKER_FD": "9",
        "HOME": "/x",
    }
    loaded = load_config(flags={"server": {"port": 3, "path": None}}, file=file, environment=environment)
    assert (loaded.server.port, loaded.server.host, loaded.server.stop_seconds) == (3, "127.0.0.3", 3.0)
    assert loaded.server.engine.max_batch == 4
    assert loaded.server.path == Path(".art")
    assert loaded.origins == {
        "server.port": "flag",
        "server.host": "ART_SERVER__HOST",
        "server.stop_seconds": str(file),
        "engine.max_batch": str(file),
    }


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[server]\nprot = 1", "server.prot", "'port'"),
        ("[sever]\nport = 1", "[sever]", "'server'"),
        ("[engine]\nmax_bach = 1", "engine.max_bach", "'max_batch'"),
        ("[server]\nengine = 1", "server.engine", "known:"),
        ("server = 1", "server in", "[server]"),
        ("[server", "no TOML", ""),
        ("[server]\nport = 99999", "server.port cannot be 99999", ""),
        ("[train]\nlearning_rte = 1e-3", "train.learning_rte", "'learning_rate'"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(file=write(tmp_path, text), environment={})
    assert message in str(caught.value.message)
    assert hint in caught.value.hint


def test_the_environment_is_checked_like_the_file() -> None:
    with pytest.raises(ConfigError, match="ART_SERVER__PROT"):
        load_config(environment={"ART_SERVER__PROT": "1"})
    with pytest.raises(ConfigError, match="ART_SERVE__PORT"):
        load_config(environment={"ART_SERVE__PORT": "1"})
    with pytest.raises(ConfigError) as caught:
        load_config(environment={"ART_SERVER__PORT": "many"})
    assert "ART_SERVER__PORT" in caught.value.cause


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(file=tmp_path / "nothing.toml", environment={})


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("example.org", False)],
)
def test_loopback_is_told_from_the_rest(host: str, loopback: bool) -> None:
    loaded = load_config(flags={"server": {"host": host}}, environment={})
    assert loaded.server.is_loopback is loopback


@pytest.mark.parametrize("text", ["x = [", f"x = {'9' * 5000}", f"x = {'[' * 5000}{']' * 5000}", "\xff"])
def test_a_file_that_cannot_be_read_as_toml_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "art.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"art\.toml is no TOML"):
        load_config(file=file, environment={})
