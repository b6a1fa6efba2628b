"""Earlier turns stay the exact tokens they were, for any template that can be proved to allow it."""

from __future__ import annotations

import pytest
import templates_kit
import tokens_kit as kit
from hypothesis import given, settings
from hypothesis import strategies as st

from art.errors import ConfigError, InvalidInput
from art.tokens.bridge import suffix_text, tail_tokens
from art.tokens.proof import prove
from art.tokens.renderer import Renderer
from art.types.messages import FunctionCall, Message, ToolCall

TEXT = st.text(alphabet=st.sampled_from("ab Zé你🙂\n<>|{}\"'.?"), max_size=12)
NAMES = ["smollm2", "hermes"]
RENDERERS = {
    (name, kind): make(name)
    for name in NAMES
    for kind, make in (("bpe", kit.renderer), ("bytes", kit.byte_renderer))
}


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[Message, list[int] | None, list[Message]]]:
    """Turns of (assistant's message, odd sampled tokens or None for the text's own, messages that follow)."""
    out = []
    for _ in range(draw(st.integers(1, 4))):
        calls: list[tuple[str, str]] = []
        if draw(st.booleans()):
            calls = [("get_weather", '{"city": "Paris", "n": 1}')] * draw(st.integers(1, 2))
        message = kit.assistant(draw(TEXT) or None, *calls)
        odd = draw(st.one_of(st.none(), st.lists(st.integers(0, 255), min_size=1, max_size=6)))
        if calls:
            after = [kit.tool(draw(TEXT), f"call_{i}") for i in range(len(calls))]
            after += [kit.user(draw(TEXT))] if draw(st.booleans()) else []
        else:
            after = [kit.user(draw(TEXT))]
        out.append((message, odd, after))
    return out


def returned(message: Message, loosely: bool) -> Message:
    """The assistant's message as a client sends it back: other ids, other white space around it, other key order."""
    calls = tuple(
        ToolCall(
            id=f"mine_{i}", function=FunctionCall(name=call.function.name, arguments='{"n":1,"city":"Paris"}')
        )
        for i, call in enumerate(message.tool_calls)
    )
    text = message.content.strip() + "\n" if message.content is not None else None
    return message.model_copy(update={"tool_calls": calls, "content": text}) if loosely else message


@settings(max_examples=80, deadline=None)
@given(
    conversation=turns(),
    first=TEXT,
    start=st.booleans(),
    ended=st.booleans(),
    loosely=st.booleans(),
    name=st.sampled_from(NAMES),
    kind=st.sampled_from(["bpe", "bytes"]),
    with_tools=st.booleans(),
)
def test_every_prompt_starts_with_the_one_before_and_what_was_sampled(
    conversation: list[tuple[Message, list[int] | None, list[Message]]],
    first: str,
    start: bool,
    ended: bool,
    loosely: bool,
    name: str,
    kind: str,
    with_tools: bool,
) -> None:
    renderer = RENDERERS[name, kind]
    (stop,) = renderer.tokenizer.stop_token_ids
    session = kit.Session(renderer, (kit.WEATHER,) if with_tools else ())
    messages = [kit.system("Be brief."), kit.user(first)] if start else [kit.user(first)]
    known: list[int] = []
    for message, odd, after in conversation:
        prompt = session.prompt(messages)
        assert prompt.token_ids[: len(known)] == known
        assert prompt.reused == len(known)
        sampled = list(odd) if odd is not None else renderer.tokenizer.encode(message.text)
        sampled += [stop] if ended or not sampled else []
        session.sample(prompt, len(messages), message, sampled)
        known = prompt.token_ids + sampled
        messages = [*messages, returned(message, loosely), *after]
    assert session.prompt(messages).token_ids[: len(known)] == known


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4),
    name=st.sampled_from(NAMES),
    kind=st.sampled_from(["bpe", "bytes"]),
    ended=st.booleans(),
)
def test_the_bridge_says_what_the_template_says(
    texts: list[tuple[str, str]], name: str, kind: str, ended: bool
) -> None:
    """Bridging gives the text of rendering the whole conversation, and its tokens where no merge crosses a turn."""
    renderer = RENDERERS[name, kind]
    (stop,) = renderer.tokenizer.stop_token_ids
    session = kit.Session(renderer)
    messages = [kit.user("First")]
    for answer, question in texts:
        prompt = session.prompt(messages)
        message = kit.assistant(answer)
        sampled = renderer.tokenizer.encode(answer) + ([stop] if ended or not answer else [])
        session.sample(prompt, len(messages), message, sampled)
        messages = [*messages, message, kit.user(question)]
    bridged, whole = session.prompt(messages).token_ids, renderer.tokens(messages)
    assert renderer.tokenizer.decode(bridged, skip_special=False) == renderer.text(messages)
    # A merge across the start of a turn ("assistant\n" and "\n") is what only rendering anew would do.
    if kind == "bytes" or all(answer[:1].isalpha() for answer, _ in texts):
        assert bridged == whole


