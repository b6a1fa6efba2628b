"""Publishing, self-check, slots and leases, with real engine processes (scripted) and a real store."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from art.config.engine import EngineConfig
from art.config.model import ModelConfig
from art.config.server import ServerConfig
from art.config.train import TrainConfig
from art.engine.protocol import AdapterCheck, Sampled, SampleRequest
from art.errors import Conflict, InfraError, NotFound
from art.server import checkpoint_files
from art.server.auth import Principal
from art.server.engines import EnginePool
from art.server.keys import Keys
from art.server.self_check import check_adapter
from art.server.session import CallHeaders
from art.server.sessions import Sessions
from art.server.versions import ModelEntry, Versions
from art.store.records import JobRow, JobSpec, ModelRow, Role
from art.store.store import Store
from art.tokens.graph import prefix_digests
from art.types.jobs import CheckpointInfo, ResolvedBaseModel
from art.types.messages import parse_messages
from art.types.wire import JobInfo, OpenRollout

PROBE = [1, 2, 3, 4]


class World:
    """A store, an engine pool and versions on a folder."""

    def __init__(self, root: Path, base: Path, script: dict[str, Any]) -> None:
        self.root = root
        self.script = root / "script.json"
        self.script.write_text(json.dumps(script))
        self.base = ResolvedBaseModel(
            name="tiny", path=str(base), sha256="x", parameters=1, context_length=1024, source="folder"
        )
        engine = EngineConfig(kind="scripted", script=str(self.script), max_adapters=2)
        self.engines = EnginePool(ServerConfig(path=root, engine=engine), root)

    async def start(self) -> None:
        self.store = await Store.open(self.root / "server")
        self.versions = Versions(self.store, self.engines)

    async def stop(self) -> None:
        await self.engines.stop()
        await self.store.close()

    async def model(self, name: str = "m", project: str = "p") -> ModelEntry:
        row = ModelRow(
            project=project,
            name=name,
            config=ModelConfig(base_model="tiny"),
            base=self.base,
            model_dir=str(self.root / project / name),
        )
        await self.store.put_model(row)
        entry = await self.versions.add(row)
        await self.versions.publish(entry, self.checkpoint(name, 0, project=project, is_base=True))
        return entry

    def checkpoint(
        self,
        name: str,
        step: int,
        *,
        project: str = "p",
        is_base: bool = False,
        probe: list[float] | None = None,
        created_at: float = 0.0,
    ) -> CheckpointInfo:
        """A checkpoint folder as the trainer leaves it."""
        folder = self.root / project / name / f"{step:04d}"
        folder.mkdir(parents=True)
        weights = folder / "adapter_model.safetensors"
        save_file({"lora": np.full(2, step, dtype=np.float32)}, weights)
        logprobs = [] if is_base else probe or [-0.25 * (step + i) for i in range(1, len(PROBE))]
        (folder / "manifest.json").write_text(json.dumps({"probe_logprobs": logprobs}))
        return CheckpointInfo(
            project=project,
            name=name,
            step=step,
            path=str(folder),
            is_base=is_base,
            probe_token_ids=[] if is_base else PROBE,
            probe_logprobs=logprobs,
            sha256=hashlib.sha256(weights.read_bytes()).hexdigest(),
            created_at=created_at,
        )

    def weights(self, info: CheckpointInfo) -> Path:
        return Path(info.path, "adapter_model.safetensors")

    async def loaded(self) -> list[str]:
        """What the engine says it holds; its heartbeat comes every second."""
        engine = await self.engines.get(self.base)
        await asyncio.sleep(1.3)
        return list(engine.stats()["versions"])


Body = Callable[[World], Awaitable[None]]


def run(tmp_path: Path, base: Path, body: Body, **script: Any) -> None:
    @asynccontextmanager
    async def world() -> AsyncIterator[World]:
        made = World(tmp_path, base, script)
        await made.start()
        try:
            yield made
        finally:
            await made.stop()

    async def main() -> None:
        async with world() as made:
            await body(made)

    asyncio.run(main())


def test_a_step_becomes_the_latest_when_it_has_proved_itself(tmp_path: Path, tiny_model_dir: Path) -> None:
    async def body(world: World) -> None:
        entry = await world.model()
        assert world.versions.resolve("m") == (entry, 0)
        await world.versions.publish(entry, world.checkpoint("m", 1), metrics={"loss": 0.5}, job_id="j")
        assert world.versions.resolve("p/m") == (entry, 1)
        assert world.versions.resolve("m@0") == (entry, 0)
        rows = await world.store.list_checkpoints("p", "m")
        assert [(row.info.step, row.job_id) for row in rows] == [(0, None), (1, "j")]
        # Another server on the folder finds the same.
        again = Versions(world.store, world.engines)
        await again.load()
        assert again.resolve("m")[1] == 1
        assert set(again.entry("p", "m").checkpoints) == {0, 1}

    run(tmp_path, tiny_model_dir, body)


def test_a_step_that_the_engine_serves_wrongly_is_refused(tmp_path: Path, tiny_model_dir: Path) -> None:
    async def body(world: World) -> None:
        entry = await world.model()
        with pytest.raises(InfraError, match="differently"):
            await world.versions.publish(entry, world.checkpoint("m", 1))
        assert world.versions.resolve("m") == (entry, 0)
        assert set(entry.checkpoints) == {0}
        assert [row.info.step for row in await world.store.list_checkpoints("p", "m")] == [0]
        async with world.versions.lease(entry, 0) as lease:
            assert lease.version == ""
        assert await world.loaded() == []

    run(tmp_path, tiny_model_dir, body, wrong_probes=["p/m@1"])


def test_a_latest_step_whose_files_are_gone_is_said_with_what_is_there(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    async def body(world: World) -> None:
        entry = await world.model()
        for step in (1, 2):
            await world.versions.publish(entry, world.checkpoint("m", step))
        again = Versions(world.store, world.engines)  # as after a restart: nothing counts as loaded
        await again.load()
        (Path(entry.checkpoint(2).path) / "adapter_model.safetensors").unlink()
        latest = again.entry("p", "m")
        with pytest.raises(InfraError, match="p/m@2 cannot be loaded") as caught:
            await again.ensure_loaded(latest, 2)
        assert "does not exist" in caught.value.cause
        assert "the steps 0, 1 are there: ask for p/m@1" in caught.value.hint
        assert await again.ensure_loaded(latest, 1) == "p/m@1"

    run(tmp_path, tiny_model_dir, body)


def test_a_young_checkpoint_that_is_not_there_yet_is_waited_for(tmp_path: Path, tiny_model_dir: Path) -> None:
    """As on shared storage: first there is nothing, then half of it."""

    async def body(world: World) -> None:
        entry = await world.model()
        info = world.checkpoint("m", 1, created_at=time.time())
        folder, elsewhere = info.path, tmp_path / "elsewhere"
        content = world.weights(info).read_bytes()
        os.rename(folder, elsewhere)
        publishing = asyncio.create_task(world.versions.publish(entry, info))
        await asyncio.sleep(0.3)
        os.rename(elsewhere, folder)
        world.weights(info).write_bytes(content[:-1])
        await asyncio.sleep(0.3)
        assert not publishing.done()
        world.weights(info).write_bytes(content)
        async with asyncio.timeout(checkpoint_files.YOUNG_SECONDS):
            await publishing
        assert world.versions.resolve("m") == (entry, 1)

    run(tmp_path, tiny_model_dir, body)


def test_a_young_checkpoint_that_never_comes_is_given_up(
    tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "YOUNG_SECONDS", 0.5)

    async def body(world: World) -> None:
        entry = await world.model()
        info = world.checkpoint("m", 1, created_at=time.time() + 3600)  # the other machine's clock is ahead
        world.weights(info).unlink()
        with pytest.raises(InfraError, match="p/m@1 cannot be loaded") as caught:
            await world.versions.publish(entry, info)
        assert "does not exist" in caught.value.cause
        assert "times" in caught.value.cause
        assert world.versions.resolve("m") == (entry, 0)

    run(tmp_path, tiny_model_dir, body)


def test_weights_that_were_changed_since_are_not_served(tmp_path: Path, tiny_model_dir: Path) -> None:
    async def body(world: World) -> None:
        entry = await world.model()
        info = world.checkpoint("m", 1)
        content = bytearray(world.weights(info).read_bytes())
        content[-1] ^= 1
        world.weights(info).write_bytes(content)
        with pytest.raises(InfraError, match="p/m@1 cannot be loaded") as caught:
            await world.versions.publish(entry, info)
        assert "is not what the trainer wrote" in caught.value.cause

    run(tmp_path, tiny_model_dir, body)


def test_a_step_that_becomes_the_latest_cannot_be_deleted_on_the_way(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    async def body(world: World) -> None:
        entry = await world.model()
        for step in (1, 2):
            await world.versions.publish(entry, world.checkpoint("m", step))
        set_latest = world.store.set_latest

        async def meanwhile(project: str, name: str, step: int) -> None:
            with pytest.raises(Conflict, match="in use"):
                await world.versions.forget(entry, step)
            await set_latest(project, name, step)

        world.store.set_latest = meanwhile  # type: ignore[method-assign]
        await world.versions.roll_back(entry, 1)
        model = await world.store.get_model("p", "m")
        assert model is not None
        assert (entry.step, model.step, sorted(entry.checkpoints)) == (1, 1, [0, 1, 2])

    run(tmp_path, tiny_model_dir, body)


def test_a_job_that_comes_while_latest_is_rolled_back_keeps_its_parent(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    async def body(world: World) -> None:
        entry = await world.model()
        for step in (1, 2):
            await world.versions.publish(entry, world.checkpoint("m", step))
        require_idle = world.store.require_idle

        async def then_a_job_comes(project: str, name: str) -> None:
            await require_idle(project, name)
            job = JobInfo(job_id="j", project=project, name=name, status="queued", created_at=0.0)
            await world.store.submit_job(JobRow(info=job, spec=JobSpec(config=TrainConfig())))

        world.store.require_idle = then_a_job_comes  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="is being trained"):
            await world.versions.roll_back(entry, 1)
        assert entry.step == 2
        assert (await world.store.start_job("j")).parent_step == 2

    run(tmp_path, tiny_model_dir, body)


def test_slots_go_to_the_versions_in_use(tmp_path: Path, tiny_model_dir: Path) -> None:
    async def body(world: World) -> None:
        entry = await world.model()
        for step in (1, 2, 3):
            await world.versions.publish(entry, world.checkpoint("m", step))
        assert await world.loaded() == ["p/m@2", "p/m@3"]
        async with world.versions.lease(entry, 2), world.versions.lease(entry, 1):
            assert await world.loaded() == ["p/m@2", "p/m@1"]
            # Both slots have running calls: the third waits until one ends.
            third = asyncio.create_task(world.versions.ensure_loaded(entry, 3))
            await asyncio.sleep(0.2)
            assert not third.done()
        assert await third == "p/m@3"

    run(tmp_path, tiny_model_dir, body)


def test_a_new_engine_process_is_given_its_adapters_again(tmp_path: Path, tiny_model_dir: Path) -> None:
    async def body(world: World) -> None:
        entry = await world.model()
        await world.versions.publish(entry, world.checkpoint("m", 1))
        engine = await world.engines.worker_engine(world.base)
        generation = engine.generation
        pid = engine.worker.health().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while engine.worker.health().pid == pid:  # noqa: ASYNC110  the pool has no event for it
                await asyncio.sleep(0.05)
        async with world.versions.lease(entry, 1) as lease:
            events: list[Sampled] = []
            await lease.engine.generate(SampleRequest([1, 2], version=lease.version), events.append)
        assert events[-1].finish_reason is not None
        assert engine.generation > generation

    run(tmp_path, tiny_model_dir, body)


def test_a_step_in_use_is_not_forgotten(tmp_path: Path, tiny_model_dir: Path) -> None:
    async def body(world: World) -> None:
        entry = await world.model()
        for step in (1, 2):
            await world.versions.publish(entry, world.checkpoint("m", step))
        with pytest.raises(Conflict, match="latest"):
            await world.versions.forget(entry, 2)
        async with world.versions.lease(entry, 1):
            assert entry.leased() == {1}
            with pytest.raises(Conflict, match="use it"):
                await world.versions.forget(entry, 1)
        await world.versions.forget(entry, 1)
        assert await world.loaded() == ["p/m@2"]
        with pytest.raises(NotFound, match="no step 1"):
            world.versions.resolve("m@1")

    run(tmp_path, tiny_model_dir, body)


def test_names_are_found_where_they_are_unique(tmp_path: Path, tiny_model_dir: Path) -> None:
    async def body(world: World) -> None:
        await world.model("m", "p")
        await world.model("m", "q")
        await world.model("solo", "q")
        find = world.versions.resolve
        assert find("solo")[0].wire_name == "q/solo"
        assert find("m", "p")[0].wire_name == "p/m"
        with pytest.raises(Conflict, match="several models"):
            find("m")
        for name in ("nobody", "p/solo", "m@x", "p/m@-1", ""):
            with pytest.raises(NotFound) as caught:
                find(name)
            assert "q/solo" in caught.value.hint
        with pytest.raises(NotFound) as other:
            find("solo", "p")
        assert "q/solo" not in other.value.hint  # a key of p is not told what q has

    run(tmp_path, tiny_model_dir, body)


def test_a_model_whose_files_are_gone_does_not_keep_the_server_from_starting(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    async def body(world: World) -> None:
        await world.model()
        gone = world.base.model_copy(update={"path": str(tmp_path / "gone")})
        config = ModelConfig(base_model="gone")
        await world.store.put_model(
            ModelRow(project="p", name="lost", config=config, base=gone, model_dir="x")
        )
        again = Versions(world.store, world.engines)
        await again.load()
        assert [entry.wire_name for entry in again.entries()] == ["p/m"]
        with pytest.raises(Exception, match=r"no tokenizer\.json"):
            again.resolve("p/lost")

    run(tmp_path, tiny_model_dir, body)


def test_latest_is_what_it_was_when_the_session_began(tmp_path: Path, tiny_model_dir: Path) -> None:
    async def body(world: World) -> None:
        entry = await world.model()
        await world.model("other")
        sessions = Sessions(world.store, world.versions, Keys(world.store), url="http://x", max_waiting=9)
        admin = Principal("k", Role.ADMIN)

        async def step(rollout: str | None, model: str, text: str = "hi") -> int:
            messages = parse_messages([{"role": "user", "content": text}])
            headers = CallHeaders(url_rollout=rollout)
            digests = prefix_digests(messages)
            return (await sessions.locate(headers, admin, model, digests=digests, messages=messages)).step

        old = await sessions.open(OpenRollout(model="p/m"), admin)
        assert (old.model, old.step) == ("p/m@0", 0)
        await world.versions.publish(entry, world.checkpoint("m", 1))
        new = await sessions.open(OpenRollout(model="p/m"), admin)
        first = await sessions.open(OpenRollout(model="p/m@0"), admin)
        assert (new.step, first.step) == (1, 0)
        assert [await step(r.rollout_id, "m") for r in (old, new, first)] == [0, 1, 0]
        assert [await step(r.rollout_id, "gpt-4o") for r in (old, new, first)] == [0, 1, 0]
        assert await step(old.rollout_id, "m@1") == 1
        assert [await step(None, "m"), await step(None, "m@0")] == [1, 0]
        # Another model's latest is pinned when the session first calls it.
        assert await step(old.rollout_id, "other") == 0
        # A rollout whose agent was never heard of again does not hold its step for ever.
        lost = await sessions.open(OpenRollout(model="p/m"), admin)
        await sessions.sweep()
        assert (await world.store.get_rollout(lost.rollout_id)).status == "running"
        for opened in (old, new, first):
            sessions._open[opened.rollout_id].running += 1  # as a call does
        await sessions.sweep(idle=0.0)
        assert (await world.store.get_rollout(lost.rollout_id)).status == "infra_error"
        assert await step(old.rollout_id, "m") == 0
        # Steps that open sessions use stay; once nobody uses them they may go.
        await world.versions.publish(entry, world.checkpoint("m", 2))
        assert entry.leased() == {0, 1}
        for opened in (old, new, first):
            await sessions.finish(opened.rollout_id)
        with pytest.raises(Conflict, match="finished"):
            await step(old.rollout_id, "m")

    run(tmp_path, tiny_model_dir, body)


INFO = CheckpointInfo(
    project="p", name="m", step=1, path="/x", probe_token_ids=PROBE, probe_logprobs=[-1.0, -2.0, -3.0]
)


@pytest.mark.parametrize(
    ("probe", "base", "unmatched", "dtype", "words"),
    [
        ([-1.0, -2.0, -3.0], [-1.5, -2.5, -3.5], [], "fp32", None),
        ([-1.0005, -2.0, -3.0], [-1.5, -2.5, -3.5], [], "fp32", None),
        ([-1.01, -2.01, -3.01], [-1.5, -2.5, -3.5], [], "fp32", "differently"),
        ([-1.05, -1.95, -3.05], [-1.5, -2.5, -3.5], [], "bf16", None),
        ([-1.07, -2.07, -3.07], [-1.5, -2.5, -3.5], [], "bf16", "differently"),
        ([-1.0005, -2.0, -3.0], [-1.0005, -2.0, -3.0], [], "fp32", "no effect"),
        ([-1.0, -2.0], [-1.5, -2.5], [], "fp32", "differently"),
        ([float("nan"), -2.0, -3.0], [-1.5, -2.5, -3.5], [], "fp32", "differently"),
        ([-1.0, -2.0, -3.0], [-1.5, -2.5, -3.5], ["x.lora_A"], "fp32", "x.lora_A"),
    ],
)
def test_the_self_check_sees_what_is_wrong(
    probe: list[float], base: list[float], unmatched: list[str], dtype: str, words: str | None
) -> None:
    check = AdapterCheck("p/m@1", 3, unmatched, probe_logprobs=probe, base_probe_logprobs=base)
    problem = check_adapter(INFO, check, dtype)
    assert (problem is None) == (words is None)
    if words is not None:
        assert words in str(problem)
