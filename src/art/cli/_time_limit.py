"""An end to what does not end by itself.

SQLite looks at the clock between two instructions of its machine, and a single one may take minutes: a `replace` over a
long text is one. It computes outside the interpreter's lock, so another thread can still end the process.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from art.errors import ArtError

GRACE_SECONDS = 1.0
"""For what is asked to end in order, before it is ended in the middle."""


@contextlib.contextmanager
def ends_within(seconds: float, error: ArtError, *, as_json: bool) -> Iterator[None]:
    """What stands inside is over a moment after `seconds`, or the process is: with `error` on stderr, and its exit status.

    Only for what reads: nothing is put in order behind it.
    """
    limit = threading.Timer(min(seconds + GRACE_SECONDS, threading.TIMEOUT_MAX), _end, (error, as_json))
    limit.daemon = True
    limit.start()
    try:
        yield
    finally:
        limit.cancel()


def _end(error: ArtError, as_json: bool) -> None:
    from art.cli.main import EXIT_ERROR, report

    try:
        report(error, as_json=as_json)
    finally:
        os._exit(EXIT_ERROR)
