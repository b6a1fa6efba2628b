"""Reading what a client sent: bodies, whole numbers, and the failures that only bad input causes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request

from art.errors import BodyTooLarge, InvalidInput

INT64_MAX = 2**63 - 1
MAX_INFERENCE_BYTES = 16 * 1024 * 1024
"""Of a call to a model: more text than any context holds, and JSON of it stalls nobody for long."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_DIGITS = re.compile(r"[0-9]{1,19}")


@contextmanager
def reading(what: str) -> Iterator[None]:
    """While a request is read, these errors say that it cannot be right, not that the server failed."""
    try:
        yield
    except RecursionError as error:
        raise InvalidInput(f"{what} is nested too deeply") from error
    except UnicodeError as error:
        raise InvalidInput(f"{what} holds text that is not Unicode", cause=str(error)[:200]) from error
    except OverflowError as error:
        raise InvalidInput(f"{what} holds a number that is too large", cause=str(error)) from error


def read_json(raw: bytes) -> Any:
    """The body as JSON in UTF-8 (RFC 8259). InvalidInput for anything else, and for lone surrogates.

    A lone surrogate (`\\ud800`) is half a character: it can be neither stored nor tokenised. It can only come
    as an escape, because the bytes are decoded strictly, so bodies without such escapes are not looked through.
    """
    with reading("the request's body"):
        try:
            data = json.loads(raw.decode("utf-8-sig"))
        except UnicodeError as error:
            raise InvalidInput("the request's body is not UTF-8", cause=str(error)[:200]) from error
        except ValueError as error:
            raise InvalidInput("the request's body is no JSON", cause=str(error)) from error
        if _SURROGATE.search(raw):
            _refuse_surrogates(json.dumps(data, ensure_ascii=False))
    return data


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        near = ascii(text[max(0, error.start - 30) : error.start + 1])
        raise InvalidInput(
            f"the request's body holds the lone surrogate \\u{ord(text[error.start]):04x}",
            cause=f"half a character of UTF-16, behind {near}",
            hint="cut texts between characters, or encode them with errors='replace' before you send them",
        ) from None


async def bounded_body(request: Request, limit: int) -> bytes:
    """The body. BodyTooLarge as soon as it is longer than `limit` bytes."""
    too_large = BodyTooLarge(
        f"the request's body is over {limit} bytes", hint="shorten or summarise the conversation"
    )
    announced = whole_number(request.headers.get("content-length", "0"))
    if announced is not None and announced > limit:
        raise too_large
    chunks: list[bytes] = []
    seen = 0
    async for chunk in request.stream():
        seen += len(chunk)
        if seen > limit:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


def whole_number(text: str) -> int | None:
    """A number from 0 to 2^63 - 1 in ASCII digits, else None. `int()` takes other digits, and refuses long ones."""
    if _DIGITS.fullmatch(text) is None or int(text) > INT64_MAX:
        return None
    return int(text)
