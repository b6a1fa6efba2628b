"""Published chat templates, held to what the gateway promises about them.

For every template: a turn's prompt starts with the prompt before it and what was sampled (policy `keep`), or is
what the template gives (policy `template`); what we render is what transformers renders; what the model writes
for a message is read as that message. The tokenizer is a byte-level one with the family's special tokens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parent))

import formats_kit
import templates_kit
import templates_table
import tokens_kit as kit

from art.errors import ConfigError
from art.tokens.formats import REASONING_FORMATS, TOOL_FORMATS, choose_formats
from art.tokens.proof import Proof, prove, takes
from art.tokens.renderer import Renderer
from art.tokens.tools import assistant_message
from art.types.messages import Message, Tool

EXAMPLES = int(os.environ.get("ART_TEMPLATE_EXAMPLES", "4"))
"""Random conversations for each template. `make test-templates` tries more."""
TEMPLATES = [*templates_kit.TRL, *templates_kit.OWN]
REFUSED = {"forgetful": "line 3 of the template writes it: {{- '<|im_start|>'"}
"""Templates that cannot be kept stable, with a part of the reason that must name the line."""
NO_TOOLS = {"mistral_v3": "line 11 of the template writes it: {{- '[INST] '"}
"""Templates that are served without tools, and why."""
SERVED = [name for name in TEMPLATES if name not in REFUSED]


@lru_cache(maxsize=128)
def proof(name: str) -> Proof:
    return prove(templates_kit.renderer(name))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_served_or_refused_by_the_line_that_breaks_it(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(ConfigError) as caught:
            proof(name)
        assert REFUSED[name] in caught.value.cause
        return
    assert NO_TOOLS.get(name, "") in proof(name).tools_refused
    assert bool(proof(name).tools_refused) == (name in NO_TOOLS)


# -- random conversations

TEXT = st.text(alphabet=st.sampled_from("ab Zé你🙂\n<>|{}\"'.?"), max_size=10)
WORDS = st.text(alphabet="abZé你🙂{}.?", min_size=1, max_size=8)
Turn = tuple[Message, list[Message]]


@st.composite
def conversations(draw: st.DrawFn, tools: bool) -> list[Turn]:
    """Turns: what the assistant says, and what follows it."""
    out: list[Turn] = []
    for number in range(draw(st.integers(1, 4))):
        count = draw(st.integers(0, 2)) if tools else 0
        calls = [("get_weather", f'{{"city": "{draw(st.sampled_from(["Paris", "Zoë"]))}"}}')] * count
        answer = kit.assistant(draw(WORDS) if not calls or draw(st.booleans()) else None, *calls)
        if draw(st.booleans()):
            answer = answer.model_copy(update={"reasoning": draw(WORDS)})
        after = [kit.tool(draw(TEXT), f"call_{i}") for i in range(count)] or [
            kit.user(f"{draw(TEXT)} {number}")
        ]
        out.append((answer, after))
    return out


def written(
    renderer: Renderer, history: Sequence[Message], answer: Message, tools: Sequence[Tool]
) -> str | None:
    """What a model that follows the template writes for `answer`; None where the template does not tell."""
    if not takes(renderer, [*history, answer], tools):
        return None
    opened = renderer.text(history, tools=tools)
    closed = renderer.text([*history, answer], tools=tools, generation=False)
    return closed[len(opened) :] if closed.startswith(opened) else None


def read(
    renderer: Renderer, name: str, prompt: Sequence[int], sampled: Sequence[int], tools: Sequence[Tool]
) -> Message:
    """The message that the gateway makes of sampled tokens."""
    formats = choose_formats(renderer)
    detokenizer = renderer.tokenizer.detokenizer(keep=formats.kept_token_ids)
    stops = proof(name).stop_token_ids
    text = "".join(detokenizer.feed(token) for token in sampled if token not in stops) + detokenizer.finish()
    return assistant_message(formats_kit.run(formats.parser(tools, prompt_token_ids=prompt), [text]))


MOVES_WORDS = ("gemma4", "diffusion_gemma")
"""Families whose templates write the words beside a call behind its result."""


def following(message: Message, after: Sequence[Message]) -> list[Message]:
    """What a client answers: the results of the calls that were read, or a question."""
    if after[0].role == "user":
        return list(after)
    results = [kit.tool(after[0].text, call.id) for call in message.tool_calls]
    return results or [kit.user("so?")]


@pytest.mark.parametrize("name", SERVED)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_a_prompt_starts_with_the_prompt_before_it_and_what_was_sampled(
    name: str, data: st.DataObject
) -> None:
    renderer = templates_kit.renderer(name)
    tools = () if proof(name).tools_refused else tuple(formats_kit.TOOLS)
    session = kit.Session(renderer, tools)
    messages = [kit.user("first question")]
    known: list[int] = []
    for answer, after in data.draw(conversations(bool(tools))):
        prompt = session.prompt(messages)
        assert prompt.token_ids[: len(known)] == known
        assert prompt.reused == len(known)
        text = written(renderer, messages, answer, tools)
        sampled = renderer.tokenizer.encode(answer.text + "~" if text is None else text)
        message = read(renderer, name, prompt.token_ids, sampled, tools)
        session.sample(prompt, len(messages), message, sampled)
        known = prompt.token_ids + sampled
        # Many clients drop the reasoning.
        sent = message.model_copy(update={"reasoning": None}) if data.draw(st.booleans()) else message
        moved = bool(message.tool_calls and message.text)
        messages = [*messages, sent, *following(message, after)]
    prompt = session.prompt(messages)
    assert prompt.token_ids[: len(known)] == known
    assert prompt.reused == len(known)
    said = renderer.tokenizer.decode(prompt.token_ids[len(known) :], skip_special=False)
    if not (moved and name.startswith(MOVES_WORDS)):
        assert renderer.text(messages, tools=tools).endswith(said)


# -- against transformers, and back


@lru_cache(maxsize=128)
def reference(name: str) -> Any:
    """transformers' tokenizer with the template."""
    from transformers import PreTrainedTokenizerFast

    text = templates_kit.source(name)
    return PreTrainedTokenizerFast(
        tokenizer_object=templates_kit.fast_tokenizer(text),
        bos_token=templates_kit.bos_of(text),
        eos_token=templates_kit.end_of(text),
        chat_template=text,
    )


