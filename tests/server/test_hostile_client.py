"""Whatever an agent does to its history, the trainer receives what the engine was given and sampled, each token once."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import httpx2
import pytest
from hostile_dialects import DIALECTS, Anthropic, Said, habits_of
from hostile_kit import TICKS, Agent, Watched, everything, follow, from_memory, tokens_of

TASK = [Said("system", "You work."), Said("user", "task")]


@pytest.fixture(params=sorted(DIALECTS))
def agent(request: pytest.FixtureRequest, watched: Watched) -> Agent:
    return Agent(watched.open(), DIALECTS[request.param], everything(request.param))


def task() -> list[Said]:
    return [Said(item.role, item.text) for item in TASK]


def test_a_whole_hostile_rollout(watched: Watched, agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    since = watched.mark()
    history = task()
    agent.work(history, 4)
    # The same request twice, and then on from the second answer.
    body = agent.body(history)
    agent.send(body)
    answer = agent.send(body)
    history += [answer, *follow(answer)]
    # Ten at once.
    body = agent.body(history)
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: agent.send(body), range(10)))
    history += [answers[3], *follow(answers[3])]
    # Two sub-agents, side by side.
    together = Barrier(2, timeout=60)

    def delegate(name: str) -> None:
        own = Agent(agent.opened, agent.dialect, agent.habit, seed=len(name))
        mine = [Said("system", f"You are {name}."), Said("user", "task")]
        for _ in range(2):
            together.wait()
            own.work(mine, 1)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(delegate, ("red", "green")))
    # Gone in mid-stream, and back.
    history.append(Said("user", "slowly"))
    body = agent.body(history)
    parts = [agent.stream(body, at_most=20), agent.stream(body, at_most=40)]
    whole = agent.stream(body)
    assert all(whole.startswith(part) for part in parts)
    assert whole.count("tick") == TICKS
    # The history is compacted, and goes on.
    history = [Said("system", "You work."), Said("user", "Summary: much was done. go on")]
    agent.work(history, 2)
    history.append(Said("user", "finish"))
    agent.ask(history)

    watched.finish(agent)
    rows = [tokens_of(row) for row in watched.lines(since)]
    assert watched.engine_saw(since) == watched.trainer_gets(agent.opened["rollout_id"])
    calls = watched.calls(agent)
    assert len(calls) == len(rows) == 4 + 2 + 10 + 4 + 1 + 3
    assert sum(call["branch"] == 0 for call in calls) == 4 + 2 + 10 + 1
    assert sorted({call["branch"] for call in calls}) == [0, 1, 2, 3]
    assert not any(call["auxiliary"] for call in calls)
    # The sub-agents' calls were mixed: two first ones, then two that go on from them.
    assert [call["parent_call_id"] is None for call in calls[16:20]] == [True, True, False, False]
    assert {call["branch"] for call in calls[16:18]} == {call["branch"] for call in calls[18:20]} == {1, 2}
    # Every call but the four that begin a conversation goes on from memory.
    assert [call["number"] for call in calls if call["parent_call_id"] is None] == [0, 16, 17, 21]
    known = from_memory(rows)
    with capsys.disabled():
        share = known / (len(calls) - 4)
        print(f"\n{type(agent.dialect).__name__}: {share:.0%} of {len(calls) - 4} turns served from memory")
    assert known == len(calls) - 4


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_no_habit_of_a_client_makes_a_branch(watched: Watched, name: str) -> None:
    """Each alone, in all forms that the dialect has for it."""
    since = watched.mark()
    habits: dict[str, tuple[Any, Any]] = {
        habit: (DIALECTS[name], spoil) for habit, spoil in habits_of(DIALECTS[name]).items()
    }
    if name == "anthropic":
        habits |= {
            f"{habit}, hidden": (Anthropic(hidden=True), spoil) for habit, (_, spoil) in habits.items()
        }

    def run(habit: str) -> Agent:
        dialect, spoil = habits[habit]
        agent = Agent(watched.open(), dialect, spoil, seed=len(habit))
        history = task()
        agent.work(history, 3)
        history += follow(agent.ask(history, streamed=True))
        agent.ask(history)
        watched.finish(agent)
        return agent

    with ThreadPoolExecutor(len(habits)) as pool:
        agents = dict(zip(habits, pool.map(run, habits), strict=True))
    calls = {habit: watched.calls(agent) for habit, agent in agents.items()}
    assert {habit: [call["branch"] for call in found] for habit, found in calls.items()} == {
        habit: [0] * 5 for habit in habits
    }
    assert {
        habit: [bool(call["reused_token_count"]) for call in found] for habit, found in calls.items()
    } == {habit: [False, *[True] * 4] for habit in habits}
    rollouts = [agent.opened["rollout_id"] for agent in agents.values()]
    assert watched.engine_saw(since) == watched.trainer_gets(*rollouts)


def test_what_came_from_memory_is_the_exact_tokens(watched: Watched, agent: Agent) -> None:
    since = watched.mark()
    agent.work(task(), 5)
    rows = watched.lines(since)
    for before, after in itertools.pairwise(rows):
        known = before["prompt_token_ids"] + before["token_ids"]
        assert after["prompt_token_ids"][: len(known)] == known
    assert "Thought" in watched.decode(rows[-1]["prompt_token_ids"])


def test_with_the_policy_template_prompts_are_the_templates_and_the_rest_is_the_same(
    watched: Watched,
) -> None:
    since = watched.mark()
    agent = Agent(
        watched.open("tests/stock"), DIALECTS["chat"], habits_of(DIALECTS["chat"])["strips reasoning"]
    )
    agent.work(task(), 4)
    calls = watched.calls(agent)
    assert [call["branch"] for call in calls] == [0] * 4
    assert [call["parent_call_id"] for call in calls[1:]] == [call["call_id"] for call in calls[:-1]]
    last = watched.decode(watched.lines(since)[-1]["prompt_token_ids"])
    assert "Thought" not in last  # the client dropped it, and the template knows of nothing else
    rollout = agent.opened["rollout_id"]
    assert watched.trainer_gets(rollout, model="stock") == watched.engine_saw(since)


def test_a_changed_answer_is_a_branch_and_never_guessed(watched: Watched, agent: Agent) -> None:
    history = [Said("user", "finish")]
    agent.ask(history, tools=False)
    history[-1].text = "Something that was never said."
    history.append(Said("user", "finish"))
    agent.ask(history, tools=False)
    calls = watched.calls(agent)
    assert [call["branch"] for call in calls] == [0, 1]
    assert [call["reused_token_count"] for call in calls] == [0, 0]


def test_a_call_that_was_left_goes_on_and_the_same_request_gets_the_rest(
    watched: Watched, agent: Agent
) -> None:
    since = watched.mark()
    body = agent.body([Said("user", "slowly")], tools=False)
    part = agent.stream(body, at_most=20)
    deadline = time.monotonic() + 30
    while not (calls := watched.calls(agent)):  # nobody reads, and it is sampled to its end
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [choice["finish_reason"] for choice in calls[0]["choices"]] == ["cancelled"]
    assert sum(watched.trainer_gets(agent.opened["rollout_id"]).values()) == 0  # it reached nobody
    again = agent.stream(body)
    assert again.startswith(part)
    assert again.count("tick") == TICKS
    assert len(watched.lines(since)) == 1
    (call,) = watched.calls(agent)
    assert [choice["finish_reason"] for choice in call["choices"]] == ["stop"]
    assert watched.trainer_gets(agent.opened["rollout_id"]) == watched.engine_saw(since)
    # Delivered whole, it is no more repeated.
    agent.stream(body)
    assert len(watched.calls(agent)) == 2
    assert len(watched.lines(since)) == 2


def test_a_client_that_gives_up_waiting_gets_its_answer_when_it_asks_again(
    watched: Watched, agent: Agent
) -> None:
    """An answer that takes longer than the client waits would otherwise never come."""
    since = watched.mark()
    body = agent.body([Said("user", "slowly")], tools=False)
    headers = {"Authorization": f"Bearer {agent.opened['api_key']}"}
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(agent.url, json=body, headers=headers, timeout=httpx2.Timeout(30, read=0.1))
    # Patient now: who gives up in the moment in which the answer is written is taken to have read it.
    response = httpx2.post(agent.url, json=body, headers=headers, timeout=30)
    assert response.status_code == 200
    assert len(watched.lines(since)) == 1
    assert watched.trainer_gets(agent.opened["rollout_id"]) == watched.engine_saw(since)


def test_without_a_session_a_call_ends_when_its_client_leaves(watched: Watched) -> None:
    since = watched.mark()
    anybody = {"base_url": f"{watched.server.url}/v1", "api_key": watched.server.admin_key}
    agent = Agent(anybody, DIALECTS["chat"], everything("chat"))
    body = agent.body([Said("user", "to nobody, slowly")], tools=False) | {"model": "tests/alpha"}
    agent.stream(body, at_most=20)
    rows = watched.wait_for_lines(since, 1)
    assert [row["finish_reason"] for row in rows] == ["cancelled"]


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_eight_first_calls_of_a_group_are_eight_independent_samples(watched: Watched, name: str) -> None:
    since = watched.mark()

    def member(number: int) -> str:
        opened = watched.open(scenario_id=f"fruit {name}", group_id="g", member=number)
        Agent(opened, DIALECTS[name], everything(name)).ask([Said("user", "a fruit")], tools=False)
        return str(opened["rollout_id"])

    with ThreadPoolExecutor(8) as pool:
        rollouts = list(pool.map(member, range(8)))
    rows = watched.lines(since)
    assert len({row["seed"] for row in rows}) == 8
    assert len({tuple(row["prompt_token_ids"]) for row in rows}) == 1
    assert len({tuple(row["token_ids"]) for row in rows}) > 1
    assert watched.trainer_gets(*rollouts) == watched.engine_saw(since)
