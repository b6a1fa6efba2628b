"""The renderer is transformers' `apply_chat_template`, without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokens_kit as kit

from art.errors import ConfigError, InvalidInput
from art.testing import tiny
from art.tokens.renderer import Renderer
from art.tokens.tokenizer import Tokenizer
from art.types.messages import Message, template_messages

CONVERSATIONS = [
    [kit.user("Hello <b>& co</b>")],
    [kit.system("Be brief."), kit.user("naïve café 你好 🙂"), kit.assistant("Yes."), kit.user("And?")],
    [
        kit.user("Weather?"),
        kit.assistant("Let me see.", ("get_weather", '{"city": "Zoë & Söhne"}')),
        kit.tool('{"sky": "<clear>"}'),
        kit.assistant(None, ("get_weather", '{"city":"Rome"}'), ("get_weather", '{"city":"Oslo"}')),
        kit.tool("rain"),
        kit.tool("snow"),
    ],
]


def _reference(tmp_path: Path, template: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    kit.bpe().save(str(tmp_path / "tokenizer.json"))
    return PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"),
        bos_token=kit.START,
        eos_token=kit.END,
        chat_template=template,
    )


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("tools", [(), (kit.WEATHER,)])
@pytest.mark.parametrize("generation", [True, False])
def test_a_template_with_tools_renders_as_transformers_does(
    tmp_path: Path, messages: list[Message], tools: tuple[Any, ...], generation: bool
) -> None:
    reference = _reference(tmp_path, kit.template("hermes"))
    ours = kit.renderer("hermes")
    arguments: dict[str, Any] = {
        "tools": [tool.to_template() for tool in tools] or None,
        "add_generation_prompt": generation,
        "enable_thinking": False,
    }
    expected = reference.apply_chat_template(template_messages(messages), tokenize=False, **arguments)
    text = ours.text(messages, tools=tools, options={"enable_thinking": False}, generation=generation)
    assert text == expected
    ids = reference.apply_chat_template(
        template_messages(messages), tokenize=True, return_dict=False, **arguments
    )
    assert ours.tokenizer.encode(text) == list(ids)


def test_the_tiny_models_folder_renders_as_transformers_does(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = tiny.tiny_model(tmp_path / "tiny", warm=False)
    reference = AutoTokenizer.from_pretrained(folder)
    ours = Renderer.load(folder)
    for messages in CONVERSATIONS:
        for tools in ([], [kit.WEATHER]):
            expected = reference.apply_chat_template(
                template_messages(messages),
                tools=[tool.to_template() for tool in tools] or None,
                add_generation_prompt=True,
                return_dict=False,
            )
            assert ours.tokens(messages, tools=tools) == list(expected)
    assert ours.tokenizer.stop_token_ids == {reference.eos_token_id}


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content | upper }}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{{ messages | tojson(indent=2) }}",
        "{{ strftime_now('%Y') }} {{ dict(a=1) }} {{ eos_token }}{{ pad_token }}",
        "  {%- if true %}\n    indented\n  {% endif %}\n{{ tools is none }}",
    ],
)
def test_the_helpers_of_templates_are_those_of_transformers(tmp_path: Path, source: str) -> None:
    messages = [kit.user("a < b"), kit.user("c")]
    expected = _reference(tmp_path, source).apply_chat_template(
        template_messages(messages), tokenize=False, add_generation_prompt=True
    )
    assert Renderer(kit.tokenizer(), source).text(messages) == expected


def test_smollm2_gets_no_none_and_tools_in_the_system_message() -> None:
    ours = kit.renderer("smollm2")
    text = ours.text(
        [
            kit.system("Be brief."),
            kit.user("Weather?"),
            kit.assistant(None, ("get_weather", '{"city":"Rome"}')),
        ],
        tools=[kit.WEATHER],
    )
    assert not ours.has_tools_section
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou may call")
    assert json.dumps(kit.WEATHER.to_template(), ensure_ascii=False) in text
    written = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
    assert f"<|im_start|>assistant\n{written}<|im_end|>\n" in text


def test_a_refusal_by_the_template_names_its_reason() -> None:
    with pytest.raises(InvalidInput) as caught:
        kit.renderer("bracket").text([kit.system("no"), kit.user("hi")])
    assert "Only user and assistant roles" in caught.value.cause


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(__init__=1) %}{{ ns }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(InvalidInput):
        Renderer(kit.tokenizer(), source).text([kit.user("hi")])


def test_a_broken_template_is_refused_when_it_is_read() -> None:
    with pytest.raises(ConfigError):
        Renderer(kit.tokenizer(), "{% for m in messages %}")


def test_a_folder_without_tokenizer_or_template_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
    kit.bpe().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="end-of-sequence"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": kit.END}}))
    with pytest.raises(ConfigError, match="chat template"):
        Renderer.load(tmp_path)
    assert Renderer.load(tmp_path, chat_template=kit.template("smollm2")).tokenizer.stop_token_ids


def test_stop_tokens_come_from_all_three_files(tmp_path: Path) -> None:
    kit.bpe().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": kit.END}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert Tokenizer.load(tmp_path).stop_token_ids == {0, 5, 7, kit.bpe().token_to_id(kit.END)}


def test_content_is_a_list_of_parts_where_the_template_leaves_out_a_text() -> None:
    line = "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}"
    either = "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% endif %}{% endfor %}"
    messages = [kit.user("Hi?"), kit.assistant("Yes."), kit.user("So?")]
    for template, parts in ((line, True), (either, False)):
        renderer = Renderer(kit.tokenizer(), template)
        assert renderer.content_as_parts == parts
        assert renderer.text(messages) == "Hi?Yes.So?"