def test_unknown_history_is_rendered_anew_and_never_realigned() -> None:
    session = kit.Session(RENDERERS["hermes", "bpe"])
    first = session.prompt([kit.user("a")])
    session.sample(first, 1, kit.assistant("b"), [5, 6, 7])
    changed = [kit.user("a"), kit.assistant("B"), kit.user("c")]
    prompt = session.prompt(changed)
    assert prompt.node is None
    assert prompt.reused == 0
    assert prompt.token_ids == session.renderer.tokens(changed)
    # Other tools, or other options of the template, are another conversation.
    same = [kit.user("a"), kit.assistant("b"), kit.user("c")]
    assert session.prompt(same).node is not None
    assert session.prompt(same, options={"enable_thinking": False}).node is None
    session.tools = (kit.WEATHER,)
    assert session.prompt(same).node is None


def test_branches_are_numbered_as_they_fork() -> None:
    session = kit.Session(RENDERERS["hermes", "bpe"])
    base = [kit.user("a")]
    first = session.sample(session.prompt(base), 1, kit.assistant("b"), [5])
    longer = [*base, kit.assistant("b"), kit.user("c")]
    main = session.sample(session.prompt(longer), 3, kit.assistant("d"), [6])
    fork = session.sample(session.prompt([*longer[:2], kit.user("x")]), 3, kit.assistant("y"), [7])
    again = session.sample(session.prompt(base), 1, kit.assistant("z"), [8])
    after = session.prompt([*longer[:2], kit.user("x"), kit.assistant("y"), kit.user("more")])
    assert [first.branch, main.branch, fork.branch, again.branch] == [0, 0, 1, 0]
    assert after.node is fork
    branch_for = session.graph.branch_for
    assert branch_for(after.node, "d1") == 1
    # A call that failed leaves its place to the one that repeats it.
    session.graph.abandon(fork, 1, "d1")
    assert branch_for(fork, "d2") == 1
    assert branch_for(fork, "d2") == 1  # a repeated request makes a sibling, and no branch
    assert branch_for(fork, "d3") == 2
    session.graph.abandon(fork, 2, "d3")
    assert branch_for(fork, "d4") == 3
    session.graph.abandon(fork, 1, "d2")  # its sibling still stands
    assert branch_for(fork, "d5") == 4
    # Of several answers to one request, the second that is continued is a path of its own.
    assert branch_for(again, "e1") == 5


def test_returned_call_ids_tell_equal_choices_apart() -> None:
    session = kit.Session(RENDERERS["hermes", "bpe"], (kit.WEATHER,))
    base = [kit.user("a")]
    prompt = session.prompt(base)
    nodes = []
    for number in range(3):
        call = ToolCall(id=f"id_{number}", function=FunctionCall(name="get_weather", arguments="{}"))
        message = Message(role="assistant", content=None, tool_calls=(call,))
        nodes.append(session.sample(prompt, 1, message, [number]))
    for node in nodes:
        found = session.prompt([*base, node.message, kit.tool("sunny", node.message.tool_calls[0].id)])
        assert found.node is node
    stranger = nodes[0].message.model_copy(
        update={"tool_calls": (ToolCall(id="lost", function=FunctionCall(name="get_weather")),)}
    )
    assert session.prompt([*base, stranger, kit.tool("sunny")]).node is nodes[-1]


def test_reasoning_may_be_dropped_but_not_changed() -> None:
    session = kit.Session(RENDERERS["hermes", "bpe"])
    thought = Message(role="assistant", content="b", reasoning="because")
    node = session.sample(session.prompt([kit.user("a")]), 1, thought, [5, 6])
    for reasoning, known in ((None, True), ("because", True), ("otherwise", False)):
        sent = thought.model_copy(update={"reasoning": reasoning})
        assert (session.prompt([kit.user("a"), sent, kit.user("c")]).node is node) == known


