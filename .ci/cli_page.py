"""Write the second half of docs/cli.md, which describes every command, from the commands themselves.

python .ci/cli_page.py            rewrite it
python .ci/cli_page.py --check    exit with 1 when it differs from what the commands say
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from art.cli import _schemas
from art.cli._tree import Leaf, leaves
from art.cli.main import SECTIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
MARK = "<!-- From here on written by .ci/cli_page.py. -->\n"


def described() -> str:
    """Every command: usage, what it does, its flags, what it prints under --json, examples."""
    printed = {one.command: one for one in _schemas.every()}
    found: dict[str, list[Leaf]] = {}
    for leaf in leaves():
        found.setdefault(leaf.path[0], []).append(leaf)
    lines: list[str] = []
    for section, names in SECTIONS.items():
        lines += [f"## {section}", ""]
        for name in names:
            for leaf in found.get(name, []):
                lines += list(_command(leaf, printed[leaf.name]))
    return "\n".join(lines).rstrip() + "\n"


def _command(leaf: Leaf, printed: _schemas.Printed) -> Iterator[str]:
    usage = " ".join([f"art {leaf.name}", *map(_argument, leaf.arguments)])
    yield from (f"### {usage}", "", _escaped(leaf.help), "")
    rows = [*((f"`{_name(one)}`", one.help or "") for one in leaf.arguments), *map(_flag, leaf.flags)]
    rows = [(name, text) for name, text in rows if name != "`--json`"]
    if rows:
        yield from ("| | |", "|---|---|")
        yield from (f"| {name} | {_escaped(text)} |" for name, text in rows)
        yield ""
    form = "prints lines of" if printed.lines else "prints"
    yield from (f"`--json` {form} `{printed.names}`.", "")
    yield from (f"    {example}" for example in leaf.examples)
    yield ""


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()).strip("[]")


def _argument(argument: Any) -> str:
    name = _name(argument)
    return name if argument.required else f"[{name}]"


def _flag(flag: Any) -> tuple[str, str]:
    value = "" if flag.is_flag else f" {flag.metavar or flag.name.upper()}"
    names = ", ".join([*flag.opts, *flag.secondary_opts])
    default = flag.default
    shown = (
        ""
        if default in (None, False, (), []) or flag.is_flag
        else f" Default: {getattr(default, 'value', default)}."
    )
    return f"`{names}{value}`", f"{flag.help or ''}{shown}"


def _escaped(text: str) -> str:
    """In a table of Markdown a bar ends a cell, and `<word>` would be HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    head, mark, _ = PAGE.read_text().partition(MARK)
    page = f"{head}{MARK}\n{described()}"
    if "--check" not in sys.argv:
        PAGE.write_text(page)
    elif page != PAGE.read_text() or not mark:
        print(f"{PAGE.name} does not say what the commands do: python .ci/cli_page.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
