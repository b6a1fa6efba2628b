"""The run behind `make test-templates`: every chat template of an installed TRL, and every tokenizer of mistral-common.

ART_TRL_TEMPLATES and ART_MISTRAL_TOKENIZERS name the folders of their files. For each template: what registration says of
it, and whether random conversations hold. Writes benchmarks/results/templates.json, prints it as a table, and ends with 1
where a template that is served does not hold what is promised of it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parent))

import tekken_kit
import templates_kit
import templates_table
import test_templates
from packaging.utils import canonicalize_name
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from art.errors import ConfigError
from art.tokens.formats import choose_formats
from art.tokens.proof import Proof, prove
from art.tokens.renderer import Renderer

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "templates.json"
MISTRAL = ("mistral", "mistral_v3")
"""Of our own templates, those in the forms that Mistral's tokenizers are made for."""

Row = dict[str, Any]


def released(folder: Path, package: str) -> str:
    """The package and its release, by the folder that it is installed in."""
    site = str(folder.resolve().parents[1])
    found = [item.version for item in distributions(path=[site]) if canonicalize_name(item.name) == package]
    return f"{package} {found[0]}"


def registration(renderer: Renderer) -> Row:
    """What registering a model with the template would say."""
    formats = choose_formats(renderer)
    row: Row = {"tool_parser": formats.tools, "reasoning_parser": formats.reasoning}
    try:
        proof = prove(renderer)
    except ConfigError as error:
        return row | {"keep": "refused", "tools": "", "earlier_turns": "", "reason": error.cause}
    return row | {
        "keep": "proved",
        "tools": _tools(renderer, proof),
        "earlier_turns": templates_table.earlier(proof),
        "reason": proof.tools_refused,
    }


def _tools(renderer: Renderer, proof: Proof) -> str:
    if proof.tools_refused:
        return "none"
    return "template" if renderer.has_tools_section else "system message"


def promises(name: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """What is promised of a template that is served, each with its test."""
    yield (
        "prompts grow",
        partial(test_templates.test_a_prompt_starts_with_the_prompt_before_it_and_what_was_sampled, name),
    )
    yield (
        "as transformers writes it",
        partial(test_templates.test_what_is_rendered_is_what_transformers_renders, name),
    )
    if name in test_templates.NO_TOOLS:
        return
    read = test_templates.test_what_the_template_writes_for_a_message_is_read_as_that_message
    for reasoning, count in product((None, "Let me see."), (0, 1, 2)):
        yield "what is written is read", partial(read, name=name, reasoning=reasoning, count=count)


def held(name: str) -> str:
    """The first promise that the template does not hold, with what happened; empty where it holds all."""
    for promise, check in promises(name):
        try:
            check()
        except Exception as error:  # noqa: BLE001 - a boundary: the table says which template failed, and goes on
            return f"{promise}: {type(error).__name__}: {str(error)[:300]}"
    return ""


def rows(trl: str, mistral: str, tokenizers: Path) -> Iterator[Row]:
    """One for each template, and for each tokenizer with the template that it is made for."""
    for name in [*templates_kit.TRL, *templates_table.OWN]:
        source = trl if name in templates_kit.TRL else "own"
        row = {"template": name, "source": source, "tokenizer": "bytes"} | registration(
            templates_kit.renderer(name)
        )
        failed = "" if row["keep"] == "refused" else held(name)
        yield row | {
            "conversations": 0 if row["keep"] == "refused" else test_templates.EXAMPLES,
            "failed": failed,
        }
    for file, name in product(sorted(tokenizers.glob("tekken*.json")), MISTRAL):
        with tekken_kit.in_place(name, file):
            row = {"template": name, "source": "own", "tokenizer": f"{mistral} {file.name}"}
            row |= registration(templates_kit.renderer(name))
            yield row | {"conversations": test_templates.EXAMPLES, "failed": held(name)}


def report(found: list[Row]) -> dict[str, Any]:
    served = [row for row in found if row["keep"] == "proved"]
    kept = sum(not row["failed"] for row in served)
    return {
        "machine": {
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": {"templates": found, "proved": len(served), "refused": len(found) - len(served)},
        "bars": [
            {
                "name": "templates that hold what registration promises",
                "value": kept,
                "target": len(served),
                "ok": kept == len(served),
            }
        ],
    }


def main() -> int:
    """1 where a served template does not hold its promise."""
    trl, tokenizers = templates_kit.TRL_FOLDER, Path(os.environ["ART_MISTRAL_TOKENIZERS"])
    found = []
    for row in rows(released(trl, "trl"), released(tokenizers, "mistral-common"), tokenizers):
        found.append(row)
        print(row["template"], row["tokenizer"], row["keep"], row["failed"] or "ok", flush=True)
    result = report(found)
    RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    columns = ("template", "source", "tokenizer", "tool_parser", "reasoning_parser", "keep", "tools")
    table = Table(*columns, "holds", title="test-templates")
    for row in found:
        table.add_row(
            *(escape(row[name]) for name in columns), escape(row["failed"] or row["reason"] or "yes")
        )
    Console(width=180).print(table)
    return 0 if result["bars"][0]["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
