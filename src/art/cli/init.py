"""`art init`: write a small project that runs, to start from."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from art.cli._usage import WrongUsage
from art.errors import ConfigError

JSON = "art.cli._output:ProjectWritten"
BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Small enough for a laptop without a GPU, and it follows instructions."""
TEMPLATES = Path(__file__).parent.parent / "templates"
COMMON = "common"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Template(StrEnum):
    """The projects at hand."""

    TOOLS = "tools"
    QA = "qa"
    BLACK_BOX = "black-box"
    MCP = "mcp"
    SFT = "sft"


_OVERVIEW = (
    "tools: an agent with a tool. qa: one question, one answer. black-box: any program, by its base URL. "
    "mcp: tools of an MCP server. sft: demonstrations first."
)


def command(
    name: Annotated[str, typer.Argument(help="The folder to make, and the project's name.", metavar="NAME")],
    *,
    template: Annotated[Template, typer.Option(help=_OVERVIEW)] = Template.TOOLS,
    base_model: Annotated[str, typer.Option(help="What is trained: a folder or a hub id.")] = BASE_MODEL,
    as_json: Annotated[bool, typer.Option("--json", help="What was written, as JSON.")] = False,
) -> None:
    """Write a small project: agent, reward, scenarios, tests and run.toml. Nothing that exists is overwritten.

    Exit status: 0, 1 when the folder exists or cannot be written, 2 for a wrong command line.

    Examples:

      art init weather

      art init reviews --template black-box --base-model Qwen/Qwen3-0.6B
    """
    folder = Path(name)
    project = folder.absolute().name
    if _NAME.fullmatch(project) is None:
        raise WrongUsage(
            f"a project cannot be called {project!r}",
            hint="up to 100 letters, digits, `.`, `_` and `-`, beginning with a letter or a digit",
        )
    written = write_project(folder, template, project=project, base_model=base_model)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "template": template.value, "files": written}))
        return
    for file in written:
        typer.echo(f"{folder / file}")
    typer.echo(f"\ncd {folder}\npip install -r requirements.txt\npytest\nart run")


def write_project(folder: Path, template: str, *, project: str, base_model: str) -> list[str]:
    """Write the template's files into a new folder; their paths in it. ConfigError where there is one already."""
    local = Path(base_model)
    if local.is_dir():  # in the file, a path is relative to the file
        base_model = str(local.absolute())
    values = {"@NAME@": project, "@BASE_MODEL@": base_model.replace("\\", "\\\\").replace('"', '\\"')}
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} exists and is not empty",
            cause="nothing is overwritten",
            hint="choose another name, or empty the folder",
        )
    written = []
    try:
        for target, source in sorted(_files(template).items()):
            text = source.read_text(encoding="utf-8")
            for mark, value in values.items():
                text = text.replace(mark, value)
            place = folder / target
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
            written.append(target)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written", cause=str(error)) from error
    return written


def _files(template: str) -> dict[str, Path]:
    """The project's files by their path in it: the template's own over those that all have."""
    found = {}
    for part in (COMMON, template):
        root = TEMPLATES / part
        for source in root.rglob("*"):
            if source.is_file() and "__pycache__" not in source.parts:
                # A .gitignore of our own tree would hide what lies beside it.
                found[str(source.relative_to(root)).replace("dot-gitignore", ".gitignore")] = source
    return found
