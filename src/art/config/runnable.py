"""Whether the settings of a run go together, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from art.config.load import FLAG, NESTED, SECTIONS, Loaded
from art.config.resolved import folder_of
from art.config.run import IMPORT_PATH
from art.errors import ConfigError, UnsupportedOption


def require_runnable(loaded: Loaded) -> None:
    """ConfigError for what is missing or contradicts itself, UnsupportedOption for what would be ignored."""
    for name, hint in _missing(loaded):
        raise ConfigError(f"{name} is missing", hint=hint)
    for name, why in _without_effect(loaded):
        if _given(loaded, name):
            raise UnsupportedOption(f"{name} would be ignored", cause=why, hint=f"leave {name} out")
    folder = folder_of(loaded)
    if not folder.is_dir():
        raise ConfigError(f"run.folder is {folder}, which is no folder")
    for name, file in _files(loaded):
        if not file.is_file():
            raise ConfigError(
                f"{name}: there is no file {file}", hint="a path is relative to the file it stands in"
            )


def _missing(loaded: Loaded) -> Iterator[tuple[str, str]]:
    model, run = loaded.model, loaded.run
    if not model.base_model:
        yield "model.base_model", 'a folder or a hub id: base_model = "HuggingFaceTB/SmolLM2-135M-Instruct"'
    if not model.name:
        yield "model.name", 'name = "agent"; the same name goes on where the last run stopped'
    if not model.project:
        yield "model.project", 'project = "weather"; runs of one project are listed together'
    if run.agent is None and not run.command:
        yield "run.agent", 'agent = "module:name", or command = ["node", "agent.js"] for any program'
    if not run.scenarios:
        yield "run.scenarios", 'scenarios = "scenarios.jsonl", one JSON value a line, or "module:name"'


def _without_effect(loaded: Loaded) -> Iterator[tuple[str, str]]:
    """(setting or section, why); it counts where somebody set it."""
    run = loaded.run
    if run.command:
        yield "run.agent", "run.command names a program, which is run instead"
        yield "run.reward", "the reward of a command is what it prints, or what run.reward_command says"
        yield "run.isolate", "each run of a command is a process of its own"
    else:
        yield "run.reward_command", "it judges a command; run.reward judges an agent"
        yield "run.timeout", "it bounds a command; limits.max_seconds bounds the calls of an agent"
    if not loaded.evaluation.scenarios:
        yield from ((f"evaluation.{name}", "evaluation.scenarios is empty") for name in ("every", "rollouts"))
    if loaded.sft.file is None:
        yield "sft", "sft.file names no demonstrations"
    if run.loop != "pipeline":
        yield "pipeline", 'run.loop is "steps"'
    else:
        yield "run.max_exceptions", "a pipeline counts the groups that fail, and the others go on"
    for name in run.tracker:
        if name not in run.trackers:
            yield "run.tracker", f"run.trackers does not name {name}"
    if run.url is not None:
        why = "run.url names a server, which has settings of its own"
        yield from ((section, why) for section in ("server", *NESTED))


def _given(loaded: Loaded, name: str) -> bool:
    """Whether somebody set it to something else than it would be anyway.

    What the environment says of a server may be meant for another program.
    """
    section, _, setting = name.partition(".")
    said = {FLAG, str(loaded.file)} if section in ("server", *NESTED) else set(loaded.origins.values())
    found = [
        key.split(".")[1]
        for key, origin in loaded.origins.items()
        if key.startswith(f"{section}.") and origin in said
    ]
    names = [one for one in found if not setting or one == setting]
    fields, values = SECTIONS[section].model_fields, loaded.sections[section]
    return any(getattr(values, one) != fields[one].get_default(call_default_factory=True) for one in names)


def _files(loaded: Loaded) -> Iterator[tuple[str, Path]]:
    for name, text in (
        ("run.scenarios", loaded.run.scenarios),
        ("evaluation.scenarios", loaded.evaluation.scenarios),
    ):
        if text and IMPORT_PATH.fullmatch(text) is None:
            yield name, Path(text)
    if loaded.sft.file is not None:
        yield "sft.file", loaded.sft.file
