"""Which models exist, which step is their latest, and which adapters the engines hold.

`publish` is the only way a step becomes the latest: the engine loads the adapter, the self-check compares it
with what the trainer wrote into the manifest, and only then do the store and `latest` change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from art.engine.protocol import BASE_VERSION, AdapterRef, Engine
from art.errors import ArtError, Conflict, InfraError, InvalidInput, NotFound
from art.server.body import whole_number
from art.server.checkpoint_files import arrived
from art.server.engines import EnginePool, WorkerEngine
from art.server.persist import Persist
from art.server.self_check import check_adapter
from art.server.slots import AdapterSlots, Load
from art.store.records import ModelRow
from art.store.store import Store
from art.tokens.formats import Formats, choose_formats
from art.tokens.proof import Proof, prove, turn_end
from art.tokens.renderer import Renderer
from art.types.jobs import CheckpointInfo

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ModelEntry:
    """A model that can be served."""

    row: ModelRow
    renderer: Renderer
    proof: Proof
    formats: Formats
    """How the model writes tool calls and reasoning."""
    context_length: int
    checkpoints: dict[int, CheckpointInfo] = field(default_factory=dict)
    step: int = 0
    """Latest published step."""
    calls: Counter[int] = field(default_factory=Counter)
    """Running calls per step."""
    sessions: Counter[int] = field(default_factory=Counter)
    """Open sessions that have the step pinned."""

    @property
    def key(self) -> tuple[str, str]:
        return self.row.project, self.row.name

    @property
    def wire_name(self) -> str:
        return f"{self.row.project}/{self.row.name}"

    def version(self, step: int) -> str:
        """The version's name, the same in answers, records and the engine: `project/name@step`."""
        return f"{self.wire_name}@{step}"

    def leased(self) -> set[int]:
        """Steps that open sessions or running calls use; their files must stay."""
        return {step for step in (*self.sessions, *self.calls) if self.sessions[step] + self.calls[step] > 0}

    def checkpoint(self, step: int) -> CheckpointInfo:
        """NotFound with the steps there are."""
        found = self.checkpoints.get(step)
        if found is None:
            steps = ", ".join(str(known) for known in sorted(self.checkpoints)) or "none"
            raise NotFound(f"{self.wire_name} has no step {step}", hint=f"its steps are: {steps}")
        return found


@dataclass(frozen=True, slots=True)
class Lease:
    """An adapter that stays loaded while a call uses it."""

    engine: Engine
    version: str
    """What the engine is asked for: BASE_VERSION, or a loaded adapter."""
    salt: str
    """For the prefix-cache key: changes with the adapter's content."""


