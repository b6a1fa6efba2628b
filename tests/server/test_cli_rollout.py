"""`art rollout` and `art rollouts`: real programs in several languages, run as rollouts of a real server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_kit import Served

import art
from art.cli.main import main
from art.errors import InvalidInput, InvalidReward
from art.rollouts.printed import printed_reward

SECONDS = 120

PYTHON_AGENT = """
    import json, os, sys, urllib.request

    def ask(text, route="/chat/completions", base=os.environ["OPENAI_BASE_URL"], **more):
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **more}
        headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
        request = urllib.request.Request(base + route, json.dumps(body).encode(), headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return json.load(opener.open(request, timeout=60))

    scenario = json.loads(os.environ.get("ART_SCENARIO", "null"))
    assert scenario is None or json.load(open(os.environ["ART_SCENARIO_FILE"])) == scenario
"""
NODE_AGENT = """
    const body = {model: "gpt-4o", messages: [{role: "user", content: "a fruit"}]};
    const answer = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
      method: "POST",
      headers: {"Authorization": `Bearer ${process.env.OPENAI_API_KEY}`, "Content-Type": "application/json"},
      body: JSON.stringify(body),
    });
    const fruit = (await answer.json()).choices[0].message.content;
    console.log(JSON.stringify({reward: fruit.length, metrics: {letters: fruit.length}}));
"""


class Command:
    """The `art` command against the shared server, in a folder of the test's own."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served = served
        self.folder = folder
        self.key = ""
        """Instead of the server's own."""

    def agent(self, code: str) -> list[str]:
        """A Python program that can `ask`."""
        file = self.folder / "agent.py"
        file.write_text(textwrap.dedent(PYTHON_AGENT) + textwrap.dedent(code))
        return [sys.executable, str(file)]

    def line(self, command: str, options: Sequence[str], program: Sequence[str]) -> list[str]:
        art_command = [sys.executable, "-m", "art.cli", command]
        return [
            *art_command,
            "--url",
            self.served.server.url,
            "--model",
            "tests/alpha",
            *options,
            "--",
            *program,
        ]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "ART_API_KEY": self.key or self.served.server.admin_key}

    def __call__(
        self, command: str, *options: str, program: Sequence[str], exit_status: int = 0
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.line(command, options, program),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            cwd=self.folder,
            env=self.environment(),
            input="from the terminal",
        )
        assert done.returncode == exit_status, done.stderr + done.stdout
        return done

    def result(self, *options: str, program: Sequence[str], exit_status: int = 0) -> dict[str, Any]:
        """What `art rollout --json` says."""
        done = self("rollout", "--json", *options, program=program, exit_status=exit_status)
        return dict(json.loads(done.stdout))

    def here(
        self, monkeypatch: pytest.MonkeyPatch, command: str, *options: str, program: Sequence[str]
    ) -> int | str | None:
        """The command in this process, for what ends before a program runs; its exit status."""
        monkeypatch.chdir(self.folder)
        monkeypatch.setenv("ART_API_KEY", self.served.server.admin_key)
        monkeypatch.setattr(sys, "argv", self.line(command, options, program)[2:])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    def start(self, command: str, *options: str, program: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.line(command, options, program),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
            env=self.environment(),
        )


@pytest.fixture
def command(served: Served, tmp_path: Path) -> Command:
    return Command(served, tmp_path)


# -- one run


def test_a_python_program_is_one_rollout(command: Command) -> None:
    program = command.agent(
        """
        assert "ART_API_KEY" not in os.environ, "the server's key is not the program's"
        assert sys.stdin.read() == "from the terminal"
        ask("a fruit")
        ask("count for " + scenario["city"])
        print("working ...")
        print('{"reward": 0.25, "metrics": {"turns": 2}}')
        print("done")
        """
    )
    done = command("rollout", "--scenario", '{"id": "oslo", "city": "Oslo"}', program=program)
    assert done.stdout == 'working ...\n{"reward": 0.25, "metrics": {"turns": 2}}\ndone\n'
    *_, summary, hint = done.stderr.strip().splitlines()
    said, _, rest = hint.removeprefix("art explain ").partition(" ")
    rollout_id, url = said, command.served.server.url
    assert rest == f"--url {url}"
    assert summary.startswith(f"{rollout_id}: reward 0.25 (printed), 2 calls, ")
    assert summary.endswith("finished")
    info = command.served.rollout(rollout_id)
    assert (info["status"], info["reward"], info["scenario_id"]) == ("finished", 0.25, "oslo")
    assert info["metrics"] == {"turns": 2}
    assert "gpt-4o" in done.stderr  # that another model answered is said


