"""The key that tokens of redacted calls are encrypted with: 32 random bytes, in the server's folder or the environment."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from art.errors import ConfigError

VARIABLE = "ART_DATA_KEY"
"""Holds the key in base64 in place of the file: for a key that must not lie beside the data."""
FILE = "data.key"
KEY_BYTES = 32


def data_keys(
    folder: Path, *, make: bool = False, environment: Mapping[str, str] | None = None
) -> list[bytes]:
    """The keys of a server's folder (`<path>/server`): the first encrypts, all of them decrypt.

    With `make` a folder without any gets one. ConfigError for what is no key, and for a file that others can read.
    """
    given = (os.environ if environment is None else environment).get(VARIABLE, "").strip()
    found = [_decoded(given, f"the environment variable {VARIABLE}")] if given else []
    file = folder / FILE
    kept = _read(file)
    if kept is None and make and not found:
        kept = _made(file)
    return [*found, *([kept] if kept is not None else [])]


def _decoded(text: str, where: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{where} holds no key",
            cause=f"a key is {KEY_BYTES} bytes in base64",
            hint="make one: python -c 'import base64, os; print(base64.b64encode(os.urandom(32)).decode())'",
        )
    return key


def _read(file: Path) -> bytes | None:
    try:
        mode = file.stat().st_mode & 0o777
        text = file.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the data key {file} cannot be read", cause=str(error)) from error
    if mode & 0o077:
        raise ConfigError(
            f"the data key {file} can be read by others",
            cause=f"its mode is {mode:04o}",
            hint=f"chmod 600 {file}",
        )
    return _decoded(text, f"the file {file}")


def _made(file: Path) -> bytes:
    key = secrets.token_bytes(KEY_BYTES)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as handle:
        handle.write(base64.b64encode(key).decode() + "\n")
        handle.flush()
        os.fsync(fd)
    temporary.replace(file)
    return key
