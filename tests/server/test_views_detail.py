"""What the dashboard shows of one rollout, one group, one choice; what people add; what happens now. Over sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from chat_kit import TOOLS, Served, says

from art.types.wire_views import GroupDetail, TokenPage, TrajectoryDetail


def shown(served: Served, rollout_id: str) -> TrajectoryDetail:
    return TrajectoryDetail.model_validate(served.api("GET", f"views/rollouts/{rollout_id}"))


def tokens(served: Served, rollout_id: str, call_id: str | None, **asked: int) -> TokenPage:
    query = "&".join(f"{name}={value}" for name, value in asked.items())
    return TokenPage.model_validate(
        served.api("GET", f"views/rollouts/{rollout_id}/tokens?call_id={call_id}&{query}")
    )


@pytest.fixture(scope="module")
def rollout(served: Served) -> str:
    """A rollout with a tool call, its result, a choice that was not continued, a call on the side, and a judge's word."""
    opened = served.open(scenario_id="oslo", group_id="detail/0")
    agent, name = served.agent(opened), str(opened["rollout_id"])
    ask: dict[str, Any] = {"model": "gpt-4o", "tools": TOOLS}
    history: list[Any] = says("the weather in Oslo")
    first = agent.chat.completions.create(messages=history, temperature=0.2, **ask)
    call = first.choices[0].message.tool_calls[0]
    history += [
        first.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": '{"error": "sunny"}'},
    ]
    agent.chat.completions.create(messages=history, n=2, extra_headers={"X-ART-Agent": "teller"}, **ask)
    agent.chat.completions.create(
        model="gpt-4o", messages=[{"role": "system", "content": "Titles."}, *says("greet")]
    )
    served.api("POST", f"rollouts/{name}/reward", {"reward": 0.5, "metadata": {"city": "Oslo"}})
    served.api("POST", f"rollouts/{name}/finish", {})
    trajectory = {
        "messages_and_choices": says("the weather in Oslo"),
        "reward": 0.5,
        "rollout_id": name,
        "metadata": {"judge_explanation": "It looked before it spoke."},
        "logs": ["asked once"],
    }
    log = {"step": 0, "split": "val", "recorded_at": "today", "groups": [{"trajectories": [trajectory]}]}
    served.api("POST", "models/tests/alpha/log", log)
    return name


def test_a_rollout_as_a_tree_with_what_was_said(served: Served, rollout: str) -> None:
    found = shown(served, rollout)
    one, two, title = found.calls
    assert (one.parent, two.parent, title.parent) == (None, 0, None)
    assert (two.agent, title.auxiliary, title.auxiliary_reason) == (
        "teller",
        True,
        "it has no tools, and others have",
    )
    assert [message.text for message in one.tail] == ["the weather in Oslo"]
    assert one.tools == ["get_weather"]
    said = one.choices[0].message
    assert (said.role, said.call_id, said.choice) == ("assistant", one.call_id, 0)
    assert [(call["name"], json.loads(call["arguments"])) for call in said.tool_calls] == [
        ("get_weather", {"city": "Oslo"})
    ]
    (result,) = two.tail
    assert (result.role, result.error, result.tool_call_id) == ("tool", True, said.tool_calls[0]["id"])
    assert len(two.choices) == 2
    assert "temperature 0.2 -> 1.0" in one.overrides
    assert one.seconds_to_first_token is not None
    assert one.seconds is not None
    assert one.seconds_to_first_token <= one.seconds
    line = found.rollout
    assert (line.calls, line.tool_calls, line.tool_errors, line.reward) == (3, 1, 1, 0.5)
    assert (line.project, line.model, line.scenario_id, line.group_id) == (
        "tests",
        "alpha",
        "oslo",
        "detail/0",
    )
    assert line.sampled_tokens == sum(choice.token_count for call in found.calls for choice in call.choices)
    assert found.metadata == {"city": "Oslo", "judge_explanation": "It looked before it spoke."}
    assert (found.explanation, found.logs) == ("It looked before it spoke.", ["asked once"])
    assert found.note.flag is None


