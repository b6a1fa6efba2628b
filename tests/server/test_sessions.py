"""Where a call belongs, whose sampling holds, and what a rollout may use."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from chat_kit import Served, says

from art.types.policy import SamplingParams

MODEL = "tests/alpha"


def ask(client: openai.OpenAI, messages: list[Any] | str, **options: Any) -> Any:
    conversation = says(messages) if isinstance(messages, str) else messages
    return client.chat.completions.create(**{"model": MODEL, "messages": conversation, **options})


def said(answer: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": answer.choices[0].message.content}


def rollout_of(served: Served, answer: Any) -> str:
    return str(served.call_row(answer.choices[0].art["call_id"])["rollout_id"])


def test_by_url_and_by_scoped_key(served: Served) -> None:
    opened = served.open()
    by_url = ask(served.agent(opened), "count")
    by_key = ask(served.client(key=opened["api_key"]), "greet me")
    by_admin = ask(served.client(base_url=opened["base_url"]), "hi")
    assert {rollout_of(served, answer) for answer in (by_url, by_key, by_admin)} == {opened["rollout_id"]}
    calls = served.rollout(opened["rollout_id"])["calls"]
    assert [call["number"] for call in calls] == [0, 1, 2]
    assert opened["model"] == "tests/alpha@0"
    assert [model.id for model in served.agent(opened).models.list()]


def test_a_scoped_key_opens_no_other_door(served: Served) -> None:
    mine, other = served.open(), served.open()
    with pytest.raises(openai.PermissionDeniedError):
        ask(served.client(base_url=other["base_url"], key=mine["api_key"]), "hi")
    with pytest.raises(openai.PermissionDeniedError):
        ask(served.client(key=mine["api_key"]), "hi", extra_headers={"X-ART-Rollout": other["rollout_id"]})
    assert served.raw("GET", "/api/v1/models", key=mine["api_key"]).status_code == 403
    assert served.rollout(other["rollout_id"])["calls"] == []


def test_by_header_as_gather_does_it(served: Served) -> None:
    headers = {
        "X-ART-Rollout": "ro-by-header",
        "X-ART-Scenario": "paris",
        "X-ART-Group": "g1",
        "X-ART-Member": "3",
        "X-ART-Agent": "planner",
    }
    client = served.client()
    first = ask(client, "count", extra_headers=headers, temperature=0.5)
    ask(client, [*says("count"), said(first), *says("hi")], extra_headers=headers)
    rollout = served.rollout("ro-by-header")
    assert (rollout["scenario_id"], rollout["group_id"], rollout["member"]) == ("paris", "g1", 3)
    assert (rollout["purpose"], rollout["status"]) == ("train", "running")
    assert [call["agent"] for call in rollout["calls"]] == ["planner", "planner"]
    assert rollout["calls"][1]["parent_call_id"] == rollout["calls"][0]["call_id"]
    # The hand-written loop's own values hold.
    assert rollout["calls"][0]["sampling_used"]["temperature"] == 0.5
    with pytest.raises(openai.NotFoundError):
        ask(client, "hi", model="gpt-4o", extra_headers=headers)


def test_calls_that_open_one_rollout_at_the_same_time(served: Served) -> None:
    client = served.client()

    def call(number: int) -> Any:
        return ask(client, f"count {number}", extra_headers={"X-ART-Rollout": "ro-at-once"})

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(call, range(10)))
    assert {rollout_of(served, answer) for answer in answers} == {"ro-at-once"}
    calls = served.rollout("ro-at-once")["calls"]
    assert [call["number"] for call in calls] == list(range(10))
    assert len({call["branch"] for call in calls}) == 10


def test_two_models_called_at_once_share_the_rollout_of_a_header(served: Served) -> None:
    client = served.client()

    def call(number: int) -> Any:
        model = ("tests/alpha", "tests/beta")[number % 2]
        return ask(client, f"count {number}", model=model, extra_headers={"X-ART-Rollout": "ro-two-models"})

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(call, range(6)))
    assert {rollout_of(served, answer) for answer in answers} == {"ro-two-models"}
    versions = [answer.choices[0].art["version"] for answer in answers]
    assert versions == ["tests/alpha@0", "tests/beta@0"] * 3


def test_a_header_with_an_impossible_id_is_refused(served: Served) -> None:
    for name in ("../../etc", "a b", "x" * 200):
        with pytest.raises(openai.BadRequestError, match="cannot be a rollout id"):
            ask(served.client(), "hi", extra_headers={"X-ART-Rollout": name})
    with pytest.raises(openai.BadRequestError, match="X-ART-Member"):
        ask(served.client(), "hi", extra_headers={"X-ART-Rollout": "ro-member", "X-ART-Member": "two"})


def test_without_a_session_a_call_continues_the_history_it_extends(served: Served) -> None:
    client = served.client()
    first = ask(client, "count for the first time")
    other = ask(client, "count for another time")
    then = ask(client, [*says("count for the first time"), said(first), *says("greet me")])
    assert rollout_of(served, then) == rollout_of(served, first)
    assert rollout_of(served, other) != rollout_of(served, first)
    known = first.prompt_token_ids + first.choices[0].token_ids
    assert then.prompt_token_ids[: len(known)] == known
    row = served.call_row(then.choices[0].art["call_id"])
    assert row["parent_call_id"] == first.choices[0].art["call_id"]
    assert row["reused_token_count"] == len(known)
    # Nobody opened it, so nothing waits for its end.
    assert served.rollout(rollout_of(served, first))["status"] == "finished"


def test_a_history_of_two_sessions_is_assigned_to_neither(served: Served) -> None:
    client = served.client()
    twins = [ask(client, "count for twins", seed=1) for _ in range(2)]
    assert rollout_of(served, twins[0]) != rollout_of(served, twins[1])
    then = ask(client, [*says("count for twins"), said(twins[0]), *says("hi")])
    assert rollout_of(served, then) not in {rollout_of(served, twin) for twin in twins}
    # Both recorded the same tokens, so those are the prompt.
    known = twins[0].prompt_token_ids + twins[0].choices[0].token_ids
    assert then.prompt_token_ids[: len(known)] == known
    row = served.call_row(then.choices[0].art["call_id"])
    assert row["parent_call_id"] is None
    assert len(json.loads(row["text"])["tail"]) == 3


def test_a_rewritten_history_is_a_branch(served: Served) -> None:
    opened = served.open()
    agent = served.agent(opened)
    first = ask(agent, "count")
    second = ask(agent, [*says("count"), said(first), *says("greet me")])
    ask(agent, [*says("count"), said(first), *says("greet me"), said(second), *says("hi")])
    compacted = ask(agent, [*says("count"), said(first), *says("say it shorter")])
    rewritten = ask(
        agent, [*says("count"), {"role": "assistant", "content": "I never said this"}, *says("hi")]
    )
    calls = served.rollout(opened["rollout_id"])["calls"]
    ids = [call["call_id"] for call in calls]
    assert [call["branch"] for call in calls] == [0, 0, 0, 1, 2]
    assert [call["parent_call_id"] for call in calls] == [None, ids[0], ids[1], ids[0], None]
    known = first.prompt_token_ids + first.choices[0].token_ids
    assert compacted.prompt_token_ids[: len(known)] == known
    assert rewritten.prompt_token_ids[: len(known)] != known


def test_an_unchanged_agent_is_sampled_by_the_training_rules(served: Served) -> None:
    asked = {"model": "gpt-4o", "temperature": 0, "seed": 42, "top_p": 0.9, "frequency_penalty": 0.2}
    fruits = []
    for member in range(8):
        opened = served.open(scenario_id="basket", member=member)
        answer = ask(served.agent(opened), "a fruit", **asked)
        fruits.append(answer.choices[0].message.content)
    (call,) = served.rollout(opened["rollout_id"])["calls"]
    assert call["version"] == "tests/alpha@0"
    assert call["sampling_asked"] == asked
    used = SamplingParams.model_validate(call["sampling_used"])
    assert (used.temperature, used.top_p, used.top_k, used.seed) == (1.0, 1.0, 0, 42)
    assert len(set(fruits)) > 1, "the agent's fixed seed made all members of the group equal"


def test_the_callers_sampling_holds_where_it_is_asked_for(served: Served) -> None:
    for options in ({"purpose": "evaluate"}, {"sampling": "caller"}):
        opened = served.open(**options)
        agent = served.agent(opened)
        fruits = {
            ask(agent, "a fruit", model="gpt-4o", temperature=0, seed=5).choices[0].message.content
            for _ in range(4)
        }
        call = served.rollout(opened["rollout_id"])["calls"][0]
        assert call["sampling_used"]["temperature"] == 0
        assert len(fruits) == 1
        fate = call["choices"][0]["fate"]
        assert fate == ("evaluation" if "purpose" in options else "filtered")


def test_the_same_scenario_draws_anew_for_every_rollout(served: Served) -> None:
    fruits = []
    for _ in range(8):  # all of them member 0 of the same scenario, as a careless program opens them
        opened = served.open(scenario_id="careless")
        fruits.append(ask(served.agent(opened), "a fruit").choices[0].message.content)
    assert len(set(fruits)) > 1


def test_limits_end_a_rollout_with_a_reason(served: Served) -> None:
    opened = served.open(limits={"max_calls": 2})
    agent = served.agent(opened)
    ask(agent, "hi")
    ask(agent, "hi")
    with pytest.raises(openai.PermissionDeniedError, match="max_calls"):
        ask(agent, "hi")
    agent = served.agent(served.open(limits={"max_tokens": 40}))
    sampled = [ask(agent, text).usage.completion_tokens for text in ("count", "slowly please")]
    assert sampled == [24, 16]
    with pytest.raises(openai.PermissionDeniedError, match="max_tokens"):
        ask(agent, "hi")
    agent = served.agent(served.open(limits={"max_seconds": 0.3}))
    cut = ask(agent, "slowly please")
    assert cut.choices[0].finish_reason == "length"
    with pytest.raises(openai.PermissionDeniedError, match="max_seconds"):
        ask(agent, "hi")


def test_a_rollout_that_has_ended_takes_no_calls(served: Served) -> None:
    opened = served.open()
    agent = served.agent(opened)
    ask(agent, "hi")
    served.api(
        "POST", f"rollouts/{opened['rollout_id']}/finish", {"status": "agent_error", "reason": "it fell"}
    )
    with pytest.raises(openai.ConflictError, match=r"agent_error.*\n.*it fell"):
        ask(agent, "hi")
    assert (
        served.raw(
            "POST", "/api/v1/rollouts", {"model": MODEL, "rollout_id": opened["rollout_id"]}
        ).status_code
        == 409
    )
    with pytest.raises(openai.NotFoundError):
        ask(served.client(base_url=f"{served.server.url}/r/nobody/v1"), "hi")


def test_opening_twice_opens_once(served: Served) -> None:
    first = served.open(rollout_id="ro-twice")
    ask(served.agent(first), "hi")
    again = served.open(rollout_id="ro-twice")
    ask(served.agent(again), "hi")
    assert len(served.rollout("ro-twice")["calls"]) == 2
    body = {"model": "tests/beta", "rollout_id": "ro-twice"}
    assert served.raw("POST", "/api/v1/rollouts", body).status_code == 409


def test_a_repeated_request_is_answered_again_and_sampled_once(served: Served) -> None:
    opened = served.open()
    url = f"/r/{opened['rollout_id']}/v1/chat/completions"
    body = {"model": MODEL, "messages": says("a fruit")}
    key = {"Idempotency-Key": "one"}
    with ThreadPoolExecutor(3) as pool:
        answers = [r.json() for r in pool.map(lambda _: served.raw("POST", url, body, headers=key), range(3))]
    streamed = served.raw("POST", url, body, headers=key)
    assert answers[0] == answers[1] == answers[2] == streamed.json()
    assert len(served.rollout(opened["rollout_id"])["calls"]) == 1
    other = served.raw("POST", url, {**body, "messages": says("hi")}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    anew = served.raw("POST", url, body)
    assert anew.json()["choices"][0]["art"]["call_id"] != answers[0]["choices"][0]["art"]["call_id"]


def test_a_replayed_stream_is_the_same_stream(served: Served) -> None:
    opened = served.open()
    url = f"/r/{opened['rollout_id']}/v1/chat/completions"
    body = {"model": MODEL, "messages": says("count"), "stream": True}
    lines = [served.raw("POST", url, body, headers={"Idempotency-Key": "s"}).text for _ in range(2)]
    assert all(text.endswith("data: [DONE]\n\n") for text in lines)

    def joined(text: str) -> tuple[str, list[int]]:
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        words = "".join(choice["delta"].get("content") or "" for choice in choices)
        return words, [token for choice in choices for token in choice.get("token_ids", [])]

    assert joined(lines[0]) == joined(lines[1])
    assert joined(lines[0])[0] == "one two three four five"


def test_several_models_serve_one_rollout(served: Served) -> None:
    opened = served.open()
    agent = served.agent(opened)
    versions = [
        ask(agent, "hi", model=model).choices[0].art["version"]
        for model in ("gpt-4o", "alpha", "beta", "tests/beta@0")
    ]
    assert versions == ["tests/alpha@0", "tests/alpha@0", "tests/beta@0", "tests/beta@0"]
    with pytest.raises(openai.NotFoundError):
        ask(agent, "hi", model="tests/nobody")
