"""Encrypted records: AES-256-GCM with a key for each record, which the server's data key keeps.

    record = MAGIC | id of the data key (8) | nonce (12) | the record's key, encrypted (48) | nonce (12) | content, encrypted

A record whose head is overwritten can be read by nobody, whoever has the data key: that is how tokens are deleted. Both
encryptions are bound to the file's name, so that a record put into another file is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from art.config.data_key import FILE, VARIABLE, data_keys
from art.errors import ConfigError, InvalidInput, TokensDeleted
from art.version import DISTRIBUTION

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"ARTSEAL\x01"
"""No safetensors buffer begins so: it would be the length of a header of 10^17 bytes."""
NONCE, TAG, KEY, KEY_ID = 12, 16, 32, 8
HEAD = len(MAGIC) + KEY_ID + NONCE + KEY + TAG
"""Bytes; without them the rest of a record is noise."""


class Seal:
    """The data keys of one server's folder."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """The first key seals, each opens what it sealed."""
        self._keys = {_id_of(key): _cipher(key) for key in keys}
        self._newest = _id_of(keys[0]) if keys else b""

    @classmethod
    def load(cls, folder: Path, *, make: bool = False) -> Seal:
        """Of a server's folder (`<path>/server`). ConfigError where there is no key, or `cryptography` is missing."""
        keys = data_keys(folder, make=make)
        if not keys:
            raise ConfigError(
                f"there is no key for the encrypted tokens in {folder}",
                cause=f"neither {folder / FILE} nor the environment variable {VARIABLE} holds one",
                hint=f"put {FILE} back, or set {VARIABLE} where the server is started",
            )
        return cls(keys)

    def close(self, content: bytes, name: str) -> bytes:
        """The record of `content` for the file `name`."""
        key, outer, inner = os.urandom(KEY), os.urandom(NONCE), os.urandom(NONCE)
        bound = name.encode()
        wrapped: bytes = self._keys[self._newest].encrypt(outer, key, bound)
        sealed: bytes = _cipher(key).encrypt(inner, content, bound)
        return MAGIC + self._newest + outer + wrapped + inner + sealed

    def open(self, record: bytes, name: str) -> bytes:
        """The content of a record. TokensDeleted when it was destroyed, InvalidInput when another key sealed it."""
        from cryptography.exceptions import InvalidTag

        if is_destroyed(record):
            raise deleted(name)
        head, body = record[len(MAGIC) : HEAD], record[HEAD:]
        cipher = self._keys.get(head[:KEY_ID])
        if cipher is None:
            raise InvalidInput(
                f"tokens in {name} were encrypted with another key",
                hint=f"give the server the key that it had then: {FILE} in its folder, or {VARIABLE}",
            )
        bound = name.encode()
        try:
            key = cipher.decrypt(head[KEY_ID : KEY_ID + NONCE], head[KEY_ID + NONCE :], bound)
            content: bytes = _cipher(key).decrypt(body[:NONCE], body[NONCE:], bound)
        except InvalidTag as error:
            raise InvalidInput(
                f"encrypted tokens in {name} are damaged",
                hint="restore the file from a backup, or leave this rollout out of training",
            ) from error
        return content


def deleted(name: str) -> TokensDeleted:
    """Why a record of the file `name` cannot be read any more."""
    return TokensDeleted(
        f"tokens in {name} were deleted after they were trained",
        cause="the project keeps redacted calls no longer than that",
        hint="sample them again; what was trained of them stays trained",
    )


def is_sealed(record: bytes) -> bool:
    """Whether a buffer is an encrypted record."""
    return record.startswith(MAGIC)


def is_destroyed(record: bytes) -> bool:
    """Whether a record's own key is gone."""
    return is_sealed(record) and not any(record[len(MAGIC) : HEAD])


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"art data key" + key).digest()[:KEY_ID]


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError as error:
        raise ConfigError(
            "redaction encrypts tokens with the package cryptography, which is not installed",
            cause=str(error),
            hint=f"pip install '{DISTRIBUTION}[encryption]'",
        ) from error
    return AESGCM(key)
