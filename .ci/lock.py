"""The hashes of what constraints.txt pins: write requirements.lock, or check that it still fits.

    .venv-audit/bin/python .ci/lock.py write [--wheel FILE ...]
    python .ci/lock.py check

pip takes hashes for all requirements or for none, and for no folder: they cannot stand in constraints.txt, which
`pip install --editable .` is given. So they stand in a list of their own, each version with the hash of every file that the
index has of it, for all platforms and Pythons. A build that comes from an index of its own, as torch's for CPUs does, is named with
--wheel: it is an entry beside the version's own, taken where CI runs, and kept as long as the version is.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"
HEADER = """\
# The versions of constraints.txt with the sha256 of every file that may be installed as them.
# Written by `make lock`, checked by `make audit`; see docs/supply-chain.md.
"""
BUILD_HERE = 'sys_platform == "linux" and platform_machine == "x86_64" and python_version == "3.11"'
BUILD_ELSEWHERE = 'sys_platform != "linux" or platform_machine != "x86_64" or python_version != "3.11"'
"""Where CI runs, and everywhere else."""
_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})\b")

Lock = dict[tuple[str, str], set[str]]
"""(Name, version) -> hashes. A build of its own has a version of its own, as 2.13.0+cpu."""


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Name -> version."""
    return {normal(name): version for name, version in _ENTRY.findall(text)}


def hashes(text: str) -> Lock:
    """What a list of pins with hashes says."""
    found: Lock = {}
    for part in re.split(r"\n(?=[A-Za-z0-9])", text):
        entry = _ENTRY.search(part)
        if entry is not None:
            found[normal(entry[1]), entry[2]] = set(_HASH.findall(part))
    return found


def problems(pinned: dict[str, str], lock: Lock) -> list[str]:
    """Where the two lists differ, a line each."""
    wrong = [f"{name}=={version} has no hash" for (name, version), found in lock.items() if not found]
    wrong += [
        f"{name}=={version} is not in {LOCK.name}"
        for name, version in sorted(pinned.items())
        if (name, version) not in lock
    ]
    wrong += [
        f"{name}=={version} is not in {PINS.name}"
        for name, version in sorted(lock)
        if pinned.get(name) != base(version)
    ]
    return wrong


def of_index() -> Lock:
    """The hashes that the index has of each pin, asked through uv."""
    command = (
        "pip",
        "compile",
        "--quiet",
        "--no-deps",
        "--no-header",
        "--no-annotate",
        "--generate-hashes",
        str(PINS),
    )
    done = subprocess.run([sys.executable, "-m", "uv", *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the index could not be asked: {done.stderr[-2000:]}")
    return hashes(done.stdout)


def base(version: str) -> str:
    """Of what a build of its own is a build."""
    return version.partition("+")[0]


def of_file(path: Path) -> tuple[tuple[str, str], str]:
    """Name, version and hash of a wheel."""
    name, version = path.name.split("-")[:2]
    return (normal(name), version), f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def written(lock: Lock) -> str:
    """The file's text."""
    built = {name for name, version in lock if "+" in version}
    entries = []
    for (name, version), found in sorted(lock.items()):
        marker = BUILD_HERE if "+" in version else BUILD_ELSEWHERE
        head = f"{name}=={version}" + (f" ; {marker}" if name in built else "")
        entries.append(" \\\n    ".join([head, *(f"--hash={one}" for one in sorted(found))]))
    return HEADER + "\n".join(entries) + "\n"


def write(wheels: list[Path]) -> None:
    """Write the file anew."""
    lock = of_index()
    before = hashes(LOCK.read_text()) if LOCK.exists() else {}
    builds = {pin: found for pin, found in before.items() if "+" in pin[1] and (pin[0], base(pin[1])) in lock}
    for wheel in wheels:
        pin, found = of_file(wheel)
        if (pin[0], base(pin[1])) not in lock:
            raise SystemExit(f"{wheel.name} is no build of a pinned version")
        builds[pin] = {found}
    LOCK.write_text(written(lock | builds))


def main() -> int:
    """Print what does not fit; 1 when anything does not."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("what", choices=("write", "check"))
    asked.add_argument("--wheel", type=Path, action="append", default=[])
    options = asked.parse_args()
    if options.what == "write":
        write(options.wheel)
    lock = hashes(LOCK.read_text())
    wrong = problems(pins(PINS.read_text()), lock)
    print("\n".join(wrong) or f"hashes: {len(lock)} versions, {sum(map(len, lock.values()))} files")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
