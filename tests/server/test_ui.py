"""`art ui`: the dashboard of a folder that no server runs on, which is left as it lies; and of one that has a server."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chat_kit import SCRIPT, Served, says

from art.errors import ConfigError
from art.server import viewer
from art.server.live import RESYNC, Listener, Live
from art.store.changes import Change
from art.store.remarks import Conversation
from art.store.schema import MIGRATIONS, migrate
from art.store.viewing import view_store
from art.types.wire_views import Note

REFUSED: list[tuple[str, str, Any]] = [
    ("POST", "/v1/chat/completions", {"model": "tests/alpha", "messages": says("count")}),
    ("PUT", "/api/v1/rollouts/first/note", {"flag": "good"}),
    ("POST", "/api/v1/rollouts/first/reward", {"reward": 0.0}),
    ("DELETE", "/api/v1/views/saved/tests?name=x", None),
]
"""What would sample or change something."""
OLD = 7
"""Schema of the release before there were lists and notes."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "art.cli.main", "ui", *arguments]


class Shown:
    """A running `art ui`."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.url, _, self.key = str(told["url"]).partition("/#key=")

    def raw(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx2.request(method, self.url + path, json=body, headers=headers, timeout=30)

    def get(self, path: str) -> Any:
        answer = self.raw("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def shown(folder: Path) -> Iterator[Shown]:
    process = subprocess.Popen(command(str(folder), "--json"), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Shown(json.loads(process.stdout.readline()))
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        process.stdout.close()


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file with its size, its time and its content."""
    return {
        str(file.relative_to(folder)): (file.stat().st_size, file.stat().st_mtime_ns, file.read_bytes())
        for file in folder.rglob("*")
        if file.is_file()
    }


def read(folder: Path) -> Conversation:
    """The rollout of a folder, as `art ui` reads it."""

    async def run() -> Conversation:
        store, _ = await view_store(folder / "server")
        try:
            return await store.remarks.conversation("first")
        finally:
            await store.close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def finished(start_art_server: Any, tiny_model_dir: Any, tmp_path_factory: Any) -> Path:
    """The folder of a run with one rollout, whose server was killed and then ended in order."""
    server = start_art_server(script=SCRIPT)
    served = Served(server, str(tiny_model_dir))
    served.register("tests", "alpha")
    opened = served.open(rollout_id="first", scenario_id="oslo", group_id="g/1")
    served.agent(opened).chat.completions.create(model="gpt", messages=says("greet"))
    served.api("POST", "rollouts/first/reward", {"reward": 1.0})
    server.stop()
    return server.path


def test_a_finished_run_is_shown_and_left_as_it_lies(finished: Path) -> None:
    before = tree(finished)
    with shown(finished) as ui:
        assert ui.told["folder"] == str(finished)
        assert ui.told["server_runs"] is False
        assert httpx2.get(ui.url, timeout=30).status_code == 200
        assert httpx2.get(f"{ui.url}/api/v1/models", timeout=30).status_code == 401
        assert [model["inference_name"] for model in ui.get("/api/v1/models")["models"]] == ["tests/alpha"]
        assert ui.get("/api/v1/models/tests/alpha/checkpoints")["checkpoints"][0]["step"] == 0
        assert ui.get("/api/v1/audit")["entries"]
        server = ui.get("/api/v1/views/server")
        assert server["read_only"] is True
        assert (server["workers"], server["queues"]) == ([], [])
        shown_rollout = ui.get("/api/v1/views/rollouts/first")
        said = shown_rollout["calls"][0]["choices"][0]["message"]
        page = ui.get(f"/api/v1/views/rollouts/first/tokens?call_id={said['call_id']}")
        assert "".join(page["text"]).startswith("Grüße, 你好 🙂!")
        assert ui.get("/api/v1/views/runs/tests/alpha/groups/g/1")["group"]["size"] == 1
        for method, path, body in REFUSED:
            answer = ui.raw(method, path, body)
            assert answer.status_code == 409, path
            error = answer.json()["error"]
            assert error["code"] == "read_only"
            assert f"art serve --path {finished}" in error["hint"]
    assert tree(finished) == before


