"""Put known faults into the code, one at a time, and see that an ordinary test notices.

    make mutations                          all of them (a few minutes)
    make mutations ARGS="kl padding"        those whose file name holds one of the words

Every fault is one that a trainer has shipped with. It is kept as a patch to `src` beside this script; the lines before
the diff say what the fault is and which test files can see it:

    Fault: what is wrong with the code once the patch is applied
    Tests: tests/unit/test_samples.py

The tests named there run once on an untouched copy of the tree, where they must pass, and then on the copy with each
patch, where one must fail. A test counts only when it ran and failed: a patch that keeps a module from being imported has
shown nothing. Where the failure is a ParityFailed, the check that every training step makes has seen the fault.

Writes benchmarks/results/mutations.json when all faults were tried; exits 1 when one survives.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutations.json"
COPIED = ("src", "tests", "pyproject.toml")
SECONDS = 600.0
"""For the tests of one fault; they take a few seconds each."""
PARITY = "art.errors.ParityFailed"
"""How the failure begins where the parity check itself stopped a step, and not a test that waited for it in vain."""


class Broken(Exception):
    """The check itself cannot be made: what is to be repaired before it says anything."""


@dataclass(frozen=True)
class Mutation:
    """A patch and what its header says."""

    name: str
    patch: Path
    fault: str
    tests: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Mutation:
        """Broken when the header lacks a line."""
        head, _, _ = path.read_text().partition("diff --git ")
        fields: dict[str, list[str]] = {}
        for line in head.splitlines():
            key, colon, value = line.partition(":")
            if colon:
                fields.setdefault(key, []).append(value.strip())
        try:
            fault, tests = " ".join(fields["Fault"]), " ".join(fields["Tests"]).split()
        except KeyError as error:
            raise Broken(f"{path.name} has no line {error} before its diff") from error
        return cls(path.stem, path, fault, tuple(tests))


@dataclass(frozen=True)
class Verdict:
    """What became of a fault."""

    mutation: Mutation
    caught_by: str
    """The test that failed; empty when the fault survived."""
    parity: bool
    """The test failed because the parity check stopped the step."""
    seconds: float


def all_mutations() -> list[Mutation]:
    """In the order of their numbers."""
    return [Mutation.read(path) for path in sorted(HERE.glob("*.patch"))]


def copy_tree(target: Path) -> Path:
    """The code and its tests, in a repository of its own so that `git apply` takes the patches' paths from there."""
    target.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target / name)
    subprocess.run(["git", "init", "--quiet"], cwd=target, check=True)
    return target


def apply(patch: Path, tree: Path, *options: str) -> None:
    """Broken where the patch does not fit the code any more."""
    done = subprocess.run(["git", "apply", *options, str(patch)], cwd=tree, capture_output=True, text=True)
    if done.returncode:
        raise Broken(f"{patch.name} does not apply; make the same fault in today's code:\n{done.stderr}")


def first_failure(tree: Path, tests: tuple[str, ...]) -> tuple[str, str] | None:
    """(test, message) of the first test of `tree` that fails, None when all pass. Broken when they do not run."""
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "--exitfirst", "--quiet", "-p", "no:cacheprovider"]
    # No bytecode: a patch and its reversal within a second would leave Python with the other one's.
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, f"--junitxml={report}", *tests],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode == 0:
        return None
    if done.returncode == 1 and report.is_file():
        for case in ElementTree.parse(report).iter("testcase"):
            failure = case.find("failure")
            if failure is not None:
                test = f"{str(case.get('classname')).replace('.', '/')}.py::{case.get('name')}"
                return test, f"{failure.get('message')}\n{failure.text}"
    raise Broken(f"the tests did not run ({done.returncode}):\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def require_copy_is_tested(tree: Path) -> None:
    """Broken when a child would import another tree than the copy."""
    done = subprocess.run(
        [sys.executable, "-c", "import art; print(art.__file__)"],
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    if not Path(done.stdout.strip()).is_relative_to(tree):
        raise Broken(f"the tests would import {done.stdout.strip()} and not the copy in {tree}")


def try_out(mutation: Mutation, tree: Path) -> Verdict:
    """Apply, test, take back."""
    apply(mutation.patch, tree)
    started = time.monotonic()
    try:
        found = first_failure(tree, mutation.tests)
    except subprocess.TimeoutExpired as error:
        raise Broken(f"{mutation.name}: the tests did not end within {SECONDS:.0f} s") from error
    finally:
        apply(mutation.patch, tree, "--reverse")
    test, message = found or ("", "")
    return Verdict(mutation, test, message.startswith(PARITY), time.monotonic() - started)


def line_of(verdict: Verdict) -> str:
    """One fault's line."""
    how = " (the parity check)" if verdict.parity else ""
    end = f"caught by {verdict.caught_by}{how}" if verdict.caught_by else "SURVIVED"
    return f"{verdict.mutation.name:32} {verdict.seconds:5.1f} s  {end}"


def report_of(verdicts: list[Verdict], *, baseline_seconds: float) -> dict[str, object]:
    """The result file."""
    caught = sum(bool(verdict.caught_by) for verdict in verdicts)
    return {
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": {
            "baseline_seconds": round(baseline_seconds, 1),
            "mutations": {
                verdict.mutation.name: {
                    "fault": verdict.mutation.fault,
                    "caught_by": verdict.caught_by,
                    "parity_check": verdict.parity,
                    "tests": list(verdict.mutation.tests),
                    "seconds": round(verdict.seconds, 1),
                }
                for verdict in verdicts
            },
        },
        "bars": [
            {
                "name": "faults caught",
                "value": caught,
                "target": len(verdicts),
                "ok": caught == len(verdicts),
            }
        ],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only the faults whose file name holds one of these")
    words: list[str] = parser.parse_args(argv).words
    chosen = [m for m in all_mutations() if not words or any(word in m.name for word in words)]
    if not chosen:
        print(f"no fault is named so; there are: {', '.join(m.name for m in all_mutations())}")
        return 2
    with tempfile.TemporaryDirectory(prefix="art-mutations-") as scratch:
        tree = copy_tree(Path(scratch) / "tree")
        try:
            require_copy_is_tested(tree)
            started = time.monotonic()
            tests = tuple(dict.fromkeys(test for mutation in chosen for test in mutation.tests))
            if (failed := first_failure(tree, tests)) is not None:
                raise Broken(f"{failed[0]} fails without any fault:\n{failed[1]}")
            baseline = time.monotonic() - started
            print(f"{'without a fault':32} {baseline:5.1f} s  all pass", flush=True)
            verdicts = []
            for mutation in chosen:
                verdicts.append(try_out(mutation, tree))
                print(line_of(verdicts[-1]), flush=True)
        except Broken as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    survived = [verdict.mutation.name for verdict in verdicts if not verdict.caught_by]
    print(f"{len(verdicts) - len(survived)} of {len(verdicts)} faults are caught")
    if not words:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(report_of(verdicts, baseline_seconds=baseline), indent=1) + "\n")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
