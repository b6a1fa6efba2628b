"""The kept faults fit today's code and name tests that exist. `make mutations` shows that they are caught."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "mutations" / "run.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutations_run", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


script = load_script()
PATCHES = sorted(SCRIPT.parent.glob("*.patch"))


def test_the_faults_are_numbered() -> None:
    assert [path.name[:2] for path in PATCHES] == [f"{number:02}" for number in range(1, 16)]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_a_patch_fits_and_its_tests_exist(patch: Path) -> None:
    mutation = script.Mutation.read(patch)
    assert mutation.fault
    assert mutation.tests
    assert all((ROOT / test).is_file() for test in mutation.tests)
    changed = subprocess.run(
        ["git", "apply", "--numstat", str(patch)], cwd=ROOT, capture_output=True, text=True
    )
    paths = [line.split("\t")[2] for line in changed.stdout.splitlines()]
    assert paths
    assert all(path.startswith("src/art/") for path in paths)
    done = subprocess.run(["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"make the same fault in today's code: {done.stderr}"


def test_a_patch_without_its_header_is_refused(tmp_path: Path) -> None:
    patch = tmp_path / "16-nothing.patch"
    patch.write_text("Fault: something\n\ndiff --git a/x b/x\n")
    with pytest.raises(script.Broken, match="Tests"):
        script.Mutation.read(patch)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A tree of one function and its test."""
    tree = tmp_path / "tree"
    (tree / "src").mkdir(parents=True)
    (tree / "tests").mkdir()
    (tree / "src" / "counted.py").write_text("def count():\n    return 2\n")
    test = "from counted import count\n\ndef test_count():\n    assert count() == 2\n"
    (tree / "tests" / "test_counted.py").write_text(test)
    (tree / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tree, check=True)
    return tree


def mutation(folder: Path, line: str) -> script.Mutation:
    """`return 2` becomes `line`."""
    patch = folder / "01-count.patch"
    patch.write_text(
        "Fault: it counts wrongly\nTests: tests/test_counted.py\n\n"
        "diff --git a/src/counted.py b/src/counted.py\n--- a/src/counted.py\n+++ b/src/counted.py\n"
        f"@@ -1,2 +1,2 @@\n def count():\n-    return 2\n+    {line}\n"
    )
    return script.Mutation.read(patch)


def test_a_fault_is_caught_by_a_test_that_fails_and_is_taken_back(project: Path) -> None:
    before = (project / "src" / "counted.py").read_text()
    verdict = script.try_out(mutation(project, "return 3"), project)
    assert verdict.caught_by == "tests/test_counted.py::test_count"
    assert not verdict.parity
    assert (project / "src" / "counted.py").read_text() == before
    survivor = script.try_out(mutation(project, "return 2.0"), project)
    assert survivor.caught_by == ""
    assert "SURVIVED" in script.line_of(survivor)
    (bar,) = script.report_of([verdict, survivor], baseline_seconds=0.0)["bars"]
    assert (bar["value"], bar["target"], bar["ok"]) == (1, 2, False)


def test_code_that_cannot_be_imported_shows_nothing(project: Path) -> None:
    with pytest.raises(script.Broken, match="did not run"):
        script.try_out(mutation(project, "return ("), project)
    with pytest.raises(script.Broken, match="does not apply"):
        script.apply(mutation(project, "return 3").patch, project, "--reverse")