def test_history_policy_template_serves_what_the_template_gives() -> None:
    session = kit.Session(RENDERERS["hermes", "bpe"])
    node = session.sample(session.prompt([kit.user("a")]), 1, kit.assistant("b"), [5, 6, 7])
    messages = [kit.user("a"), kit.assistant("b"), kit.user("c")]
    prompt = session.prompt(messages, history="template")
    assert prompt.token_ids == session.renderer.tokens(messages)
    assert prompt.node is node
    assert 0 < prompt.reused < len(node.tokens)


# -- the proof


@pytest.mark.parametrize("name", NAMES)
def test_stable_templates_are_proved_with_tools_and_without(name: str) -> None:
    proof = prove(kit.renderer(name))
    assert proof.tools_refused == ""
    left_out = ["the template leaves reasoning out of earlier turns; here it stays as served"]
    assert proof.notes == (left_out if name == "hermes" else [])  # the other knows no reasoning
    assert proof.stop_token_ids == kit.tokenizer().stop_token_ids


def test_a_template_that_forgets_is_refused_with_the_place() -> None:
    with pytest.raises(ConfigError) as caught:
        prove(kit.renderer("forgetful"))
    assert "rendered differently once more follows" in caught.value.cause
    assert "Question 0?" in caught.value.cause
    assert "line 3 of the template writes it: {{- '<|im_start|>'" in caught.value.cause
    assert 'history="template"' in caught.value.hint


def test_a_template_that_rewrites_earlier_answers_is_refused() -> None:
    source = kit.template("smollm2").replace(
        "message['content']", "(message['content'] if loop.last or message.role != 'assistant' else 'said')"
    )
    with pytest.raises(ConfigError, match="keep earlier turns") as caught:
        prove(Renderer(kit.tokenizer(), source))
    assert "earlier message is left out" in caught.value.cause
    assert "line 4 of the template" in caught.value.cause


def test_a_template_that_drops_its_own_opening_is_noted() -> None:
    source = kit.template("smollm2").replace("assistant\n' }}{% endif", "assistant\n<think>\n' }}{% endif")
    proof = prove(Renderer(kit.tokenizer(), source))
    assert any("<think>" in note and "stay as served" in note for note in proof.notes)


def test_a_template_that_takes_neither_system_nor_tool_gets_both_from_the_user() -> None:
    ours = kit.renderer("bracket")
    assert prove(ours).tools_refused == ""
    call = kit.assistant("Hm.", ("get_weather", '{"city": "Rome"}'))
    text = ours.text(
        [kit.user("Weather?"), call, kit.tool("rain"), kit.tool("snow"), kit.user("So?")], tools=[kit.WEATHER]
    )
    assert text.startswith("<|im_start|>[INST] You may call these functions:")
    assert "between <tool_response> and </tool_response>.\n\nWeather? [/INST]" in text
    result = "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsnow\n</tool_response>\nSo?"
    assert text.endswith(f"</tool_call> <|im_end|>[INST] {result} [/INST]")


def test_a_template_that_tells_tools_to_the_last_user_serves_none() -> None:
    proof = prove(templates_kit.renderer("mistral_v3"))
    assert "[AVAILABLE_TOOLS]" in proof.tools_refused
    assert "line 11 of the template writes it" in proof.tools_refused


def test_the_end_of_turn_of_the_template_is_a_stop_token() -> None:
    ours = kit.renderer("smollm2", eos=kit.EOS)  # as base models do: eos is not what the template writes
    proof = prove(ours)
    assert proof.stop_token_ids == {
        ours.tokenizer.token_id(kit.EOS),
        ours.tokenizer.token_id(kit.END),
    }
    assert any(kit.END in note for note in proof.notes)


def test_white_space_before_the_end_of_a_turn_is_not_written_twice() -> None:
    ours = kit.renderer("bracket")
    history, tail = [kit.user("a"), kit.assistant("b")], [kit.user("c")]
    assert suffix_text(ours, history, tail) == " <|im_end|>[INST] c [/INST]"
    (stop,) = ours.tokenizer.stop_token_ids
    rest = ours.tokenizer.encode("[INST] c [/INST]")
    assert tail_tokens(ours, history, tail, last_token=stop) == rest
    assert tail_tokens(ours, history, tail, last_token=rest[0]) == ours.tokenizer.encode(
        " <|im_end|>[INST] c [/INST]"
    )


