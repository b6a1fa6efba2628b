"""What a notebook shows stands alone, is escaped and bounded, whatever is in it."""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import art
from art import notebook
from art.evals.result import EvalResult, EvalRun, ScenarioRuns
from art.rollouts.fit_report import FitResult, FitStep

HOSTILE = "<img src=x onerror=alert(1)>\"'&</div></style><script>alert(1)</script>\u202eabc\u0000\ud800"
ALLOWED = {
    "div": {"class"}, "style": set(), "h4": set(), "span": {"class"}, "b": set(), "pre": set(), "details": set(),
    "summary": {"class"}, "table": set(), "tr": set(), "td": {"class"}, "th": {"class"},
    "svg": {"width", "height", "viewbox", "role", "aria-label"}, "rect": {"width", "height", "rx", "fill"},
    "polyline": {"points", "fill", "stroke", "stroke-width"},
}  # fmt: skip
VOID = {"rect", "polyline"}


class Checked(HTMLParser):
    """Every tag and attribute is one that we write, and every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, tag
        assert {name for name, _ in attrs} <= ALLOWED[tag], (tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def checked(html: str) -> str:
    """The text that a person sees."""
    parser = Checked()
    parser.feed(html)
    parser.close()
    assert not parser.open
    html.encode("utf-8")  # a notebook is a file
    assert "://" not in re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL) or "http" not in html
    return " ".join("".join(parser.text).split())


def trajectory(text: str = HOSTILE) -> art.Trajectory:
    return art.Trajectory(
        messages_and_choices=[
            {"role": text, "content": text},
            {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url", "image_url": text}]},
            {"role": "assistant", "content": None, "reasoning_content": text,
             "tool_calls": [{"id": "1", "type": "function", "function": {"name": text, "arguments": text}}]},
            {"role": "tool", "content": text, "tool_call_id": text},
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}},
        ],
        additional_histories=[art.History(messages_and_choices=[{"role": "user", "content": text}])],
        reward=-1.0, metrics={text: 1.0, "won": True}, metadata={text: text, "none": None}, logs=[text],
        rollout_id="ro-1",
    )  # fmt: skip


def test_hostile_content_is_text() -> None:
    shown = checked(trajectory()._repr_html_())
    assert "<script>alert(1)</script>" in shown, "as text"
    assert "\\u202eabc" in shown, "what turns the reading direction is spelled out"
    assert "\\ud800" in shown
    group = art.TrajectoryGroup(
        [trajectory(), trajectory("fine")], exceptions=[ValueError(HOSTILE)], metadata={HOSTILE: 1}
    )
    shown = checked(group._repr_html_())
    assert "all rewards are equal" in shown
    assert "ValueError" in shown


@settings(
    max_examples=30,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_any_text_can_be_shown(text: str) -> None:
    checked(trajectory(text)._repr_html_())


def test_it_is_bounded() -> None:
    long = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "x" * 1_000_000}] * 500, logs=["y" * 10_000] * 500
    )
    html = long._repr_html_()
    assert len(html) < 2 * notebook.MAX_BUDGET
    assert "more characters" in checked(html)
    group = art.TrajectoryGroup([long] * 300)
    assert len(group._repr_html_()) < 2 * notebook.MAX_BUDGET
    assert "more" in checked(group._repr_html_())


def test_an_empty_one_can_be_shown() -> None:
    assert "no messages" in checked(art.Trajectory()._repr_html_())
    assert "0 rollouts" in checked(art.TrajectoryGroup([])._repr_html_())


def test_results_show_their_figures(tmp_path: Path) -> None:
    step = FitStep(1, 1, False, HOSTILE, 0.25, 0.5, 0, 1.5)
    fit = FitResult(1, 1, [step, step], stopped_by="the budget is used up")
    shown = checked(fit._repr_html_())
    assert "0.25 ± 0.5" in shown
    assert "the budget is used up" in shown
    train = art.TrainResult(
        step=3, metrics={"data/step_actor_tokens": 12345.0, "time/step_wall_s": 2.5, HOSTILE: 1.0}
    )
    shown = checked(train._repr_html_())
    assert "12,345 tokens" in shown
    assert "2.5 s" in shown
    result = EvalResult(
        model=HOSTILE,
        repeats=1,
        scenarios=[
            ScenarioRuns(id=HOSTILE, runs=[EvalRun(reward=0.5)]),
            ScenarioRuns(id="b", runs=[EvalRun(error="x")]),
        ],
    )
    assert "mean reward 0.5" in checked(result._repr_html_())

    model: art.Model[Any, Any] = art.Model(name="m", project="p", base_path=str(tmp_path))
    assert "p/m" in checked(model._repr_html_())
    for reward in (0.0, 1.0):
        asyncio.run(model.log([art.Trajectory(reward=reward)], step=1))
    html = model._repr_html_()
    assert "evaluation reward: 0 → 1" in checked(html)
    assert "<polyline" in html


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (1234567.8, "1,234,568"),
        (True, "True"),
        (7, "7"),
        (1e-9, "1e-09"),
        ("a", "a"),
        (float("nan"), "nan"),
    ],
)
def test_numbers(value: object, text: str) -> None:
    assert notebook.number(value) == text
