"""A small tokenizer that knows the words of a seeded store, and the model folder it lies in (without weights)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from art.testing.seeded.task import TOOLS, Turn, corpus
from art.testing.tiny import CHAT_TEMPLATE, END, START

VOCABULARY = 1200
"""Tokens; more than the texts need for most words to be one."""
CONTEXT = 65_536
"""Tokens. Nothing is ever sampled from the folder, so it costs nothing."""
_SENTENCES = re.compile(r"(?<=\.)")
MARKS = {"thought": ("<think>", "</think>"), "call": ("<tool_call>", "</tool_call>"), "text": ("", "")}


class Tokens:
    """Texts as token ids. Texts repeat, so each is looked at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        """Token ids; sentence by sentence, since sentences repeat."""
        found: list[int] = []
        for part in _SENTENCES.split(text):
            known = self._known.get(part)
            if known is None:
                encoded = self.tokenizer.encode(part, add_special_tokens=False)
                known = self._known[part] = list(encoded.ids)
            found += known
        return found

    def prompt(self, messages: Sequence[dict[str, Any]], *, opening: bool) -> list[int]:
        """What messages add to a conversation, up to the mark that the assistant's turn begins."""
        found: list[int] = []
        for number, message in enumerate(messages):
            tools = f"{json.dumps(TOOLS)}\n" if opening and number == 0 else ""
            found += self.ids(f"{START}{message['role']}\n{tools}")
            found += self.ids(message.get("content") or "")
            found += self.ids(f"{END}\n")
        return found + self.ids(f"{START}assistant\n")

    def completion(self, turn: Turn) -> tuple[list[int], list[tuple[str, int, int]]]:
        """What was sampled, and its outline (`server.runs.Outline`)."""
        found: list[int] = []
        outline: list[tuple[str, int, int]] = []
        for kind, text in turn.pieces:
            begin, end = MARKS[kind]
            found += self.ids(begin) + self.ids(text) + self.ids(end)
            outline.append((kind, 0 if kind == "call" else len(text), len(found)))
        return found + self.ids(END), outline


def base_model(folder: Path) -> Tokens:
    """Write a model folder without weights; its tokenizer."""
    tokenizer = _tokenizer(corpus())
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id(END)
    files: dict[str, dict[str, Any]] = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "eos_token_id": end,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": CONTEXT,
        },
        "tokenizer_config.json": {"eos_token": END, "pad_token": END, "model_max_length": CONTEXT},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return Tokens(tokenizer)


def _tokenizer(texts: Iterable[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[START, END],
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(texts), trainer)
    return tokenizer
