"""The tree of errors: every class is known by a code of its own, and survives the wire."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter

import pytest

import art
from art.errors import ArtError, InvalidInput, NotFound, _subclasses, from_dict
from art.server.guard import host_name

ENTRY_POINTS = ("__main__",)


def tree() -> list[type[ArtError]]:
    """Every class of the package, wherever it is defined."""
    for module in pkgutil.walk_packages(art.__path__, "art."):
        if not module.name.endswith(ENTRY_POINTS):
            importlib.import_module(module.name)
    return [kind for kind in _subclasses(ArtError) if kind.__module__.startswith("art.")]


def test_every_error_has_a_code_of_its_own_and_comes_back_as_itself() -> None:
    kinds = tree()
    shared = {code: n for code, n in Counter(kind.code for kind in kinds).items() if n > 1}
    assert not shared
    for kind in kinds:
        assert type(from_dict(kind("m", cause="c", hint="h").to_dict())) is kind


def test_a_class_without_a_code_of_its_own_does_not_take_its_parents_place() -> None:
    class Borrowed(InvalidInput):
        status = 418

    assert type(from_dict({"code": "invalid_input", "message": "m"})) is InvalidInput
    assert type(from_dict(NotFound("m").to_dict())) is NotFound


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST:9", "localhost"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("[::1]:80", "[::1]"),
        ("my-host_1.example:65535", "my-host_1.example"),
        ("localhost:1@evil", ""),
        ("localhost:", ""),
        ("[::1]x", ""),
        ("[::1", ""),
        ("::1", ""),
        ("127.0.0.1:80:80", ""),
        ("user@localhost", ""),
        ("localhost:80\n", ""),
        ("localhost/..", ""),
        ("", ""),
    ],
)
def test_a_host_header_is_read_whole(host: str, name: str) -> None:
    assert host_name(host) == name
