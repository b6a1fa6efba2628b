"""Every command of `art`, found by walking them: a new one without help, examples, JSON and an error of its own fails here."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from art.cli import _schemas
from art.cli._output import CommandError
from art.cli._tree import MAX_FLAGS, Leaf, leaves
from art.cli.main import EXIT_ERROR, EXIT_USAGE, SECTIONS, run

LEAVES = list(leaves())
NAMES = [leaf.name for leaf in LEAVES]
SCHEMAS = {one.command: one for one in _schemas.every()}
NOWHERE = ["--url", "nowhere"]
EMPTY = ["--path", "empty"]
"""A folder without a store."""

FAILS: dict[str, list[str]] = {
    "audit": NOWHERE,
    "backup": ["copy", *EMPTY],
    "checkpoint delete": ["1", *NOWHERE],
    "checkpoint lineage": NOWHERE,
    "checkpoint list": NOWHERE,
    "checkpoint rollback": ["1", *NOWHERE],
    "compare": ["p/a", "p/b", *EMPTY],
    "data purge": ["--project", "p", *NOWHERE],
    "data retention clear": ["--project", "p", *NOWHERE],
    "data retention list": NOWHERE,
    "data retention set": ["--project", "p", "--keep", "30d", *NOWHERE],
    "explain": ["ro-1", *EMPTY],
    "export": ["--out", "x.jsonl", *NOWHERE],
    "key create": ["--role", "infer", *NOWHERE],
    "key list": NOWHERE,
    "key quota": ["k", "--max-concurrent", "8", *NOWHERE],
    "key revoke": ["k", "--yes", *NOWHERE],
    "key rotate": ["k", *NOWHERE],
    "ls": EMPTY,
    "restore": ["no-backup", *EMPTY],
    "rollout": [*NOWHERE, "true"],
    "serve": ["--port", "99999"],
    "show": ["p/a", *EMPTY],
    "sql": ["SELECT 1", *EMPTY],
    "tail": EMPTY,
    "ui": ["empty"],
}
"""Command lines that are well formed and cannot work. They end with status 1."""
FAILS_AS_USAGE: dict[str, list[str]] = {
    "config check": [],
    "config show": ["missing.toml"],
    "demo": ["--steps", "0"],
    "doctor": ["--config", "a.toml"],
    "init": ["two words"],
    "run": [],
    "schema": ["nothing"],
}
"""Commands that fail in no cheap way but by their command line: status 2. The other ways have tests of their own."""
FAILS_WITH_FILE: dict[str, list[str]] = {
    "eval": ["a:b", "--scenarios", "missing.jsonl"],
    "rollouts": ["--scenarios", "missing.jsonl", "true"],
}


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("ART_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ART_API_KEY", "art_no_key")


@pytest.mark.parametrize("leaf", LEAVES, ids=NAMES)
def test_help_says_what_it_does_with_two_examples(leaf: Leaf, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*leaf.path, "--help"]) == 0
    shown = capsys.readouterr()
    assert f"Usage: art {leaf.name}" in shown.out
    assert "\x1b" not in shown.out
    assert leaf.help.splitlines()[0].endswith((".", ":")), "a first line that stands alone"
    assert len(leaf.examples) >= 2
    for example in leaf.examples:
        assert example.startswith(f"art {leaf.name}"), example
        assert " ".join(example.split()) in " ".join(shown.out.split()), "the formatter cut it"
    for flag in leaf.flags:
        assert flag.help, f"{flag.name} has no help"


@pytest.mark.parametrize("leaf", LEAVES, ids=NAMES)
def test_a_person_can_look_through_its_flags(leaf: Leaf) -> None:
    names = [flag.name for flag in leaf.flags]
    assert len(names) <= MAX_FLAGS, names


@pytest.mark.parametrize("leaf", LEAVES, ids=NAMES)
def test_its_examples_are_command_lines_that_it_takes(leaf: Leaf) -> None:
    for example in leaf.examples:
        words = shlex.split(example, comments=True)
        ends = [words.index(word) for word in ("|", ">", "||", "&&") if word in words]
        arguments = words[1 + len(leaf.path) : min([*ends, len(words)])]
        leaf.command.make_context(leaf.path[-1], arguments)  # raises for what it does not take


@pytest.mark.parametrize("leaf", LEAVES, ids=NAMES)
def test_its_json_has_a_schema(leaf: Leaf) -> None:
    assert any("--json" in flag.opts for flag in leaf.flags)
    schema = SCHEMAS[leaf.name].schema()
    Draft202012Validator.check_schema(schema)


def test_no_schema_is_left_of_a_command_that_is_gone() -> None:
    assert set(SCHEMAS) == set(NAMES)
    assert {name for section in SECTIONS.values() for name in section} >= {leaf.path[0] for leaf in LEAVES}


@pytest.mark.parametrize("leaf", LEAVES, ids=NAMES)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_misspelt_flag_is_told_with_the_nearest(
    leaf: Leaf, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "--jsno"
    assert run([*leaf.path, wrong, *(["--json"] if as_json else [])]) == EXIT_USAGE
    told = error_of(capsys.readouterr(), as_json=as_json)
    assert wrong in told["message"]
    assert "did you mean --json" in told["hint"]
    assert f"art {leaf.name} --help" in told["hint"]


CASES = {
    **{name: (EXIT_ERROR, line) for name, line in {**FAILS, **FAILS_WITH_FILE}.items()},
    **{name: (EXIT_USAGE, line) for name, line in FAILS_AS_USAGE.items()},
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_what_cannot_work_is_an_error_with_a_way_out(
    name: str, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    status, line = CASES[name]
    words = [*name.split(), *(["--json"] if as_json else []), *line]
    assert run(words) == status
    told = error_of(capsys.readouterr(), as_json=as_json)
    assert told["hint"] or told["cause"]


def error_of(shown: Any, *, as_json: bool) -> dict[str, str]:
    """The error on stderr; nothing stands on stdout, and no traceback anywhere."""
    assert shown.out == ""
    assert "Traceback" not in shown.err
    last = shown.err.rstrip("\n").splitlines()
    if as_json:
        return CommandError.model_validate_json(last[-1]).error.model_dump()
    (start,) = [number for number, one in enumerate(last) if one.startswith("error: ")]
    parts: dict[str, str] = {"error": "", "cause": "", "hint": ""}
    for one in last[start:]:
        word, _, rest = one.partition(": ")
        if word in parts:
            parts[word] = rest
    return {"message": parts["error"], "cause": parts["cause"], "hint": parts["hint"]}


def test_a_misspelt_value_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "reviews", "--template", "blackbox"]) == EXIT_USAGE
    assert "did you mean black-box?" in capsys.readouterr().err
    assert run(["ls", "checkpoint"]) == EXIT_USAGE
    assert "did you mean checkpoints?" in capsys.readouterr().err
    assert run(["ls", "zebras"]) == EXIT_USAGE
    assert "did you mean" not in capsys.readouterr().err


def test_the_nearest_of_several_flags_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--stepz", "3"]) == EXIT_USAGE
    assert "did you mean --steps" in capsys.readouterr().err


@pytest.mark.parametrize("leaf", LEAVES, ids=NAMES)
def test_what_may_be_left_out_has_one_pair_of_brackets(
    leaf: Leaf, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*leaf.path, "--help"])
    assert "[[" not in capsys.readouterr().out


def test_a_misspelt_command_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rolouts"]) == EXIT_USAGE
    assert "did you mean `art rollouts`" in capsys.readouterr().err
    assert run(["chekcpoint", "--json"]) == EXIT_USAGE
    assert "art checkpoint" in json.loads(capsys.readouterr().err)["error"]["hint"]
    assert run(["key", "lsit"]) == EXIT_USAGE
    assert "list" in capsys.readouterr().err


def test_help_alone_names_every_command_and_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for leaf in LEAVES:
        assert f"  {leaf.path[0]} " in shown
    assert "141" in shown
    assert "More:" not in shown, "every command has its place in SECTIONS"
    assert run([]) == EXIT_USAGE
    assert "Usage: art" in capsys.readouterr().err


def test_help_is_there_at_once() -> None:
    """A fresh interpreter: what is slow to import is not imported to show what there is."""
    code = (
        "import sys\n"
        "from art.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'torch', 'openai', 'starlette', 'uvicorn', 'transformers', 'numpy', 'tokenizers', 'rich.console'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_schema_of_a_command_and_of_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "key", "create"]) == 0
    assert json.loads(capsys.readouterr().out)["title"].startswith("what `art key create --json`")
    assert run(["schema", "error"]) == 0
    Draft202012Validator(json.loads(capsys.readouterr().out)).validate(
        {"error": {"code": "config", "message": "m", "cause": "", "hint": ""}}
    )
    assert run(["schema", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {*NAMES, "error"}
    assert run(["schema"]) == 0
    assert "TailLine" in capsys.readouterr().out