@pytest.mark.parametrize("name", SERVED)
@settings(max_examples=max(2, EXAMPLES // 2), deadline=None)
@given(data=st.data())
def test_what_is_rendered_is_what_transformers_renders(name: str, data: st.DataObject) -> None:
    renderer = templates_kit.renderer(name)
    tools = () if proof(name).tools_refused else tuple(formats_kit.TOOLS)
    messages = [kit.user("first question")]
    if data.draw(st.booleans()) and takes(renderer, [kit.system("Be brief."), *messages], tools):
        messages.insert(0, kit.system("Be brief."))
    for answer, after in data.draw(conversations(bool(tools))):
        if not takes(renderer, [*messages, answer, *after], tools):  # two calls where one is allowed
            break
        messages = [*messages, answer, *after]
    session = kit.Session(renderer, tools)
    text = reference(name).apply_chat_template(
        renderer.messages(messages, tools),
        tools=[tool.to_template() for tool in tools] or None,
        add_generation_prompt=True,
        tokenize=False,
    )
    assert renderer.text(messages, tools=tools) == text
    assert session.prompt(messages, history="template").token_ids == renderer.tokenizer.encode(text)
    assert list(reference(name).encode(text, add_special_tokens=False)) == renderer.tokenizer.encode(text)


NOT_WRITTEN = {
    "lfm2": "calls are left out",
    "lfm2_training": "calls are left out",
    "muse_glimmer": "recipients of its own",
    "muse_glimmer_training": "recipients of its own",
}
"""Templates whose way to write answers or calls has no parser here: they reach the agent as text."""


@pytest.mark.parametrize("name", [name for name in SERVED if name not in NO_TOOLS])
@pytest.mark.parametrize("reasoning", [None, "Let me see."])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_what_the_template_writes_for_a_message_is_read_as_that_message(
    name: str, reasoning: str | None, count: int
) -> None:
    renderer = templates_kit.renderer(name)
    tools = tuple(formats_kit.TOOLS)
    calls = [
        ("get_weather", '{"city": "Zoë", "days": 3, "near": ["a", "b"], "exact": true}'),
        ("look_up", '{"key": "k"}'),
    ]
    answer = kit.assistant(None if count else "It is so.", *calls[:count]).model_copy(
        update={"reasoning": reasoning}
    )
    history = [kit.user("first question")]
    text = written(renderer, history, answer, tools)
    if text is None or (name in NOT_WRITTEN and (count or name.startswith("muse_glimmer"))):
        return
    message = read(
        renderer, name, renderer.tokens(history, tools=tools), renderer.tokenizer.encode(text), tools
    )
    said = [(call.function.name, call.function.parsed()) for call in message.tool_calls]
    expected = [(call.function.name, call.function.parsed()) for call in answer.tool_calls]
    if name.startswith("gptoss"):  # it writes the first call only
        expected = expected[:1]
    assert said == expected
    assert message.text.strip() == answer.text
    assert message.reasoning in ((reasoning,) if reasoning and reasoning in text else (None,))


# -- the docs


def test_the_docs_show_the_table_as_it_is() -> None:
    assert templates_table.written() == templates_table.table()


def test_the_docs_show_what_smollm2_sees() -> None:
    function = {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    tool = Tool.model_validate({"type": "function", "function": function})
    call = kit.assistant(None, ("get_weather", '{"city": "Rome"}'))
    messages = [kit.system("Be brief."), kit.user("Weather in Rome?"), call, kit.tool("rain")]
    seen = templates_kit.renderer("smollm2").text(messages, tools=[tool])
    assert f"```text\n{seen}```" in templates_table.DOCS.read_text(encoding="utf-8")


def test_the_docs_show_how_a_template_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        proof("forgetful")
    shown = " ".join(templates_table.DOCS.read_text(encoding="utf-8").split())
    assert " ".join(f"error: {caught.value}".split()) in shown


def test_the_docs_name_every_format() -> None:
    text = templates_table.DOCS.read_text(encoding="utf-8")
    assert [item.name for item in TOOL_FORMATS if f"`{item.name}`" not in text] == []
    assert [name for name in REASONING_FORMATS if f"`{name}`" not in text] == []