def test_a_message_that_holds_the_mark_does_not_confuse_the_bridge() -> None:
    ours = kit.renderer("smollm2")
    history, tail = [kit.user("ART0MARK ART1MARK"), kit.assistant("b")], [kit.user("ART0MARK")]
    assert suffix_text(ours, history, tail).count("ART0MARK") == 1


@pytest.mark.parametrize("sent", ["yes", "yes ", "yes\n", "\n yes  "])
def test_white_space_around_an_answer_does_not_lose_its_tokens(sent: str) -> None:
    session = kit.Session(next(iter(RENDERERS.values())))
    messages = [kit.user("well?")]
    prompt = session.prompt(messages)
    tokens = session.renderer.tokenizer.encode("yes ")
    session.sample(prompt, 1, kit.assistant("yes "), tokens)
    after = session.prompt([*messages, kit.assistant(sent), kit.user("sure?")])
    assert after.token_ids[: after.reused] == prompt.token_ids + tokens


@pytest.mark.parametrize("sent", ["y es", "Yes ", "yes."])
def test_other_words_are_another_answer(sent: str) -> None:
    session = kit.Session(next(iter(RENDERERS.values())))
    messages = [kit.user("well?")]
    session.sample(session.prompt(messages), 1, kit.assistant("yes "), [1])
    assert session.prompt([*messages, kit.assistant(sent), kit.user("sure?")]).node is None
    assert session.prompt([kit.user("well? "), kit.assistant("yes "), kit.user("sure?")]).node is None


def test_of_two_that_differ_in_white_space_the_one_that_was_sent_is_meant() -> None:
    session = kit.Session(next(iter(RENDERERS.values())))
    messages = [kit.user("well?")]
    prompt = session.prompt(messages)
    nodes = {
        text: session.sample(prompt, 1, kit.assistant(text), [n])
        for n, text in enumerate(["yes ", "yes", " yes"])
    }
    for text, node in nodes.items():
        assert session.prompt([*messages, kit.assistant(text), kit.user("sure?")]).node is node


# -- published templates


def test_an_answer_that_the_template_could_not_write_does_not_end_the_conversation() -> None:
    """Llama 3.1 writes one call a message; its model may well make two."""
    ours = templates_kit.renderer("llama3_1")
    session = kit.Session(ours, (kit.WEATHER,))
    two = kit.assistant(None, ("get_weather", '{"city": "Rome"}'), ("get_weather", '{"city": "Oslo"}'))
    messages = [kit.user("Weather?")]
    for answer, after in (
        (two, [kit.tool("rain"), kit.tool("snow", "call_1")]),
        (kit.assistant("Wet."), [kit.user("And?")]),
    ):
        prompt = session.prompt(messages)
        session.sample(prompt, len(messages), answer, [5, 6])
        messages = [*messages, answer, *after]
    with pytest.raises(InvalidInput):
        ours.text(messages)
    after_all = session.prompt(messages)
    assert after_all.token_ids[: after_all.reused] == [*prompt.token_ids, 5, 6]
    assert ours.tokenizer.decode(after_all.token_ids[after_all.reused :], skip_special=False) == (
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnd?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.parametrize(("end", "says"), [("<|return|>", "Yes."), ("<|call|>", ""), ("<|end|>", "Yes.")])
def test_what_ends_a_turn_of_gpt_oss_is_not_ended_again(end: str, says: str) -> None:
    ours = templates_kit.renderer("gptoss")
    calls = [] if says else [("get_weather", "{}")]
    history = [kit.user("Weather?"), kit.assistant(says or None, *calls)]
    last = ours.tokenizer.token_id(end)
    assert last is not None
    tail = tail_tokens(ours, history, [kit.user("And?")], last_token=last)
    assert (
        ours.tokenizer.decode(tail, skip_special=False)
        == "<|start|>user<|message|>And?<|end|><|start|>assistant"
    )


def test_results_are_written_for_the_calls_that_were_made() -> None:
    """Gemma 4 and GPT-OSS write the function's name beside its result."""
    call = kit.assistant(None, ("get_weather", '{"city": "Rome"}'))
    for name, written in (
        ("gemma4_v5", '<|tool_response>response:get_weather{value:<|"|>rain<|"|>}<tool_response|>'),
        (
            "gptoss",
            '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"rain"<|end|><|start|>assistant',
        ),
    ):
        ours = templates_kit.renderer(name)
        text = suffix_text(ours, [kit.user("Weather?"), call], [kit.tool("rain")], tools=[kit.WEATHER])
        assert text == written
