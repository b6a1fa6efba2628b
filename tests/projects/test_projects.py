"""What `art init` writes: each project's own tests pass, and `art run` in it trains two steps with the tiny model.

One of them runs in every `make test`; `make test-projects` runs all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art.backends.local import LocalBackend
from art.cli.init import Template
from art.config.running import RECORD
from art.testing.server import ArtServer

SECONDS = 400
BIN = Path(sys.executable).parent
SMALL = {"run.steps": 2, "run.groups_per_step": 2, "run.rollouts_per_group": 4, "evaluation.rollouts": 1}
ALWAYS = Template.BLACK_BOX

pytestmark = pytest.mark.timeout(SECONDS)


class Project:
    """A project that was just written."""

    def __init__(self, folder: Path, template: str, base_model: Path) -> None:
        self.folder = folder / template
        done = self._do("init", template, "--template", template, "--base-model", str(base_model), at=folder)
        assert done.stdout.endswith(f"cd {template}\npip install -r requirements.txt\npytest\nart run\n")

    def _do(
        self, *arguments: str, at: Path | None = None, module: str = "art.cli", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=at or self.folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def test(self, cache: Path) -> str:
        """Its own tests; the tiny model they need is kept in `cache`."""
        return self._do("-q", "-o", f"cache_dir={cache}", module="pytest").stdout

    def lint(self, cache: Path) -> None:
        """Ruff, and mypy with a cache that all share: what they import is large."""
        for command in (["check", "."], ["format", "--check", "--line-length", "110", "."]):
            self._do(*command, module="ruff")
        options = ["--strict", "--ignore-missing-imports", "--cache-dir", str(cache / "mypy-projects")]
        self._do(*options, *map(str, self.folder.glob("*.py")), module="mypy")

    def check(self) -> dict[str, Any]:
        return dict(json.loads(self._do("config", "check", "--json").stdout))

    def run(self, *options: str, **environment: str) -> list[dict[str, Any]]:
        small = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
        done = self._do("run", "--json", *small, *options, **environment)
        return [json.loads(line) for line in done.stdout.splitlines()]


def steps(said: list[dict[str, Any]]) -> list[int]:
    return [one["batch"] for one in said if one["event"] == "step"]


def test_a_project_runs_as_it_is_written_with_a_server_of_its_own(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    """`art run` starts the server, gives it the file's settings, and refuses one that has others."""
    project = Project(tmp_path, ALWAYS, tiny_model_dir)
    assert "passed" in project.test(tiny_model_dir.parents[2])
    assert project.check()["scenarios"] == 8
    with (project.folder / "run.toml").open("a") as file:
        file.write('\n[server]\npath = "store"\n[engine]\nthreads = 1\n[trainer]\nthreads = 1\n')
    with LocalBackend(path=project.folder / "store") as held:  # the server outlives the run
        said = project.run()
        assert steps(said) == [1, 2]
        assert said[-1]["published"] >= 1
        assert Path(said[-1]["checkpoint_path"]).is_relative_to(project.folder / "store")
        settings = json.loads((project.folder / "store" / "server" / RECORD).read_text())["settings"]
        assert settings["engine.threads"] == 1
        assert held.path == project.folder / "store"


@pytest.fixture(scope="module")
def server(start_art_server: Any) -> Iterator[ArtServer]:
    """One that all projects share: what a server of its own is like was seen above."""
    made: ArtServer = start_art_server(engine="torch", environment={"ART_ENGINE__THREADS": "1"})
    yield made
    made.stop()


@pytest.mark.extended
@pytest.mark.parametrize("template", list(Template))
def test_every_project_is_sound_and_trains_two_steps(
    template: Template, tmp_path: Path, tiny_model_dir: Path, server: ArtServer
) -> None:
    project = Project(tmp_path, template, tiny_model_dir)
    project.lint(tiny_model_dir.parents[2])
    assert "passed" in project.test(tiny_model_dir.parents[2])
    assert project.check()["steps"] == 20
    said = project.run("--url", server.url, ART_API_KEY=server.admin_key)
    first = 2 if template is Template.SFT else 1
    assert steps(said) == [first, first + 1][: len(steps(said))]
    assert said[-1]["ended"] == "done"
    assert said[-1]["batch"] == first + 1
    assert ("demonstrations" in [one["event"] for one in said]) == (template is Template.SFT)
