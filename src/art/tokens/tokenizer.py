"""Text <-> token ids from a model folder's files, without transformers.

`tokenizer.json` decides everything about the ids; the special tokens come from `tokenizer_config.json` (and
the older `special_tokens_map.json`), the tokens that end a turn from `generation_config.json`, `config.json`
and the tokenizer's own end-of-sequence token together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from art.errors import ConfigError, PromptTooLong

REPLACEMENT = "\ufffd"
MAX_PENDING_TOKENS = 64
"""Tokens held back for an unfinished character. A character has at most 4 bytes; past this it is garbage,
and holding on would make decoding quadratic."""

QUICK_BYTES = 32 * 1024
"""Text up to this is tokenised at once, so that an error can tell the exact number of tokens."""

_SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A model's tokenizer. `specials` are the named special tokens that chat templates may use."""

    def __init__(
        self, fast: FastTokenizer, *, specials: dict[str, str], stop_token_ids: frozenset[int]
    ) -> None:
        self._fast = fast
        self._fast.no_truncation()
        self._fast.no_padding()
        self.specials = specials
        self.stop_token_ids = stop_token_ids
        settings = json.loads(fast.to_str())
        self._decoder = str(settings.get("decoder"))
        self._bytes_per_token = most_bytes_per_token(settings)
        self._added = frozenset(fast.get_added_tokens_decoder())
        self._bytes: dict[int, bytes] = {}
        """Of the tokens asked for so far: each is written out with every answer it occurs in."""

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read a model folder. ConfigError where the files are missing or name no end-of-turn token."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(
                f"{folder} has no tokenizer.json",
                hint="save the model with a fast tokenizer: AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            )
        fast = FastTokenizer.from_file(str(path))
        settings = read_json(folder / "tokenizer_config.json")
        older = read_json(folder / "special_tokens_map.json")
        specials: dict[str, str] = {}
        for key in _SPECIAL_KEYS:
            text = _token_text(settings.get(key, older.get(key)))
            if text is not None:
                specials[key] = text
        stops = _eos_ids(read_json(folder / "generation_config.json")) | _eos_ids(
            read_json(folder / "config.json")
        )
        eos = fast.token_to_id(specials["eos_token"]) if "eos_token" in specials else None
        if eos is not None:
            stops.add(eos)
        if not stops:
            raise ConfigError(
                f"{folder} names no end-of-sequence token",
                hint="set eos_token in tokenizer_config.json or eos_token_id in generation_config.json",
            )
        return cls(fast, specials=specials, stop_token_ids=frozenset(stops))

    @property
    def vocab_size(self) -> int:
        """Ids including added tokens."""
        return int(self._fast.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, at_most: int | None = None) -> list[int]:
        """Token ids of `text`; special tokens written in it count as such, none are added.

        PromptTooLong, without encoding, for a text whose bytes alone cannot be `at_most` tokens. One that passes
        may still be longer.
        """
        if at_most is not None and self._bytes_per_token and (size := len(text.encode())) > QUICK_BYTES:
            least = -(-size // self._bytes_per_token)
            if least > at_most:
                raise PromptTooLong(
                    f"the prompt goes on for {size} bytes, which are at least {least} tokens; {max(at_most, 0)} are left",
                    hint="shorten or summarise the history, or use a base model with a longer context",
                )
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text; bytes that are no UTF-8 become U+FFFD."""
        return str(self._fast.decode(list(token_ids), skip_special_tokens=skip_special))

    def token_id(self, text: str) -> int | None:
        """The id of exactly this token."""
        found = self._fast.token_to_id(text)
        return None if found is None else int(found)

    def has_token(self, token_id: int) -> bool:
        """Whether there is a token of this id."""
        return 0 <= token_id < 2**32 and self._fast.id_to_token(token_id) is not None

    def added_tokens(self) -> dict[str, int]:
        """The tokens outside the model's own vocabulary, special or not, with their ids."""
        return {str(token.content): int(at) for at, token in self._fast.get_added_tokens_decoder().items()}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; a special token's are those of its name."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._token_bytes(token_id)
            if known:  # of any other number there are too many to keep
                self._bytes[token_id] = known
        return known

    def _token_bytes(self, token_id: int) -> bytes:
        piece = self._fast.id_to_token(token_id)
        if piece is None:
            return b""
        if token_id in self._added:
            return str(piece).encode()
        if "ByteLevel" in self._decoder:
            table = _byte_level_table()
            return (
                bytes(table[char] for char in piece)
                if all(c in table for c in piece)
                else str(piece).encode()
            )
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return str(piece).replace("\u2581", " ").encode()

    def detokenizer(self, *, keep: frozenset[int] = frozenset()) -> Detokenizer:
        """A fresh incremental detokeniser. `keep`: special tokens whose names are part of the text."""
        return Detokenizer(self, keep)


class Detokenizer:
    """Tokens in, text out, never half a character. The pieces joined are the text of all tokens."""

    def __init__(self, tokenizer: Tokenizer, keep: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._keep = keep
        self._token_ids: list[int] = []
        # Decoding starts at `_start`, so that what a token means after its neighbours is kept; the text up
        # to `_done` has been given out.
        self._start = 0
        self._done = 0

    def feed(self, token_id: int) -> str:
        """The text that has become certain; "" while a character is unfinished."""
        if token_id in self._keep:
            return self._special(token_id)
        self._token_ids.append(token_id)
        return self._advance(force=len(self._token_ids) - self._done > MAX_PENDING_TOKENS)

    def finish(self) -> str:
        """What was held back; an unfinished character becomes U+FFFD."""
        return self._advance(force=True)

    def _special(self, token_id: int) -> str:
        """A kept special token ends what stands before it; what follows is decoded anew."""
        before = self._advance(force=True)
        self._token_ids, self._start, self._done = [], 0, 0
        return before + self._tokenizer.decode([token_id], skip_special=False)

    def _advance(self, *, force: bool) -> str:
        before = self._tokenizer.decode(self._token_ids[self._start : self._done])
        now = self._tokenizer.decode(self._token_ids[self._start :])
        if now.endswith(REPLACEMENT) and not force:
            return ""
        if len(now) <= len(before):
            return ""
        self._start, self._done = self._done, len(self._token_ids)
        return now[len(before) :]


_NFC_SHRINKS = 4
"""Composing characters makes no text shorter than a third of its bytes (three Hangul letters of 3 bytes each
become one syllable of 3); one more for good measure."""


def most_bytes_per_token(settings: dict[str, Any]) -> int:
    """The most bytes of text that one token can stand for, from a tokenizer.json's content.

    0 where it cannot be told: for tokenizers that drop or shorten text, such as ones that collapse white space,
    and for those that know no bytes and write one unknown token for many characters.
    """
    model = settings.get("model") or {}
    pieces = _parts(settings.get("pre_tokenizer"))
    levels = any(part["type"] == "ByteLevel" for part in pieces)
    if model.get("type") != "BPE" or not (levels or model.get("byte_fallback")):
        return 0
    added = settings.get("added_tokens") or []
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        return 0
    if any(
        part["type"] not in ("ByteLevel", "Digits", "Metaspace", "Split") or part.get("behavior") == "Removed"
        for part in pieces
    ):
        return 0
    shrinks = 1
    for part in _parts(settings.get("normalizer")):
        spaces = part["type"] == "Replace" and part.get("pattern") == {"String": " "} and part.get("content")
        if part["type"] == "NFC":
            shrinks = _NFC_SHRINKS
        elif part["type"] != "Prepend" and not spaces:
            return 0
    # A byte-level piece has a character for every byte; other pieces are the text itself.
    longest = max((len(piece) if levels else len(piece.encode()) for piece in model["vocab"]), default=0)
    return shrinks * max([longest, *(len(str(token["content"]).encode()) for token in added)])


def _parts(settings: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A step of the tokenizer's pipeline as the list of its single steps."""
    if settings is None:
        return []
    if settings.get("type") != "Sequence":
        return [settings]
    inner = settings.get("pretokenizers") or settings.get("normalizers") or []
    return [part for item in inner for part in _parts(item)]


@lru_cache(maxsize=1)
def _byte_level_table() -> dict[str, int]:
    """Character -> byte of the byte-level alphabet (Radford et al. 2019, GPT-2's `bytes_to_unicode`)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    table = {chr(byte): byte for byte in printable}
    shifted = 0
    for byte in range(256):
        if byte not in printable:
            table[chr(256 + shifted)] = byte
            shifted += 1
    return table


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, {} where there is no such file; ConfigError where it is broken."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON", cause=str(error)) from error
    return data if isinstance(data, dict) else {}


def _token_text(value: object) -> str | None:
    """A special token is written as text or as {"content": text, ...}."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _eos_ids(settings: dict[str, Any]) -> set[int]:
    value = settings.get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return {int(item) for item in values if isinstance(item, int)}
