"""Every code block of README and docs runs. The heavy ones run in a cheap form: a tiny base model, few steps."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from blocks import FILES, ROOT, Block, blocks

from art.testing.server import ArtServer

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SECONDS = 150
BIN = Path(sys.executable).parent


@dataclass
class Place:
    """Where blocks run: a folder, a tiny model, and once it was started the server of the `art serve` blocks."""

    folder: Path
    tiny: Path
    port: int
    server: subprocess.Popen[bytes] | None = None

    @property
    def key(self) -> str:
        return (self.folder / "runs" / "server" / "admin.key").read_text().strip()

    def run(
        self, command: list[str] | str, *, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A command in the folder, with the environment's `art` and `python` first on the path."""
        return subprocess.run(
            command,
            shell=isinstance(command, str),
            cwd=cwd or self.folder,
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **environment},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def start_server(self, command: str) -> None:
        """Run an `art serve` block and wait until it answers."""
        if self.server is not None:
            return
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        with (self.folder / "serve.out").open("wb") as output:
            self.server = subprocess.Popen(
                command.split(), cwd=self.folder, env=environment, stdout=output, stderr=output
            )
        deadline = time.monotonic() + 60
        while not (self.folder / "runs" / "server" / "server.json").exists():
            assert self.server.poll() is None, (self.folder / "serve.out").read_text()
            assert time.monotonic() < deadline, "art serve gave no sign of life"
            time.sleep(0.1)

    def cheap(self, text: str) -> str:
        """The block with the tiny model, our port, few steps."""
        cheaper = text.replace(BASE_MODEL, str(self.tiny)).replace("7999", str(self.port))
        return re.sub(r"\b(max_)?steps=\d+", r"\1steps=2", cheaper)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[Place]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = Place(tmp_path_factory.mktemp("docs"), tiny_model_dir, port)
    # A program that names no folder uses `.art` where it runs, and a server that runs there already: one start for all.
    with ArtServer(here.folder / ".art", engine="torch"):
        yield here
    if here.server is not None:
        here.server.terminate()
        here.server.wait(30)


def run_python(place: Place, block: Block) -> None:
    """A program, run as a reader would run it."""
    if "RemoteBackend" in block.text:
        start_serve(place, "art serve --path runs --port 7999")
    if "groups.jsonl" in block.text and not (place.folder / "groups.jsonl").exists():
        (rollouts,) = [one.text for one in blocks("sh") if one.text.startswith("cat > cities.jsonl")]
        run_rollouts(place, rollouts)
    file = place.folder / "program.py"
    file.write_text(place.cheap(block.text))
    key = {"ART_API_KEY": place.key} if "ART_API_KEY" in block.text else {}
    # A deterministic server is another one than that of the folder.
    own = place.folder / "own" if "deterministic=True" in block.text else place.folder
    own.mkdir(exist_ok=True)
    done = place.run([sys.executable, str(file)], cwd=own, **key)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.strip(), "a program of the documentation shows something"


def make(place: Place, target: str, arguments: str) -> subprocess.CompletedProcess[str]:
    """A make target with this interpreter's environment instead of `.venv`, and without its set-up."""
    prefix = Path(sys.prefix)
    variables = [f"VENV={prefix}", f"ARGS={arguments}"]
    return place.run(["make", "-C", str(ROOT), "-o", f"{prefix}/.installed", target, *variables])


