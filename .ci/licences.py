"""Hold what is installed to licences that its users can live with.

    .venv/bin/python .ci/licences.py

Reads the metadata of every installed distribution and compares it with .ci/licences.toml: the SPDX identifiers that are
allowed, the names that older metadata has for them, and single distributions whose metadata does not say it, each with
what it is and where that stands.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent / "licences.toml"
OURS = "agent-reinforcement-trainer"
_OSI = "License :: OSI Approved :: "
_TOKEN = re.compile(r"\(|\)|[^\s()]+")


@dataclass
class Policy:
    """The rules, and which of them have been needed."""

    allowed: frozenset[str]
    names: Mapping[str, str]
    """What metadata calls a licence -> its SPDX identifier."""
    given: Mapping[str, str]
    """Distribution -> its SPDX expression."""
    used: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, text: str) -> Policy:
        """ValueError for an exception without a reason."""
        data: dict[str, Any] = tomllib.loads(text)
        given = {}
        for entry in data.get("exception", []):
            if not str(entry.get("reason", "")).strip():
                raise ValueError(f"{FILE.name}: an exception without a reason: {entry}")
            given[normal(entry["name"])] = entry["licence"]
        return cls(frozenset(data["allowed"]), data["names"], given)

    def allows(self, expression: str) -> bool:
        """Whether an SPDX expression can be met with allowed licences alone."""
        tokens = _TOKEN.findall(expression)
        try:
            value = self._either(tokens)
        except IndexError:
            return False
        return value and not tokens

    def _either(self, tokens: list[str]) -> bool:
        value = self._both(tokens)
        while tokens and tokens[0].upper() == "OR":
            tokens.pop(0)
            value = self._both(tokens) or value
        return value

    def _both(self, tokens: list[str]) -> bool:
        value = self._one(tokens)
        while tokens and tokens[0].upper() == "AND":
            tokens.pop(0)
            value = self._one(tokens) and value
        return value

    def _one(self, tokens: list[str]) -> bool:
        token = tokens.pop(0)
        if token == "(":
            value = self._either(tokens)
            return tokens.pop(0) == ")" and value
        if len(tokens) > 1 and tokens[0].upper() == "WITH":
            token = " ".join([token, tokens.pop(0), tokens.pop(0)])
        self.used.add(token)
        return token in self.allowed


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def expression(distribution: importlib.metadata.Distribution, policy: Policy) -> str:
    """The SPDX expression of a distribution; "" where its metadata does not tell."""
    meta = distribution.metadata
    name = normal(meta["Name"])
    if name in policy.given:
        policy.used.add(name)
        return policy.given[name]
    if meta.get("License-Expression"):
        return str(meta["License-Expression"])
    said = [text.removeprefix(_OSI) for text in meta.get_all("Classifier") or () if text.startswith(_OSI)]
    short = (meta.get("License") or "").strip()
    # Long texts are the licence itself, which says nothing that could be compared.
    said = said or ([short] if short and "\n" not in short else [])
    policy.used.update(text for text in said if text in policy.names)
    return " AND ".join(f"({policy.names.get(text, text)})" for text in said)


def check(distributions: Iterable[importlib.metadata.Distribution], policy: Policy) -> list[str]:
    """What is wrong, a line each."""
    problems = []
    for one in distributions:
        name = normal(one.metadata["Name"])
        if name == OURS:
            continue
        found = expression(one, policy)
        if not found:
            problems.append(f"{name}: its metadata names no licence")
        elif not policy.allows(found):
            problems.append(f"{name}: {found} is not allowed")
    return sorted(set(problems))


def main() -> int:
    """Print what is wrong; 1 when anything is."""
    policy = Policy.read(FILE.read_text())
    distributions = list(importlib.metadata.distributions())
    problems = check(distributions, policy)
    print("\n".join(problems) or f"licences: {len(distributions)} distributions, all allowed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
