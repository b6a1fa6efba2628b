"""Named upstreams over two real servers and one odd one: passed through, captured, never trained, the key kept."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from chat_kit import TOOLS, Served, says, stream
from upstream_kit import MESSAGES_SSE, SSE, OddUpstream, odd_upstream

from art.config.load import load_config
from art.config.upstreams import parse_flag
from art.errors import ConfigError
from art.testing.server import ArtServer

SECRET = "sk-secret-of-the-upstream-0123456789"
ODD = (
    "echo",
    "refuse",
    "tell",
    "busy",
    "crash",
    "page",
    "empty",
    "wall",
    "elsewhere",
    "slow",
    "pieces",
    "breaks",
    "endless",
)


@pytest.fixture(scope="module")
def odd() -> Iterator[OddUpstream]:
    with odd_upstream() as server:
        yield server


@pytest.fixture(scope="module")
def near(served: Served, odd: OddUpstream, start_art_server: Any, tiny_model_dir: Path) -> Iterator[Served]:
    """A server whose upstreams are the other server's `tests/beta`, the odd one's habits, and nobody."""
    with socket.socket() as taken:  # bound and not listening: every connection to it is refused
        taken.bind(("127.0.0.1", 0))
        upstreams: dict[str, Any] = {
            name: {"base_url": f"{odd.url}/{name}/v1", "api_key_env": "ODD_KEY", "model": f"real-{name}"}
            for name in ODD
        }
        upstreams["slow"]["timeout"] = 0.5
        upstreams["echo"]["routes"] = ["rerank"]
        upstreams["open"] = {"base_url": f"{odd.url}/echo/v1", "dialect": "openai"}
        upstreams["claude"] = {
            "base_url": f"{odd.url}/echo/v1",
            "dialect": "anthropic",
            "api_key_env": "ODD_KEY",
        }
        upstreams["down"] = {"base_url": f"http://127.0.0.1:{taken.getsockname()[1]}/v1"}
        upstreams["gpt-4o"] = {
            "base_url": f"{served.server.url}/v1",
            "model": "tests/beta",
            "api_key_env": "FAR_KEY",
        }
        server = start_art_server(
            script={"default": "I am near."},
            environment={
                "ART_SERVER__UPSTREAMS": json.dumps(upstreams),
                "ODD_KEY": SECRET,
                "FAR_KEY": served.server.admin_key,
            },
        )
        near = Served(server, str(tiny_model_dir))
        near.register("tests", "alpha")
        yield near
        server.stop()


def ask(near: Served, upstream: str, *, route: str = "chat/completions", **options: Any) -> httpx2.Response:
    body = {"model": upstream, "messages": says("hi"), **options.pop("body", {})}
    return near.raw("POST", f"{options.pop('prefix', '')}/v1/{route}", body, **options)


def recorded(near: Served, upstream: str) -> list[dict[str, Any]]:
    """The store's rows of an upstream, oldest first."""
    with sqlite3.connect(f"file:{near.server.path}/server/art.db?mode=ro", uri=True) as conn:
        conn.row_factory = sqlite3.Row
        found = conn.execute("SELECT * FROM upstream_calls WHERE upstream = ? ORDER BY rowid", (upstream,))
        return [dict(row) for row in found]


def until_recorded(near: Served, upstream: str, count: int) -> dict[str, Any]:
    """The newest row, once there are `count`."""
    deadline = time.monotonic() + 30
    while len(rows := recorded(near, upstream)) < count:
        assert time.monotonic() < deadline, "the call was not recorded"
        time.sleep(0.02)
    return rows[-1]


def test_another_server_is_reached_by_name_inside_a_rollout(near: Served, served: Served) -> None:
    """`gpt-4o` would mean the session's model; the upstream of that name wins."""
    opened = near.open()
    agent = near.agent(opened)
    own = agent.chat.completions.create(model="some-model", messages=says("hi"))
    assert own.choices[0].message.content == "I am near."
    question = says("weather in Oslo")
    answer = agent.chat.completions.create(
        model="gpt-4o", messages=question, tools=TOOLS, extra_headers={"X-ART-Agent": "judge"}
    )
    assert answer.model.startswith("tests/beta@")
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"
    got = stream(agent.chat.completions.create(model="gpt-4o", messages=says("count"), stream=True))
    assert got["text"] == {0: "one two three four five"}
    assert got["chunks"] > 3

    info = near.rollout(opened["rollout_id"])
    assert [call["version"] for call in info["calls"]] == ["tests/alpha@0"], (
        "only the model's call is trainable"
    )
    first, second = info["upstream_calls"]
    assert (first["upstream"], first["model"], first["route"]) == ("gpt-4o", "tests/beta", "chat/completions")
    assert (first["agent"], first["outcome"], first["status"]) == ("judge", "answered", 200)
    assert first["usage"]["total_tokens"] == answer.usage.total_tokens
    assert first["started_at"] <= first["first_byte_at"] <= first["finished_at"]
    assert second["outcome"] == "answered"
    texts = near.api("GET", f"rollouts/{opened['rollout_id']}/upstream_calls")["calls"]
    assert texts[0]["request"]["messages"] == question
    assert texts[0]["answer"]["choices"][0]["message"] == answer.choices[0].message.model_dump(
        exclude_unset=True
    )
    said = "".join(
        choice["delta"].get("content") or ""
        for event in texts[1]["answer"]
        for choice in event.get("choices", ())
    )
    assert said == "one two three four five"
    # What was sampled there is recorded there, in a session of its own.
    assert served.call_row(answer.choices[0].art["call_id"])["version"].startswith("tests/beta@")