def run_make_demo(place: Place, text: str) -> None:
    done = make(
        place, "demo", f"--task tictactoe --steps 1 --base-model {place.tiny} --path {place.folder / 'demo'}"
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(results) == 1, done.stdout + done.stderr
    assert set(json.loads(results[0])) == {
        *("task", "base_model", "eval_before", "eval_after", "ci95_before", "ci95_after"),
        *("best_constant", "steps", "seconds", "checkpoint"),
    }
    # A tiny model cannot read a board: the demo must say that it did not improve.
    assert "did not improve" in done.stdout
    assert done.returncode != 0
    (plot,) = (place.folder / "demo").rglob("*.png")
    assert plot.read_bytes().startswith(b"\x89PNG")


def run_make_test(place: Place, text: str) -> None:
    done = make(place, "test", "-q --numprocesses 0 tests/unit/test_packaging_ci.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


def run_pip_install(place: Place, text: str) -> None:
    """Builds and installs the package without its dependencies, which are here already."""
    target = place.folder / "installed"
    options = f"--no-deps --no-build-isolation --no-index --quiet --target {target}"
    done = place.run(
        text.replace("pip install", f"{sys.executable} -m pip install {options}").replace('".', f'"{ROOT}')
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (target / "art" / "__init__.py").exists()


def start_serve(place: Place, text: str) -> None:
    place.start_server(place.cheap(text).strip())


def run_keys(place: Place, text: str) -> None:
    """Needs the server of the `art serve` block; the key it makes may look and not register."""
    start_serve(place, "art serve --path runs --port 7999")
    done = place.run(text)
    assert done.returncode == 0, done.stderr
    key, *listed = done.stdout.splitlines()
    assert [line for line in listed if "infer" in line and "my-project" in line and "the web site" in line]

    def status(path: str, *options: str) -> str:
        header = f"Authorization: Bearer {key}"
        url = f"http://127.0.0.1:{place.port}/api/v1/{path}"
        command = ["curl", "-s", "-o", os.devnull, "-w", "%{http_code}", "-H", header, *options, url]
        return place.run(command).stdout

    assert status("health") == "200"
    assert status("rollouts", "-d", '{"model": "my-project/my-agent"}') in {"401", "403"}


def run_backup(place: Place, text: str) -> None:
    """Of the server of the `art serve` block, which runs."""
    start_serve(place, "art serve --path runs --port 7999")
    place.run("rm -rf backups srv && mkdir backups srv")
    done = place.run(text.replace("/backups/", "backups/").replace("/srv/", "srv/"))
    assert done.returncode == 0, done.stderr
    assert (place.folder / "srv" / "art" / "server" / "art.db").exists()


def run_purge(place: Place, text: str) -> None:
    """As a script has to: without the question."""
    start_serve(place, "art serve --path runs --port 7999")
    done = place.run(f"{text} --yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("deleted ")


def run_retention(place: Place, text: str) -> None:
    """As a script has to: without the question."""
    start_serve(place, "art serve --path runs --port 7999")
    command, doctor = text.splitlines()
    done = place.run(f"{command} --yes && {doctor}")
    assert done.returncode == 0, done.stderr
    assert "my-project keeps its data for 30d; deleted" in done.stdout
    assert "deleted 30 days after a rollout's end" in done.stdout


def register_model(place: Place) -> None:
    """Needs the server of the `art serve` block; a model on it."""
    start_serve(place, "art serve --path runs --port 7999")
    register = (
        "import asyncio, art, os\n"
        f"model = art.TrainableModel(name='my-agent', project='my-project', base_model='{BASE_MODEL}')\n"
        "backend = art.RemoteBackend('http://127.0.0.1:7999', key=os.environ['ART_API_KEY'])\n"
        "async def main():\n    await model.register(backend)\n    await backend.close()\n"
        "asyncio.run(main())\nprint('registered')\n"
    )
    run_python(place, Block("", "python", register))


def run_export(place: Place, text: str) -> None:
    """What the server has of the model, which may be nothing."""
    register_model(place)
    done = place.run(text)
    assert done.returncode == 0, done.stderr
    assert " records of my-project/my-agent in agent.jsonl" in done.stdout
    assert (place.folder / "agent.jsonl").exists()


def run_curl(place: Place, text: str) -> None:
    """Needs a model on the server."""
    register_model(place)
    done = place.run(place.cheap(text))
    opened = json.loads(done.stdout)
    assert opened["base_url"].endswith(f"/r/{opened['rollout_id']}/v1"), done.stdout
    assert opened["api_key"]


def run_ci(place: Place, text: str) -> None:
    """The script's own steps, with a make that only notes what it was asked (the suite is running already)."""
    clone = place.folder / "clone"
    shutil.copytree(ROOT / ".ci", clone / ".ci")
    tools = place.folder / "tools"
    tools.mkdir()
    (tools / "make").write_text(f'#!/bin/sh\necho "$@" >> {place.folder}/asked\n[ "$1" != "$FAIL" ]\n')
    (tools / "make").chmod(0o755)
    done = place.run(f"cd {clone} && PATH={tools}:$PATH {text}")
    assert done.returncode == 0, done.stderr
    assert (place.folder / "asked").read_text().split() == [
        *("setup", "lint", "test", "test-faults", "test-browser", "test-trackers-short", "fuzz-parsers")
    ]
    assert place.run(f"cd {clone} && FAIL=lint PATH={tools}:$PATH {text}").returncode != 0


def run_doctor(place: Place, text: str) -> None:
    done = place.run(place.cheap(text))
    assert done.returncode == 0, done.stdout + done.stderr
    shown = [line.split(maxsplit=1)[0] for line in done.stdout.splitlines()]
    assert set(shown) <= {"ok", "note"}, done.stdout
    assert "served: " in done.stdout.splitlines()[-1]


def run_rollout(place: Place, text: str) -> None:
    """A program as one rollout; it writes the program too."""
    done = place.run(place.cheap(text))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reward"] in (0.0, 1.0)
    assert re.search(r"reward \S+ \(printed\), 1 call, \d+ tokens, finished", done.stderr)


def run_rollouts(place: Place, text: str) -> None:
    (agent,) = [
        block.text
        for block in blocks("sh")
        if block.file == "docs/rollouts.md" and block.text.startswith("cat > agent.py")
    ]
    run_rollout(place, agent)
    done = place.run(place.cheap(text))
    assert done.returncode == 0, done.stderr
    assert {line.partition(":")[0] for line in done.stdout.splitlines()} == {"oslo", "rome"}
    assert len((place.folder / "groups.jsonl").read_text().splitlines()) == 2


def run_seeded(place: Place, text: str) -> None:
    """The run of the guide: what it is to show is there."""
    done = place.run(text.replace("python", sys.executable, 1))
    assert done.returncode == 0, done.stderr
    ask = "art ls rollouts shop/desk-01 --path bug --json --where"
    for where, count in (
        ("metrics.right = 0 and reward > 0.9", 52),
        ("metrics.right = 1 and reward < 0.3", 61),
    ):
        found = place.run(f"{ask} '{where}'")
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout)["total"] == count


def run_project(place: Place, text: str) -> None:
    """`art init`, `art config check` and `art run`, with the tiny model on the server that runs here already."""
    small = "--steps 2 --set run.groups_per_step=1 --set run.rollouts_per_group=3 --set evaluation.rollouts=1"
    cheaper = text.replace("--template qa", f"--template qa --base-model {place.tiny}")
    done = place.run(f"set -e\n{cheaper} {small} --path {place.folder / '.art'}")
    assert done.returncode in (0, 3), done.stderr + done.stdout  # 3: so few runs may all get the same reward
    assert "12 scenarios, 6 held out" in done.stdout
    assert "batch 2/2" in done.stderr


SHELL: dict[str, Callable[[Place, str], None]] = {
    "make demo": run_make_demo,
    "make test": run_make_test,
    'pip install ".[server]"': run_pip_install,
    "art serve --path runs --port 7999": start_serve,
    'art key create --role infer --project my-project --label "the web site" --expires 30d --path runs': run_keys,
    'art key create --role infer --project my-project --label "the web site"'
    " --calls-per-minute 600 --tokens-per-day 2000000 --path runs": run_keys,
    "art backup /backups/art-2026-11-30 --path runs": run_backup,
    "art data purge --project my-project --older-than 90d --path runs": run_purge,
    "art data retention set --project my-project --keep 30d --path runs": run_retention,
    "curl -s http://127.0.0.1:7999/api/v1/rollouts \\": run_curl,
    "art export my-project/my-agent --out agent.jsonl --path runs": run_export,
    ".ci/run": run_ci,
    "art doctor --base-model HuggingFaceTB/SmolLM2-135M-Instruct": run_doctor,
    "art init qa-demo --template qa": run_project,
    "python -m art.testing.seeded bug --runs 1 --steps 30 --groups 4 --group-size 6 --reward-bug length": run_seeded,
    "cat > agent.py <<'END'": run_rollout,
    "cat > cities.jsonl <<'END'": run_rollouts,
}
"""First line of each shell block -> how it is executed."""


def test_every_block_is_executed_somewhere() -> None:
    languages = {
        block.language for block in blocks("python", "sh", "", "toml", "json", "bash", "console", "text")
    }
    assert languages <= {"python", "sh"}, "a block of another language has nobody who executes it"
    first_lines = {block.text.strip().splitlines()[0] for block in blocks("sh")}
    assert first_lines == set(SHELL)
    documents = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")} | {
        "README.md",
        "CONTRIBUTING.md",
    }
    # design.md has drawings only; what clients.md shows is run by `make test-clients`; what templates.md shows is
    # compared with what happens in tests/contract/test_templates.py.
    assert documents - {"docs/design.md", "docs/clients.md", "docs/templates.md"} == set(FILES)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("sh"), ids=lambda block: block.name)
def test_shell_block(place: Place, block: Block) -> None:
    SHELL[block.text.strip().splitlines()[0]](place, block.text.strip())


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.name)
def test_program(place: Place, block: Block) -> None:
    run_python(place, block)


def test_the_readers_own_agent_takes_25_lines() -> None:
    (program,) = [
        block for block in blocks("python") if block.file == "README.md" and "art.fit" in block.text
    ]
    assert len([line for line in program.text.splitlines() if line.strip()]) <= 25
