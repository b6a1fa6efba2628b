"""Hold modules, functions and parameter lists to a size that fits a head.

    python .ci/limits.py

A module has at most 400 lines, a function 60, a parameter list 7 (keyword-only parameters count as one,
`self` and `cls` not at all). An exception stands in .ci/limits.toml with its reason; that file may only
shrink: an entry that is not needed any more, is too generous, or is newer than the file's first version
fails the check.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS_FILE = ".ci/limits.toml"
LIMITS = {"module": 400, "function": 60, "parameters": 7}
SOURCES = ("src", "benchmarks", "examples", ".ci")

Key = tuple[str, str, str]
"""Kind, path, and the function's dotted name ("" for a module)."""


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters a caller must keep apart by position, and one for all keyword-only ones."""
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    if names and names[0] in ("self", "cls"):
        names = names[1:]
    return len(names) + bool(node.args.kwonlyargs)


def measure(path: Path) -> Iterator[tuple[Key, int]]:
    """Every figure of one module."""
    text = path.read_text()
    where = str(path.relative_to(ROOT))
    yield ("module", where, ""), len(text.splitlines())

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[Key, int]]:
        for child in ast.iter_child_nodes(node):
            name = f"{prefix}{getattr(child, 'name', '')}"
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield ("function", where, name), (child.end_lineno or 0) - child.lineno + 1
                yield ("parameters", where, name), parameters(child)
            scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            yield from walk(child, f"{name}." if scope else prefix)

    yield from walk(ast.parse(text), "")


def exceptions(text: str) -> dict[Key, int]:
    """The entries of a limits file; ValueError when one has no reason."""
    found: dict[Key, int] = {}
    for entry in tomllib.loads(text).get("exception", []):
        if not str(entry.get("reason", "")).strip():
            raise ValueError(f"{LIMITS_FILE}: an exception without a reason: {entry}")
        found[entry["kind"], entry["path"], entry.get("name", "")] = int(entry["limit"])
    return found


def git(*arguments: str) -> str:
    """Output of a git command; empty where there is no repository (an unpacked archive)."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def grown(current: dict[Key, int]) -> Iterator[str]:
    """Entries that an earlier version of the limits file did not have, or had smaller."""
    for commit in git("log", "--format=%H", "--", LIMITS_FILE).split():
        earlier = exceptions(git("show", f"{commit}:{LIMITS_FILE}"))
        for key, limit in current.items():
            if limit > earlier.get(key, 0):
                yield f"{LIMITS_FILE}: {' '.join(key)} = {limit} is more than {commit[:8]} allowed"


def main() -> int:
    """Print what breaks a limit; 1 when anything does."""
    file = ROOT / LIMITS_FILE
    allowed = exceptions(file.read_text()) if file.exists() else {}
    figures: dict[Key, int] = {}
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            figures.update(measure(path))
    problems = []
    for key, figure in figures.items():
        limit = allowed.get(key, LIMITS[key[0]])
        if figure > limit:
            problems.append(f"{key[1]}: {key[2] or 'module'}: {key[0]} {figure} is over {limit}")
        elif key in allowed and figure < limit:
            problems.append(f"{LIMITS_FILE}: {' '.join(key)} may shrink from {limit} to {figure}")
    problems += [
        f"{LIMITS_FILE}: {' '.join(key)} does not exist any more" for key in allowed.keys() - figures.keys()
    ]
    problems += grown(allowed)
    print("\n".join(problems) or f"limits: {len(figures)} figures within bounds, {len(allowed)} exceptions")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
