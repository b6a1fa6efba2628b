"""Making a model exist: base model found, step 0 published, template proved, engine warmed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from art.config.model import ModelConfig
from art.errors import ArtError, ConfigError, Conflict, InvalidInput, NotFound
from art.server.engines import EnginePool
from art.server.files import write_json
from art.server.versions import ModelEntry, Versions
from art.store.records import ModelRow
from art.store.store import Store
from art.trainer.protocol import PrepareModel, Trainer
from art.types.wire import ModelInfo

logger = logging.getLogger(__name__)

FORKED = "forked from "
RESERVED = frozenset({"server"})
"""Folders of the server's own beside the projects', in lower case: some file systems know no other."""


class Registration:
    """Registers models, one at a time per name."""

    def __init__(
        self, root: Path, *, store: Store, trainer: Trainer, versions: Versions, engines: EnginePool
    ) -> None:
        self._root = root
        self._store = store
        self._trainer = trainer
        self._versions = versions
        self._engines = engines
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._warming: set[asyncio.Task[None]] = set()

    async def register(self, project: str, name: str, config: ModelConfig) -> ModelEntry:
        """Idempotent for the same configuration.

        Conflict for another configuration, InvalidInput for a reserved project, NotFound for an unknown base model, ConfigError for a template
        that cannot be served.
        """
        require_free(project)
        async with self._locks.setdefault((project, name), asyncio.Lock()):
            row = await self._store.get_model(project, name)
            if row is not None:
                check_same(row, config)
                return self._versions.entry(project, name)
            entry = await self._make(project, name, config)
        self._warm(entry)
        return entry

    async def fork(
        self, project: str, name: str, config: ModelConfig, *, source: ModelEntry, step: int
    ) -> ModelEntry:
        """Register a model whose first step is a copy of the source's. Idempotent for the same one.

        Conflict where the name is taken, ConfigError for a configuration that the checkpoint does not fit.
        """
        require_free(project)
        async with self._locks.setdefault((project, name), asyncio.Lock()):
            row = await self._store.get_model(project, name)
            if row is not None and forked_from(source, step) in row.notes:
                check_same(row, config)
                return self._versions.entry(project, name)
            if row is not None:
                raise Conflict(
                    f"{project}/{name} exists already, at step {row.step}",
                    cause="a fork starts a model, and would be lost beside steps of its own",
                    hint="fork into another name",
                )
            source.sessions[step] += 1  # its files must stay until they are copied
            try:
                entry = await self._make(project, name, config, source=source, step=step)
            finally:
                source.sessions[step] -= 1
        self._warm(entry)
        return entry

    async def _make(
        self,
        project: str,
        name: str,
        config: ModelConfig,
        *,
        source: ModelEntry | None = None,
        step: int = 0,
    ) -> ModelEntry:
        base = await self._trainer.resolve_base_model(config.base_model, quantization=config.quantization)
        folder = self._root / project / "models" / name
        row = ModelRow(project=project, name=name, config=config, base=base, model_dir=str(folder))
        if source is not None:
            check_fits(source.row, row)
            row.notes.append(forked_from(source, step))
        prepared = PrepareModel(
            project=project,
            name=name,
            base=base,
            model_dir=str(folder),
            lora=config.adapter,
            initial_adapter=config.initial_adapter,
            fork_of=None if source is None else source.checkpoint(step).path,
            history=config.history,
            seed=config.lora.seed,
        )
        with contextlib.suppress(NotFound):  # of a registration whose row could not be written
            self._versions.discard(self._versions.entry(project, name))
        # The template first: a model that cannot be served leaves nothing behind.
        entry = await self._versions.add(row)
        try:
            checkpoint = await self._trainer.prepare_model(prepared)
            self._unload(entry, checkpoint.step)
            await self._versions.publish(entry, checkpoint)
        except BaseException:
            self._versions.discard(entry)
            raise
        row = row.model_copy(update={"step": checkpoint.step})
        # The row comes last: until it is there, a repeated registration does all of this again.
        await self._store.put_model(row)
        entry.row = row
        entry.checkpoints = {checkpoint.step: checkpoint}
        await asyncio.to_thread(write_json, folder / "model.json", describe(entry).model_dump(mode="json"))
        return entry

    def _unload(self, entry: ModelEntry, step: int) -> None:
        """Whatever an engine holds under the name was loaded by a registration that did not end."""
        for left in {step, *entry.checkpoints}:
            self._versions.lost(entry, left)

    def _warm(self, entry: ModelEntry) -> None:
        """Start the engine now, so that the first call does not wait for it."""

        async def start() -> None:
            try:
                await self._engines.get(entry.row.base)
            except ArtError as error:
                logger.error("the engine for %s did not start: %s", entry.wire_name, error)

        task = asyncio.create_task(start(), name=f"warm {entry.wire_name}")
        self._warming.add(task)
        task.add_done_callback(self._warming.discard)


def require_free(project: str) -> None:
    """InvalidInput for a project whose folder is the server's own."""
    if project.casefold() in RESERVED:
        raise InvalidInput(
            f"a project cannot be called {project!r}",
            cause="the server keeps its own files in the folder of that name",
            hint="choose another name",
        )


def forked_from(source: ModelEntry, step: int) -> str:
    """The note of a model that started as a copy; by it a repeated request is known again."""
    return f"{FORKED}{source.version(step)}"


def check_fits(source: ModelRow, row: ModelRow) -> None:
    """ConfigError when a checkpoint of `source` cannot be the first step of `row`, naming the fields."""
    differing = [] if source.base.sha256 == row.base.sha256 else ["base_model"]
    differing += [] if source.config.lora == row.config.lora else ["lora"]
    differing += [] if source.config.training == row.config.training else ["training"]
    differing += [] if row.config.initial_adapter is None else ["initial_adapter"]
    if differing:
        raise ConfigError(
            f"{row.project}/{row.name} cannot start from a checkpoint of {source.project}/{source.name}",
            cause=f"these are the checkpoint's, and were given otherwise: {', '.join(differing)}",
            hint="use the base_model, training and lora of the model that is forked, without initial_adapter",
        )


def check_same(row: ModelRow, config: ModelConfig) -> None:
    """Conflict naming the fields that differ from the registration."""
    old, new = row.config.model_dump(), config.model_dump()
    differing = [
        f"{field}: {old[field]!r} is registered, {new[field]!r} was given"
        for field in old
        if old[field] != new[field]
    ]
    if differing:
        raise Conflict(
            f"the model {row.project}/{row.name} is registered with another configuration",
            cause="; ".join(differing),
            hint="use the registered configuration, or another name",
        )


def describe(entry: ModelEntry, *, seen: str | None = None) -> ModelInfo:
    """A model as the API shows it to a key of the project `seen`; None is a key of all projects.

    The name of another project's model that it was forked from is for those who see that one too.
    """
    info = describe_row(entry.row, seen=seen)
    served = {"context_length": entry.context_length, "step": entry.step}
    return info.model_copy(update={**served, "notes": [*info.notes, *entry.proof.notes]})


def describe_row(row: ModelRow, *, seen: str | None = None) -> ModelInfo:
    """The same of a model that nothing serves."""
    own = FORKED if seen is None else f"{FORKED}{seen}/"
    return ModelInfo(
        project=row.project,
        name=row.name,
        config=row.config,
        base_model_path=row.base.path,
        parameters=row.base.parameters,
        context_length=row.base.context_length,
        step=row.step,
        batch=row.batch,
        inference_name=f"{row.project}/{row.name}",
        model_dir=row.model_dir,
        notes=[note for note in row.notes if not note.startswith(FORKED) or note.startswith(own)],
    )