def test_a_rollout_that_asked_only_others_called_no_model(near: Served) -> None:
    opened = near.open()
    assert near.agent(opened).chat.completions.create(model="gpt-4o", messages=says("hi"))
    assert near.api("POST", f"rollouts/{opened['rollout_id']}/finish", {})["status"] == "no_calls"
    with pytest.raises(openai.ConflictError, match="no_calls"):
        near.agent(opened).chat.completions.create(model="gpt-4o", messages=says("hi"))


@pytest.mark.parametrize(
    "route",
    [
        "chat/completions",
        "responses",
        "completions",
        "embeddings",
        "messages",
        "messages/count_tokens",
        "rerank",
    ],
)
def test_every_route_passes_with_the_servers_key_and_name(near: Served, odd: OddUpstream, route: str) -> None:
    given = {"input": ["a", "ü"], "unknown_option": {"x": [1, 2.5, None]}, "messages": 5}
    answer = ask(near, "echo", route=route, body=given, headers={"Cookie": "c=d", "OpenAI-Beta": "x"})
    assert answer.status_code == 200, answer.text
    seen = odd.requests[-1]
    assert answer.json() == {**seen, "headers": answer.json()["headers"], "usage": {"total_tokens": 5}}
    assert seen["route"] == route
    assert seen["body"] == {**given, "model": "real-echo"}
    headers = seen["headers"]
    anthropic = route.startswith("messages")
    assert (headers.get("x-api-key") == SECRET) is anthropic
    assert (headers.get("authorization") == f"Bearer {SECRET}") is not anthropic
    assert ("anthropic-version" in headers) is anthropic
    assert headers["openai-beta"] == "x"
    assert "cookie" not in headers
    assert near.server.admin_key not in str(headers)
    assert answer.headers["X-ART-Upstream"] == "echo"
    row = recorded(near, "echo")[-1]
    assert json.loads(row["usage"]) == {"total_tokens": 5}
    assert SECRET not in row["answer"], "an upstream that repeats its key does not bring it into the store"


def test_a_stream_passes_byte_by_byte(near: Served) -> None:
    for route, whole, usage in (
        ("chat/completions", SSE, {"prompt_tokens": 3, "completion_tokens": 2}),
        ("messages", MESSAGES_SSE, {"input_tokens": 7, "output_tokens": 9}),
    ):
        before = len(recorded(near, "pieces"))
        headers = {"Authorization": f"Bearer {near.server.admin_key}"}
        body = {"model": "pieces", "stream": True}
        url = f"{near.server.url}/v1/{route}"
        with httpx2.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
            pieces = list(answer.iter_raw())
        assert b"".join(pieces) == whole
        assert len(pieces) > 3, "pieces leave as they come"
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        row = until_recorded(near, "pieces", before + 1)
        assert json.loads(row["usage"]) == usage
        assert row["outcome"] == "answered"


def error_of(answer: httpx2.Response, status: int, *words: str) -> dict[str, Any]:
    """An error in OpenAI's shape that says these words and no key."""
    assert answer.status_code == status, answer.text
    assert SECRET not in answer.text
    error = answer.json()["error"]
    assert {"message", "type", "code", "param"} <= error.keys()
    for word in words:
        assert word in error["message"], error
    return dict(error)


