"""The resolved settings of a run as data and as TOML that gives the same run again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from art.config.load import FLAG, NESTED, SECTIONS, Loaded
from art.config.run import IMPORT_PATH
from art.config.units import NONE

Who = Literal["default", "run.toml", "environment", "flag"]
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def used_sections(loaded: Loaded) -> list[str]:
    """The sections that have an effect on the run: `[server]` and its like do not on a server that runs already."""
    without = set()
    if loaded.run.url is not None:
        without |= {"server", *NESTED}
    if loaded.sft.file is None:
        without.add("sft")
    if not loaded.evaluation.scenarios:
        without.add("evaluation")
    if loaded.run.loop != "pipeline":
        without.add("pipeline")
    return [section for section in SECTIONS if section not in without]


def resolved(loaded: Loaded, *, server_path: Path | None = None) -> dict[str, dict[str, Any]]:
    """Every setting of the run with its value, paths absolute: JSON data by section.

    `server_path`: the folder of the server that is used where the settings name none.
    """
    data = {name: loaded.sections[name].model_dump(mode="json") for name in used_sections(loaded)}
    for nested in NESTED:
        data.get("server", {}).pop(nested, None)
    data["run"]["folder"] = str(folder_of(loaded))
    for section in ("run", "evaluation"):
        if text := data.get(section, {}).get("scenarios"):
            data[section]["scenarios"] = text if IMPORT_PATH.fullmatch(text) else str(Path(text).absolute())
    if "server" in data:
        own = Path(data["server"]["path"]) if "server.path" in loaded.origins else server_path
        data["server"]["path"] = str((own or Path(data["server"]["path"])).absolute())
    if data.get("sft", {}).get("file"):
        data["sft"]["file"] = str(Path(data["sft"]["file"]).absolute())
    return data


def folder_of(loaded: Loaded) -> Path:
    """Where agent and reward are looked for: `run.folder`, else the file's own folder, else the current one."""
    if "run.folder" in loaded.origins:
        return loaded.run.folder.absolute()
    return Path.cwd() if loaded.file is None else loaded.file.absolute().parent


def who_set(loaded: Loaded, name: str) -> str:
    """Who set `section.name`, for a person: the file with its line, the variable, `flag`, or `default`."""
    origin = _origin(loaded, name)
    if loaded.file is None or origin != str(loaded.file):
        return origin
    from art.config.lines import line_of

    line = line_of(loaded.file.read_text(encoding="utf-8"), *name.split("."))
    return loaded.file.name if line is None else f"{loaded.file.name}:{line}"


def kinds_of_origin(loaded: Loaded, data: Mapping[str, Mapping[str, Any]]) -> dict[str, Who]:
    """Dotted name to the kind of place that set it."""
    return {name: _kind(loaded, _origin(loaded, name)) for name, _ in leaves(data)}


def leaves(data: Mapping[str, Any], *above: str) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of each setting, through tables."""
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, *above, name)
        else:
            yield ".".join((*above, name)), value


def _origin(loaded: Loaded, name: str) -> str:
    """Of the setting itself, else of the table it was given in."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        if (found := loaded.origins.get(".".join(parts[:length]))) is not None:
            return found
    return "default"


def _kind(loaded: Loaded, origin: str) -> Who:
    if origin in ("default", FLAG):
        return "flag" if origin == FLAG else "default"
    return "run.toml" if loaded.file is not None and origin == str(loaded.file) else "environment"


# -- TOML


def to_toml(data: Mapping[str, Mapping[str, Any]], origin: Mapping[str, str] | None = None) -> str:
    """The sections as TOML that `load_config` reads back. A setting that is None is left out where that is its default
    (and shown as a comment), and `"none"` where it is not. `origin`: who set each, as a comment behind it."""
    lines: list[str] = []
    for section, table in data.items():
        _table(lines, (section,), table, SECTIONS.get(section), origin)
    return "\n".join(lines).strip() + "\n"


def _table(
    lines: list[str],
    path: tuple[str, ...],
    table: Mapping[str, Any],
    model: type[BaseModel] | None,
    origin: Mapping[str, str] | None,
) -> None:
    lines += ["", f"[{'.'.join(map(_key, path))}]"]
    inner = {name: value for name, value in table.items() if isinstance(value, Mapping) and value}
    for name, value in table.items():
        if name in inner or value == {}:
            continue
        line = _line(name, value, model)
        said = "" if origin is None else origin.get(".".join((*path, name)), "")
        lines.append(f"{line}  # {said}" if said else line)
    for name, value in inner.items():
        _table(lines, (*path, name), value, _model_of(model, name), origin)


def _line(name: str, value: Any, model: type[BaseModel] | None) -> str:
    if value is not None:
        return f"{_key(name)} = {_value(value)}"
    field = None if model is None else model.model_fields.get(name)
    default = None if field is None else field.get_default(call_default_factory=True)
    if default is None or default is PydanticUndefined:
        return f"# {name} is not set"
    return f"{_key(name)} = {_value(NONE)}"


def _model_of(model: type[BaseModel] | None, name: str) -> type[BaseModel] | None:
    found = None if model is None else model.model_fields.get(name)
    kind = None if found is None else found.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    """JSON's escapes are TOML's too, but for DEL, which TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(name)} = {_value(one)}' for name, one in value.items() if one is not None)}}}"
    return _text(str(value))
