"""The query of a GET request, read name by name; what nobody asks for is refused, as a misspelt filter would change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from starlette.datastructures import QueryParams

from art.config.train import nearest
from art.errors import InvalidInput

S = TypeVar("S", bound=str)
MOST = 1000
"""Rows of one page."""
LONGEST = 4000
"""Characters of a value."""


class Query:
    """Values by name. Each getter raises InvalidInput for a value that cannot be right."""

    def __init__(self, params: QueryParams, known: Sequence[str]) -> None:
        """InvalidInput for a name that is not `known`, or one that is given twice."""
        self._params = params
        for name in params:
            if name not in known:
                raise InvalidInput(f"there is no query parameter {name[:80]!r}", hint=nearest(name, known))

    def text(self, name: str) -> str | None:
        """None where it is not given, or empty."""
        given = self._params.getlist(name)
        if len(given) > 1:
            raise InvalidInput(f"{name} is given {len(given)} times")
        if not given or not given[0]:
            return None
        if len(given[0]) > LONGEST or "\0" in given[0]:
            raise InvalidInput(f"{name} is no text of at most {LONGEST} characters")
        return given[0]

    def texts(self, name: str) -> list[str]:
        """A name that may be given several times."""
        return [value for value in self._params.getlist(name) if value]

    def number(
        self, name: str, default: int | None = None, *, least: int = 0, most: int = 2**63 - 1
    ) -> int | None:
        given = self.text(name)
        if given is None:
            return default
        right = given.isascii() and given.isdecimal() and len(given) <= 18 and least <= int(given) <= most
        if not right:
            raise InvalidInput(f"{name} is {given[:80]!r}", hint=f"a whole number from {least} to {most}")
        return int(given)

    def limit(self, default: int = 50) -> int:
        """Rows of the page."""
        found = self.number("limit", default, least=1, most=MOST)
        return default if found is None else found

    def one_of(self, name: str, options: Sequence[S], default: S) -> S:
        given = self.text(name)
        if given is None:
            return default
        if given not in options:
            raise InvalidInput(f"{name} is {given[:80]!r}", hint=nearest(given, options))
        return cast(S, given)
