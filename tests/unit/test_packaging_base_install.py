"""The base install: few packages, few megabytes, and an import that loads nothing heavy.

The clean environment is made offline: the package's dependency closure, as the installed metadata tells it, is
copied into a virtual environment that has nothing else.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTION = "agent-reinforcement-trainer"
MAX_PACKAGES = 24
MAX_BYTES = 40_000_000


def closure(name: str) -> dict[str, importlib.metadata.Distribution]:
    """`name` and everything that `pip install name` brings, extras of requirements included."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(name, frozenset())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        distribution = importlib.metadata.distribution(item[0])
        found[canonicalize_name(item[0])] = distribution
        for text in distribution.requires or ():
            requirement = Requirement(text)
            contexts = [{"extra": extra} for extra in ("", *item[1])]
            if requirement.marker is None or any(
                requirement.marker.evaluate(context) for context in contexts
            ):
                waiting.append((requirement.name, frozenset(requirement.extras)))
    return found


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the base install alone."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for name, distribution in closure(DISTRIBUTION).items():
        if name == DISTRIBUTION:
            shutil.copytree(ROOT / "src" / "art", site / "art", ignore=shutil.ignore_patterns("__pycache__"))
            continue
        for file in distribution.files or ():
            source = Path(str(file.locate()))
            if ".." not in file.parts and source.suffix != ".pyc" and source.is_file():
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, site / file)
    return folder / "bin" / "python"


def test_the_base_install_is_small(clean_python: Path) -> None:
    names = closure(DISTRIBUTION)
    assert len(names) <= MAX_PACKAGES, sorted(names)
    (site,) = (clean_python.parent.parent / "lib").glob("python*/site-packages")
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    assert size <= MAX_BYTES, f"{size / 1e6:.1f} MB"
    assert size > 1_000_000, "the environment was not filled"


def test_import_art_loads_nothing_heavy(clean_python: Path) -> None:
    code = (
        "import sys, art\n"
        "assert art.TrainableModel and art.LocalBackend and art.fit and art.TrajectoryGroup\n"
        "heavy = ('torch', 'openai', 'transformers', 'starlette', 'uvicorn', 'numpy', 'tokenizers')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([str(clean_python), "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_command_works_without_the_server_extra(clean_python: Path) -> None:
    done = subprocess.run(
        [str(clean_python), "-I", "-m", "art.cli.main", "demo", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [str(clean_python), "-I", "-m", "art.cli.main", "serve"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr, done.stderr
    assert "[server]" in done.stderr
