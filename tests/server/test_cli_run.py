"""`art run` on a real server with the tiny model: two steps, going on after a kill, both kinds of Ctrl-C, what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from train_kit import Trained

SECONDS = 150
AGENT = """
import asyncio, os


async def run(client, scenario):
    if os.environ.get("SLOWLY"):
        print("waiting", flush=True)
        await asyncio.sleep(600)
    answer = await client.chat.completions.create(
        model="gpt-4o", max_tokens=8, messages=[{"role": "user", "content": scenario["question"]}]
    )
    return answer.choices[0].message.content


def score(answer, scenario):
    return float(answer.strip() == scenario["answer"])


def nothing(answer):
    return 0.0


def broken(scenario):
    return scenario["no such key"]
"""
TOML = """
[model]
project = "runs"
name = "agent"

[run]
agent = "play:run"
reward = "play:score"
scenarios = "scenarios.jsonl"
steps = 2
groups_per_step = 2
rollouts_per_group = 4

[limits]
max_tokens = "1k"
"""


class Place:
    """A folder with a run.toml, and `art run` in it."""

    def __init__(self, folder: Path, taught: Trained) -> None:
        self.folder = folder
        self.taught = taught
        (folder / "play.py").write_text(AGENT)
        scenarios = [{"question": f"is it {word}?", "answer": "yes"} for word in ("late", "cold", "far")]
        (folder / "scenarios.jsonl").write_text("\n".join(map(json.dumps, scenarios)))
        (folder / "run.toml").write_text(TOML)

    def start(self, name: str, *options: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "art.cli", "run", "run.toml", "--url", self.taught.server.url]
        command += ["--model", f"runs/{name}", "--base-model", self.taught.base_model, "--json", *options]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, "ART_API_KEY": self.taught.server.admin_key, **environment},
            stdout=subprocess.PIPE,
            stderr=(self.folder / "stderr").open("w"),
            text=True,
        )

    def run(self, name: str, *options: str, status: int = 0) -> list[dict[str, Any]]:
        process = self.start(name, *options)
        said, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == status, self.errors + said
        return [json.loads(line) for line in said.splitlines()]

    @property
    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def batch(self, name: str) -> int:
        return int(self.taught.api("GET", f"models/runs/{name}")["batch"])


@pytest.fixture
def place(tmp_path: Path, taught: Trained) -> Place:
    return Place(tmp_path, taught)


def events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def ended(process: subprocess.Popen[str]) -> int:
    try:
        return process.wait(SECONDS)
    finally:
        process.kill()


def test_two_steps_said_line_by_line_and_kept(place: Place) -> None:
    said = place.run("two", "--set", "run.trackers=openpipe")
    kinds = [one["event"] for one in said if one["event"] != "note"]
    assert kinds == ["start", "step", "step", "end"]
    start, first, second, end = (one for one in said if one["event"] != "note")
    assert (start["model"], start["batch"], start["steps"]) == ("runs/two", 0, 2)
    assert [first["batch"], second["batch"]] == [1, 2]
    assert first["sampled_tokens"] > 0
    assert 0.0 <= first["reward"] <= 1.0
    assert (end["ended"], end["batch"], end["trained"]) == ("done", 2, 2)
    assert place.batch("two") == 2

    record = Path(place.folder / start["record"])
    kept = tomllib.loads(record.read_text())
    assert kept["run"]["folder"] == str(place.folder)
    assert (kept["limits"]["max_tokens"], kept["model"]["name"]) == (1000, "two")
    assert "server" not in kept
    assert "max_tokens = 1000  # run.toml" in record.read_text()
    assert 'name = "two"  # flag' in record.read_text()
    assert place.taught.server.admin_key not in record.read_text()
    assert (record.parent / "openpipe.jsonl").read_text().count("\n") == 16  # a call of each rollout
    shown = place.taught.api("GET", "views/runs/runs/two")
    assert shown["config"]["run"]["run"]["seed"] == 0
    assert shown["config_origin"]["model.name"] == "flag"

    errors = place.errors
    assert errors.count("concurrency 64: the rollouts share this process") == 1
    assert errors.count("learning_rate 0.001: chosen for a model of") == 1
    assert "two: batch 2/2  step" in errors
    assert "\x1b" not in errors  # no terminal, so plain lines


def test_after_a_kill_it_goes_on_where_it_stopped(place: Place) -> None:
    process = place.start("killed", "--steps", "3")
    next(one for one in events(process) if one["event"] == "step")
    process.send_signal(signal.SIGKILL)
    assert ended(process) == -signal.SIGKILL
    before = place.batch("killed")
    said = place.run("killed", "--steps", "3")
    start = next(one for one in said if one["event"] == "start")
    assert 1 <= before <= start["batch"] < 3
    assert place.batch("killed") == 3
    assert f"resuming after batch {start['batch']} of 3" in place.errors


def test_the_first_ctrl_c_lets_the_batch_in_hand_end(place: Place) -> None:
    process = place.start("stopped", "--steps", "50")
    told = events(process)
    next(one for one in told if one["event"] == "step")
    process.send_signal(signal.SIGINT)
    rest = list(told)
    assert ended(process) == 128 + signal.SIGINT
    end = rest[-1]
    assert (end["event"], end["ended"]) == ("end", "stopped")
    assert end["batch"] == place.batch("stopped") < 50
    assert [one["batch"] for one in rest if one["event"] == "step"] == list(range(2, end["batch"] + 1))
    assert "stopping behind the batch in hand; Ctrl-C again stops at once" in place.errors
    assert f"stopped after batch {end['batch']} of 50; run again, it goes on there" in place.errors


@pytest.mark.extended
def test_the_second_ctrl_c_stops_at_once(place: Place) -> None:
    process = place.start("slow", SLOWLY="1")
    assert process.stdout is not None
    next(line for line in process.stdout if line == "waiting\n")
    process.send_signal(signal.SIGINT)
    while "stopping behind" not in place.errors:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert ended(process) == 128 + signal.SIGINT
    assert place.batch("slow") == 0
    assert "slow: stopped after batch 0 of 2" in place.errors
    assert "Traceback" not in place.errors


@pytest.mark.extended
def test_an_agent_that_raises_is_told_from_art(place: Place) -> None:
    said = place.run("raises", "--set", "run.agent=play:broken", status=1)
    assert said[-1]["event"] == "start"
    error = json.loads(place.errors.splitlines()[-1])["error"]
    assert error["message"] == "the agent raised KeyError: 'no such key'"
    assert "play.py, line 24; more of a batch's rollouts" in error["cause"]
    assert "Traceback" not in place.errors


@pytest.mark.extended
def test_a_run_that_learns_nothing_says_so(place: Place) -> None:
    said = place.run("idle", "--set", "run.reward=play:nothing", "--steps", "1", status=3)
    end = said[-1]
    assert (end["published"], end["trained"], end["step"]) == (0, 1, 0)
    assert "nothing was learned in 1 batch: all 8 runs got the same reward (0)" in end["note"]


@pytest.mark.extended
def test_demonstrations_come_first_and_once_and_a_pipeline_goes_on_behind_them(place: Place) -> None:
    turns = [{"role": "user", "content": "is it late?"}, {"role": "assistant", "content": "yes"}]
    (place.folder / "demos.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    more = ["--set", f"sft.file={place.folder}/demos.jsonl", "--set", "run.loop=pipeline", "--steps", "1"]
    said = [one for one in place.run("shown", *more) if one["event"] != "note"]
    assert [one["event"] for one in said] == ["demonstrations", "start", "step", "end"]
    assert (said[0]["examples"], said[0]["step"]) == (1, 1)
    assert (said[1]["batch"], said[1]["steps"], said[2]["batch"]) == (1, 2, 2)
    again = [one["event"] for one in place.run("shown", *more) if one["event"] != "note"]
    assert again == ["start", "end"]
    assert place.batch("shown") == 2
    assert "all 2 batches are done already" in place.errors


@pytest.mark.extended
def test_a_budget_ends_it(place: Place) -> None:
    said = place.run("poor", "--steps", "50", "--set", "run.budget_tokens=1", status=4)
    assert (said[-1]["ended"], said[-1]["batch"]) == ("budget", 1)
    assert "the budget of 1 tokens is used up" in place.errors


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--set", "run.steps"], 2, "--set run.steps sets nothing"),
        (["--set", "run.stesp=3"], 1, "did you mean 'steps'?"),
        (["--set", "run.steps=3", "--steps", "4"], 2, "run.steps is set twice"),
        (["--set", "engine.threads=1"], 1, "engine would be ignored"),
        (["--set", "run.agent=play:nobody"], 1, "run.agent: the agent 'play:nobody' does not exist"),
        (["--set", "run.scenarios=nothing.jsonl"], 1, "run.scenarios: there is no file"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    place: Place, options: list[str], status: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from art.cli.main import main

    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("ART_API_KEY", "k")
    line = ["art", "run", "--url", "http://127.0.0.1:9", "--base-model", "x", *options]
    monkeypatch.setattr(sys, "argv", line)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "play", raising=False)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == status
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert words in said
