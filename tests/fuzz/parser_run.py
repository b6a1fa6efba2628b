"""Fuzz the parsers under atheris: `python tests/fuzz/parser_run.py [--seconds 10] [--target NAME ...] [--keep N]`.

Starts from the kept inputs (`corpus/`). An input that breaks a promise is added to them as `crash-<hash>`, so that the tests
hold it from then on, and the run fails. `--keep` adds the N smallest of the inputs that reached new code.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
NAMES = ("chat", "responses", "messages", "completions", "tool_calls", "sse")
ONE_INPUT_SECONDS = 10
"""What takes longer hangs."""
MEMORY_MIB = 2048
LONGEST = 8192
"""Bytes of an input: the shapes are in the first few hundred; what is quadratic shows."""
LEEWAY_SECONDS = 60
"""For a process to import, to read the kept inputs and to end."""


@dataclass(frozen=True)
class Outcome:
    """One target's run."""

    name: str
    executions: int
    reached: int
    """Branches of ours that were reached, as atheris counts them."""
    new: int
    """Inputs that reached something the kept ones do not."""
    broken: list[Path]
    log: str
    status: int

    @property
    def well(self) -> bool:
        return self.status == 0 and not self.broken


def fuzz(name: str, seconds: int, keep: int) -> Outcome:
    """Run one target for that long."""
    kept = CORPUS / name
    with tempfile.TemporaryDirectory(prefix="art-fuzz-") as folder:
        found, broken = Path(folder, "found"), Path(folder, "broken")
        found.mkdir()
        broken.mkdir()
        options = {
            "max_total_time": seconds,
            "timeout": ONE_INPUT_SECONDS,
            "rss_limit_mb": MEMORY_MIB,
            "max_len": LONGEST,
            "print_final_stats": 1,
            "artifact_prefix": f"{broken}/",
            "dict": HERE / "words.dict",
        }
        command = [sys.executable, str(HERE / "parser_harness.py"), name]
        command += [f"-{option}={value}" for option, value in options.items()]
        try:
            done = subprocess.run(
                [*command, str(found), str(kept)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds + LEEWAY_SECONDS,
            )
            log, status = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as error:
            log, status = f"it did not end: {error}", 1
        new = sorted(found.iterdir(), key=lambda path: path.stat().st_size)
        for path in new[:keep]:
            (kept / path.name).write_bytes(path.read_bytes())
        saved = []
        for path in broken.iterdir():
            saved.append(kept / f"crash-{path.name.rpartition('-')[2][:16]}")
            saved[-1].write_bytes(path.read_bytes())
    reached = [int(number) for number in re.findall(r"\bcov: (\d+)", log)]
    executed = re.findall(r"stat::number_of_executed_units:\s*(\d+)", log)
    return Outcome(
        name=name,
        executions=int(executed[-1]) if executed else 0,
        reached=reached[-1] if reached else 0,
        new=len(new),
        broken=saved,
        log=log,
        status=status,
    )


def main() -> int:
    """Print a line for each target; 1 where one found something."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seconds", type=int, default=10)
    asked.add_argument("--target", action="append", choices=NAMES)
    asked.add_argument("--keep", type=int, default=0)
    options = asked.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("absent: atheris, which this platform has no build of (the parsers were not fuzzed)")
        return 0
    print(f"{'target':12} {'inputs':>9} {'branches':>9} {'new':>5}  seconds={options.seconds}")
    failed = False
    for name in options.target or NAMES:
        outcome = fuzz(name, options.seconds, options.keep)
        print(
            f"{name:12} {outcome.executions:9} {outcome.reached:9} {outcome.new:5}  {'ok' if outcome.well else 'BROKEN'}",
            flush=True,
        )
        if not outcome.well:
            failed = True
            print(outcome.log[-6000:])
            for path in outcome.broken:
                print(f"kept: {path.relative_to(HERE.parent.parent)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
