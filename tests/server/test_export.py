"""`art export` against a real server over a seeded store: everything is there, exactly, and whole or not at all."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import art
from art.errors import InfraError, InvalidInput, NotFound
from art.store.blobs import BlobStore
from art.testing.seeded import Plan, seed
from art.testing.server import ArtServer
from art.types.tokens import BlobRef
from art.types.wire_export import ExportedLog, ExportedRollout
from art.utils.exports import export_run, read_export

Records = list[Any]


@pytest.fixture(scope="module")
def seeded(start_art_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtServer]:
    folder = seed(tmp_path_factory.mktemp("seeded") / "runs", Plan(runs=1, steps=3))
    server = start_art_server(path=folder)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def run_of(seeded: ArtServer) -> tuple[str, str]:
    row = query(seeded, "SELECT project, name FROM models LIMIT 1")[0]
    return row[0], row[1]


def query(server: ArtServer, sql: str, *values: Any) -> list[Any]:
    uri = f"{(Path(server.path) / 'server' / 'art.db').as_uri()}?mode=ro"
    with sqlite3.connect(uri, uri=True) as conn:
        return conn.execute(sql, values).fetchall()


def exported(server: ArtServer, run: tuple[str, str], file: Path, **wanted: Any) -> Records:
    async def main() -> int:
        backend = art.RemoteBackend(server.url, server.admin_key)
        try:
            return await export_run(backend.connection, *run, file, **wanted)
        finally:
            await backend.close()

    count = asyncio.run(main())
    found = list(read_export(file))
    assert len(found) == count
    return found


@pytest.fixture(scope="module")
def whole(seeded: ArtServer, run_of: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Records:
    return exported(seeded, run_of, tmp_path_factory.mktemp("export") / "run.jsonl")


def rollouts(records: Records) -> list[ExportedRollout]:
    return [record for record in records if isinstance(record, ExportedRollout)]


def test_everything_that_is_recorded_is_there(seeded: ArtServer, whole: Records) -> None:
    found = rollouts(whole)
    [[count]] = query(seeded, "SELECT COUNT(*) FROM rollouts")
    assert len(found) == len({record.rollout_id for record in found}) == count > 20
    calls = {call.call_id: call for record in found for call in record.calls}
    [[count]] = query(seeded, "SELECT COUNT(*) FROM calls")
    assert len(calls) == count
    [[count]] = query(seeded, "SELECT COUNT(*) FROM logged_trajectories")
    assert sum(isinstance(record, ExportedLog) for record in whole) == count > 0
    assert {call.branch for call in calls.values()} > {0}, "branches are told apart"
    failed = [record for record in found if record.status == "agent_error"]
    assert failed
    assert all(record.reason for record in failed), "what the agent raised"
    assert {choice.fate for call in calls.values() for choice in call.choices} >= {"trained", "evaluation"}


def test_tokens_are_those_on_the_disk_to_the_last_bit(seeded: ArtServer, whole: Records) -> None:
    blobs = BlobStore(Path(seeded.path) / "server" / "blobs")
    refs = dict(query(seeded, "SELECT call_id, blob FROM calls WHERE blob IS NOT NULL"))
    calls = [call for record in rollouts(whole)[::5] for call in record.calls]
    assert calls
    for call in calls:
        arrays = blobs.read(BlobRef.model_validate_json(refs[call.call_id]))
        assert call.prompt_token_ids == arrays["prompt_token_ids"].tolist()
        assert call.withheld == ""
        for choice in call.choices:
            name = f"c{choice.index}"
            assert choice.token_ids == arrays[f"{name}.token_ids"].tolist()
            assert choice.logprobs is not None
            logprobs = np.array(choice.logprobs, dtype=np.float32)
            assert logprobs.tobytes() == arrays[f"{name}.logprobs"].tobytes()
            assert choice.message["role"] == "assistant"


def test_parquet_says_the_same(
    seeded: ArtServer, run_of: tuple[str, str], whole: Records, tmp_path: Path
) -> None:
    found = exported(seeded, run_of, tmp_path / "run.parquet")
    assert [repr(record) for record in found] == [repr(record) for record in whole]


def test_filters(seeded: ArtServer, run_of: tuple[str, str], whole: Records, tmp_path: Path) -> None:
    def ids(**wanted: Any) -> list[str]:
        found = exported(seeded, run_of, tmp_path / "some.jsonl", **wanted)
        return [record.rollout_id for record in rollouts(found)]

    everything = rollouts(whole)
    assert ids(step=1) == [record.rollout_id for record in everything if record.step == 1] != []
    assert ids(status="agent_error") == [
        record.rollout_id for record in everything if record.status == "agent_error"
    ]
    assert ids(split="train") == [record.rollout_id for record in everything if record.purpose == "train"]
    logged = {
        record.rollout_id for record in whole if isinstance(record, ExportedLog) and record.split == "val"
    }
    assert set(ids(split="val")) == logged & {record.rollout_id for record in everything}
    assert ids(split="nothing") == []
    with pytest.raises(InvalidInput, match="status"):
        ids(status="finishd")
    with pytest.raises(NotFound):
        exported(seeded, ("nobody", "nothing"), tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()


def test_the_command(seeded: ArtServer, run_of: tuple[str, str], whole: Records, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "run.jsonl"
    arguments = [
        "/".join(run_of),
        "--out",
        str(file),
        "--url",
        seeded.url,
        "--key",
        seeded.admin_key,
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "art.cli", "export", *arguments], capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["records"], told["format"], told["run"]) == (len(whole), "jsonl", "/".join(run_of))
    assert told["bytes"] == file.stat().st_size
    wrong = [*arguments[:2], str(tmp_path / "run.csv"), *arguments[3:]]
    done = subprocess.run(
        [sys.executable, "-m", "art.cli", "export", *wrong], capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert done.returncode == 1
    assert "run.csv says no format" in done.stderr


def test_a_folder_without_a_server(tmp_path: Path) -> None:
    folder, file = seed(tmp_path / "runs", Plan(runs=1, steps=1, groups=1)), tmp_path / "run.jsonl"
    before = {found: found.stat().st_mtime_ns for found in folder.rglob("*") if found.is_file()}
    arguments = ["--out", str(file), "--path", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "art.cli", "export", *arguments], capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = rollouts(list(read_export(file)))
    assert len(found) >= 8
    assert any(choice.logprobs for record in found for call in record.calls for choice in call.choices)
    after = {found: found.stat().st_mtime_ns for found in folder.rglob("*") if found.is_file()}
    assert after.items() >= before.items(), "nothing of it is changed"


class _Cut(BaseHTTPRequestHandler):
    """Answers an export that ends before its end."""

    def do_GET(self) -> None:
        line = ExportedLog(
            project="p", model="m", split="v", step=0, group=0, index=0, reward=1.0, created_at=0.0
        ).model_dump_json()
        self.send_response(200)
        self.send_header("X-ART-Protocol", "1")
        self.end_headers()
        self.wfile.write((line + "\n").encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def test_a_stream_that_is_cut_leaves_no_file_and_the_old_one_stays(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), _Cut) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        file = tmp_path / "run.jsonl"
        file.write_text("old\n")

        async def main() -> None:
            backend = art.RemoteBackend(f"http://127.0.0.1:{http.server_port}", "key")
            with pytest.raises(InfraError, match="cut short"):
                await export_run(backend.connection, "p", "m", file)
            await backend.close()

        asyncio.run(main())
        http.shutdown()
    assert file.read_text() == "old\n"
    assert [found.name for found in tmp_path.iterdir()] == ["run.jsonl"]
