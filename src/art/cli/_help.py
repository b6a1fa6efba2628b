"""A command's help as a person can copy from it: what it says is wrapped, its examples are not."""

from __future__ import annotations

import inspect
import re
from typing import Any

from typer.core import TyperCommand

_EXAMPLES = re.compile(r"^Examples:\s*$", re.MULTILINE)


def parts_of(help_text: str | None) -> tuple[str, list[str]]:
    """What a command says of itself, and the command lines that it gives as examples."""
    text, *rest = _EXAMPLES.split(inspect.cleandoc(help_text or ""), maxsplit=1)
    lines = rest[0].splitlines() if rest else []
    return text.strip(), [line.strip() for line in lines if line.strip()]


class Command(TyperCommand):
    """Every command of `art`."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        text, examples = parts_of(self.help)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)
        if examples:
            with formatter.section("Examples"):
                for example in examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")
