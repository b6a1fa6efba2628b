"""The reference of all settings in docs/run.md, made of the classes that hold them.

python .ci/config_reference.py write    # put it into docs/run.md
python .ci/config_reference.py check    # 1 when it is not what is there
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from art.config.load import NESTED, SECTIONS

FILE = Path(__file__).resolve().parent.parent / "docs" / "run.md"
BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"
BOUNDS = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}
WORDS = {
    int: "count",
    float: "number",
    str: "text",
    bool: "true or false",
    Path: "path",
    tuple: "list",
    dict: "table",
}


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field, those of the classes above included."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)) or kind is BaseModel:
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = inspect.cleandoc(str(text.value.value))
    return found


def fields(section: str) -> list[tuple[str, FieldInfo, str]]:
    """(name, field, text) of each setting of a section, through the tables inside it."""
    return list(_fields(SECTIONS[section], "", NESTED if section == "server" else ()))


def _fields(model: type[BaseModel], prefix: str, without: tuple[str, ...]) -> Any:
    texts = docstrings(model)
    for name, field in model.model_fields.items():
        if name in without:
            continue
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{prefix}{name}.", ())
        else:
            yield f"{prefix}{name}", field, texts.get(name, "")


def what(name: str, field: FieldInfo) -> str:
    """Kind and range in words."""
    kind = _kind(name, field.annotation)
    bounds = [
        words.format(_number(getattr(item, bound)))
        for item in _metadata(field)
        for bound, words in BOUNDS.items()
        if getattr(item, bound, None) is not None
    ]
    return ", ".join([kind, *bounds])


def _metadata(field: FieldInfo) -> list[Any]:
    inner = [item for part in get_args(field.annotation) for item in getattr(part, "__metadata__", ())]
    return [*field.metadata, *(one for item in inner for one in getattr(item, "metadata", ()))]


def _kind(name: str, annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    parts = get_args(annotation)
    if parts and get_origin(annotation) not in (tuple, list, dict):
        words = [_kind(name, part) for part in parts if part is not NoneType and _is_type(part)]
        return " or ".join(dict.fromkeys(word for word in words if word))
    kind = get_origin(annotation) or annotation
    if kind is float and name.endswith(("seconds", "timeout")):
        return "time"
    if kind is list:
        return "list"
    return WORDS.get(kind, "text")


def _is_type(part: Any) -> bool:
    return isinstance(part, type) or get_origin(part) is not None


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def default(field: FieldInfo) -> str:
    """The default as a file would say it."""
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | list):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, dict):
        return "`{}`"
    return f"`{value}`" if str(value) else '`""`'


def reference() -> str:
    """The whole of it, a table for each section."""
    parts = []
    for section, model in SECTIONS.items():
        lead = inspect.getdoc(model) or ""
        rows = [
            f"| `{name}` | {what(name.rpartition('.')[2], field)} | {default(field)} | {_cell(text)} |"
            for name, field, text in fields(section)
        ]
        head = [f"### [{section}]", "", " ".join(lead.split()), "", "| setting | what | default | meaning |"]
        parts.append("\n".join([*head, "|---|---|---|---|", *rows]))
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def placed(text: str) -> str:
    """The page with the reference in its place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def main(command: str) -> int:
    """`write` or `check`."""
    text = FILE.read_text(encoding="utf-8")
    if command == "write":
        FILE.write_text(placed(text), encoding="utf-8")
        return 0
    if placed(text) == text:
        print("docs/run.md is what the settings say")
        return 0
    print("docs/run.md is not what the settings say: python .ci/config_reference.py write")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "check"))
