"""`art ls`, `show`, `compare`, `tail` and `sql` over a store in which agents have learned: what a person reads, and the JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from art.cli import _schemas, _views
from art.cli.main import EXIT_ERROR, EXIT_USAGE, run
from art.rollouts.fit import scenario_id
from art.testing.seeded import Plan, seed
from art.testing.server import ArtServer
from art.types.metrics import SECTIONS

PLAN = Plan(runs=2, steps=6, groups=3, group_size=4, scenarios=6, evaluate_every=3)
SCHEMAS = {
    one.command: one.schema() for one in _schemas.every() if one.command in ("ls", "show", "compare", "tail")
}
SECONDS = 60.0

Art = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seed(tmp_path_factory.mktemp("seeded") / "runs", PLAN)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ArtServer]:
    with ArtServer(folder) as running:
        yield running


@pytest.fixture
def art(server: ArtServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Art:
    """A command line on the server; with --json what it prints, checked against its schema, else its lines."""
    monkeypatch.setenv("ART_URL", server.url)
    monkeypatch.setenv("ART_API_KEY", server.admin_key)

    def command(*words: str, status: int = 0) -> Any:
        assert run(words) == status, capsys.readouterr().err
        shown = capsys.readouterr()
        if status:
            return shown.err
        if "--json" not in words:
            return shown.out.splitlines()
        told = json.loads(shown.out)
        Draft202012Validator(SCHEMAS[words[0]]).validate(told)
        return told

    return command


@pytest.fixture(scope="module")
def runs() -> list[str]:
    return [f"{PLAN.project}/{PLAN.name_of(number)}" for number in range(PLAN.runs)]


# -- lists


def test_runs(art: Art, runs: list[str]) -> None:
    told = art("ls", "--json")["runs"]
    assert {f"{run['project']}/{run['name']}" for run in told} == set(runs)
    head, *lines = art("ls")
    assert head.split()[:3] == ["run", "state", "step"]
    assert {line.split()[0] for line in lines} == set(runs)
    assert art("ls", "runs", "no-such-project", "--json")["runs"] == []


def test_what_is_in_a_run(art: Art, runs: list[str]) -> None:
    steps = art("ls", "steps", runs[0], "--json")["steps"]
    assert [step["batch"] for step in steps] == sorted((step["batch"] for step in steps), reverse=True)
    groups = art("ls", "groups", runs[0], "--step", str(steps[0]["step"] - 1), "--json")["groups"]
    assert groups
    assert art("ls", "checkpoints", runs[0], "--json")["checkpoints"][0]["step"] == steps[0]["step"]
    scenarios = art("ls", "scenarios", runs[0], "--sort", "rollouts", "--json")["scenarios"]
    counted = [one["rollouts"] for one in scenarios]
    assert counted == sorted(counted, reverse=True)
    for kind in ("steps", "groups", "checkpoints", "scenarios"):
        assert len(art("ls", kind, runs[0])) > 1


def test_rollouts_are_filtered_sorted_and_paged(
    art: Art, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    low = art(
        "ls",
        "rollouts",
        runs[0],
        "--where",
        "reward < 0.5",
        "--sort",
        "reward:asc",
        "--limit",
        "1k",
        "--json",
    )
    rewards = [one["reward"] for one in low["rollouts"]]
    assert rewards == sorted(rewards)
    assert rewards
    assert max(rewards) < 0.5
    monkeypatch.setattr(_views, "PAGE", 3)
    paged = art(
        "ls", "rollouts", runs[0], "--where", "reward < 0.5", "--sort", "reward:asc", "--limit", "8", "--json"
    )
    assert [one["rollout_id"] for one in paged["rollouts"]] == [
        one["rollout_id"] for one in low["rollouts"][:8]
    ]
    assert paged["total"] == len(rewards)
    head, *lines = art("ls", "rollouts", runs[0], "--limit", "2")
    assert head.split()[:2] == ["rollout", "step"]
    assert len(lines) == 2


def test_a_scenario_narrows_a_list(art: Art, runs: list[str]) -> None:
    scenario = art("ls", "scenarios", runs[0], "--limit", "1", "--json")["scenarios"][0]["scenario_id"]
    found = art("ls", "rollouts", runs[0], "--scenario", scenario, "--limit", "1k", "--json")["rollouts"]
    assert {one["scenario_id"] for one in found} == {scenario}


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["ls", "steps", "{run}", "--where", "reward < 0"], EXIT_USAGE, "--where would be ignored"),
        (["ls", "rollouts", "{run}", "--sort", "height"], EXIT_USAGE, "created_at, reward"),
        (["ls", "scenarios", "{run}", "--sort", "change:asc"], EXIT_USAGE, "neither"),
        (["ls", "rollouts", "{run}", "--where", "rewrd < 0"], EXIT_ERROR, "reward"),
        (["ls", "rollouts"], EXIT_USAGE, "a model must be named"),
        (["ls", "rollouts", "shop/nobody"], EXIT_ERROR, "shop/nobody"),
        (["ls", "rollouts", "nobody"], EXIT_ERROR, "there is no run"),
        (["show", "{run}@99"], EXIT_ERROR, "no step 99"),
        (["show", "{run}@x"], EXIT_USAGE, "no step"),
        (["show", "ro-nothing"], EXIT_ERROR, "ro-nothing"),
        (["show", "{run}", "--group", "a", "--scenario", "b"], EXIT_USAGE, "two things"),
        (["show", "ro-1", "--group", "a"], EXIT_USAGE, "all that is needed"),
        (["compare", "{run}", "shop/nobody"], EXIT_ERROR, "nobody"),
        (["compare", "{run}", "{run}", "--metric", "nothing/"], EXIT_ERROR, "--metric"),
    ],
)
def test_what_cannot_be_is_said(art: Art, runs: list[str], words: list[str], status: int, said: str) -> None:
    told = art(*(word.format(run=runs[0]) for word in words), status=status)
    assert said in told
    assert "Traceback" not in told


# -- one thing


def test_a_run_and_a_step(art: Art, runs: list[str]) -> None:
    told = art("show", runs[0], "--json")
    assert told["run"]["step"] > 0
    shown = "\n".join(art("show", runs[0]))
    assert "trained" in shown
    for figure in told["figures"]:
        assert figure["name"] in shown
    lines = art("show", runs[0])
    titles = [line for line in lines if line in SECTIONS.values()]
    assert titles[:2] == ["Training", "Evaluation"]
    assert titles == [title for title in SECTIONS.values() if title in titles]
    figures = {line.split()[0]: line for line in lines if line.startswith("  ") and "/" in line.split()[0]}
    assert " tokens " in figures["data/step_trained_tokens"]
    assert " s " in figures["time/step_trainer_s"]
    assert " nats " in figures["parity/mean"]
    places = {name: place for place, name in enumerate(figures)}
    assert (
        places["train/reward"] < places["train/reward_std_dev"] < places["loss/train"] < places["parity/mean"]
    )
    step = told["run"]["step"]
    assert art("show", f"{runs[0]}@{step}", "--json")["checkpoint"]["step"] == step
    assert f"{runs[0]}@{step}" in art("show", f"{runs[0]}@{step}")[0]
    assert "not trained here" in "\n".join(art("show", f"{runs[0]}@0"))


def test_a_rollout_with_everything_said_in_it(art: Art, runs: list[str]) -> None:
    found = art(
        "ls", "rollouts", runs[0], "--where", "tool_calls > 0 and status = trained", "--limit", "1", "--json"
    )
    rollout_id = found["rollouts"][0]["rollout_id"]
    told = art("show", rollout_id, "--json")
    shown = "\n".join(art("show", rollout_id))
    assert told["rollout"]["rollout_id"] == rollout_id
    for call in told["calls"]:
        assert f"#{call['number']}" in shown
        for choice in call["choices"]:
            assert f"{choice['token_count']:,} tokens" in shown
            for made in choice["message"]["tool_calls"]:
                assert f"→ {made['name']}(" in shown
    assert "->  trained into step" in shown


def test_a_group_and_a_scenario(art: Art, runs: list[str]) -> None:
    group = art("ls", "groups", runs[0], "--limit", "1", "--json")["groups"][0]
    told = art("show", runs[0], "--group", group["group_id"], "--json")
    rewards = [member["rollout"]["reward"] for member in told["members"]]
    known = [value for value in rewards if value is not None]
    assert known == sorted(known, reverse=True)
    shown = "\n".join(art("show", runs[0], "--group", group["group_id"]))
    assert "they differ from message" in shown or "all of them say the same" in shown
    scenario = art("show", runs[0], "--scenario", group["scenario_id"], "--json")
    assert scenario["scenario_id"] == group["scenario_id"]
    assert len(art("show", runs[0], "--scenario", group["scenario_id"])) > 2


def test_a_scenario_without_an_id_is_called_by_what_it_asks(
    art: Art, server: ArtServer, runs: list[str]
) -> None:
    asked = "Say yes, and nothing else, when the parcel\u202e that is asked for has left the warehouse"
    label = "Say yes, and nothing else, when the parcel\\u202e that is asked f…"
    identity = scenario_id(asked)
    rollout_id = roll_out(server, runs[1], 1.0, asked=asked, scenario_id=identity, group_id="of/a text")
    listed = art("ls", "rollouts", runs[1], "--scenario", identity, "--json")["rollouts"]
    assert [(one["rollout_id"], one["scenario_id"]) for one in listed] == [(rollout_id, identity)]
    assert label in art("ls", "rollouts", runs[1], "--scenario", identity)[1]
    assert label in art("ls", "groups", runs[1], "--scenario", identity)[1]
    for words in ([rollout_id], [runs[1], "--group", "of/a text"], [runs[1], "--scenario", identity]):
        assert f"scenario “{label}” ({identity})" in "\n".join(art("show", *words))
    named = roll_out(server, runs[1], 1.0, asked=asked, scenario_id="parcel-1")
    assert "scenario parcel-1" in "\n".join(art("show", named))


# -- two things


def test_what_to_compare_is_said_by_names_that_are_there(
    art: Art, runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = art("compare", f"{runs[1]}@2", status=EXIT_USAGE)
    assert f"art compare {runs[1]}@2 {runs[0]}" in told
    assert f"it was given {runs[1]}@2 alone" in told
    said = art("compare", status=EXIT_USAGE)
    assert all(run in said for run in runs)
    monkeypatch.delenv("ART_URL")
    told = art("compare", "what", "--path", str(tmp_path), status=EXIT_USAGE)
    assert "art compare shop/agent@4 shop/agent@12" in told


def test_two_steps_side_by_side(art: Art, runs: list[str]) -> None:
    told = art("compare", f"{runs[0]}@1", f"{runs[0]}@4", "--json")
    both = {one["name"]: one for one in told["figures"]}
    assert both
    for one in both.values():
        if one["a"] is not None and one["b"] is not None:
            assert one["difference"] == pytest.approx(one["b"] - one["a"])
    lines = art("compare", f"{runs[0]}@1", f"{runs[0]}@4", "--metric", "loss/")
    assert all(line.startswith("loss/") for line in lines[2:] if line)


def test_evaluations_are_paired_by_scenario(art: Art, runs: list[str]) -> None:
    found = art("ls", "rollouts", runs[0], "--where", "purpose = evaluate", "--limit", "1k", "--json")[
        "rollouts"
    ]
    first, last = min(one["step"] for one in found), max(one["step"] for one in found)
    told = art("compare", f"{runs[0]}@{first}", f"{runs[0]}@{last}", "--json")["evaluation"]

    def means(step: int) -> dict[str, float]:
        rewards: dict[str, list[float]] = {}
        for one in found:
            if one["step"] == step and one["reward"] is not None:
                rewards.setdefault(one["scenario_id"], []).append(one["reward"])
        return {name: sum(values) / len(values) for name, values in rewards.items()}

    before, after = means(first), means(last)
    common = before.keys() & after.keys()
    assert told["scenarios"] == len(common)
    assert told["difference"] == pytest.approx(
        sum(after[name] - before[name] for name in common) / len(common)
    )
    assert told["ci95"] is None or told["ci95"][0] <= told["difference"] <= told["ci95"][1]


# -- a folder without a server


def test_a_folder_is_read_where_no_server_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing in it is changed."""
    monkeypatch.delenv("ART_URL", raising=False)
    alone = seed(tmp_path / "alone", Plan(runs=1, steps=2, groups=1, group_size=2, scenarios=2))

    def state() -> dict[str, tuple[int, int]]:
        return {
            str(file): (file.stat().st_size, file.stat().st_mtime_ns)
            for file in alone.rglob("*")
            if file.is_file()
        }

    before = state()
    assert run(["ls", "rollouts", "--path", str(alone), "--limit", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert run(["explain", told["rollouts"][0]["rollout_id"], "--path", str(alone)]) == 0
    assert told["rollouts"][0]["rollout_id"] in capsys.readouterr().out
    assert run(["sql", "SELECT count(*) FROM rollouts", "--path", str(alone), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0][0] >= told["total"]
    assert state() == before


# -- as it happens


class Tailing:
    """`art tail --json` as a process."""

    def __init__(self, server: ArtServer, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "art.cli", "tail", "--json", "--url", server.url, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "ART_API_KEY": server.admin_key},
        )

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        Draft202012Validator(SCHEMAS["tail"]).validate(told)
        return dict(told)


def test_what_happens_is_shown_as_it_happens(server: ArtServer, runs: list[str]) -> None:
    """Also what happened while the server was away."""
    tail = Tailing(server, runs[0], "--since", "10m")
    try:
        first = roll_out(server, runs[0], 0.0)  # before or after tail has begun to listen
        told = tail.next()
        assert (told["kind"], told["rollout"]["rollout_id"]) == ("rollout", first)
        second = roll_out(server, runs[0], 0.25)
        told = tail.next()
        assert (told["rollout"]["rollout_id"], told["rollout"]["reward"]) == (second, 0.25)
        roll_out(server, runs[1], 1.0)  # another run
        server.kill()
        server.start()
        third = roll_out(server, runs[0], 0.5)
        assert tail.next()["rollout"]["rollout_id"] == third
        tail.process.send_signal(2)
        assert tail.process.wait(SECONDS) == 130
        assert tail.process.stderr is not None
        assert "the server went away" in tail.process.stderr.read()
    finally:
        tail.process.kill()
        tail.process.wait()


def roll_out(server: ArtServer, model: str, reward: float, *, asked: str = "", **named: str) -> str:
    """A rollout with a reward, and with one call when something is asked."""
    headers = {"Authorization": f"Bearer {server.admin_key}"}

    def post(route: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx2.post(
            f"{server.url}/api/v1/rollouts{route}", json=body, headers=headers, timeout=SECONDS
        )
        assert answer.is_success, answer.text
        return dict(answer.json())

    opened = post("", {"model": model, **named})
    rollout_id = str(opened["rollout_id"])
    if asked:
        answer = httpx2.post(
            f"{server.url}/r/{rollout_id}/v1/chat/completions",
            json={"model": model.partition("/")[2], "messages": [{"role": "user", "content": asked}]},
            headers={"Authorization": f"Bearer {opened['api_key']}"},
            timeout=SECONDS,
        )
        assert answer.is_success, answer.text
    post(f"/{rollout_id}/reward", {"reward": reward})
    post(f"/{rollout_id}/finish", {"status": "finished"})
    return rollout_id
