"""What was said in a rollout as a person reads it, and where rollouts begin to differ."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.server.said import as_text, divergence, last_call, main_path, message_of
from art.store.records import CallText
from art.types.policy import Fate
from art.types.tokens import CallRecord, ChoiceRecord
from art.types.wire_views import Divergence, Message


def said(role: str, text: str = "", **more: Any) -> Message:
    return Message(role=role, text=text, **more)


def test_a_stored_message_for_a_person() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}
    found = message_of(
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]}
    )
    assert (found.text, found.reasoning) == ("", "Hm.")
    assert found.tool_calls == [{"id": "c1", "name": "look", "arguments": '{"city": "Oslo"}'}]
    assert as_text(found) == 'Hm.\nlook({"city": "Oslo"})'
    failed = message_of({"role": "tool", "tool_call_id": "c1", "content": '{"error": "no such city"}'})
    assert (failed.error, failed.tool_call_id) == (True, "c1")
    assert not message_of({"role": "user", "content": "Error: what is it?"}).error
    parts = message_of({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]})
    assert parts.text == "a"


def call(
    number: int, parent: str | None, *, branch: int = 0, auxiliary: bool = False, choices: int = 1
) -> CallRecord:
    return CallRecord(
        call_id=f"c{number}",
        rollout_id="r",
        parent_call_id=parent,
        number=number,
        branch=branch,
        auxiliary=auxiliary,
        choices=[ChoiceRecord(index=index, finish_reason="stop", token_count=1) for index in range(choices)],
    )


def text(tail: str, *answers: str, parent_choice: int = 0) -> CallText:
    return CallText(
        tail=[{"role": "user", "content": tail}],
        completions=[{"role": "assistant", "content": answer} for answer in answers],
        parent_choice=parent_choice,
    )


def test_the_main_path_follows_the_choice_that_was_continued() -> None:
    calls = [
        call(0, None, branch=1, auxiliary=True),
        call(1, None, choices=2),
        call(2, "c1"),
        call(3, None, branch=2, auxiliary=True),
    ]
    texts = {"c0": text("title?", "T"), "c1": text("q", "a", "b"), "c2": text("more", "z", parent_choice=1)}
    path = main_path(calls, texts)
    assert [(message.role, message.text) for message in path] == [
        ("user", "q"),
        ("assistant", "b"),
        ("user", "more"),
        ("assistant", "z"),
    ]
    assert [(message.call_id, message.choice) for message in path] == [
        (None, None),
        ("c1", 1),
        (None, None),
        ("c2", 0),
    ]
    assert main_path([], {}) == []


def test_the_main_path_is_the_one_that_ends_last() -> None:
    begun, rewritten, probe = call(0, None), call(1, None, branch=1), call(2, "c0", branch=2)
    texts = {"c0": text("q", "a"), "c1": text("in short: q", "b"), "c2": text("and?", "c")}

    def shown() -> list[str]:
        return [message.text for message in main_path([begun, rewritten, probe], texts)]

    assert shown() == ["q", "a", "and?", "c"]
    probe.choices[0].fate = Fate.FILTERED  # it was left out: the rollout is judged by the call before
    assert shown() == ["in short: q", "b"]
    rewritten.choices[0].fate = begun.choices[0].fate = Fate.STALE  # so was all of it
    assert shown() == ["q", "a", "and?", "c"]
    assert last_call([begun]) is begun


def test_a_choice_that_was_left_out_is_not_the_last_word() -> None:
    two = call(0, None, choices=2)
    two.choices[0].fate = Fate.FILTERED
    assert [message.text for message in main_path([two], {"c0": text("q", "a", "b")})] == ["q", "b"]


@pytest.mark.parametrize(
    ("rollouts", "place"),
    [
        ([["q", "yes"], ["q", "yes"]], None),
        ([["q", "yes"], ["q", "yet"], ["q", "yes"]], (1, 2)),
        ([["q", "yes"], ["q", "yes, it is"]], (1, 3)),
        ([["q", "yes"], ["q"]], (1, 0)),
        ([["q"], []], None),
        ([["a"], ["b"]], (0, 0)),
        ([["q"]], None),
        ([], None),
    ],
)
def test_where_they_begin_to_differ(rollouts: list[list[str]], place: tuple[int, int] | None) -> None:
    found = divergence([[said("user", line) for line in lines] for lines in rollouts])
    assert found == (None if place is None else Divergence(message=place[0], character=place[1]))


def test_another_role_is_a_difference() -> None:
    assert divergence([[said("user", "a")], [said("tool", "a")]]) == Divergence(message=0, character=0)


def test_ids_of_tool_calls_are_none() -> None:
    one, other = ({"id": number, "name": "look", "arguments": "{}"} for number in "12")
    assert (
        divergence([[said("assistant", tool_calls=[one])], [said("assistant", tool_calls=[other])]]) is None
    )


@given(st.lists(st.lists(st.text("ab", max_size=4), min_size=1, max_size=3), min_size=2, max_size=4))
def test_all_is_alike_before_and_not_at_the_place(rollouts: list[list[str]]) -> None:
    found = divergence([[said("user", line) for line in lines] for lines in rollouts])
    if found is None:
        assert all(lines == rollouts[0] for lines in rollouts)
        return
    assert all(lines[: found.message] == rollouts[0][: found.message] for lines in rollouts)
    lines = [lines[found.message] if found.message < len(lines) else None for lines in rollouts]
    if None not in lines:
        assert len({line[: found.character] for line in lines if line is not None}) == 1
        assert len({line[: found.character + 1] for line in lines if line is not None}) > 1