class Versions:
    """All models of one server."""

    def __init__(self, store: Store, engines: EnginePool) -> None:
        self._store = store
        self._engines = engines
        self._entries: dict[tuple[str, str], ModelEntry] = {}
        self._broken: dict[tuple[str, str], ArtError] = {}
        self._renderers: dict[tuple[str, str | None, str], tuple[Renderer, Proof]] = {}
        self._slots: dict[str, AdapterSlots] = {}

    async def load(self) -> None:
        """Take up the store's models. One whose files are gone is reported when it is asked for."""
        for row in await self._store.list_models():
            try:
                await self.add(row)
            except ArtError as error:
                logger.error("%s/%s cannot be served: %s", row.project, row.name, error)
                self._broken[row.project, row.name] = error

    async def add(self, row: ModelRow) -> ModelEntry:
        """Make a registered model servable. ConfigError when its template cannot be served as it is configured."""
        renderer, proof = await self._renderer(row)
        config = row.config
        entry = ModelEntry(
            row=row,
            renderer=renderer,
            proof=proof,
            formats=choose_formats(
                renderer, tool_parser=config.tool_parser, reasoning_parser=config.reasoning_parser
            ),
            context_length=row.base.context_length,
            step=row.step,
        )
        for checkpoint in await self._store.list_checkpoints(row.project, row.name):
            entry.checkpoints[checkpoint.info.step] = checkpoint.info
        self._broken.pop(entry.key, None)
        existing = self._entries.get(entry.key)
        if existing is not None:  # registered again: counts of its users stay
            existing.row = row
            existing.checkpoints.update(entry.checkpoints)
            return existing
        self._entries[entry.key] = entry
        return entry

    def discard(self, entry: ModelEntry) -> None:
        """Take back an `add` whose registration failed."""
        self._entries.pop(entry.key, None)

    async def _renderer(self, row: ModelRow) -> tuple[Renderer, Proof]:
        key = (row.base.path, row.config.chat_template, row.config.history)
        if key not in self._renderers:
            self._renderers[key] = await asyncio.to_thread(
                _load_renderer, Path(row.base.path), row.config.chat_template, row.config.history
            )
        return self._renderers[key]

    # -- names

    def entries(self, project: str | None = None) -> list[ModelEntry]:
        """Every model, or those of one project, by name."""
        found = [entry for entry in self._entries.values() if project is None or entry.row.project == project]
        return sorted(found, key=lambda entry: entry.key)

    def entry(self, project: str, name: str) -> ModelEntry:
        """NotFound with what exists; what is wrong with it when it cannot be served."""
        if (project, name) in self._broken:
            raise self._broken[project, name]
        found = self._entries.get((project, name))
        if found is None:
            # Who asks may see this project, and perhaps no other.
            raise self._unknown(f"{project}/{name}", project)
        return found

    def resolve(self, wire_name: str, project: str | None = None) -> tuple[ModelEntry, int]:
        """The model and step of `project/name[@step]`, `name` or `name@step`; without a step the latest.

        `project` restricts the search to what a key may see. NotFound lists what exists; Conflict when a
        bare name means several models.
        """
        entry, step = self.find(wire_name, project)
        return entry, entry.step if step is None else step

    def find(self, wire_name: str, project: str | None = None) -> tuple[ModelEntry, int | None]:
        """As `resolve`, with None where the name gives no step."""
        path, at, step_text = wire_name.partition("@")
        owner, slash, name = path.rpartition("/")
        asked = whole_number(step_text)
        if at and asked is None:
            raise self._unknown(wire_name, project)
        found = [
            entry
            for entry in self.entries(project)
            if entry.row.name == name and (not slash or entry.row.project == owner)
        ]
        if not found:
            broken = self._broken.get((owner, name)) if project in (None, owner) else None
            raise broken if broken is not None else self._unknown(wire_name, project)
        if len(found) > 1:
            names = ", ".join(entry.wire_name for entry in found)
            raise Conflict(f"{name!r} means several models", hint=f"write one of: {names}")
        if asked is None:
            return found[0], None
        found[0].checkpoint(asked)
        return found[0], asked

    def _unknown(self, wire_name: str, project: str | None) -> NotFound:
        names = ", ".join(entry.wire_name for entry in self.entries(project))
        where = "" if project is None else f" in {project}"
        hint = (
            f"models here: {names}"
            if names
            else f"no model is registered yet{where}: model.register(backend)"
        )
        return NotFound(f"there is no model {wire_name[:240]!r}", hint=hint)

    # -- adapters

    def _slots_of(self, entry: ModelEntry) -> AdapterSlots:
        return self._slots.setdefault(entry.row.base.path, AdapterSlots())

    @contextmanager
    def hold(self, entry: ModelEntry, step: int) -> Iterator[None]:
        """Keep the files of a step for the length of the `with`. NotFound where they are gone already."""
        entry.checkpoint(step)
        entry.calls[step] += 1
        try:
            yield
        finally:
            entry.calls[step] -= 1
            if not entry.calls[step]:
                del entry.calls[step]

    def turns_now(self) -> tuple[int, int]:
        """Choices that wait for a place in an engine, and those that have one."""
        turns = [slots.turns for slots in self._slots.values()]
        return sum(one.waiting for one in turns), sum(one.taken for one in turns)

    @asynccontextmanager
    async def turn(self, entry: ModelEntry, session_id: str) -> AsyncIterator[None]:
        """A place in the model's engine for the length of the `with`; projects, then sessions, take turns at them."""
        engine = await self._engines.worker_engine(entry.row.base)
        slots = self._slots_of(entry)
        slots.meet(engine)
        async with slots.turns.take(entry.row.project, session_id):
            yield

    async def ensure_loaded(self, entry: ModelEntry, step: int) -> str:
        """Load the adapter of a step unless the running engine has it; returns the engine's version name."""
        async with self.lease(entry, step) as lease:
            return lease.version

    @asynccontextmanager
    async def lease(self, entry: ModelEntry, step: int) -> AsyncIterator[Lease]:
        """An engine that holds the step's adapter, until the end of the `with`."""
        info = entry.checkpoint(step)
        version = BASE_VERSION if info.is_base else entry.version(step)
        slots = self._slots_of(entry)
        with self.hold(entry, step):
            async with slots.use(version):
                engine = await self._engines.worker_engine(entry.row.base)
                entry.context_length = min(entry.row.base.context_length, engine.capabilities.context_length)
                if version != BASE_VERSION:
                    await slots.bring(version, engine, self._load(entry, info))
                yield Lease(engine=engine, version=version, salt=info.sha256[:16])

    def _load(self, entry: ModelEntry, info: CheckpointInfo) -> Load:
        """How the adapter is loaded: once its files are there, and it counts as loaded once it has proved itself."""
        version = entry.version(info.step)
        ref = AdapterRef(version, info.path, list(info.probe_token_ids), info.sha256)

        async def load(engine: WorkerEngine) -> None:
            try:
                await arrived(info)
                check = await engine.load_adapter(ref)
            except (NotFound, InvalidInput) as error:
                raise await self._unusable(entry, info, error) from error
            problem = check_adapter(info, check, engine.capabilities.dtype)
            if problem is not None:
                await engine.unload_adapter(version)
                raise problem

        return load

    async def _unusable(self, entry: ModelEntry, info: CheckpointInfo, error: ArtError) -> InfraError:
        """What is said about a step whose files are gone or damaged: it is the server that lost them."""
        paths = {step: Path(known.path) for step, known in entry.checkpoints.items() if step != info.step}
        whole = await asyncio.to_thread(lambda: [step for step, path in paths.items() if path.is_dir()])
        advice = f"restore {info.path} from a backup"
        if whole:
            listed = ", ".join(str(step) for step in sorted(whole))
            advice = (
                f"the steps {listed} are there: ask for {entry.version(max(whole))}, or {advice}; to train on from "
                f"it, register another name with initial_adapter={str(paths[max(whole)])!r}"
            )
        return InfraError(
            f"the checkpoint of {entry.version(info.step)} cannot be loaded", cause=str(error), hint=advice
        )

    def lost(self, entry: ModelEntry, step: int) -> None:
        """The engine says that it does not hold the step: load it anew at the next call."""
        self._slots_of(entry).lost(entry.version(step))

    # -- steps

    async def publish(
        self,
        entry: ModelEntry,
        info: CheckpointInfo,
        *,
        metrics: dict[str, float] | None = None,
        job_id: str | None = None,
        persist: Persist | None = None,
    ) -> None:
        """Load, check, record, then make it the latest. InfraError when the self-check fails; nothing changes then.

        With `persist` a store that cannot write is waited for. A step that is recorded already changes no latest.
        """
        before = entry.checkpoints.get(info.step)
        if before is not None and before.sha256 != info.sha256:
            self.lost(entry, info.step)
        entry.checkpoints[info.step] = info
        try:
            if not info.is_base:
                await self.ensure_loaded(entry, info.step)
            record = partial(self._store.put_checkpoint, info, metrics, job_id)
            latest = await (record() if persist is None else persist(entry.version(info.step), record))
        except BaseException:
            if before is None:
                del entry.checkpoints[info.step]
            else:
                entry.checkpoints[info.step] = before
            raise
        _set_step(entry, latest)

    async def roll_back(self, entry: ModelEntry, step: int) -> None:
        """Make an earlier step the latest again; nothing is deleted.

        NotFound where it is not there any more, Conflict while a job of the model is open.
        """
        await self._store.require_idle(*entry.key)  # before an adapter is loaded for nothing
        async with self.lease(entry, step):  # until it is the latest, which nobody deletes
            await self._store.set_latest(*entry.key, step)
            _set_step(entry, step)

    async def forget(self, entry: ModelEntry, step: int) -> None:
        """A deleted checkpoint: no call gets it any more, and the engine drops it. Conflict while it is used."""
        if step == entry.step or step in entry.leased():
            raise Conflict(
                f"{entry.version(step)} is in use",
                cause="it is the latest step" if step == entry.step else "open sessions or calls use it",
                hint="finish its rollouts first",
            )
        entry.checkpoints.pop(step, None)
        slots = self._slots_of(entry)
        if slots.holds(entry.version(step)):
            await slots.unload(entry.version(step), await self._engines.worker_engine(entry.row.base))


def _set_step(entry: ModelEntry, step: int) -> None:
    entry.step = step
    entry.row = entry.row.model_copy(update={"step": step})


def _load_renderer(folder: Path, chat_template: str | None, history: str) -> tuple[Renderer, Proof]:
    renderer = Renderer.load(folder, chat_template=chat_template)
    if history == "keep":
        return renderer, prove(renderer)
    stops, notes = turn_end(renderer)
    return renderer, Proof(stop_token_ids=stops, notes=notes)
