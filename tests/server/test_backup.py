"""A backup of a running server, and what a server on the restored folder knows, serves and goes on training."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from train_kit import ENVIRONMENT, Trained

from art.errors import ConfigError, Conflict, InvalidInput, NotFound
from art.server.backup import FILES, INFO, back_up, read_info, restore
from art.testing.server import ArtServer

GREEDY = {"temperature": 0.0, "max_tokens": 12}


@pytest.fixture(scope="module")
def backup(taught: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made while rollouts are being recorded."""
    taught.train([taught.group([0.0, 1.0])])
    target = tmp_path_factory.mktemp("backups") / "first"
    stop, begun = threading.Event(), threading.Event()

    def go_on() -> None:
        other = Trained(taught.server, Path(taught.base_model))
        while not stop.is_set():
            other.trajectory(0.5)
            begun.set()

    busy = threading.Thread(target=go_on)
    busy.start()
    assert begun.wait(60)
    try:
        back_up(taught.server.path, target)
    finally:
        stop.set()
        busy.join()
    return target


def test_a_restored_server_serves_and_trains_on(taught: Trained, backup: Path, tmp_path: Path) -> None:
    root = tmp_path / "a folder elsewhere"
    info = restore(backup, root)
    assert info.rollouts > 2
    assert not info.deleted_meanwhile
    step = max(taught.steps())
    with ArtServer(root, engine="torch", environment=ENVIRONMENT) as server:
        again = Trained(server, Path(taught.base_model))
        assert server.admin_key == taught.server.admin_key
        assert again.steps() == taught.steps()
        found = [chat.chat(model=f"p/m@{step}", **GREEDY)["message"]["content"] for chat in (taught, again)]
        assert found[0] == found[1]
        (running,) = again.query("SELECT COUNT(*) FROM rollouts WHERE status = 'running'")[0]
        assert running == 0
        # Rollouts that were recorded before the backup can be trained after it: their tokens are there.
        rows = again.query("SELECT model_dir FROM models WHERE name = 'm'")
        assert rows[0][0].startswith(str(root))
        assert again.train([again.group([0.0, 1.0])])["step"] == step + 1
        assert step + 1 not in taught.steps()


def test_recorded_tokens_are_in_the_backup(backup: Path, tmp_path: Path) -> None:
    from art.store.blobs import BlobStore
    from art.types.tokens import BlobRef

    restore(backup, root := tmp_path / "r")
    with sqlite3.connect(root / "server" / "art.db") as conn:
        refs = [
            BlobRef.model_validate_json(text) for (text,) in conn.execute("SELECT blob FROM calls") if text
        ]
    assert len(refs) > 2
    for ref in refs:
        assert len(BlobStore(root / "server" / "blobs").read(ref)) > 0


def test_damage_is_found_and_nothing_is_restored(backup: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(backup, broken)
    victim = next((broken / FILES).rglob("adapter_model.safetensors"))
    body = bytearray(victim.read_bytes())
    body[len(body) // 2] ^= 1
    victim.write_bytes(body)
    with pytest.raises(InvalidInput, match=r"adapter_model\.safetensors is damaged"):
        restore(broken, tmp_path / "r")
    victim.unlink()
    with pytest.raises(InvalidInput, match="lacks the file"):
        restore(broken, tmp_path / "r")
    info = read_info(broken)
    outside = info.model_copy(update={"files": {"../../outside": next(iter(info.files.values()))}})
    (broken / INFO).write_text(outside.model_dump_json())
    with pytest.raises(InvalidInput, match="outside of its folder"):
        restore(broken, tmp_path / "r")
    (broken / INFO).write_text("{")
    with pytest.raises(InvalidInput, match="cannot be read"):
        restore(broken, tmp_path / "r")
    with pytest.raises(NotFound, match="is no backup"):
        restore(tmp_path, tmp_path / "r")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken"]


def test_nothing_is_overwritten(taught: Trained, backup: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").write_text("x")
    with pytest.raises(Conflict, match="not empty"):
        restore(backup, tmp_path / "used")
    with pytest.raises(Conflict, match="exists already"):
        back_up(taught.server.path, tmp_path / "used")
    with pytest.raises(ConfigError, match="inside the folder"):
        back_up(taught.server.path, taught.server.path / "backup")
    with pytest.raises(NotFound, match="no server's folder"):
        back_up(tmp_path, tmp_path / "b")
    assert (tmp_path / "used" / "mine").read_text() == "x"


def test_a_checkpoint_that_is_deleted_meanwhile_is_told_and_marked(
    taught: Trained, backup: Path, tmp_path: Path
) -> None:
    """The same as a deletion between the copy of the database and that of the files."""
    restore(backup, root := tmp_path / "r")
    step = max(taught.steps())
    shutil.rmtree(root / "p" / "models" / "m" / "checkpoints" / f"{step:04d}")
    info = back_up(root, tmp_path / "second")
    assert any(f"checkpoints/{step:04d}" in name for name in info.deleted_meanwhile)
    with sqlite3.connect(tmp_path / "second" / FILES / "server" / "art.db") as conn:
        rows = conn.execute(
            "SELECT deleted_at FROM checkpoints WHERE name = 'm' AND step = ?", (step,)
        ).fetchall()
    assert rows
    assert rows[0][0] is not None


def test_a_killed_backup_leaves_no_backup(taught: Trained, tmp_path: Path) -> None:
    target = tmp_path / "killed"
    program = [sys.executable, "-m", "art.cli", "backup", str(target), "--path", str(taught.server.path)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (made := list(tmp_path.glob(".killed.partial-*/files/server/art.db"))):
        assert time.monotonic() < deadline
        if process.poll() is not None:
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # Killed early or late: a folder of that name is a whole backup.
    assert made or target.exists()
    assert not target.exists() or read_info(target).files
    shutil.rmtree(target, ignore_errors=True)
    back_up(taught.server.path, target)
    assert read_info(target).files
    assert [path.name for path in tmp_path.iterdir()] == ["killed"]


def test_the_commands(backup: Path, tmp_path: Path) -> None:
    def art(*arguments: str, exit_status: int = 0) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "art.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ},
        )
        assert done.returncode == exit_status, done.stderr + done.stdout
        return done

    told = art("restore", str(backup), "--path", str(tmp_path / "r"))
    assert f"art serve --path {tmp_path / 'r'}" in told.stdout
    assert "not empty" in art("restore", str(backup), "--path", str(tmp_path / "r"), exit_status=1).stderr
    made = json.loads(art("backup", str(tmp_path / "b"), "--path", str(tmp_path / "r"), "--json").stdout)
    assert made["rollouts"] == read_info(backup).rollouts