def test_a_folder_of_a_killed_server_is_shown_whole(finished: Path, tmp_path: Path) -> None:
    """What was committed lies in the log beside the file, with its index or without."""
    lived, folder = tmp_path / "lived", tmp_path / "killed"
    shutil.copytree(finished, lived)
    with closing(sqlite3.connect(lived / "server" / "art.db")) as conn:
        conn.execute("UPDATE rollouts SET reward = 0.25")
        conn.commit()
        shutil.copytree(lived, folder)
    for index in ("there", "gone"):
        if index == "gone":
            (folder / "server" / "art.db-shm").unlink()
        before = tree(folder)
        assert before["server/art.db-wal"][0] > 0
        assert read(folder).line.reward == 0.25, index
        assert tree(folder) == before, index


def test_what_another_process_writes_is_heard_of(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "LOOK_SECONDS", 0.01)
    shutil.copytree(finished, tmp_path / "written")

    async def run() -> list[Change]:
        store, database = await view_store(tmp_path / "written" / "server")
        live, listener = Live(), Listener(own=None, project=None, name=None)
        try:
            async with viewer.following(live, database):
                with live.listening(listener), closing(sqlite3.connect(store.root / "art.db")) as conn:
                    await asyncio.sleep(0.1)
                    conn.execute("UPDATE rollouts SET reward = 0.125")
                    conn.commit()
                    await asyncio.wait_for(listener.news.wait(), 30)
                    assert (await store.remarks.conversation("first")).line.reward == 0.125
            return listener.parcel()
        finally:
            await store.close()

    assert asyncio.run(run()) == [RESYNC]


def test_of_an_older_release_a_copy_is_brought_forward(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    shutil.copytree(finished, folder)
    file = folder / "server" / "art.db"
    file.unlink()
    with closing(sqlite3.connect(file, isolation_level=None)) as conn:
        conn.row_factory = sqlite3.Row
        migrate(conn, MIGRATIONS[:OLD])
        conn.execute("ATTACH ? AS now", (str(finished / "server" / "art.db"),))
        for table in ("models", "checkpoints", "rollouts", "calls", "choices"):
            columns = ", ".join(row["name"] for row in conn.execute(f"PRAGMA main.table_info({table})"))
            conn.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM now.{table}")
    before = tree(folder)
    found = read(folder)
    assert (found.note, found.line.calls, len(found.calls)) == (Note(), 1, 1)
    assert tree(folder) == before


def test_a_newer_release_is_refused(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "new")
    with closing(sqlite3.connect(tmp_path / "new" / "server" / "art.db", isolation_level=None)) as conn:
        conn.execute("INSERT INTO schema_version VALUES (999, 0)")
    with pytest.raises(ConfigError, match="schema version 999"):
        asyncio.run(view_store(tmp_path / "new" / "server"))


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    done = subprocess.run(command(str(tmp_path)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "holds no run" in done.stderr
    assert "hint: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_running_server_is_named(served: Served) -> None:
    before = {key["key_id"] for key in served.api("GET", "keys")["keys"]}
    done = subprocess.run(
        command(str(served.server.path), "--json"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    ui = Shown(json.loads(done.stdout))
    assert (ui.url, ui.told["server_runs"]) == (served.server.url, True)
    made = [key for key in ui.get("/api/v1/keys")["keys"] if key["key_id"] not in before]
    assert [(key["role"], key["label"]) for key in made] == [("admin", "art ui")]
    assert made[0]["expires_at"] is not None
    assert ui.get("/api/v1/views/server")["read_only"] is False
    served.api("DELETE", f"keys/{made[0]['key_id']}")
