"""Which template variables only open a turn, and which change the conversation."""

from __future__ import annotations

from typing import Any

import pytest
import tokens_kit as kit

from art.tokens.openings import opening_options
from art.tokens.renderer import Renderer

TURN = "{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' }}"
LOOP = "{%- for m in messages %}" + TURN + "{%- endfor %}"
OPEN = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
EMPTY_THOUGHT = (
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{%- endif %}"
)


def template(before: str = "", loop: str = LOOP, opening: str = "") -> str:
    return f"{before}{loop}{OPEN}{opening}{{%- endif %}}"


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        (template(opening=EMPTY_THOUGHT), {"enable_thinking": False}, {"enable_thinking"}),
        (template(opening=EMPTY_THOUGHT), {"enable_thinking": True}, {"enable_thinking"}),
        # A mark in every user's turn, or in the system's, is part of the history.
        (
            template(
                loop=LOOP.replace("(m.content", "('' if enable_thinking else '/nothink ') + (m.content")
            ),
            {"enable_thinking": True},
            set(),
        ),
        (
            template(before="Reasoning: {{ reasoning_effort }}\n", opening=EMPTY_THOUGHT),
            {"reasoning_effort": "high", "enable_thinking": False},
            {"enable_thinking"},
        ),
        # Only beside tools.
        (template(before="{%- if tools %}{{ thinking }}{%- endif %}"), {"thinking": True}, set()),
        # A template that takes no system message is asked without one.
        (
            template(
                before="{%- if messages[0].role == 'system' %}{{ raise_exception('no system') }}{%- endif %}",
                opening=EMPTY_THOUGHT,
            ),
            {"enable_thinking": False},
            {"enable_thinking"},
        ),
        # One that takes nothing at all shows nothing.
        (template(before="{{ raise_exception('no') }}"), {"enable_thinking": False}, set()),
    ],
)
def test_what_only_opens_a_turn(source: str, options: dict[str, Any], expected: set[str]) -> None:
    renderer = Renderer(kit.tokenizer(None), source)
    assert opening_options(renderer, options) == expected