CASES: dict[str, tuple[str, float | None, str]] = {
    # name: (the program, its reward, where that comes from or why there is none)
    "ended well": ("pass", 1.0, "exit status"),
    "ended badly": ("sys.exit(7)", 0.0, "exit status"),
    "printed": ("print('0.75'); sys.exit(1)", 0.75, "printed"),
    "a sentence": ("print('I think 3 is best.')", 1.0, "exit status"),
    "killed": ("os.kill(os.getpid(), 9)", None, "killed by SIGKILL"),
    "not a number": ("print('{\"reward\": NaN}')", None, "it is nan"),
    "null": ("print('{\"reward\": null}')", None, "it is None"),
}


def test_where_a_reward_comes_from_and_what_has_none(command: Command) -> None:
    lines = [json.dumps({"id": name, "code": code}) for name, (code, _, _) in CASES.items()]
    (command.folder / "s.jsonl").write_text("\n".join(lines))
    program = command.agent("ask('a fruit'); exec(scenario['code'])")
    options = ["--scenarios", "s.jsonl", "--group", "1", "--json"]
    done = command("rollouts", *options, program=program, exit_status=3)
    for group in json.loads(done.stdout)["groups"]:
        _, reward, why = CASES[group["scenario_id"]]
        (run,) = group["runs"]
        assert (run["reward"], run["calls"]) == (reward, 1), run
        assert command.served.rollout(run["rollout_id"])["reward"] == reward
        assert why in (run["reason"] if reward is None else run["source"]), run
        assert run["status"] == ("agent_error" if reward is None else "finished")


def test_a_reward_command_gets_the_transcript(command: Command) -> None:
    judge = (
        "tee transcript.json | python3 -c \"import json, sys; print(len(json.load(sys.stdin)['messages']))\""
    )
    program = command.agent("ask('a fruit'); print('{\"reward\": 9}'); sys.exit(3)")
    result = command.result("--reward-command", judge, "--scenario", '"pick"', program=program)
    assert (result["reward"], result["source"], result["exit_status"]) == (2.0, "reward command", 3)
    transcript = json.loads((command.folder / "transcript.json").read_text())
    assert [message["role"] for message in transcript["messages"]] == ["user", "assistant"]
    assert (transcript["scenario"], transcript["exit_status"]) == ("pick", 3)
    assert transcript["output"] == '{"reward": 9}\n'
    assert command.served.rollout(result["rollout_id"])["reward"] == 2.0


def test_a_reward_command_that_fails_leaves_the_run_without_a_reward(command: Command) -> None:
    result = command.result(
        "--reward-command", "echo 1; exit 5", program=command.agent("ask('a fruit')"), exit_status=3
    )
    assert (result["reward"], result["status"]) == (None, "finished")
    assert "exit status is 5" in result["reason"]
    assert command.served.rollout(result["rollout_id"])["reward"] is None


def test_a_program_that_does_not_end_is_ended(command: Command) -> None:
    result = command.result("--timeout", "1", program=["sleep", "600"], exit_status=3)
    assert (result["status"], result["reward"]) == ("agent_error", None)
    assert "still running after" in result["reason"]


def test_a_failure_of_the_server_is_never_a_bad_run(command: Command) -> None:
    """The program gives up because the engine failed: neither a reward of 0 nor the agent's error."""
    done = command("rollout", program=command.agent("ask('a fruit'); ask('fail')"), exit_status=1)
    assert "a part of ART was away" in done.stderr
    assert "1 of its calls" in done.stderr
    (command.folder / "s.jsonl").write_text('{"id": "a"}\n')
    options = ["--scenarios", "s.jsonl", "--group", "1", "--json"]
    done = command("rollouts", *options, program=command.agent("ask('fail')"), exit_status=3)
    (group,) = json.loads(done.stdout)["groups"]
    assert (group["statuses"], group["rewards"]) == ({"infra_error": 1}, [])


def test_a_program_that_never_calls_is_told_apart(command: Command) -> None:
    result = command.result(program=["true"], exit_status=3)
    assert (result["status"], result["calls"]) == ("no_calls", 0)


def test_a_key_that_may_open_rollouts_is_enough(command: Command) -> None:
    made = command.served.api("POST", "keys", {"role": "rollout", "project": "tests"})
    command.key = made["key"]
    assert command.result(program=command.agent("ask('a fruit')"))["reward"] == 1.0


def test_evaluation_leaves_the_programs_sampling(command: Command) -> None:
    program = command.agent("ask('a fruit', temperature=0, model='tests/alpha')")
    result = command.result("--purpose", "evaluate", program=program)
    info = command.served.rollout(result["rollout_id"])
    assert (info["status"], info["calls"][0]["sampling_used"]["temperature"]) == ("evaluated", 0.0)


