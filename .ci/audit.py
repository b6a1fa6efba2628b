"""What `make audit` asks of other people's tools: known vulnerabilities of what is pinned, and a bill of materials that is whole.

    .venv-audit/bin/python .ci/audit.py advisories [--strict]
    .venv-audit/bin/python .ci/audit.py sbom FILE

Where no source of advisories can be reached the first is skipped, and the last line counts it; with --strict it fails.
Advisories that do not concern us stand in .ci/advisories.toml with the reason; one that is not found any more fails.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from lock import LOCK, PINS, normal, pins

ACCEPTED = Path(__file__).resolve().parent / "advisories.toml"
SECONDS = 300
"""For all advisories; a source that is silent for so long cannot be reached."""


def reported() -> tuple[list[dict[str, Any]] | None, str]:
    """What pip-audit says of each pin, and its last words where it could not ask."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--requirement",
        str(LOCK),
        "--disable-pip",
        "--format",
        "json",
    ]
    try:
        done = subprocess.run(
            [*command, "--progress-spinner", "off"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {SECONDS} s"
    try:
        found = list(json.loads(done.stdout)["dependencies"])
    except (ValueError, KeyError, TypeError):
        words = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return None, words[-1][:300]
    if all(
        "skip_reason" in one for one in found
    ):  # an index that has packages and no advisories, as mirrors are
        return None, "the index tells nothing of any of the pinned versions"
    return found, ""


def accepted(text: str) -> dict[str, str]:
    """Advisory -> reason. ValueError for one without."""
    found = {}
    for entry in tomllib.loads(text).get("accepted", []):
        if not str(entry.get("reason", "")).strip():
            raise ValueError(f"{ACCEPTED.name}: an advisory without a reason: {entry}")
        found[entry["id"]] = entry["reason"]
    return found


def judged(dependencies: list[dict[str, Any]], known: dict[str, str]) -> list[str]:
    """What is wrong, a line each."""
    wrong, met = [], set()
    for one in dependencies:
        if "skip_reason" in one:
            wrong.append(f"{one['name']}: it was not looked up: {one['skip_reason']}")
        for hit in one.get("vulns", []):
            names = {hit["id"], *hit.get("aliases", [])}
            met |= names
            if not names & known.keys():
                mended = ", ".join(hit.get("fix_versions", [])) or "no version yet"
                wrong.append(f"{one['name']}=={one['version']}: {hit['id']}, mended in {mended}")
    wrong += [
        f"{name}: accepted in {ACCEPTED.name}, and not found any more" for name in sorted(known.keys() - met)
    ]
    return wrong


def advisories(*, strict: bool) -> int:
    """Print known vulnerabilities; 1 when there is one that is not accepted."""
    dependencies, why = reported()
    if dependencies is None:
        print(f"absent: a source of advisories (1 check could not run): {why}")
        return int(strict)
    wrong = judged(dependencies, accepted(ACCEPTED.read_text()))
    print("\n".join(wrong) or f"advisories: {len(dependencies)} versions, none known")
    return int(bool(wrong))


def required() -> set[str]:
    """What a server needs at least: the names in pyproject.toml."""
    project = tomllib.loads((PINS.parent / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    return {normal(re.split(r"[^A-Za-z0-9._-]", text)[0]) for text in wanted}


def lacking(listed: dict[str, str], pinned: dict[str, str], needed: set[str]) -> list[str]:
    """What is wrong with a bill's components, a line each."""
    wrong = [f"{name} is not in it" for name in sorted(needed - listed.keys())]
    wrong += [
        f"{name} is {version}, not the pinned {pinned[name]}"
        for name, version in sorted(listed.items())
        if name in pinned and version != pinned[name]
    ]
    return wrong


def sbom(file: Path) -> int:
    """Print what is wrong with a CycloneDX bill, and where it differs from the pins; 1 when something is wrong."""
    bill = json.loads(file.read_text())
    if bill.get("bomFormat") != "CycloneDX":
        print(f"{file} is no CycloneDX file")
        return 1
    # A build of its own (`2.13.0+cpu`) is the version it is a build of.
    listed = {
        normal(one["name"]): str(one.get("version", "")).partition("+")[0] for one in bill["components"]
    }
    pinned = pins(PINS.read_text())
    wrong = lacking(listed, pinned, required())
    print("\n".join(wrong) or f"{file}: {len(listed)} components, CycloneDX {bill['specVersion']}")
    for what, names in (
        ("installed and not pinned", listed.keys() - pinned.keys()),
        ("pinned and not installed", pinned.keys() - listed.keys()),
    ):
        if names:
            print(f"{what}: {', '.join(sorted(names))}")
    return int(bool(wrong))


def main() -> int:
    """Run one check."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    checks = asked.add_subparsers(dest="check", required=True)
    checks.add_parser("advisories").add_argument("--strict", action="store_true")
    checks.add_parser("sbom").add_argument("file", type=Path)
    options = asked.parse_args()
    return advisories(strict=options.strict) if options.check == "advisories" else sbom(options.file)


if __name__ == "__main__":
    sys.exit(main())
