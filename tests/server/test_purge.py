"""Deleting recorded data for good: what goes, what stays, and that no file of the store holds the text afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_kit import Served, says

PURGE = "data/purge"


@pytest.fixture
def record(served: Served) -> Callable[..., str]:
    """Record a rollout of one call whose question holds `text`; its id."""

    def recorded(text: str, *, model: str = "tests/alpha", finish: bool = True) -> str:
        opened = served.open(model)
        rollout_id = str(opened["rollout_id"])
        body = {"model": model, "messages": says(text)}
        answer = served.raw("POST", f"/r/{rollout_id}/v1/chat/completions", body)
        assert answer.status_code == 200, answer.text
        if finish:
            served.api("POST", f"rollouts/{rollout_id}/finish", {})
        return rollout_id

    return recorded


def store_files(served: Served) -> bytes:
    """Everything that the store keeps, as bytes."""
    folder = served.server.path / "server"
    files = [*folder.glob("art.db*"), *(folder / "blobs").rglob("*.blob")]
    return b"".join(file.read_bytes() for file in files)


def blob(served: Served, rollout_id: str, project: str = "tests") -> Path:
    return served.server.path / "server" / "blobs" / project / f"{rollout_id}.blob"


def status(served: Served, rollout_id: str) -> int:
    return served.raw("GET", f"/api/v1/rollouts/{rollout_id}", None).status_code


def test_a_rollout_is_gone_with_its_text_and_tokens(served: Served, record: Callable[..., str]) -> None:
    secret, other = "the patient is called Rumpelstiltskin", "the patient is called Nobody"
    gone, kept = record(secret), record(other)
    assert secret.encode() in store_files(served)
    assert blob(served, gone).exists()

    told = served.api("POST", PURGE, {"rollout_ids": [gone], "dry_run": True})
    assert (told["rollouts"], told["calls"], told["token_files"]) == (1, 1, 1)
    assert status(served, gone) == 200

    assert served.api("POST", PURGE, {"rollout_ids": [gone]}) == told
    assert status(served, gone) == 404
    assert not blob(served, gone).exists()
    found = store_files(served)
    assert secret.encode() not in found
    assert other.encode() in found
    assert status(served, kept) == 200
    assert blob(served, kept).exists()
    again = served.api("POST", PURGE, {"rollout_ids": [gone]})
    assert set(again.values()) == {0}
    (entry,) = served.api("GET", "audit?limit=1")["entries"]
    assert entry["action"] == "POST /api/v1/data/purge"


def test_by_age_and_project(served: Served, record: Callable[..., str]) -> None:
    ours, theirs = record("by project"), record("by project", model="other/alpha")
    told = served.api("POST", PURGE, {"project": "other", "older_than_seconds": 3600})
    assert told["rollouts"] == 0
    told = served.api("POST", PURGE, {"project": "other", "older_than_seconds": 0})
    assert told["rollouts"] >= 1
    assert status(served, theirs) == 404
    assert not blob(served, theirs, "other").exists()
    assert status(served, ours) == 200


def test_a_project_takes_along_what_people_wrote_about_it(served: Served, record: Callable[..., str]) -> None:
    record("whole")
    view = {"name": "canary", "location": "/run/whole/x?search=canary"}
    served.api("PUT", "views/saved/whole", view)
    served.api("POST", "data/purge", {"project": "whole", "older_than_seconds": 3600})
    assert served.api("GET", "views/saved?project=whole")["views"] == [view]
    served.api("POST", "data/purge", {"project": "whole"})
    assert served.api("GET", "views/saved?project=whole")["views"] == []


def test_what_runs_is_kept(served: Served, record: Callable[..., str]) -> None:
    running = record("still at it", finish=False)
    told = served.api("POST", PURGE, {"rollout_ids": [running]})
    assert (told["rollouts"], told["kept_running"]) == (0, 1)
    assert status(served, running) == 200
    served.api("POST", f"rollouts/{running}/finish", {})
    assert served.api("POST", PURGE, {"rollout_ids": [running]})["rollouts"] == 1


def test_a_projects_admin_deletes_of_its_project_alone(served: Served, record: Callable[..., str]) -> None:
    key = served.api("POST", "keys", {"role": "admin", "project": "other"})["key"]
    ours = record("not theirs to delete")
    for body in ({"project": "tests"}, {"rollout_ids": [ours]}, {"older_than_seconds": 0}):
        assert served.raw("POST", f"/api/v1/{PURGE}", body, key=key).status_code == 403, body
    told = served.raw("POST", f"/api/v1/{PURGE}", {"project": "other", "rollout_ids": [ours]}, key=key).json()
    assert told["rollouts"] == 0
    assert status(served, ours) == 200
    for body in ({}, {"dry_run": True}, {"rollout_ids": []}, {"older_than_seconds": -1}):
        assert served.raw("POST", f"/api/v1/{PURGE}", body).status_code == 400, body


def test_the_command_asks(served: Served, record: Callable[..., str]) -> None:
    rollout_id = record("deleted by hand")

    def art(*arguments: str, exit_status: int = 0, typed: str = "") -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "art.cli", "data", "purge", *arguments, "--url", served.server.url],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "ART_API_KEY": served.server.admin_key},
            input=typed,
        )
        assert done.returncode == exit_status, done.stderr + done.stdout
        return done

    assert "nothing says what to delete" in art(exit_status=2).stderr
    assert "would delete 1 rollouts" in art("--rollout", rollout_id, "--dry-run").stdout
    assert "Delete 1 rollouts, 1 calls" in art("--rollout", rollout_id, typed="n\n", exit_status=1).stderr
    assert status(served, rollout_id) == 200
    assert "deleted 1 rollouts" in art("--rollout", rollout_id, "--yes").stdout
    assert status(served, rollout_id) == 404