def test_its_tokens_are_those_that_were_sampled(served: Served, rollout: str) -> None:
    call = shown(served, rollout).calls[2]
    record = served.rollout(rollout)["calls"][2]
    whole = tokens(served, rollout, call.call_id, start=-call.prompt_tokens)
    assert len(whole.ids) == call.prompt_tokens + whole.total
    assert "".join(whole.text) == served.decode(whole.ids)
    assert "".join(whole.text[call.prompt_tokens :]).startswith("Grüße, 你好 🙂!")
    assert set(whole.version[call.prompt_tokens :]) == {0}
    assert whole.mask == [False] * len(whole.ids)  # a call on the side is not trained
    assert all(value is not None and value <= 0 for value in whole.logprob[call.prompt_tokens :])
    assert whole.trained_logprob is None
    part = tokens(served, rollout, call.call_id, start=2, limit=3)
    at = call.prompt_tokens + 2
    assert (part.start, part.total, part.ids) == (2, whole.total, whole.ids[at : at + 3])
    assert record["choices"][0]["token_count"] == whole.total
    evaluated = tokens(served, rollout, shown(served, rollout).calls[0].call_id)
    assert not any(evaluated.mask)


def test_a_choice_that_waits_shows_what_would_be_trained(served: Served) -> None:
    opened = served.open()
    name = str(opened["rollout_id"])
    served.agent(opened).chat.completions.create(model="gpt", messages=says("count"))
    (call,) = shown(served, name).calls
    assert call.choices[0].fate == "trainable"
    assert all(tokens(served, name, call.call_id).mask)


def test_what_is_asked_for_wrongly(served: Served, rollout: str) -> None:
    call_id = shown(served, rollout).calls[0].call_id
    for query, status in (
        ("", 404),
        ("call_id=nothing", 404),
        (f"call_id={call_id}&choice=7", 404),
        (f"call_id={call_id}&start=x", 400),
        (f"call_id={call_id}&start=1e3", 400),
        (f"call_id={call_id}&limit=0", 400),
        (f"call_id={call_id}&limit=9999999", 400),
    ):
        answer = served.raw("GET", f"/api/v1/views/rollouts/{rollout}/tokens?{query}")
        assert answer.status_code == status, query
    assert served.raw("GET", "/api/v1/views/rollouts/nobody").status_code == 404
    assert served.raw("GET", "/api/v1/views/runs/tests/alpha/groups/none").status_code == 404


def test_a_group_side_by_side(served: Served) -> None:
    rewards = {"count": 0.25, "greet": 1.0, "": None}
    for text, reward in rewards.items():
        opened = served.open(group_id="detail/side by side", scenario_id="s")
        name = opened["rollout_id"]
        if text:
            said = [{"role": "system", "content": "Be short."}, *says(text)]
            served.agent(opened).chat.completions.create(model="gpt", messages=said)
            served.api("POST", f"rollouts/{name}/reward", {"reward": reward})
        served.api("POST", f"rollouts/{name}/finish", {})
    path = "views/runs/tests/alpha/groups/detail/side%20by%20side"
    found = GroupDetail.model_validate(served.api("GET", path))
    assert [member.rollout.reward for member in found.members] == [1.0, 0.25, None]
    assert found.group.size == 3
    assert (found.group.reward_mean, found.group.reward_min, found.group.reward_max) == (0.625, 0.25, 1.0)
    assert found.group.reward_std_dev == 0.375
    assert found.group.statuses == {"finished": 2, "no_calls": 1}
    assert [[message.text for message in member.messages][:2] for member in found.members] == [
        ["Be short.", "greet"],
        ["Be short.", "count"],
        [],
    ]
    assert found.divergence is not None
    assert (found.divergence.message, found.divergence.character) == (1, 0)


def test_flag_and_note(served: Served, rollout: str) -> None:
    note = served.api(
        "PUT", f"rollouts/{rollout}/note", {"flag": "good", "note": "a clean one", "by": "somebody"}
    )
    assert (note["flag"], note["note"], note["by"]) == ("good", "a clean one", "admin")
    assert note["time"] is not None
    found = shown(served, rollout)
    assert (found.note.flag, found.rollout.flag) == ("good", "good")
    assert served.raw("PUT", f"/api/v1/rollouts/{rollout}/note", {"flag": "great"}).status_code == 400
    assert served.raw("PUT", f"/api/v1/rollouts/{rollout}/note", {"note": "x" * 4001}).status_code == 400
    entry = served.api("GET", "audit?limit=1")["entries"][0]
    assert entry["action"] == "PUT /api/v1/rollouts/{rollout_id}/note"
    assert "clean" not in json.dumps(entry)
    assert served.api("PUT", f"rollouts/{rollout}/note", {})["flag"] is None
    assert shown(served, rollout).rollout.flag is None


