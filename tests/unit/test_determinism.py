"""What a deterministic folder keeps, and what it says where something has changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from art.config.engine import EngineConfig, TrainerConfig
from art.config.load import load_config
from art.config.server import ServerConfig
from art.errors import ConfigError
from art.server.determinism import RECORD, settle


def settings(*, engine: int | None = None, trainer: int | None = None) -> ServerConfig:
    return ServerConfig(
        deterministic=True, engine=EngineConfig(threads=engine), trainer=TrainerConfig(threads=trainer)
    )


def test_the_threads_of_the_first_start_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    first, notes = settle(settings(engine=2), tmp_path)
    assert (first.engine.threads, first.trainer.threads) == (2, 3)
    assert notes == ["deterministic: threads of the engine 2, of the trainer 3"]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    again, _ = settle(settings(), tmp_path)
    assert (again.engine.threads, again.trainer.threads) == (2, 3)
    with pytest.raises(ConfigError, match=r"trainer.threads is 1, .* with 3"):
        settle(settings(trainer=1), tmp_path)
    other, _ = settle(settings(), tmp_path / "other")
    assert (other.engine.threads, other.trainer.threads) == (1, 1)


def test_another_machine_is_told(tmp_path: Path) -> None:
    settle(settings(), tmp_path)
    record = json.loads((tmp_path / RECORD).read_text())
    (tmp_path / RECORD).write_text(json.dumps({**record, "cpu": "another one", "torch": "1.0"}))
    _, notes = settle(settings(), tmp_path)
    assert [note.partition(" was ")[0] for note in notes[1:]] == [
        "deterministic: cpu",
        "deterministic: torch",
    ]


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text("{")
    with pytest.raises(ConfigError, match="delete it"):
        settle(settings(), tmp_path)


def test_nothing_is_kept_where_nobody_asked(tmp_path: Path) -> None:
    given = ServerConfig()
    assert settle(given, tmp_path) == (given, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("by", ["flag", "environment", "file"])
def test_it_is_a_setting_like_any_other(tmp_path: Path, by: str) -> None:
    file = tmp_path / "art.toml"
    file.write_text("[server]\ndeterministic = true\n")
    loaded = load_config(
        flags={"server": {"deterministic": True}} if by == "flag" else None,
        environment={"ART_SERVER__DETERMINISTIC": "1"} if by == "environment" else {},
        file=file if by == "file" else None,
    )
    assert loaded.server.deterministic
