"""What no program should send is refused with a reason, and never answered as the server's failure."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

import httpx2
import pytest
from chat_kit import TOOLS, Served, says

SURROGATE = "half \ud83d a smile"
DEEP = "[" * 100_000 + "]" * 100_000
CHOICE: dict[str, Any] = {
    "index": 0,
    "finish_reason": "stop",
    "message": {"role": "assistant", "content": "I do not know."},
}


def send(served: Served, path: str, body: Any, **headers: str) -> httpx2.Response:
    """As JSON with escapes, which is how half characters travel."""
    given = {
        "Authorization": f"Bearer {served.server.admin_key}",
        "Content-Type": "application/json",
        **headers,
    }
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.post(served.server.url + path, content=raw, headers=given, timeout=60)


def refused(response: httpx2.Response, *words: str) -> None:
    assert response.status_code in (400, 404), response.text
    for word in words:
        assert word in response.text, response.text


def call(arguments: Any) -> list[Any]:
    function = {"name": "get_weather", "arguments": arguments}
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    return [*says("hi"), said, {"role": "tool", "tool_call_id": "c", "content": "x"}]


CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": says(SURROGATE)}, "surrogate"),
    ({"stop": [SURROGATE]}, "surrogate"),
    ({"user": SURROGATE}, "surrogate"),
    ({"tools": [{"type": "function", "function": {"name": "f", "description": SURROGATE}}]}, "surrogate"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_p": -(10**400)}, "top_p"),
    ({"seed": 10**400}, "seed"),
    ({"max_tokens": 2**70}, "max_tokens"),
    ({"top_k": 2**70}, "top_k"),
    ({"messages": call(DEEP), "tools": TOOLS}, "nested too deeply"),
    ({"messages": call(json.dumps({"city": SURROGATE})), "tools": TOOLS}, "surrogate"),
    ({"model": "tests/alpha@" + "1" * 5000}, "no model"),
    ({"model": "tests/alpha@\u0660"}, "no model"),
    ({"model": "tests/alpha@\u00b2"}, "no model"),
]


@pytest.mark.parametrize(
    ("body", "word"), CHATS, ids=lambda value: str(value)[:40].encode("ascii", "replace").decode()
)
def test_chat(served: Served, body: dict[str, Any], word: str) -> None:
    given = {"model": "tests/alpha", "messages": says("hi"), **body}
    refused(send(served, "/v1/chat/completions", given), word)


@pytest.mark.parametrize("member", ["9" * 30, "\u00b2", "-1", "1" * 5000])
def test_member_header(served: Served, member: str) -> None:
    headers = {"Authorization": f"Bearer {served.server.admin_key}", "X-ART-Member": member.encode("latin-1")}
    body = {"model": "tests/alpha", "messages": says("hi")}
    url = f"{served.server.url}/v1/chat/completions"
    refused(httpx2.post(url, json=body, headers=headers, timeout=60), "X-ART-Member")


@pytest.mark.parametrize(
    "raw", [b"\xed\xa0\x80", b'"\xed\xa0\x80"', DEEP.encode(), b"\xff", b'{"a": 1', b"nothing"]
)
def test_bodies(served: Served, raw: bytes) -> None:
    for path in (
        "/v1/chat/completions",
        "/api/v1/rollouts",
        "/api/v1/jobs",
        "/api/v1/models/tests/alpha/log",
    ):
        refused(send(served, path, raw), "body")


def test_a_body_that_no_context_holds_is_refused_by_its_size(served: Served) -> None:
    response = send(served, "/v1/chat/completions", {"model": "tests/alpha", "messages": says("x" * 2**24)})
    assert response.status_code == 413, response.text


TRAJECTORIES: list[dict[str, Any]] = [
    {"messages_and_choices": [{**CHOICE, "art": {"call_id": SURROGATE, "choice": 0}}]},
    {"messages_and_choices": [], "rollout_id": SURROGATE},
    {"messages_and_choices": [], "metadata": {"note": SURROGATE}},
    {"messages_and_choices": [], "metadata": {SURROGATE: 1}},
    {"messages_and_choices": [], "reward": "1"},
    {"messages_and_choices": [], "reward": True},
    {"messages_and_choices": [], "reward": 10**400},
    {"messages_and_choices": [{**CHOICE, "logprobs": []}]},
    {"messages_and_choices": [{**CHOICE, "logprobs": {"content": [{"logprob": "abc"}]}}]},
    {"messages_and_choices": [{**CHOICE, "message": {"content": "x", "tool_calls": 5}}]},
    {"messages_and_choices": [{**CHOICE, "art": {"call_id": "x", "choice": True}}]},
    {"messages_and_choices": [], "metadata": {"note": "x" * 100_001}},
    {"messages_and_choices": [], "metadata": {str(n): n for n in range(1001)}},
]


@pytest.mark.parametrize("given", TRAJECTORIES, ids=lambda value: ascii(value)[:70])
def test_trajectories(served: Served, given: dict[str, Any]) -> None:
    groups = [{"trajectories": [{"reward": 1.0, **given}]}]
    refused(send(served, "/api/v1/jobs", {"project": "tests", "name": "alpha", "groups": groups}))
    logged = {"step": 0, "recorded_at": uuid.uuid4().hex, "groups": groups}
    if "messages_and_choices" in given and any("art" not in item for item in given["messages_and_choices"]):
        return  # what is only logged is not looked for
    refused(send(served, "/api/v1/models/tests/alpha/log", logged))


@pytest.mark.parametrize(
    "given",
    [
        {"metadata": {"note": SURROGATE}},
        {"scenario_id": SURROGATE},
        {"member": 2**70},
        {"run_seed": 2**70},
        {"run_seed": -(2**70)},
    ],
    ids=ascii,
)
def test_rollouts(served: Served, given: dict[str, Any]) -> None:
    refused(send(served, "/api/v1/rollouts", {"model": "tests/alpha", **given}))


def test_rewards(served: Served) -> None:
    path = f"/api/v1/rollouts/{served.open()['rollout_id']}/reward"
    for given in (
        {"reward": "1"},
        {"reward": True},
        {"reward": 10**400},
        {"reward": 1, "metrics": {SURROGATE: 1}},
        {"reward": 1, "metrics": {"a": 10**400}},
        {"reward": 1, "metadata": {"a": 10**400}},
    ):
        refused(send(served, path, given))
    assert send(served, path, {"reward": 1}).json()["reward"] == 1.0
    assert send(served, path, {"reward": 1, "metrics": {"a": 10**30}}).json()["metrics"] == {"a": 1e30}


@pytest.mark.parametrize(
    "given",
    [
        {"config": json.loads('{"a":' * 300 + "1" + "}" * 300)},
        {"config": {"rate": math.nan}},
        {"config": {"text": "x" * 1_000_000}},
    ],
    ids=["deep", "nan", "long"],
)
def test_a_configuration_that_could_not_be_shown(served: Served, given: dict[str, Any]) -> None:
    answer = httpx2.put(
        f"{served.server.url}/api/v1/models/tests/alpha/run-config",
        content=json.dumps(given),
        headers={"Authorization": f"Bearer {served.server.admin_key}"},
    )
    refused(answer)
    served.api("GET", "views/runs/tests/alpha")


@pytest.mark.parametrize(
    "given",
    [
        {"step": 2**70},
        {"step": -1},
        {"split": SURROGATE},
        {"split": "../../x"},
        {"split": ".."},
        {"split": "a\n"},
        {"metrics": {SURROGATE: 1.0}},
        {"recorded_at": "x" * 101},
    ],
    ids=ascii,
)
def test_log(served: Served, given: dict[str, Any]) -> None:
    body = {"step": 0, "recorded_at": uuid.uuid4().hex, "split": "val", **given}
    refused(send(served, "/api/v1/models/tests/alpha/log", body))


@pytest.mark.parametrize("last", ["9" * 30, "9" * 5000, "-1", "\u00b2"])
def test_last_event_id(served: Served, last: str) -> None:
    headers = {"Authorization": f"Bearer {served.server.admin_key}", "Last-Event-ID": last.encode("latin-1")}
    url = f"{served.server.url}/api/v1/jobs/none/events"
    refused(httpx2.get(url, headers=headers, timeout=60), "Last-Event-ID")


@pytest.mark.parametrize("project", ["server", "Server", "SERVER"])
def test_a_project_in_the_servers_own_folder(served: Served, project: str) -> None:
    body = {"project": project, "name": "x", "config": {"base_model": served.base_model}}
    refused(send(served, "/api/v1/models", body), "project")


def test_whole_characters_in_escapes_are_taken(served: Served) -> None:
    body = {"model": "tests/alpha", "messages": says("a smile 🙂, and text that looks like one: \\ud83d")}
    assert b"\\ud83d" in json.dumps(body).encode()
    assert send(served, "/v1/chat/completions", body).status_code == 200