@pytest.mark.absent(shutil.which("node") is None, reason="node")
def test_a_node_program_is_one_rollout(command: Command) -> None:
    (command.folder / "agent.mjs").write_text(textwrap.dedent(NODE_AGENT))
    result = command.result(program=["node", "agent.mjs"])
    (call,) = command.served.rollout(result["rollout_id"])["calls"]
    assert (result["calls"], result["tokens"]) == (1, call["choices"][0]["token_count"])
    assert result["reward"] >= 3


def test_an_anthropic_client_finds_its_server_in_the_environment(command: Command) -> None:
    program = command.agent(
        """
        import anthropic
        client = anthropic.Anthropic()
        answer = client.messages.create(
            model="claude-x", max_tokens=20, messages=[{"role": "user", "content": "a fruit"}]
        )
        print(len(answer.content[0].text))
        """
    )
    result = command.result(program=program)
    assert (result["calls"], result["source"]) == (1, "printed")
    (call,) = command.served.rollout(result["rollout_id"])["calls"]
    assert call["dialect"].startswith("anthropic")


def test_a_long_scenario_comes_as_a_file(command: Command) -> None:
    program = command.agent(
        """
        assert "ART_SCENARIO" not in os.environ
        ask("a fruit")
        print(len(json.load(open(os.environ["ART_SCENARIO_FILE"]))["text"]))
        """
    )
    # A single argument of a command is bounded like a variable; a scenario file's line is not.
    (command.folder / "s.jsonl").write_text(json.dumps({"text": "x" * 150_000}) + "\n")
    done = command("rollouts", "--scenarios", "s.jsonl", "--group", "1", "--json", program=program)
    assert json.loads(done.stdout)["groups"][0]["rewards"] == [150_000.0]


