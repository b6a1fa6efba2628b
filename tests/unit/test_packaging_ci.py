"""Makefile, pins and the limits check."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("limits", ROOT / ".ci" / "limits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / ".ci").mkdir()
    return module


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def entry(limit: int) -> str:
    return (
        f'[[exception]]\nkind = "function"\npath = "src/m.py"\nname = "f"\nlimit = {limit}\nreason = "why"\n'
    )


def test_make_help_has_a_line_for_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("  make")] == phony.split()


def test_pins_lie_within_the_ranges() -> None:
    # Trackers are tested in an environment of their own, which has its own pins; ours come second and hold.
    files = [ROOT / "tests" / "trackers" / "requirements.txt", ROOT / "constraints.txt"]
    lines = [line for file in files for line in file.read_text().splitlines()]
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    for text in wanted:
        requirement = Requirement(text)
        if requirement.name != project["name"]:
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), text


def test_a_long_function_and_many_parameters_are_refused(
    limits: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "\n".join("    x = 1" for _ in range(60))
    (tmp_path / "src" / "m.py").write_text(
        f"def f(a, b, c, d, e, g, h, i):\n{body}\n\ndef ok(a, *, b, c, d, e, g, h, i): pass\n"
    )
    assert limits.main() == 1
    out = capsys.readouterr().out
    assert "src/m.py: f: function 61 is over 60" in out
    assert "src/m.py: f: parameters 8 is over 7" in out
    assert ": ok:" not in out


def test_an_exception_holds_and_may_only_shrink(
    limits: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "src" / "m.py").write_text("def f():\n" + "\n".join("    x = 1" for _ in range(69)) + "\n")
    file = tmp_path / ".ci" / "limits.toml"
    file.write_text(entry(70))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    assert limits.main() == 0, capsys.readouterr().out
    file.write_text(entry(71))
    assert limits.main() == 1
    assert "may shrink from 71 to 70" in capsys.readouterr().out
    (tmp_path / "src" / "m.py").write_text("def f():\n" + "\n".join("    x = 1" for _ in range(70)) + "\n")
    assert limits.main() == 1
    assert "more than" in capsys.readouterr().out


def test_an_exception_needs_a_reason(limits: ModuleType) -> None:
    with pytest.raises(ValueError, match="without a reason"):
        limits.exceptions('[[exception]]\nkind = "module"\npath = "src/m.py"\nlimit = 500\n')
