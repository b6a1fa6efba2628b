"""A second opinion: the `renderers` package writes the families it knows by hand, without their templates.

Where both are asked the same, both must say the same: the whole conversation, and what follows an answer
(its `bridge_to_next_turn` against our bridge). Where they differ, the model's own template is what is served,
and the difference stands here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parent))

import formats_kit
import renderers
import templates_kit
import tokens_kit as kit

from art.tokens.bridge import tail_tokens
from art.tokens.renderer import Renderer
from art.tokens.tokenizer import Tokenizer
from art.types.messages import Message

EXTRA = (
    *(
        "<|endoftext|>",
        "<eos>",
        "<pad>",
        "<unk>",
        "<|end_of_text|>",
        "<|eom_id|>",
        "<|python_tag|>",
        "[gMASK]",
        "<sop>",
    ),
    *("<|system|>", "<|assistant|>", "<|observation|>", "<|user|>", "<|finetune_right_pad_id|>"),
    *(
        "<|vision_start|>",
        "<|vision_end|>",
        "<|image_pad|>",
        "<|video_pad|>",
        "<|image|>",
        "<|audio|>",
        "<|video|>",
    ),
    *(
        "<|think|>",
        "<|channel>",
        "<channel|>",
        "<|image>",
        "<image|>",
        "<|audio>",
        "<audio|>",
        "<|video>",
        "<video|>",
        "<think>",
        "</think>",
    ),
)
"""Special tokens that the families' hand-written code looks up, whether the template names them or not."""