@pytest.mark.parametrize(
    ("options", "program", "said", "status"),
    [
        ([], ["no-such-program"], "no program 'no-such-program'", 2),
        (["--scenario", "{Oslo}"], ["true"], "--scenario is no JSON", 2),
        (["--path", "x"], ["true"], "two servers", 2),
        (["--base-model", "elsewhere"], ["true"], "another base model", 1),
        (["--model", "alpha"], ["true"], "several models", 2),
        (["--model", "tests/nobody"], ["true"], "no model tests/nobody", 1),
        (["--key", "wrong"], ["true"], "not known", 1),
    ],
)
def test_what_cannot_work_is_said_and_runs_nothing(
    command: Command,
    options: list[str],
    program: list[str],
    said: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.here(monkeypatch, "rollout", *options, program=program) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_program_with_all_it_started(
    command: Command, number: signal.Signals, status: int
) -> None:
    program = command.agent(
        """
        import subprocess, time
        ask("a fruit")
        child = subprocess.Popen(["sleep", "600"])
        print(os.environ["ART_ROLLOUT_ID"], os.getpid(), child.pid, flush=True)
        time.sleep(600)
        """
    )
    running = command.start("rollout", program=program)
    assert running.stdout is not None
    rollout_id, *pids = running.stdout.readline().split()
    running.send_signal(number)
    _, said = running.communicate(timeout=SECONDS)
    assert running.returncode == status, said
    assert "Traceback" not in said
    for pid in pids:
        assert not _alive(int(pid))
    info = command.served.rollout(rollout_id)
    assert (info["status"], info["reward"]) == ("infra_error", None)  # it says nothing about the agent


def _alive(pid: int) -> bool:
    """Whether a process still runs; a zombie that nobody has waited for does not."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except FileNotFoundError:
            return False
        time.sleep(0.05)
    return True


def test_what_a_program_leaves_behind_does_not_hold_the_run(command: Command) -> None:
    program = command.agent(
        """
        import subprocess
        ask("a fruit")
        print(subprocess.Popen(["sleep", "600"]).pid)
        """
    )
    result = command.result(program=program)  # the sleep holds the pipe of the program's output
    assert result["source"] == "printed"
    assert not _alive(int(result["reward"]))


# -- groups


def test_groups_of_every_scenario(command: Command) -> None:
    (command.folder / "s.jsonl").write_text('{"id": "a", "n": 1}\n\n"Rome"\n')
    program = command.agent(
        """
        said = ask("a fruit for " + json.dumps(scenario))["choices"][0]["message"]["content"]
        print("I say", said)
        print(len(said))
        """
    )
    options = ["--scenarios", "s.jsonl", "--group", "4", "--concurrency", "3", "--out", "g.jsonl"]
    done = command("rollouts", *options, program=program)
    assert sorted(line.partition(":")[0] for line in done.stdout.splitlines()) == ["a", "scenario 2"]
    assert "a#0 | I say " in done.stderr
    lines = [json.loads(line) for line in (command.folder / "g.jsonl").read_text().splitlines()]
    scenarios = [line.pop("scenario") for line in lines]
    assert sorted(map(str, scenarios)) == ["Rome", "{'id': 'a', 'n': 1}"]
    groups = [art.TrajectoryGroup(**line) for line in lines]
    assert [len(group) for group in groups] == [4, 4]
    for group in groups:
        infos = [command.served.rollout(str(trajectory.rollout_id)) for trajectory in group]
        assert [info["member"] for info in infos] == [0, 1, 2, 3]
        assert len({(info["scenario_id"], info["group_id"]) for info in infos}) == 1
        assert [info["reward"] for info in infos] == [trajectory.reward for trajectory in group]
    texts = {str(trajectory.messages()[-1]["content"]) for group in groups for trajectory in group}
    assert len(texts) > 1  # independent draws


def test_a_crash_ends_no_other_run(command: Command) -> None:
    (command.folder / "s.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n')
    program = command.agent(
        """
        ask("a fruit")
        if scenario["id"] == "a":
            os.kill(os.getpid(), 11)
        print(0.5)
        """
    )
    options = ["--scenarios", "s.jsonl", "--group", "2", "--json"]
    done = command("rollouts", *options, program=program, exit_status=3)
    a, b = json.loads(done.stdout)["groups"]
    assert (a["statuses"], a["rewards"]) == ({"agent_error": 2}, [])
    assert (b["statuses"], b["rewards"]) == ({"finished": 2}, [0.5, 0.5])
    assert "SIGSEGV" in a["runs"][0]["reason"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("{}\n{Oslo}\n", "line 2 is no JSON"), ("\n", "no scenario"), ("1\nnull\n", "line 2 is null")],
)
def test_a_bad_scenario_file_is_named_before_anything_runs(
    command: Command,
    text: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (command.folder / "s.jsonl").write_text(text)
    assert command.here(monkeypatch, "rollouts", "--scenarios", "s.jsonl", program=["touch", "ran"]) == 1
    assert said in capsys.readouterr().err
    assert not (command.folder / "ran").exists()


@pytest.mark.slow
def test_a_folder_is_enough_and_groups_train(tmp_path: Path, tiny_model_dir: Path) -> None:
    """Nothing but a folder and a base model: the server starts, the model is registered, a step is trained."""
    command = Command(Served.__new__(Served), tmp_path)
    program = command.agent(
        """
        said = ask("yes or no?", max_tokens=4)["choices"][0]["message"]["content"]
        print(1 if "yes" in said else 0)
        """
    )
    (tmp_path / "s.jsonl").write_text('{"id": "a"}\n')
    line = [sys.executable, "-m", "art.cli", "rollouts", "--path", "runs", "--model", "shop/agent"]
    line += [
        "--base-model",
        str(tiny_model_dir),
        "--scenarios",
        "s.jsonl",
        "--group",
        "12",
        "--set",
        "rollout.seed=3",
    ]
    line += ["--train", "--set", "train.learning_rate=1e-3", "--json", "--", *program]
    done = subprocess.run(line, capture_output=True, text=True, timeout=150, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result["groups"][0]["rewards"]) == {0.0, 1.0}
    assert (result["train"]["step"], result["train"]["published"]) == (1, True)
    assert (Path(result["train"]["checkpoint_path"]) / "adapter_model.safetensors").exists()


# -- what is printed


@pytest.mark.parametrize(
    ("output", "reward"),
    [
        ("", None),
        ("done\n", None),
        ("3\ndone\n", None),
        ("done\n-2.5\n\n", -2.5),
        ('{"reward": 1}\n{"other": 2}\n', 1.0),
        ('{"reward": 1}\n{"reward": 0.5}\nbye', 0.5),
        ("true\n", None),
        ('[{"reward": 1}]\n', None),
    ],
)
def test_the_reward_in_an_output(output: str, reward: float | None) -> None:
    found = printed_reward(output.encode(), "it")
    assert (None if found is None else found.reward) == reward


def test_a_printed_reward_must_be_one() -> None:
    for text in ("NaN", "1e999", '{"reward": "high"}', '{"reward": [1]}'):
        with pytest.raises(InvalidReward):
            printed_reward(text.encode(), "it")
    with pytest.raises(InvalidInput, match="metrics"):
        printed_reward(b'{"reward": 1, "metrics": {"a": "b"}}', "it")
