"""Reasoning and calls of published templates over HTTP: told apart while they stream, served again as they were sampled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from chat_kit import TOOLS, Served, arguments, says

TEMPLATES = Path(__file__).parents[1] / "data" / "templates" / "trl"
EXPECTED = {"qwen3_8": ("Where is it?", {"city": "7"}), "gptoss": ("Hm.", {"city": "Rome"})}


def _register(served: Served, name: str) -> dict[str, Any]:
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    # Its instructions are longer than the tiny model's context.
    template = re.sub(r"\{\{- '\\n\\nIf you choose .*?\}\}", "", template)
    template = re.sub(r"'Reasoning effort is set to xhigh\..*?'", "''", template)
    return served.register("tests", name.replace("_", "-"), chat_template=template)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("returns_reasoning", [True, False])
def test_a_reasoning_model_calls_a_tool_and_goes_on(
    served: Served, name: str, returns_reasoning: bool
) -> None:
    info = _register(served, name)
    thought, asked = EXPECTED[name]
    agent = served.agent(served.open(f"tests/{info['name']}", sampling="caller"))
    messages: list[Any] = says("ponder the weather")
    first = agent.chat.completions.create(model=info["name"], messages=messages, tools=TOOLS)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.reasoning_content == thought
    assert not message.content
    (call,) = message.tool_calls
    assert (call.function.name, arguments(call)) == ("get_weather", asked)
    sent = message.model_dump(
        exclude_none=True, include={"role", "content", "tool_calls", "reasoning_content"}
    )
    if not returns_reasoning:
        del sent["reasoning_content"]
    messages += [sent, {"role": "tool", "tool_call_id": call.id, "content": "rainy"}]
    second = agent.chat.completions.create(model=info["name"], messages=messages, tools=TOOLS)
    assert second.choices[0].message.content == "Stay in."
    known = first.prompt_token_ids + first.choices[0].token_ids
    assert second.prompt_token_ids[: len(known)] == known


@pytest.mark.parametrize("name", EXPECTED)
def test_reasoning_and_calls_stream(served: Served, name: str) -> None:
    info = _register(served, name)
    thought, asked = EXPECTED[name]
    parts = served.client().chat.completions.create(
        model=f"tests/{info['name']}", messages=says("ponder the weather"), tools=TOOLS, stream=True
    )
    deltas = [choice.delta for chunk in parts for choice in chunk.choices]
    thoughts = [delta.reasoning_content for delta in deltas if getattr(delta, "reasoning_content", None)]
    assert "".join(thoughts) == thought
    assert len(thoughts) > 2
    (call,) = [call for delta in deltas for call in delta.tool_calls or []]
    assert arguments(call) == asked
    assert not "".join(delta.content or "" for delta in deltas)


def test_registration_tells_what_the_template_would_change(served: Served) -> None:
    notes = _register(served, "gptoss")["notes"]
    assert any("leaves reasoning out of earlier turns" in note for note in notes)


def test_a_template_that_cannot_be_kept_is_refused_by_its_line(served: Served) -> None:
    template = (TEMPLATES.parent / "forgetful.jinja").read_text()
    body = {
        "project": "tests",
        "name": "forgetful",
        "config": {"base_model": served.base_model, "chat_template": template},
    }
    response = served.raw("POST", "/api/v1/models", body)
    assert response.status_code == 400
    assert "line 3 of the template writes it" in response.json()["error"]["cause"]
    for option in ("tool_parser", "reasoning_parser"):
        config = {"base_model": served.base_model, option: "nonsense"}
        response = served.raw("POST", "/api/v1/models", {"project": "tests", "name": "odd", "config": config})
        assert response.status_code == 400
        assert "known:" in response.json()["error"]["hint"]
