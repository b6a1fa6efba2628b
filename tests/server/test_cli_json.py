"""What every command prints under --json, held against the schema that `art schema` shows for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_kit import Served
from jsonschema import Draft202012Validator

from art.cli import _schemas
from art.cli._tree import leaves
from art.cli.main import run

PRINTED = {one.command: one for one in _schemas.every()}
ELSEWHERE = {
    "compare": "test_cli_views",
    "show": "test_cli_views",
    "tail": "test_cli_views",
    "demo": "the demonstration itself trains; its fields are compared in tests/docs",
    "run": "a run trains; its events are read in the tests of art run",
}
SECONDS = 60

LINES: dict[str, list[str]] = {
    "audit": ["--limit", "3"],
    "backup": ["{folder}/copy", "--path", "{path}", "--no-base-models"],
    "checkpoint lineage": ["--model", "tests/alpha"],
    "checkpoint list": ["--model", "tests/alpha"],
    "checkpoint rollback": ["0", "--yes", "--model", "tests/alpha"],
    "checkpoint delete": ["77", "--yes", "--model", "tests/alpha"],
    "config check": ["{folder}/project"],
    "config show": ["{folder}/project"],
    "data purge": ["--project", "nobody", "--dry-run"],
    "data retention set": ["--project", "nobody", "--keep", "30d", "--yes"],
    "data retention list": [],
    "data retention clear": ["--project", "nobody"],
    "doctor": ["--data-flow", "--path", "{path}"],
    "eval": ["evaluated_agent:rollout", "--scenarios", "{folder}/s.jsonl", "--model", "tests/alpha"],
    "explain": ["{rollout}"],
    "export": ["tests/alpha", "--out", "{folder}/out.jsonl"],
    "init": ["{folder}/project"],
    "key create": ["--role", "infer", "--project", "tests", "--tokens-per-day", "2M"],
    "key list": [],
    "key quota": ["{key}", "--max-concurrent", "8"],
    "key rotate": ["{key}"],
    "key revoke": ["{second_key}", "--yes"],
    "ls": ["rollouts", "tests/alpha"],
    "restore": ["{folder}/copy", "--path", "{folder}/restored"],
    "rollout": ["--model", "tests/alpha", "--", sys.executable, "-c", "{program}"],
    "rollouts": [
        *("--model", "tests/alpha", "--scenarios", "{folder}/s.jsonl", "--group", "2"),
        *("--", sys.executable, "-c", "{program}"),
    ],
    "schema": [],
    "serve": ["--path", "{folder}/served", "--port", "0", "--engine", "scripted"],
    "sql": ["SELECT * FROM models", "--path", "{path}"],
    "ui": ["{path}", "--no-open"],
}
ORDER = [
    "init",
    "backup",
    "key create",
    *(name for name in LINES if name not in ("init", "backup", "key create")),
]
"""What others build on comes first."""
PROGRAM = """
import json, os, urllib.request
body = {"model": "m", "messages": [{"role": "user", "content": "a fruit"}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60).read()
print(1)
"""
AGENT = """
async def rollout(model, scenario):
    client = model.openai_client()
    messages = [{"role": "user", "content": scenario["ask"]}]
    answer = await client.chat.completions.create(model=model.get_inference_name(), messages=messages)
    return float(len(answer.choices[0].message.content) > 3)
"""


class Place:
    """What the command lines name."""

    def __init__(self, served: Served, folder: Path) -> None:
        opened = served.open("tests/alpha")
        self.served = served
        self.values = {
            "folder": str(folder),
            "path": str(served.server.path),
            "rollout": opened["rollout_id"],
            "program": PROGRAM,
            "key": "",
            "second_key": served.api("POST", "keys", {"role": "infer"})["info"]["key_id"],
        }
        (folder / "s.jsonl").write_text('{"id": "a", "ask": "a fruit"}\n')
        (folder / "evaluated_agent.py").write_text(AGENT)


@pytest.fixture(scope="module")
def place(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(served, tmp_path_factory.mktemp("cli-json"))


def test_every_command_is_looked_at() -> None:
    assert set(LINES) | set(ELSEWHERE) == {leaf.name for leaf in leaves()}


@pytest.mark.parametrize("name", [name for name in ORDER if name not in ("serve", "ui")])
def test_what_is_printed_is_what_the_schema_says(
    name: str, place: Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place.values["folder"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("ART_API_KEY", place.served.server.admin_key)
    monkeypatch.setenv("ART_URL", place.served.server.url)
    words = [
        word.replace("{program}", PROGRAM) if "{program}" in word else word.format(**place.values)
        for word in LINES[name]
    ]
    capfd.readouterr()
    assert run([*name.split(), "--json", *words]) == 0, capfd.readouterr().err
    told = json.loads(capfd.readouterr().out)
    Draft202012Validator(PRINTED[name].schema()).validate(told)
    if name == "key create":
        place.values["key"] = told["info"]["key_id"]


@pytest.mark.parametrize("name", ["serve", "ui"])
def test_what_goes_on_says_where_in_one_line(name: str, place: Place) -> None:
    words = [word.format(**place.values) for word in LINES[name]]
    process = subprocess.Popen(
        [sys.executable, "-m", "art.cli", name, "--json", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ART_API_KEY": ""},
    )
    try:
        assert process.stdout is not None
        told: Any = json.loads(process.stdout.readline())
        Draft202012Validator(PRINTED[name].schema()).validate(told)
        assert told["url"].startswith("http://127.0.0.1:")
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)