FAMILIES: dict[str, tuple[Any, str]] = {
    "qwen3": (renderers.Qwen3RendererConfig, "Qwen/Qwen3-8B"),
    "qwen3_instruct_2507": (renderers.Qwen3RendererConfig, "Qwen/Qwen3-4B-Instruct-2507"),
    "qwen3_5_think": (renderers.Qwen35RendererConfig, "Qwen/Qwen3.5-4B"),
    "qwen3_5_nothink": (renderers.Qwen35RendererConfig, "Qwen/Qwen3.5-0.8B"),
    "qwen3_6": (renderers.Qwen36RendererConfig, "Qwen/Qwen3.6-35B-A3B"),
    "qwen3_8": (renderers.Qwen38RendererConfig, "Qwen/Qwen3.8-27B"),
    "gemma4_v5": (renderers.Gemma4RendererConfig, "google/gemma-4-E2B-it"),
    "glm4moe": (renderers.GLM45RendererConfig, "zai-org/GLM-4.5-Air"),
    "llama3_1": (renderers.Llama3RendererConfig, "meta-llama/Llama-3.1-8B-Instruct"),
    "llama3_2": (renderers.Llama3RendererConfig, "meta-llama/Llama-3.2-1B-Instruct"),
    "nemotron_3_nano": (renderers.Nemotron3RendererConfig, "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
}
"""GPT-OSS is not here: its renderer fetches a vocabulary from the network when it is made."""

DIFFERENT = {
    ("llama3_2", "system"): "the template writes today's date, the package a fixed one",
    ("llama3_2", "tools"): "the same",
    ("llama3_2", "turns"): "the same",
    ("llama3_2", "results"): "the same",
    ("qwen3_5_nothink", "turns"): "the package writes an empty block of thought into earlier turns",
}


class _Adapter:
    """Our tokenizer as the package wants it."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        self._tokenizer = tokenizer
        self.name_or_path = name
        self.unk_token_id = None
        self.eos_token_id = min(tokenizer.stop_token_ids)

    def encode(self, text: str, **_: Any) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False, **_: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.decode(ids, skip_special=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        found = self._tokenizer.token_id
        return found(tokens) if isinstance(tokens, str) else [found(token) for token in tokens]


def both(name: str) -> tuple[Renderer, Any]:
    """Ours, and theirs with all reasoning kept, as the policy `keep` does."""
    ours = templates_kit.renderer(name, EXTRA)
    config, model = FAMILIES[name]
    return ours, renderers.create_renderer(_Adapter(ours.tokenizer, model), config(thinking_retention="all"))


SPECS = [
    tool.function.model_dump(include={"name", "description", "parameters"}) for tool in formats_kit.TOOLS
]
CALL = kit.assistant(None, ("look_up", '{"key": "a"}'))
CONVERSATIONS: dict[str, list[Message]] = {
    "system": [kit.system("Be brief."), kit.user("Hi?")],
    "tools": [kit.user("Hi?")],
    "turns": [kit.user("Hi?"), kit.assistant("Yes."), kit.user("So?")],
    "results": [kit.user("Hi?"), CALL, kit.tool("found")],
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", CONVERSATIONS)
def test_a_conversation_is_written_as_the_package_writes_it(name: str, kind: str) -> None:
    ours, theirs = both(name)
    messages = CONVERSATIONS[kind]
    tools = formats_kit.TOOLS if kind in ("tools", "results") else []
    wraps = name.startswith(("llama", "glm", "qwen", "nemotron"))
    specs: Sequence[Any] | None = SPECS if not wraps else [tool.to_template() for tool in tools]
    text = ours.text(messages, tools=tools)
    ids = _theirs(
        theirs,
        ours.messages(messages, tools),
        [SPECS, specs] if tools else [None],
        ours.tokenizer.encode(text),
    )
    assert (ours.tokenizer.decode(ids, skip_special=False) == text) == ((name, kind) not in DIFFERENT)


def _theirs(theirs: Any, messages: list[dict[str, Any]], forms: list[Any], wanted: list[int]) -> list[int]:
    """Their rendering, with the tools in the form (bare, or wrapped as OpenAI does) that comes closest."""
    found = [list(theirs.render_ids(messages, tools=form, add_generation_prompt=True)) for form in forms]
    return next((ids for ids in found if ids == wanted), found[0])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", ["question", "result"])
def test_what_follows_an_answer_is_what_the_package_says(name: str, kind: str) -> None:
    ours, theirs = both(name)
    tools = formats_kit.TOOLS if kind == "result" else []
    history = [kit.user("Hi?")]
    answer, tail = (CALL, [kit.tool("found")]) if tools else (kit.assistant("Yes."), [kit.user("So?")])
    prompt = ours.tokens(history, tools=tools)
    thinks = ours.tokenizer.decode(prompt, skip_special=False).rstrip().endswith("<think>")
    said = "hm</think>Yes." if thinks else "<think>hm</think>Yes." if name == "glm4moe" else "Yes."
    stop = min(ours.tokenizer.stop_token_ids)
    ends = {"glm4moe": "<|observation|>", "gemma4_v5": "<|tool_response>"}
    if tools and name in ends:
        stop = ours.tokenizer.token_id(ends[name]) or stop
    if tools and name == "gemma4_v5":
        said = '<|tool_call>call:look_up{key:<|"|>a<|"|>}<tool_call|>'
    sampled = [*ours.tokenizer.encode(said), stop]
    found = theirs.bridge_to_next_turn(
        prompt,
        sampled,
        ours.messages([*history, answer, *tail], tools)[-len(tail) :],
        tools=SPECS if tools else None,
    )
    assert found is not None
    known = [*prompt, *sampled]
    assert list(found.token_ids[: len(known)]) == known
    assert list(found.token_ids[len(known) :]) == tail_tokens(
        ours, [*history, answer], tail, last_token=stop, tools=tools
    )


def test_the_docs_show_why_the_package_does_not_serve() -> None:
    import renderers_check

    docs = Path(__file__).parents[2] / "docs" / "templates.md"
    shown = (
        docs.read_text(encoding="utf-8").partition("prints\n\n```text\n")[2].partition("```")[0].splitlines()
    )
    assert shown[:-2] == list(renderers_check.lines())
    assert [line.partition(" ")[0] for line in shown[-2:]] == ["GPT-OSS:", "what"]  # these are the machine's
