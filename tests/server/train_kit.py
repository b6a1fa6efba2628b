"""What the tests of training share: a server that trains the tiny model, and short ways to feed it."""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2

from art.testing.server import ArtServer

MODEL = "p/m"
SECONDS = 120
ENVIRONMENT = {"ART_ENGINE__THREADS": "1", "ART_TRAINER__THREADS": "1"}
FINAL = {"succeeded", "failed", "cancelled"}


class Trained:
    """A server and its control API. The client is made anew after a restart."""

    def __init__(self, server: ArtServer, base_model: Path) -> None:
        self.server = server
        self.base_model = str(base_model)
        self.http = httpx2.Client(timeout=SECONDS)

    def raw(self, method: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        given = {"Authorization": f"Bearer {self.server.admin_key}", **headers}
        return self.http.request(method, self.server.url + path, json=body, headers=given)

    def api(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        response = self.raw(method, f"/api/v1/{path}", body, **headers)
        assert response.status_code == 200, response.text
        return response.json()

    def register(self, name: str = "m", **config: Any) -> dict[str, Any]:
        body = {"project": "p", "name": name, "config": {"base_model": self.base_model, **config}}
        return dict(self.api("POST", "models", body))

    def chat(self, rollout_id: str | None = None, *, model: str = MODEL, **options: Any) -> dict[str, Any]:
        """One call, in the rollout named by header, as `gather` does it."""
        body = {"model": model, "messages": [{"role": "user", "content": "yes or no?"}], "max_tokens": 8}
        headers = {} if rollout_id is None else {"X-ART-Rollout": rollout_id}
        response = self.raw("POST", "/v1/chat/completions", {**body, **options}, **headers)
        assert response.status_code == 200, response.text
        return dict(response.json()["choices"][0])

    def trajectory(self, reward: float, *, rollout_id: str | None = None, **options: Any) -> dict[str, Any]:
        """A rollout of one call."""
        rollout_id = rollout_id or f"r-{uuid.uuid4().hex[:12]}"
        choice = self.chat(rollout_id, **options)
        messages = [{"role": "user", "content": "yes or no?"}, choice]
        return {"messages_and_choices": messages, "reward": reward, "rollout_id": rollout_id}

    def group(self, rewards: list[float], **options: Any) -> dict[str, Any]:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda reward: self.trajectory(reward, **options), rewards))
        return {"trajectories": found}

    def submit(self, groups: list[Any], *, key: str | None = None, **body: Any) -> httpx2.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.raw(
            "POST", "/api/v1/jobs", {"project": "p", "name": "m", "groups": groups, **body}, **headers
        )

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.api("GET", f"jobs/{job_id}"))

    def finished(self, job_id: str) -> dict[str, Any]:
        """The job once it has ended."""
        for event in self.events(job_id):
            if event["type"] in FINAL:
                break
        return self.job(job_id)

    def train(self, groups: list[Any], **body: Any) -> dict[str, Any]:
        """The result of a job that must succeed."""
        response = self.submit(groups, **body)
        assert response.status_code == 200, response.text
        job = self.finished(response.json()["job_id"])
        assert job["status"] == "succeeded", job["error"]
        return dict(job["result"])

    def events(self, job_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """A job's events as they come."""
        headers = {"Authorization": f"Bearer {self.server.admin_key}", "Last-Event-ID": str(after)}
        url = f"{self.server.url}/api/v1/jobs/{job_id}/events"
        with self.http.stream("GET", url, headers=headers) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

    def rollout(self, rollout_id: str) -> dict[str, Any]:
        return dict(self.api("GET", f"rollouts/{rollout_id}"))

    def steps(self) -> list[int]:
        return [item["step"] for item in self.api("GET", f"models/{MODEL}/checkpoints")["checkpoints"]]

    def workers(self) -> dict[str, Any]:
        return {item["name"]: item for item in self.api("GET", "health")["workers"]}

    def trainer_pid(self) -> int:
        """Of a trainer that is there."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            pid = self.workers()["trainer"]["pid"]
            if pid:
                return int(pid)
            time.sleep(0.1)
        raise AssertionError("the trainer did not come back")

    def checkpoints_folder(self) -> Path:
        return self.server.path / "p" / "models" / "m" / "checkpoints"

    def query(self, sql: str, *args: Any) -> list[Any]:
        with sqlite3.connect(f"file:{self.server.path}/server/art.db?mode=ro", uri=True) as conn:
            return conn.execute(sql, args).fetchall()
