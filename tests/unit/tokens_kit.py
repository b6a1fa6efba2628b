"""Tokenizers and templates for the tests of `art.tokens`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from art.testing.tiny import byte_tokenizer
from art.tokens.graph import Node, TokenGraph, next_digest
from art.tokens.prompt import Prompt, build_prompt
from art.tokens.renderer import Renderer
from art.tokens.tokenizer import Tokenizer
from art.types.messages import FunctionCall, Message, Tool, ToolCall

TEMPLATES = Path(__file__).parents[1] / "data" / "templates"
START, END, EOS = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

WEATHER = Tool.model_validate(
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city, <now>.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
)


def template(name: str) -> str:
    """A chat template of tests/data/templates. The file's last line break is not part of it."""
    return (TEMPLATES / f"{name}.jinja").read_text().removesuffix("\n")


@lru_cache(maxsize=1)
def bpe() -> FastTokenizer:
    """A small BPE tokenizer whose merges cross words, line breaks and brackets."""
    tokenizer = FastTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [
        "system\nuser\nassistant\ntool\nIt is sunny in Paris.\n\n",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "First question? And another? Überraschung für Zoë: 你好 🙂 naïve café.",
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[EOS, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus * 3, trainer)
    return tokenizer


def tokenizer(fast: FastTokenizer | None = None, *, eos: str = END) -> Tokenizer:
    """Our tokenizer around a fast one, ChatML marks as specials."""
    fast = FastTokenizer.from_str((fast or bpe()).to_str())
    end = fast.token_to_id(eos)
    assert end is not None
    return Tokenizer(fast, specials={"bos_token": START, "eos_token": eos}, stop_token_ids=frozenset({end}))


def renderer(name: str, *, fast: FastTokenizer | None = None, eos: str = END) -> Renderer:
    return Renderer(tokenizer(fast, eos=eos), template(name))


def byte_renderer(name: str) -> Renderer:
    return renderer(name, fast=byte_tokenizer())


def user(text: str) -> Message:
    return Message(role="user", content=text)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def assistant(text: str | None, *calls: tuple[str, str]) -> Message:
    made = tuple(
        ToolCall(id=f"call_{i}", function=FunctionCall(name=name, arguments=arguments))
        for i, (name, arguments) in enumerate(calls)
    )
    return Message(role="assistant", content=text, tool_calls=made)


def tool(text: str, call_id: str = "call_0") -> Message:
    return Message(role="tool", content=text, tool_call_id=call_id)


class Session:
    """A conversation as the gateway keeps it: prompts built from memory, completions sampled by a test."""

    def __init__(self, renderer: Renderer, tools: tuple[Tool, ...] = ()) -> None:
        self.renderer = renderer
        self.tools = tools
        self.graph = TokenGraph()
        self.calls = 0

    def prompt(self, messages: list[Message], **options: Any) -> Prompt:
        return build_prompt(self.renderer, self.graph, messages, tools=self.tools, **options)

    def sample(self, prompt: Prompt, depth: int, message: Message, token_ids: list[int]) -> Node:
        node = Node(
            digest=next_digest(prompt.digest, message),
            parent=prompt.node,
            depth=depth + 1,
            message=message,
            shared=prompt.reused,
            tail=np.asarray(prompt.token_ids[prompt.reused :] + token_ids, dtype=np.int32),
            call_id=f"c{self.calls}",
            choice=0,
            branch=self.graph.branch_for(prompt.node, prompt.digest),
            turn=prompt.digest,
        )
        self.calls += 1
        self.graph.add(node)
        return node
