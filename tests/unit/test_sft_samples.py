"""Demonstrations as tokens: the prompts are those of the server, and the answers are what is trained."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.errors import InvalidInput
from art.testing.tiny import CHAT_TEMPLATE, END, START, byte_tokenizer
from art.tokens.renderer import Renderer
from art.tokens.sft_samples import SftSequence, from_arrays, read_conversation, render, to_arrays
from art.tokens.tokenizer import Tokenizer
from art.types.messages import parse_messages

TOKENIZER = Tokenizer(
    byte_tokenizer(), specials={"bos_token": START, "eos_token": END}, stop_token_ids=frozenset({257})
)
RENDERER = Renderer(TOKENIZER, CHAT_TEMPLATE)
STOPS = frozenset({257})
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "is snow cold?"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "is it warm?"},
    {"role": "assistant", "content": "no"},
]


def sequences(
    messages: list[dict[str, Any]], *, tools: Any = None, history: Any = "keep", renderer: Renderer = RENDERER
) -> list[SftSequence]:
    return render(renderer, read_conversation(messages, tools), stops=STOPS, history=history)


def trained_text(sequence: SftSequence) -> str:
    trained = [token for token, wanted in zip(sequence.token_ids, sequence.trained, strict=True) if wanted]
    return TOKENIZER.decode(trained, skip_special=False)


def test_a_conversation_is_one_sequence_with_its_answers_trained() -> None:
    (found,) = sequences(TALK)
    text = RENDERER.text(parse_messages(TALK), generation=False)
    assert TOKENIZER.decode(found.token_ids, skip_special=False) == text.rstrip("\n")
    assert trained_text(found) == f"yes{END}no{END}"
    prompt = RENDERER.tokens(parse_messages(TALK[:4]))
    assert found.token_ids[: len(prompt)] == prompt, "the prompt of the last answer is the one that is served"
    assert len(found.token_ids) == len(found.trained)


def test_under_the_policy_template_each_answer_has_its_own_prompt() -> None:
    first, second = sequences(TALK, history="template")
    assert (trained_text(first), trained_text(second)) == (f"yes{END}", f"no{END}")
    prompt = RENDERER.tokens(parse_messages(TALK[:2]))
    assert first.token_ids[: len(prompt)] == prompt
    assert first.trained.index(True) == len(prompt)


@pytest.mark.parametrize("mark", [{"trainable": False}, {"weight": 0}])
def test_a_message_may_say_that_it_is_not_trained(mark: dict[str, Any]) -> None:
    first = [*TALK[:2], {**TALK[2], **mark}, *TALK[3:]]
    (found,) = sequences(first)
    assert trained_text(found) == f"no{END}"
    assert "yes" in TOKENIZER.decode(found.token_ids), "it is still part of what was said before"
    last = [*TALK[:4], {**TALK[4], **mark}]
    (found,) = sequences(last)
    assert trained_text(found) == f"yes{END}"
    assert "warm" not in TOKENIZER.decode(found.token_ids), (
        "nothing behind the last trained answer is computed"
    )


def test_calls_are_trained_and_results_are_not() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"key": "snow"}'}}
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    messages = [
        TALK[1],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "-3 degrees", "tool_call_id": "c1"},
        {"role": "assistant", "content": "yes"},
    ]
    (found,) = sequences(messages, tools=tools)
    assert "Tools:" in TOKENIZER.decode(found.token_ids)
    said = '<tool_call>{"name": "look_up", "arguments": {"key": "snow"}}</tool_call>'
    assert trained_text(found) == f"{said}{END}yes{END}"


def test_two_answers_in_a_row_are_two_turns() -> None:
    (found,) = sequences([TALK[1], TALK[2], TALK[4]])
    assert trained_text(found) == f"yes{END}no{END}"
    text = RENDERER.text(parse_messages([TALK[1], TALK[2], TALK[4]]), generation=False)
    assert TOKENIZER.decode(found.token_ids, skip_special=False) == text.rstrip("\n")


THINKS_FIRST = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)


def test_a_model_that_thinks_first_closes_its_thought() -> None:
    renderer = Renderer(TOKENIZER, THINKS_FIRST)
    (plain,) = sequences(TALK[1:3], renderer=renderer)
    assert trained_text(plain) == f"\n</think>\n\nyes{END}"
    (thought,) = sequences([TALK[1], {**TALK[2], "reasoning_content": "It is frozen."}], renderer=renderer)
    assert trained_text(thought) == f"It is frozen.\n</think>\n\nyes{END}"


def test_a_template_that_writes_answers_elsewhere_is_refused() -> None:
    renderer = Renderer(TOKENIZER, THINKS_FIRST.replace("assistant\n<think>\n", "model: "))
    with pytest.raises(InvalidInput, match="does not write an answer behind the turn"):
        sequences(TALK[1:3], renderer=renderer)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([TALK[2], TALK[1]], "first message of its conversation"),
        ([], "at least one message"),
        ([{"role": "user", "content": 3}], r"messages\[0\]"),
        ([TALK[1], {**TALK[2], "trainable": "no"}], r"messages\[1\]\.trainable"),
        ([TALK[1], {**TALK[2], "weight": 0.5}], r"messages\[1\]\.weight"),
    ],
)
def test_what_cannot_be_trained_is_refused(messages: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        sequences(messages)


WORDS = st.text(alphabet="abc xyz.?", min_size=1, max_size=12).map(str.strip).filter(bool)
ROLES = st.lists(st.sampled_from(["user", "assistant"]), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), roles=ROLES, history=st.sampled_from(["keep", "template"]))
def test_what_is_trained_is_what_the_assistant_said(data: Any, roles: list[str], history: str) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    for role in roles:
        message: dict[str, Any] = {"role": role, "content": data.draw(WORDS)}
        if role == "assistant":
            message["trainable"] = data.draw(st.booleans())
        messages.append(message)
    wanted = [message["content"] + END for message in messages if message.get("trainable")]
    if not wanted:
        return
    found = sequences(messages, history=history)
    assert "".join(map(trained_text, found)) == "".join(wanted)
    assert not any(one.trained[0] for one in found)
    back, order = from_arrays(to_arrays([SftSequence(o.token_ids, o.trained, 7) for o in found], [7, 7]))
    assert order == [7, 7]
    assert [one.token_ids.tolist() for one in back[7]] == [one.token_ids for one in found]
    assert [one.trained.tolist() for one in back[7]] == [one.trained for one in found]


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    arrays = to_arrays(sequences(TALK), [0])
    with pytest.raises(InvalidInput, match="do not fit together"):
        from_arrays({**arrays, "trained": arrays["trained"][:-1]})
    with pytest.raises(InvalidInput, match="no array 'order'"):
        from_arrays({name: array for name, array in arrays.items() if name != "order"})
