"""Published chat templates with a byte-level tokenizer that has their family's special tokens."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from art.testing.tiny import byte_tokenizer
from art.tokens.renderer import Renderer
from art.tokens.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parents[1] / "data" / "templates"
TRL_FOLDER = Path(os.environ.get("ART_TRL_TEMPLATES") or TEMPLATES / "trl")
"""`make test-templates` names the folder of an installed TRL; without it these are the copies kept here."""
TRL = sorted(path.stem for path in TRL_FOLDER.glob("*.jinja"))
OWN = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))

ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<turn|>",
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
    "<|eot|>",
    "<|end|>",
    "<|user|>",
    "<end_of_utterance>",
    "</s>",
)
"""What ends a turn, per family; the first one that the template writes is the tokenizer's end of sequence."""

_SPECIAL = re.compile(
    r"<\|[^<>|'\s]+\|>|<｜[^<>｜']+｜>|<\|[a-z_]+>|<[a-z_]+\|>|<\|\"\|>|</?(?:start|end)_[a-z_]+>|<escape>|\[/?[A-Z_]+\]|</?s>|<bos>"
)
_PLAIN = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
"""Tokens of the vocabulary that are no special ones, as with Qwen and GLM."""


def source(name: str) -> str:
    """A template's text: one of TRL's, or one of our own."""
    path = TRL_FOLDER / f"{name}.jinja"
    return (path if path.is_file() else TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def end_of(text: str) -> str:
    """The end of turn that a template writes, by its name or as its eos_token (Mistral)."""
    if "[INST]" in text:
        return "</s>"
    return next((end for end in ENDS if end in text), ENDS[0])


def bos_of(text: str) -> str:
    """The beginning of a conversation: a token of the template's family."""
    families = {
        "<|start_header_id|>": "<|begin_of_text|>",
        "<｜User｜>": "<｜begin▁of▁sentence｜>",
        "[INST]": "<s>",
    }
    return next((bos for sign, bos in families.items() if sign in text), "<bos>")


@lru_cache(maxsize=128)
def fast_tokenizer(text: str, extra: tuple[str, ...] = ()) -> FastTokenizer:
    """Bytes, and the special tokens that a template names. `extra`: further ones of its family."""
    fast = byte_tokenizer()
    specials = [*dict.fromkeys([*_SPECIAL.findall(text), end_of(text), bos_of(text), *extra])]
    fast.add_special_tokens([AddedToken(item, special=True, normalized=False) for item in specials])
    fast.add_tokens([AddedToken(item, normalized=False) for item in dict.fromkeys(_PLAIN.findall(text))])
    return fast


def tokenizer(text: str, extra: tuple[str, ...] = ()) -> Tokenizer:
    """The tokenizer for a template."""
    fast = fast_tokenizer(text, extra)
    end = end_of(text)
    stop = fast.token_to_id(end)
    assert stop is not None
    return Tokenizer(
        FastTokenizer.from_str(fast.to_str()),
        specials={"bos_token": bos_of(text), "eos_token": end},
        stop_token_ids=frozenset({stop}),
    )


@lru_cache(maxsize=128)
def renderer(name: str, extra: tuple[str, ...] = ()) -> Renderer:
    """The renderer of a template."""
    text = source(name)
    return Renderer(tokenizer(text, extra), text)