@pytest.mark.parametrize(
    ("upstream", "status", "words"),
    [
        ("down", 502, ["upstream down", "cannot be reached"]),
        ("refuse", 502, ["upstream refuse", "refused the server's key", "ODD_KEY"]),
        ("slow", 504, ["upstream slow", "0.5 s"]),
        ("page", 502, ["upstream page", "no JSON", "Welcome"]),
        ("empty", 502, ["upstream empty", "no JSON"]),
        ("crash", 502, ["upstream crash", "500"]),
        ("wall", 403, ["upstream wall", "Blocked"]),
        ("elsewhere", 502, ["upstream elsewhere", "redirect"]),
    ],
)
def test_failures_name_the_upstream_and_not_its_key(
    near: Served, odd: OddUpstream, upstream: str, status: int, words: list[str]
) -> None:
    asked = len(odd.requests)
    error_of(ask(near, upstream), status, *words)
    assert len(odd.requests) - asked == (upstream != "down"), "a redirect is not followed"
    anthropic = ask(near, upstream, route="messages")
    assert anthropic.status_code == status
    assert anthropic.json()["type"] == "error"
    assert f"upstream {upstream}" in anthropic.json()["error"]["message"]
    row = recorded(near, upstream)[-1]
    assert row["outcome"] == ("refused" if upstream == "wall" else "failed")
    assert row["error"] or upstream == "wall"


def test_refusals_pass_as_they_are(near: Served) -> None:
    busy = ask(near, "busy")
    assert (busy.status_code, busy.json()["error"]["message"]) == (429, "slow down")
    assert (busy.headers["retry-after"], busy.headers["x-ratelimit-remaining"]) == ("7", "0")
    assert "set-cookie" not in busy.headers
    with pytest.raises(openai.RateLimitError, match="slow down"):
        near.client().chat.completions.create(model="busy", messages=says("hi"))
    told = ask(near, "tell")
    assert told.status_code == 400
    assert told.json()["error"]["message"] == "you sent Bearer [the key]"
    assert recorded(near, "busy")[-1]["outcome"] == "refused"


def test_a_stream_that_breaks_ends_in_an_error_event(near: Served) -> None:
    with pytest.raises(openai.APIError, match="upstream breaks broke"):
        for _ in near.client().chat.completions.create(model="breaks", messages=says("hi"), stream=True):
            pass
    assert recorded(near, "breaks")[-1]["outcome"] == "failed"
    raw = ask(near, "breaks", route="messages").content
    last = raw.rstrip().split(b"\n\n")[-1]
    assert last.startswith(b"event: error\ndata: ")
    assert json.loads(last.split(b"data: ")[1])["type"] == "error"


def test_the_upstream_is_left_when_the_client_leaves(near: Served, odd: OddUpstream) -> None:
    odd.left.clear()
    chunks = near.client().chat.completions.create(model="endless", messages=says("hi"), stream=True)
    next(iter(chunks))
    chunks.close()
    assert odd.left.wait(30), "the upstream's connection was closed"
    row = until_recorded(near, "endless", 1)
    assert row["outcome"] == "cancelled"
    assert "tick" in row["answer"]


def test_a_finish_ends_a_rollouts_calls_to_upstreams(near: Served, odd: OddUpstream) -> None:
    odd.left.clear()
    opened = near.open()
    chunks = iter(
        near.agent(opened).chat.completions.create(model="endless", messages=says("hi"), stream=True)
    )
    next(chunks)
    near.api("POST", f"rollouts/{opened['rollout_id']}/finish", {"status": "agent_error"})
    with pytest.raises(openai.APIError, match="being ended"):
        list(chunks)
    assert odd.left.wait(30)
    (call,) = near.rollout(opened["rollout_id"])["upstream_calls"]
    assert call["outcome"] == "cancelled"


def test_routes_that_nobody_serves_name_the_setting(near: Served) -> None:
    error_of(ask(near, "tests/alpha", route="embeddings"), 404, "embeddings", "server.upstreams")
    error_of(ask(near, "tests/alpha", route="rerank"), 404, "rerank", "server.upstreams", "routes")
    error_of(ask(near, "claude"), 404, "upstream claude", "dialect")
    error_of(ask(near, "pieces", route="rerank"), 404, "upstream pieces", "routes")
    error_of(near.raw("GET", "/v1/batches"), 404, "/v1/batches", "server.upstreams")
    error_of(near.raw("GET", "/r/x/v1/files/abc"), 404, "/v1/files/abc", "server.upstreams")
    anthropic = ask(near, "open", route="messages")
    assert (anthropic.status_code, anthropic.json()["type"]) == (404, "error")
    error_of(near.raw("POST", "/v1/embeddings", [1]), 404, "server.upstreams")
    assert near.raw("GET", "/v1/chat/completions").status_code == 405


