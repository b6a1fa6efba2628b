"""Mistral's tokenizer files (`tekken*.json`, as mistral-common ships them) as tokenizers of ours.

A file lists byte sequences by rank. tiktoken joins the pair whose join has the lowest rank; a BPE tokenizer whose merges
are all the ways to cut each sequence in two, in the order of the ranks, does the same.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import templates_kit
import test_templates
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from art.tokens.tokenizer import _byte_level_table


def fast_tokenizer(file: Path) -> FastTokenizer:
    """The tokenizer of a file. Its special tokens come first, then the sequences by rank."""
    data = json.loads(file.read_text(encoding="utf-8"))
    config = data["config"]
    count = int(config["default_num_special_tokens"])
    named = {item["rank"]: item["token_str"] for item in data.get("special_tokens") or NAMED}
    specials = [named.get(rank, f"<SPECIAL_{rank}>") for rank in range(count)]
    ranks = {
        base64.b64decode(item["token_bytes"]): int(item["rank"])
        for item in data["vocab"][: int(config["default_vocab_size"]) - count]
    }
    letters = {byte: char for char, byte in _byte_level_table().items()}
    written = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = [
        (written[token[:at]], written[token[at:]])
        for token in sorted(ranks, key=ranks.__getitem__)
        for at in sorted(range(1, len(token)), key=lambda at: ranks.get(token[:at], -1))
        if token[:at] in ranks and token[at:] in ranks
    ]
    vocab = {name: rank for rank, name in enumerate(specials)}
    vocab |= {written[token]: rank + count for token, rank in ranks.items()}
    tokenizer = FastTokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(config["pattern"]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    return tokenizer


NAMED = [
    {"rank": rank, "token_str": name}
    for rank, name in enumerate(
        (
            *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *(
                "[TOOL_RESULTS]",
                "[/TOOL_RESULTS]",
                "[TOOL_CALLS]",
                "[IMG]",
                "<pad>",
                "[IMG_BREAK]",
                "[IMG_END]",
            ),
            *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
        )
    )
]
"""Of files that name no special tokens."""


@contextmanager
def in_place(template: str, file: Path) -> Iterator[None]:
    """The template's tests use this tokenizer instead of bytes while the block runs."""
    fast = fast_tokenizer(file)

    def of(text: str, extra: tuple[str, ...] = ()) -> FastTokenizer:
        assert text == templates_kit.source(template)
        return fast

    caches = (templates_kit.renderer, test_templates.proof, test_templates.reference)
    with mock.patch.object(templates_kit, "fast_tokenizer", of):
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()
