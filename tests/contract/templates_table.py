"""The table of docs/templates.md: what registration finds out about each template of tests/data/templates/trl.

python tests/contract/templates_table.py --write     puts it into docs/templates.md
python tests/contract/templates_table.py             prints it
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import templates_kit

from art.errors import ConfigError
from art.tokens.formats import choose_formats
from art.tokens.proof import Proof, prove

DOCS = Path(__file__).parents[2] / "docs" / "templates.md"
OWN = ("mistral", "mistral_v3", "smollm2", "forgetful")
"""Of our own test data: Mistral's forms in our words, SmolLM2's template, and one that cannot be kept."""
BEGIN, END = "<!-- table: tests/contract/templates_table.py -->\n", "<!-- end of table -->\n"


def table() -> str:
    """The table in Markdown."""
    lines = ["| template | calls | reasoning | `keep` | tools | earlier turns |", "|---|---|---|---|---|---|"]
    for name in [*templates_kit.TRL, *OWN]:
        renderer = templates_kit.renderer(name)
        formats = choose_formats(renderer)
        begin = f"| {name} | {formats.tools} | {formats.reasoning} |"
        try:
            proof = prove(renderer)
        except ConfigError as error:
            lines.append(f"{begin} refused: {_reason(error.cause)} | | |")
            continue
        tools = "template" if renderer.has_tools_section else "system message"
        if proof.tools_refused:
            tools = f"no: {_reason(proof.tools_refused)}"
        lines.append(f"{begin} yes | {tools} | {earlier(proof)} |")
    return "\n".join(lines) + "\n"


def earlier(proof: Proof) -> str:
    """What the template would change in earlier turns of the assistant, in a word or two."""
    signs = {
        "leaves reasoning out": "no reasoning",
        "into earlier turns": "opened otherwise",
        "leaves out calls": "not all calls",
        "beside a call": "words beside calls move or go",
        "one call a message": "one call a message",
    }
    found = [word for sign, word in signs.items() if any(sign in note for note in proof.notes)]
    return ", ".join(found) or "the same"


def _reason(cause: str) -> str:
    """The last part of a refusal's reason, which names the line, short and fit for a table."""
    text = cause.rpartition("; ")[2].removeprefix("TemplateError: ").replace("\n", " ").replace("`", "'")
    text = text if len(text) <= 90 else f"{text[:90]}..."
    return "`" + text.replace("|", "\\|") + "`"


def written() -> str:
    """The table as it stands in the docs."""
    return DOCS.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Print the table, or write it."""
    if "--write" not in sys.argv:
        print(table())
        return
    before, _, rest = DOCS.read_text(encoding="utf-8").partition(BEGIN)
    DOCS.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