def test_saved_views(served: Served) -> None:
    for name, location in (("worst", "/a"), ("best", "/b"), ("worst", "/c")):
        views = served.api("PUT", "views/saved/tests", {"name": name, "location": location})
    assert views == served.api("GET", "views/saved?project=tests")
    assert [(view["name"], view["location"]) for view in views["views"]] == [
        ("best", "/b"),
        ("worst", "/c"),
    ]
    assert served.api("GET", "views/saved?project=other")["views"] == []
    assert served.raw("DELETE", "/api/v1/views/saved/tests?name=none").status_code == 404
    left = served.api("DELETE", "views/saved/tests?name=worst")
    assert [view["name"] for view in left["views"]] == ["best"]
    for name, location in (("", "/"), ("a", "key=art_another&/"), ("a", "javascript:alert(1)"), ("a", "")):
        wrong = served.raw("PUT", "/api/v1/views/saved/tests", {"name": name, "location": location})
        assert wrong.status_code == 400
    assert served.raw("GET", "/api/v1/views/saved").status_code == 400


def test_the_configuration_of_a_run(served: Served) -> None:
    served.register(
        "tests", "configured"
    )  # a job of `alpha`, by whatever test ran before, adds what it trained with
    config = {"config": {"train": {"learning_rate": 1e-4}}, "origin": {"train.learning_rate": "flag"}}
    assert served.api("PUT", "models/tests/configured/run-config", config) == config
    run = served.api("GET", "views/runs/tests/configured")
    assert (run["config"]["run"], run["config_origin"]) == (config["config"], config["origin"])
    assert served.raw("PUT", "/api/v1/models/tests/nobody/run-config", config).status_code == 404


def test_what_is_purged_takes_its_note_along(served: Served) -> None:
    opened = served.open(rollout_id="detail-purged")
    served.agent(opened).chat.completions.create(model="gpt", messages=says("count"))
    served.api("POST", "rollouts/detail-purged/finish", {})
    served.api("PUT", "rollouts/detail-purged/note", {"note": "to be forgotten"})
    served.api("POST", "data/purge", {"rollout_ids": ["detail-purged"]})
    assert served.raw("GET", "/api/v1/views/rollouts/detail-purged").status_code == 404
    kept = b"".join(file.read_bytes() for file in (served.server.path / "server").glob("art.db*"))
    assert b"to be forgotten" not in kept


@contextmanager
def listening(
    served: Served, query: str = "", *, key: str | None = None
) -> Iterator[Callable[[], tuple[str, Any]]]:
    """What gives the next event of the stream."""
    headers = {"Authorization": f"Bearer {key or served.server.admin_key}"}
    url = f"{served.server.url}/api/v1/views/events{query}"
    with httpx2.stream("GET", url, headers=headers, timeout=30) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        assert next(lines) == ": listening"

        def next_event() -> tuple[str, Any]:
            kind = ""
            for line in lines:
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    return kind, json.loads(line[6:])
            raise AssertionError("the stream ended")

        yield next_event


def until(event: Callable[[], tuple[str, Any]], wanted: Callable[[str, Any], bool]) -> tuple[str, Any]:
    """The first event of that kind; the test's own deadline ends the wait."""
    while True:
        kind, data = event()
        if wanted(kind, data):
            return kind, data