def test_who_may_call_an_upstream(near: Served) -> None:
    mine, other = near.open(), near.open()
    answer = ask(near, "open", prefix=f"/r/{mine['rollout_id']}", key=mine["api_key"])
    assert answer.status_code == 200
    assert "authorization" not in answer.json()["headers"], "an upstream without a key gets none"
    assert ask(near, "open", key=mine["api_key"]).status_code == 200, "the key knows its rollout"
    assert len(near.rollout(mine["rollout_id"])["upstream_calls"]) == 2
    refused = ask(near, "open", prefix=f"/r/{other['rollout_id']}", key=mine["api_key"])
    assert refused.status_code == 403
    assert ask(near, "open", prefix="/r/nobody").status_code == 404
    assert ask(near, "open", key="art_nobody_x").status_code == 401
    infer = near.api("POST", "keys", {"role": "infer"})["key"]
    assert ask(near, "open", key=infer).status_code == 200
    strangers = near.api("POST", "keys", {"role": "rollout", "project": "strangers"})["key"]
    assert ask(near, "open", prefix=f"/r/{mine['rollout_id']}", key=strangers).status_code == 404


def test_a_header_may_name_a_rollout_before_its_model_is_called(near: Served) -> None:
    headers = {"X-ART-Rollout": "asks-first"}
    strangers = near.api("POST", "keys", {"role": "rollout", "project": "strangers"})["key"]
    assert ask(near, "open", headers=headers).status_code == 200
    assert ask(near, "open", headers=headers, key=strangers).status_code == 200
    infer = near.api("POST", "keys", {"role": "infer"})["key"]
    assert ask(near, "open", headers=headers, key=infer).status_code == 403
    assert near.chat({"messages": says("hi")}, headers=headers).status_code == 200
    info = near.rollout("asks-first")
    assert (len(info["calls"]), len(info["upstream_calls"])) == (1, 1), (
        "what another project sent is not in it"
    )


def test_the_key_lies_nowhere(near: Served) -> None:
    ask(near, "refuse")
    folder = Path(near.server.path)
    with sqlite3.connect(folder / "server" / "art.db") as conn:
        conn.execute("PRAGMA wal_checkpoint(FULL)")
    kept = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert SECRET.encode() not in kept


def test_upstreams_are_listed_as_models(near: Served) -> None:
    models = {model.id: model.owned_by for model in near.client().models.list()}
    assert models["gpt-4o"] == "upstream"
    assert models["tests/alpha"] == "tests"
    assert near.client().models.retrieve("gpt-4o").owned_by == "upstream"


SETTINGS: list[tuple[Any, str]] = [
    ({"x": {"base_url": "http://a/v1", "api_key": SECRET}}, "api_key_env"),
    ({"x": {"base_url": f"http://me:{SECRET}@a/v1"}}, "password"),
    ({"x": {"base_url": "ftp://a"}}, "http"),
    ({"x": {"base_url": "http://a/v1", "timeout": 0}}, "timeout"),
    ({"x": {"base_url": "http://a/v1", "modle": "y"}}, "modle"),
    ({"x": {"base_url": "http://a/v1", "api_key_env": "A", "api_key_file": "b"}}, "not both"),
    ({"x": {"base_url": "http://a/v1", "routes": ["../x"]}}, "route"),
    ({"x@1": {"base_url": "http://a/v1"}}, "name"),
    ("{", "JSON"),
    ("[]", "dictionary"),
]


@pytest.mark.parametrize(("given", "word"), SETTINGS, ids=lambda value: str(value)[:40])
def test_settings_that_cannot_work(given: Any, word: str) -> None:
    text = given if isinstance(given, str) else json.dumps(given)
    with pytest.raises(ConfigError) as error:
        load_config(environment={"ART_SERVER__UPSTREAMS": text})
    assert word in str(error.value)
    assert "server.upstreams" in str(error.value)
    assert SECRET not in str(error.value)


def test_settings_from_a_file_and_a_flag(tmp_path: Path) -> None:
    file = tmp_path / "art.toml"
    file.write_text('[server.upstreams."big/teacher"]\nbase_url = "https://a.example/v1/"\nmodel = "m"\n')
    found = load_config(file=file, environment={}).server.upstreams
    assert found["big/teacher"].base_url == "https://a.example/v1"
    name, settings = parse_flag(
        "j=http://b/v1,model=m,api_key_env=K,routes=rerank+images/generations,timeout=5"
    )
    config = load_config(flags={"server": {"upstreams": {name: settings}}}, environment={}).server.upstreams[
        "j"
    ]
    assert (config.model, config.api_key_env, config.timeout) == ("m", "K", 5.0)
    assert config.routes == ("rerank", "images/generations")
    with pytest.raises(ConfigError, match="no setting"):
        parse_flag("j=http://b/v1,model")


def test_a_missing_key_is_said_at_the_start(tmp_path: Path) -> None:
    server = ArtServer(
        tmp_path, arguments=["--set", "server.upstreams.judge=http://127.0.0.1:1/v1,api_key_env=NO_SUCH_KEY"]
    )
    with pytest.raises(Exception, match="NO_SUCH_KEY"):
        server.start()
