"""Whatever an agent does to its history, the trainer receives what the engine was given and sampled, each token once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from hostile_kit import DIALECTS, SCRIPT, Agent, Said, Watched, rewritten
from test_anthropic import THINKER

from art.testing.tiny import tiny_model

TASK = [Said("system", "You work."), Said("user", "task")]


@pytest.fixture(scope="module")
def watched(start_art_server: Any, tmp_path_factory: Any) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("hostile")
    log = folder / "tokens.jsonl"
    base = tiny_model(folder / "model", warm=False, context_length=8192)  # a byte is a token
    server = start_art_server(script=SCRIPT, environment={"ART_ENGINE__TOKEN_LOG": str(log)})
    served = Watched(server, str(base), log)
    served.register("tests", "alpha", chat_template=THINKER, reasoning_parser="think")
    served.register("tests", "stock", chat_template=THINKER, reasoning_parser="think", history="template")
    yield served
    server.stop()


@pytest.fixture(params=sorted(DIALECTS))
def agent(request: pytest.FixtureRequest, watched: Watched) -> Agent:
    return Agent(watched, watched.open(), DIALECTS[request.param], rewritten)


def task() -> list[Said]:
    return [Said(item.role, item.text) for item in TASK]


def calls_of(watched: Watched, agent: Agent) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = watched.rollout(agent.opened["rollout_id"])["calls"]
    return calls


def test_a_whole_hostile_rollout(watched: Watched, agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    since = len(watched.lines())
    history = task()
    agent.work(history, 4)
    # The same request twice, and then on from the second answer.
    body = agent.body(history)
    agent.send(body)
    answer = agent.send(body)
    history += [answer, *(Said("tool", "result", answers=name) for name, _ in answer.calls)]
    # Ten at once.
    body = agent.body(history)
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: agent.send(body), range(10)))
    history += [answers[3], *(Said("tool", "result", answers=name) for name, _ in answers[3].calls)]
    # Two sub-agents.
    for name in ("red", "green"):
        agent.work([Said("system", f"You are {name}."), Said("user", "task")], 2)
    # Gone in mid-stream, and back.
    history.append(Said("user", "slowly"))
    body = agent.body(history)
    parts = [agent.stream(body, at_most=20), agent.stream(body, at_most=40)]
    whole = agent.stream(body)
    assert all(whole.startswith(part) for part in parts)
    assert whole.count("tick") == 60
    # The history is compacted, and goes on.
    history = [Said("system", "You work."), Said("user", "Summary: much was done. go on")]
    agent.work(history, 2)
    history.append(Said("user", "finish"))
    agent.ask(history)

    watched.api("POST", f"rollouts/{agent.opened['rollout_id']}/finish", {})
    assert watched.engine_saw(since) == watched.trainer_gets(agent.opened["rollout_id"])
    calls = calls_of(watched, agent)
    assert sum(call["branch"] == 0 for call in calls) == 4 + 2 + 10 + 1
    assert sorted({call["branch"] for call in calls}) == [0, 1, 2, 3]
    assert not any(call["auxiliary"] for call in calls)
    # Every call but the four that begin a conversation goes on from memory.
    known = [call for call in calls if call["reused_token_count"]]
    assert [call["number"] for call in calls if call["parent_call_id"] is None] == [0, 16, 18, 21]
    with capsys.disabled():
        share = len(known) / (len(calls) - 4)
        print(f"\n{type(agent.dialect).__name__}: {share:.0%} of {len(calls) - 4} turns served from memory")
    assert len(known) == len(calls) - 4


def test_what_came_from_memory_is_the_exact_tokens(watched: Watched, agent: Agent) -> None:
    since = len(watched.lines())
    agent.work(task(), 5)
    rows = watched.lines()[since:]
    for before, after in itertools.pairwise(rows):
        known = before["prompt_token_ids"] + before["token_ids"]
        assert after["prompt_token_ids"][: len(known)] == known
    assert "Thought" in watched.decode(rows[-1]["prompt_token_ids"])


def test_with_the_policy_template_prompts_are_the_templates_and_the_rest_is_the_same(
    watched: Watched,
) -> None:
    since = len(watched.lines())
    agent = Agent(watched, watched.open("tests/stock"), DIALECTS["chat"], rewritten)
    agent.work(task(), 4)
    calls = calls_of(watched, agent)
    assert [call["branch"] for call in calls] == [0] * 4
    assert [call["parent_call_id"] for call in calls[1:]] == [call["call_id"] for call in calls[:-1]]
    last = watched.decode(watched.lines()[-1]["prompt_token_ids"])
    assert "Thought" not in last  # the client dropped it, and the template knows of nothing else
    rollout = agent.opened["rollout_id"]
    assert watched.trainer_gets(rollout, model="stock") == watched.engine_saw(since)


def test_a_changed_answer_is_a_branch_and_never_guessed(watched: Watched, agent: Agent) -> None:
    history = [Said("user", "finish")]
    agent.ask(history, tools=False)
    history[-1].text = "Something that was never said."
    history.append(Said("user", "finish"))
    agent.ask(history, tools=False)
    calls = calls_of(watched, agent)
    assert [call["branch"] for call in calls] == [0, 1]
    assert [call["reused_token_count"] for call in calls] == [0, 0]


def test_a_call_that_was_left_goes_on_and_the_same_request_gets_the_rest(
    watched: Watched, agent: Agent
) -> None:
    since = len(watched.lines())
    body = agent.body([Said("user", "slowly")], tools=False)
    part = agent.stream(body, at_most=20)
    deadline = time.monotonic() + 30
    while not (calls := calls_of(watched, agent)):  # nobody reads, and it is sampled to its end
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [choice["finish_reason"] for choice in calls[0]["choices"]] == ["cancelled"]
    assert sum(watched.trainer_gets(agent.opened["rollout_id"]).values()) == 0  # it reached nobody
    again = agent.stream(body)
    assert again.startswith(part)
    assert again.count("tick") == 60
    assert len(watched.lines()) == since + 1
    (call,) = calls_of(watched, agent)
    assert [choice["finish_reason"] for choice in call["choices"]] == ["stop"]
    assert watched.trainer_gets(agent.opened["rollout_id"]) == watched.engine_saw(since)
    # Delivered whole, it is no more repeated.
    agent.stream(body)
    assert len(calls_of(watched, agent)) == 2
    assert len(watched.lines()) == since + 2


def test_a_client_that_gives_up_waiting_gets_its_answer_when_it_asks_again(
    watched: Watched, agent: Agent
) -> None:
    """An answer that takes longer than the client waits would otherwise never come."""
    since = len(watched.lines())
    body = agent.body([Said("user", "slowly")], tools=False)
    url = agent.opened["base_url"] + agent.dialect.path
    headers = {"Authorization": f"Bearer {agent.opened['api_key']}"}
    for _ in range(100):
        try:
            response = httpx2.post(url, json=body, headers=headers, timeout=httpx2.Timeout(30, read=0.2))
            break
        except httpx2.TimeoutException:
            continue
    assert response.status_code == 200
    assert len(watched.lines()) == since + 1
    assert watched.trainer_gets(agent.opened["rollout_id"]) == watched.engine_saw(since)


def test_without_a_session_a_call_ends_when_its_client_leaves(watched: Watched) -> None:
    since = len(watched.lines())
    dialect = DIALECTS["chat"]
    anybody = {"base_url": f"{watched.server.url}/v1", "api_key": watched.server.admin_key}
    agent = Agent(watched, anybody, dialect, rewritten)
    body = agent.body([Said("user", "to nobody, slowly")], tools=False) | {"model": "tests/alpha"}
    agent.stream(body, at_most=20)
    deadline = time.monotonic() + 30
    while len(rows := watched.lines()[since:]) < 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [row["finish_reason"] for row in rows] == ["cancelled"]


def test_eight_first_calls_of_a_group_are_eight_independent_samples(watched: Watched) -> None:
    since = len(watched.lines())

    def member(number: int) -> str:
        opened = watched.open(scenario_id="fruit", group_id="g", member=number)
        Agent(watched, opened, DIALECTS["chat"], rewritten).ask([Said("user", "a fruit")], tools=False)
        return str(opened["rollout_id"])

    with ThreadPoolExecutor(8) as pool:
        rollouts = list(pool.map(member, range(8)))
    rows = watched.lines()[since:]
    assert len({row["seed"] for row in rows}) == 8
    assert len({tuple(row["prompt_token_ids"]) for row in rows}) == 1
    assert len({tuple(row["token_ids"]) for row in rows}) > 1
    assert watched.trainer_gets(*rollouts) == watched.engine_saw(since)
