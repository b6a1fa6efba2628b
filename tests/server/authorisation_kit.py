"""A real application over a real store with two projects, and every request that its routes take.

In one process and one event loop, without a socket: what is asked is whether a key may, and what it is told. The engine
is a process of its own, the scripted one; the trainer never starts, and jobs wait for ever.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from safetensors.numpy import save_file
from starlette.applications import Starlette

from art.config.engine import EngineConfig
from art.config.model import ModelConfig
from art.config.server import ServerConfig
from art.server.app import build_app
from art.server.data_keeper import DataKeeper
from art.server.engines import EnginePool
from art.server.jobs import Jobs
from art.server.keys import Keys
from art.server.quota import Meters
from art.server.registration import Registration
from art.server.sessions import Sessions
from art.server.state import Gateway
from art.server.trainers import WorkerTrainer
from art.server.upstreams import Upstreams
from art.server.versions import Versions
from art.store.records import ModelRow, Role
from art.store.store import Store
from art.types.jobs import CheckpointInfo, ResolvedBaseModel

ROLES = tuple(role.value for role in Role)
PROBE = [1, 2, 3, 4]
GROUP = "flock/1"
SCENARIO = "flight/1"


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answered:
    """What it was answered."""

    asked: Asked
    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Side:
    """One rollout of one project, and everything of it that a request can name."""

    project: str
    model: str
    rollout: str
    scoped_key: str = ""
    ended_rollout: str = ""
    job: str = ""
    key_id: str = ""
    response: str = ""
    message: str = ""

    def marks(self) -> list[str]:
        """Names and ids that nobody of another project may be told."""
        named = [self.project, self.model, self.rollout, self.ended_rollout, self.job, self.key_id]
        return [*named, self.response.removeprefix("resp_"), self.message.removeprefix("msg_")]


class World:
    """The application and its two projects. `ask` is how everything is asked."""

    def __init__(self, gateway: Gateway, app: Starlette, base: ResolvedBaseModel) -> None:
        self.gateway = gateway
        self.app = app
        self.base = base
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        self._client = httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:7999")
        self.admin = ""

    async def ask(self, asked: Asked, key: str | None) -> Answered:
        headers = dict(asked.headers)
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        answer = await self._client.request(asked.method, asked.path, json=asked.body, headers=headers)
        return Answered(asked, answer.status_code, dict(answer.headers), answer.text)

    async def must(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        """A request that the admin key, or `key`, makes to set things up."""
        answer = await self.ask(Asked(method, path, body), key or self.admin)
        assert answer.status == 200, answer.text
        return json.loads(answer.text)

    async def key(self, role: str, project: str | None, **options: Any) -> str:
        made = await self.must("POST", "/api/v1/keys", {"role": role, "project": project, **options})
        return str(made["key"])

    async def register(self, project: str, name: str, *notes: str) -> None:
        """A model with a step that the engine must load."""
        folder = self.gateway.root / project / "models" / name
        config = ModelConfig(base_model="tiny")
        row = ModelRow(
            project=project,
            name=name,
            config=config,
            base=self.base,
            model_dir=str(folder),
            notes=list(notes),
        )
        await self.gateway.store.put_model(row)
        entry = await self.gateway.versions.add(row)
        for step in (0, 1):
            await self.gateway.versions.publish(entry, _checkpoint(folder, project, name, step))

    async def side(self, project: str, model: str, rollout: str) -> Side:
        """A rollout with a response and a message, one that has ended, a job that was cancelled, and a key."""
        side = Side(project, model, rollout, ended_rollout=f"{rollout}-ended")
        wire_name = f"{project}/{model}"
        opened = await self.must(
            "POST",
            "/api/v1/rollouts",
            {"model": wire_name, "rollout_id": rollout, "group_id": GROUP, "scenario_id": SCENARIO},
        )
        side.scoped_key = opened["api_key"]
        await self.must("POST", "/api/v1/rollouts", {"model": wire_name, "rollout_id": side.ended_rollout})
        said = {"model": wire_name, "input": "hello"}
        side.response = (await self.must("POST", f"/r/{rollout}/v1/responses", said))["id"]
        talk = {"model": wire_name, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
        side.message = (await self.must("POST", f"/r/{rollout}/v1/messages", talk))["id"]
        job = await self.must("POST", "/api/v1/jobs", {"project": project, "name": model, "groups": []})
        side.job = job["job_id"]
        await self.must("POST", f"/api/v1/jobs/{side.job}/cancel")
        side.key_id = key_id(await self.key("infer", project, label=f"of {project}"))
        return side


def key_id(key: str) -> str:
    """The part of a key that is no secret."""
    return key.removeprefix("art_").partition("_")[0]


def _checkpoint(folder: Path, project: str, name: str, step: int) -> CheckpointInfo:
    """A step as the trainer leaves it; the scripted engine computes the same probe."""
    path = folder / "checkpoints" / f"{step:04d}"
    path.mkdir(parents=True)
    save_file({"lora": np.zeros(2, dtype=np.float32)}, path / "adapter_model.safetensors")
    logprobs = [] if step == 0 else [-0.25 * (step + i) for i in range(1, len(PROBE))]
    (path / "manifest.json").write_text(json.dumps({"probe_logprobs": logprobs}))
    return CheckpointInfo(
        project=project,
        name=name,
        step=step,
        path=str(path),
        is_base=step == 0,
        probe_token_ids=PROBE if step else [],
        probe_logprobs=logprobs,
        sha256=hashlib.sha256((path / "adapter_model.safetensors").read_bytes()).hexdigest(),
    )


@asynccontextmanager
async def world(root: Path, base: Path) -> AsyncIterator[World]:
    """Everything that `art serve` has but sockets, a trainer that starts and a queue that runs."""
    script = root / "script.json"
    script.write_text(json.dumps({"default": "ok"}))
    engine = EngineConfig(kind="scripted", script=str(script), max_adapters=4)
    settings = ServerConfig(path=root, engine=engine)
    store = await Store.open(root / "server")
    engines, trainer = EnginePool(settings, root), WorkerTrainer(settings, root)
    versions, keys = Versions(store, engines), Keys(store)
    await keys.ensure_admin(root / "server" / "admin.key")
    gateway = Gateway(
        settings=settings,
        root=root,
        url="http://127.0.0.1:7999",
        store=store,
        keys=keys,
        engines=engines,
        trainer=trainer,
        versions=versions,
        sessions=Sessions(store, versions, keys, url="http://127.0.0.1:7999", max_waiting=64),
        jobs=Jobs(settings, root, store=store, trainer=trainer, versions=versions),
        registration=Registration(root, store=store, trainer=trainer, versions=versions, engines=engines),
        upstreams=Upstreams({}, max_waiting=64),
        meters=Meters(store.accounts),
        keeper=DataKeeper(store, keys),
    )
    resolved = ResolvedBaseModel(
        name="tiny", path=str(base), sha256="x", parameters=1, context_length=1024, source="folder"
    )
    gateway.live.close()  # a stream of changes ends at once: nobody here reads one on
    made = World(gateway, build_app(gateway), resolved)
    made.admin = (root / "server" / "admin.key").read_text().strip()
    try:
        yield made
    finally:
        await gateway.sessions.stop()
        await gateway.meters.stop()
        await engines.stop()
        await store.close()


def bodies_of(side: Side) -> dict[str, Any]:
    """By route, the body of a request that names what is `side`'s and changes nothing which another request here needs."""
    model = {"project": side.project, "name": side.model}
    wire_name, tiny = f"{side.project}/{side.model}", {"base_model": "tiny"}
    messages = [{"role": "user", "content": "hello"}]
    chat = {"model": wire_name, "messages": messages, "max_tokens": 4}
    bodies: dict[str, Any] = {
        "POST /api/v1/models": {**model, "config": tiny},
        "DELETE /api/v1/models/{project}/{name}/checkpoints": {"steps": [77]},
        "POST /api/v1/models/{project}/{name}/fork": {**model, "config": tiny},  # into itself: a conflict
        "POST /api/v1/models/{project}/{name}/rollback": {"step": 1},
        "POST /api/v1/models/{project}/{name}/log": {"step": 1, "recorded_at": str(time.time())},
        "POST /api/v1/rollouts": {"model": wire_name},
        "POST /api/v1/rollouts/{rollout_id}/reward": {"reward": 1.0},
        "POST /api/v1/rollouts/{rollout_id}/finish": {},
        "POST /api/v1/jobs": {**model, "groups": []},
        "POST /api/v1/jobs/sft": {
            **model,
            "examples": [
                {"conversations": [{"messages": [*messages, {"role": "assistant", "content": "yes"}]}]}
            ],
        },
        "POST /api/v1/keys": {"role": "infer", "project": side.project},
        "PATCH /api/v1/keys/{key_id}": {"quotas": {"calls_per_minute": 60}},
        "POST /api/v1/keys/{key_id}/rotate": {"grace_seconds": 3600},
        "PUT /api/v1/rollouts/{rollout_id}/note": {"flag": "check"},
        "PUT /api/v1/views/saved/{project}": {"name": "mine", "location": "/"},
        "PUT /api/v1/models/{project}/{name}/run-config": {"config": {"steps": 3}},
        "POST /api/v1/data/purge": {"project": side.project, "dry_run": True},
        "POST /api/v1/data/retention": {"project": side.project, "keep_seconds": 1e9, "dry_run": True},
    }
    dialects: dict[str, Any] = {
        "chat/completions": chat,
        "completions": {"model": wire_name, "prompt": "hello", "max_tokens": 4},
        "messages": chat,
        "messages/count_tokens": {"model": wire_name, "messages": messages},
        "responses": {"model": wire_name, "input": "hello", "max_output_tokens": 16},
        "{route:path}": {"model": wire_name},
    }
    for prefix in ("", "/r/{rollout}"):
        bodies |= {f"POST {prefix}/v1/{route}": body for route, body in dialects.items()}
    return bodies


def path_of(route: str, side: Side) -> str:
    """The route's path with `side`'s names in it."""
    names = {
        "{project}": side.project,
        "{name}": side.model,
        "{rollout_id}": side.ended_rollout if route.endswith("/finish") else side.rollout,
        "{rollout}": side.rollout,
        "{job_id}": side.job,
        "{key_id}": side.key_id,
        "{response_id}": side.response,
        "{scenario_id:path}": SCENARIO,
        "{group_id:path}": GROUP,
        "{model:path}": f"{side.project}/{side.model}",
        "{route:path}": "rerank",
    }
    for name, value in names.items():
        route = route.replace(name, value)
    return route


def asked_of(side: Side, route: str) -> Asked:
    """The request of a route, such as `GET /api/v1/models`."""
    method, path = route.split()
    query = f"?call_id={side.response.removeprefix('resp_')}" if path.endswith("/tokens") else ""
    return Asked(method, path_of(path, side) + query, bodies_of(side).get(route))
