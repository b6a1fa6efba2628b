"""One target under atheris, in a process of its own: `python tests/fuzz/parser_harness.py TARGET [libFuzzer's options] FOLDER...`."""

from __future__ import annotations

import sys

import atheris
import parser_mutation as mutation

with atheris.instrument_imports(include=["art"]):
    import parser_targets as targets


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    name = sys.argv.pop(1)
    target = targets.TARGETS[name]

    def once(data: bytes) -> None:
        target(data)

    def change(data: bytes, most: int, seed: int) -> bytes:
        return mutation.changed(data, most, seed, otherwise=atheris.Mutate)

    structured = {"custom_mutator": change} if name in targets.JSON_TARGETS else {}
    atheris.Setup(sys.argv, once, **structured)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
