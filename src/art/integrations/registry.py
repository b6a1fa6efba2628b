"""From what a user asked for to trackers: names of ours, entry points, import paths, objects."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, TypeAlias

from pydantic import ValidationError

from art.config.trackers import OPTIONS
from art.errors import ConfigError
from art.integrations.tracker import Tracker
from art.version import DISTRIBUTION

GROUP = "art.trackers"
"""Entry points of other packages: the name is what a user asks for, the value a class whose options are keywords."""

Asked: TypeAlias = "str | Mapping[str, Any] | Tracker"
"""A name, a mapping of a `name` and options, or a tracker."""

CLASSES: dict[str, tuple[str, str, str]] = {
    "wandb": ("art.integrations.wandb", "WandbTracker", "wandb"),
    "weave": ("art.integrations.weave", "WeaveTracker", "weave"),
    "langfuse": ("art.integrations.langfuse", "LangfuseTracker", "langfuse"),
    "openpipe": ("art.integrations.openpipe", "OpenPipeTracker", ""),
    "mlflow": ("art.integrations.mlflow", "MlflowTracker", "mlflow"),
    "trackio": ("art.integrations.trackio", "TrackioTracker", "trackio"),
    "tensorboard": ("art.integrations.tensorboard", "TensorboardTracker", "tensorboard"),
    "otel": ("art.integrations.otel", "OtelTracker", "opentelemetry.exporter.otlp.proto.http"),
}
"""Name -> module, class, and the package that has to be installed (the extra has the tracker's name)."""


def name_of(asked: Asked) -> str:
    """What a tracker is known by: one of a name is made once, however often it is asked for."""
    if isinstance(asked, str):
        return asked
    if isinstance(asked, Mapping):
        name = asked.get("name")
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"a tracker was asked for without a name: {sorted(map(str, asked))}",
                hint='give {"name": "otel", "content": True}',
            )
        return name
    if not isinstance(asked, Tracker):
        raise ConfigError(
            f"a {type(asked).__name__} is no tracker",
            cause="it lacks a method of art.integrations.tracker.Tracker",
            hint=f"give a name ({', '.join(CLASSES)}), a mapping with a name and options, or such an object",
        )
    return asked.about.name


def make(asked: Asked) -> Tracker:
    """The tracker; nothing is sent or opened yet.

    ConfigError for a name nobody has, a package that is not installed, and an option that does not exist.
    """
    name = name_of(asked)
    if isinstance(asked, Tracker):
        return asked
    options = (
        {key: value for key, value in asked.items() if key != "name"} if isinstance(asked, Mapping) else {}
    )
    if name in CLASSES:
        return _brought(name, options)
    found = _found(name)
    try:
        made = found(**options)
    except TypeError as error:
        raise ConfigError(f"the tracker {name} cannot be made", cause=str(error)) from error
    if not isinstance(made, Tracker):
        raise ConfigError(
            f"{name} makes a {type(made).__name__}, which is no tracker",
            hint="it needs what art.integrations.tracker.Tracker lists",
        )
    return made


def _brought(name: str, options: Mapping[str, Any]) -> Tracker:
    module, class_name, package = CLASSES[name]
    try:
        checked = OPTIONS[name].model_validate(options)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, fault['loc'])) or name}: {fault['msg']}{_near(name, fault)}"
            for fault in error.errors()
        ]
        raise ConfigError(
            f"the tracker {name} cannot be used with these options", cause="; ".join(problems)
        ) from error
    if package and not installed(package):
        folder = _folder(package)
        raise ConfigError(
            f"the tracker {name} needs a package that is not installed",
            cause=f"there is no {package}"
            + (f"; {folder} is a folder that is called the same" if folder else ""),
            hint=f"pip install '{DISTRIBUTION}[{name}]'",
        )
    made: Tracker = getattr(import_module(module), class_name)(checked)
    return made


def _near(name: str, fault: Mapping[str, Any]) -> str:
    if fault["type"] != "extra_forbidden":
        return ""
    known = list(OPTIONS[name].model_fields)
    near = difflib.get_close_matches(str(fault["loc"][0]), known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else f" (there are {', '.join(known)})"


def installed(package: str) -> bool:
    """Whether it can be imported; importing it here would take seconds.

    A folder without an `__init__.py` could be imported too, and is not it: trackers' own files often lie in one that is
    called as the package is, beside the program.
    """
    spec = _spec(package)
    return spec is not None and spec.origin is not None


def _folder(package: str) -> str:
    """The folder that only looks like it; empty where there is none."""
    spec = _spec(package)
    found = [] if spec is None else list(spec.submodule_search_locations or ())
    return found[0] if found else ""


def _spec(package: str) -> ModuleSpec | None:
    try:
        return find_spec(package)
    except ModuleNotFoundError:  # of a package above it
        return None


def _found(name: str) -> Callable[..., Any]:
    """A tracker of somebody else: an entry point, or an import path."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    try:
        if name in points:
            loaded: Callable[..., Any] = points[name].load()
            return loaded
        module, colon, attribute = name.partition(":")
        if colon:
            found: Callable[..., Any] = getattr(import_module(module), attribute)
            return found
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the tracker {name} cannot be imported", cause=f"{type(error).__name__}: {error}"
        ) from error
    known = [*CLASSES, *points]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
    raise ConfigError(f"there is no tracker {name!r}", hint=f"{hint}; or give package.module:Class")


def require(asked: Iterable[Asked]) -> list[Tracker]:
    """All of them, each name once. ConfigError as `make` raises it."""
    chosen: dict[str, Asked] = {}
    for item in asked:
        chosen.setdefault(name_of(item), item)
    return [make(item) for item in chosen.values()]


def ready(asked: Iterable[Asked]) -> list[Tracker]:
    """Likewise, for a run that is about to begin: ConfigError also where a tracker lacks what it cannot begin without."""
    trackers = require(asked)
    for tracker in trackers:
        if (lacking := tracker.about.lacks) is not None:
            raise lacking
    return trackers
