"""Which calls are on the side: the rule table of docs/capture.md, and agents that must not lose a call to it."""

from __future__ import annotations

from typing import Any

from art.server.auxiliary import judge, judged
from art.types.tokens import CallRecord, ChoiceRecord


def call(number: int, parent: int | None = None, **options: Any) -> CallRecord:
    """A call with one choice. Options: tools, system, opening, tokens, agent, reward, asked."""
    names = {
        "tools": "tool_count",
        "system": "system_number",
        "opening": "opening_number",
        "asked": "auxiliary_asked",
    }
    reward = options.pop("reward", None)
    if "tokens" in options:
        options["sampling_asked"] = {"max_tokens": options.pop("tokens")}
    return CallRecord(
        call_id=f"c{number}",
        rollout_id="r",
        number=number,
        parent_call_id=None if parent is None else f"c{parent}",
        choices=[ChoiceRecord(index=0, finish_reason="stop", token_count=3, reward=reward)],
        **{names.get(name, name): value for name, value in options.items()},
    )


def side(*calls: CallRecord, rule: Any = "detect") -> list[int]:
    """Numbers of the calls on the side."""
    verdicts = judge(calls, rule)
    return [item.number for item in calls if verdicts[item.call_id] is not None]


LOOP = [call(0, tools=1), call(1, 0, tools=1), call(2, 1, tools=1)]
TALK = [call(0), call(1, 0), call(2, 1)]


def title(number: int, **options: Any) -> CallRecord:
    return call(number, **{"system": 1, "opening": number, **options})


def test_titles_summaries_and_probes_are_on_the_side() -> None:
    assert side(*LOOP, title(3)) == [3]
    assert side(*LOOP[:2], title(5), *LOOP[2:]) == [5]
    assert side(
        title(7, system=0, opening=0),
        *(item.model_copy(update={"system_number": 1, "opening_number": 1}) for item in LOOP),
    ) == [7]
    assert side(*TALK, title(3)) == [3]
    # A probe, before the agent's only answer too.
    assert side(call(0, tokens=4), call(1, tokens=400)) == [0]
    # A probe of the quota first, a count of the tokens of the history in between.
    assert side(*LOOP, call(9, tokens=1, opening=4)) == [9]
    assert side(*LOOP[:2], call(7, 1, tools=1, tokens=1), *LOOP[2:]) == []  # it could be the last word
    count = call(2, 1, tools=1, tokens=1)
    assert side(*LOOP[:2], count, call(3, 1, tools=1)) == [2]
    # A summary without tools, behind which the conversation begins anew.
    summary = call(3)
    assert side(*LOOP, summary, call(4, tools=1, opening=1), call(5, 4, tools=1, opening=1)) == [3]


def test_agents_keep_all_their_calls() -> None:
    assert side(call(0)) == []
    assert side(call(0, tokens=8)) == []
    assert side(call(0, tokens=8), call(1, 0, tokens=8)) == []
    assert side(*TALK) == []
    assert side(*LOOP) == []
    # The last answer is forced by taking the tools away, of the agent and of its sub-agent.
    assert side(*LOOP, call(3)) == []
    sub = [call(3, tools=1, system=1, opening=1), call(4, system=1, opening=1)]
    assert side(*LOOP[:2], *sub, call(5, 1, tools=1)) == []
    # The last answer is a short one.
    assert side(*LOOP[:2], call(2, 1, tools=1, tokens=5)) == []
    # Ten at once, and an answer asked for twice.
    assert side(*(call(number) for number in range(10))) == []
    assert side(*TALK, call(3, 1)) == []
    # A line of agents with a call each.
    assert side(*(call(number, system=number, opening=number) for number in range(3))) == []
    # A sub-agent with tools of its own, and one with several turns.
    assert side(*LOOP, call(3, tools=2, system=1, opening=1)) == []
    assert (
        side(*LOOP, call(3, system=1, opening=1), call(4, 3, system=1, opening=1), call(5, 2, tools=1)) == []
    )
    assert side(*TALK, call(3, system=1, opening=1), call(4, 3, system=1, opening=1)) == []
    # A history that was compacted begins anew with what the agent had.
    assert side(*LOOP, call(3, tools=1, opening=1), call(4, 3, tools=1, opening=1)) == []
    # A rollout always has something to train.
    assert side(call(0, tokens=4), call(1, tokens=4)) == []


def test_the_callers_word_settles_it() -> None:
    assert side(*LOOP, title(3, asked=False)) == []
    assert side(*LOOP, title(3, agent="titles")) == []
    assert side(*LOOP, title(3, reward=1.0)) == []
    assert side(*LOOP, title(3), rule="train") == []
    assert side(*LOOP[:2], call(2, 1, tools=1, asked=True)) == [2]
    assert side(call(0, asked=True)) == [0]
    assert side(*LOOP, title(3, asked=True), rule="train") == [3]


def test_the_reason_is_told() -> None:
    marked = judged([*LOOP, title(3), title(4, tokens=10)])
    assert [item.auxiliary for item in marked] == [False, False, False, True, True]
    assert marked[3].auxiliary_reason == "it has no tools, and others have"
    assert "10 tokens" in marked[4].auxiliary_reason
    assert marked[0].auxiliary_reason == ""