def test_what_changes_is_told(served: Served) -> None:
    with listening(served, "?project=tests&name=beta") as event:
        served.api("PUT", "models/tests/alpha/run-config", {"config": {}})
        served.open("tests/alpha", rollout_id="live-alpha")
        served.open("tests/beta", rollout_id="live-beta")
        kind, data = event()
        assert (kind, data) == (
            "rollout",
            {"project": "tests", "name": "beta", "id": "live-beta", "status": "running", "step": 0},
        )
        served.api("POST", "rollouts/live-beta/finish", {"status": "agent_error", "reason": "gone"})
        until(event, lambda kind, data: kind == "rollout" and data["status"] == "agent_error")
        log = {"step": 0, "split": "val", "recorded_at": "now", "metrics": {"x": 1.0}}
        served.api("POST", "models/tests/beta/log", log)
        until(event, lambda kind, data: kind == "log" and data["name"] == "beta")
        job = served.api("POST", "jobs", {"project": "tests", "name": "beta", "groups": []})
        until(event, lambda kind, data: kind == "step")
        _, data = until(event, lambda kind, data: kind == "job" and data["status"] == "succeeded")
        assert data["id"] == job["job_id"]
        served.api("PUT", "rollouts/live-beta/note", {"flag": "bad"})
        until(event, lambda kind, data: data["id"] == "live-beta")


def test_a_key_hears_of_its_project_alone_and_no_longer_than_it_lives(served: Served) -> None:
    made = served.api("POST", "keys", {"role": "infer", "project": "other"})
    with listening(served, key=made["key"]) as event:
        served.open("tests/alpha", rollout_id="live-hidden")
        served.open("other/alpha", rollout_id="live-seen")
        assert event()[1]["id"] == "live-seen"
        served.api("DELETE", f"keys/{made['info']['key_id']}")
        served.open("other/alpha", rollout_id="live-unheard")
        with pytest.raises(AssertionError, match="the stream ended"):
            event()
    answer = served.raw(
        "GET",
        "/api/v1/views/events?project=tests",
        key=served.api("POST", "keys", {"role": "train", "project": "other"})["key"],
    )
    assert answer.status_code == 403


def test_how_the_server_is(served: Served) -> None:
    served.client().chat.completions.create(model="tests/alpha", messages=says("count"))
    found = served.api("GET", "views/server")
    assert found["read_only"] is False
    assert {queue["name"] for queue in found["queues"]} == {"calls", "jobs", "store"}
    assert {worker["name"] for worker in found["workers"]} >= {"engine", "trainer"}
    assert found["sampled_tokens_per_second"] > 0
    assert found["calls_per_minute"] > 0
    assert found["memory_bytes"] > 1_000_000
    assert found["store_bytes"] > 10_000
    assert found["open_connections"] >= 1


def test_a_prompt_that_is_tried_is_never_trained(served: Served) -> None:
    """With a key that may do nothing but ask, against a version by its number."""
    key = served.api("POST", "keys", {"role": "infer", "project": "tests"})["key"]
    headers = {"X-ART-Purpose": "evaluate"}
    body = {"model": "tests/alpha@0", "messages": says("count")}
    choice = served.chat(body, key=key, headers=headers).json()["choices"][0]
    call = served.call_row(choice["art"]["call_id"])
    found = shown(served, call["rollout_id"])
    assert found.rollout.purpose == "evaluate"
    assert (found.calls[0].choices[0].fate, found.calls[0].version) == ("evaluation", "tests/alpha@0")
    assert found.next == ""
    # The same conversation without the header is another rollout.
    history = [*body["messages"], choice["message"], *says("count on")]
    on = served.chat({**body, "messages": history}, key=key).json()["choices"][0]
    assert served.call_row(on["art"]["call_id"])["rollout_id"] != call["rollout_id"]
    again = served.chat({**body, "messages": history}, key=key, headers=headers).json()["choices"][0]
    assert served.call_row(again["art"]["call_id"])["rollout_id"] == call["rollout_id"]
    assert served.chat(body, headers={"X-ART-Purpose": "fun"}).status_code == 400
    opened = served.open()
    inside = {"X-ART-Rollout": str(opened["rollout_id"]), **headers}
    assert served.chat(body, headers=inside).status_code == 409


def test_a_server_that_stops_ends_the_streams(start_art_server: Any) -> None:
    server = start_art_server()
    ended = threading.Event()

    def read() -> None:
        headers = {"Authorization": f"Bearer {server.admin_key}"}
        with httpx2.stream("GET", f"{server.url}/api/v1/views/events", headers=headers, timeout=60) as answer:
            for line in answer.iter_lines():
                if line:
                    listens.set()
        ended.set()

    listens = threading.Event()
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert listens.wait(30)
    assert server.stop() == 0
    assert ended.wait(30)
