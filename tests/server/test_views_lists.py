"""The lists over HTTP: what was just recorded is in them, what cannot be read is said, what is deleted is gone."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from chat_kit import TOOLS, Served, says

from art.store.pages import cursor_of

MODEL = "tests/listed"
"""Of these tests alone: what a run says as a whole depends on every rollout and job of its model."""
RUN = f"views/runs/{MODEL}"
NEWEST = "rollouts created_at True"


@pytest.fixture(scope="module", autouse=True)
def listed(served: Served) -> None:
    served.register(*MODEL.split("/"))


@pytest.fixture(scope="module")
def rollout(served: Served) -> str:
    """Two turns with a tool, the second of which is told that it failed; reward and metrics."""
    opened = served.open(MODEL, scenario_id="towns/1", group_id="g/1", metadata={"town": "Ypsilanti"})
    name = str(opened["rollout_id"])
    messages: list[dict[str, Any]] = says("weather in Ypsilanti")
    body = {"model": MODEL, "messages": messages, "tools": TOOLS}
    first = served.raw("POST", f"/r/{name}/v1/chat/completions", body).json()["choices"][0]["message"]
    failed = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "Error: no such town"}
    messages += [{name: first[name] for name in ("role", "content", "tool_calls")}, failed]
    assert served.raw("POST", f"/r/{name}/v1/chat/completions", body).status_code == 200
    served.api("POST", f"rollouts/{name}/reward", {"reward": -0.5, "metrics": {"turns": 2}})
    return name


def lines(served: Served, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = served.api("GET", f"{RUN}/rollouts?{urlencode(query)}")["rollouts"]
    return found


def test_what_was_recorded_is_listed_at_once(served: Served, rollout: str) -> None:
    (line,) = lines(served, filter='metadata.town = "Ypsilanti"')
    assert (line["rollout_id"], line["status"], line["reward"]) == (rollout, "running", -0.5)
    assert (line["calls"], line["tool_calls"], line["tool_errors"]) == (2, 1, 1)
    assert line["metrics"] == {"turns": 2.0}
    for filter in ("reward < 0 and tool_errors > 0", "metrics.turns >= 2 and status = running"):
        assert rollout in [line["rollout_id"] for line in lines(served, filter=filter)]
    (hit,) = lines(served, search="ypsilanti get_weather")
    assert "\x02Ypsilanti\x03" in hit["hit"]
    assert [line["rollout_id"] for line in lines(served, scenario="towns/1", group="g/1")] == [rollout]
    assert lines(served, search="Timbuktu") == []
    run = served.api("GET", RUN)
    assert run["run"]["state"] == "sampling"
    assert run["statuses"]["running"] >= 1
    groups = served.api("GET", f"{RUN}/groups?scenario=towns/1")["groups"]
    assert [(group["group_id"], group["size"]) for group in groups] == [("g/1", 1)]
    assert groups[0]["preview"] == "weather in Ypsilanti"
    scenario = served.api("GET", f"{RUN}/scenarios/towns/1")
    assert [len(step["rollouts"]) for step in scenario["steps"]] == [1]
    served.api("POST", f"rollouts/{rollout}/finish", {})
    (line,) = lines(served, search="Ypsilanti")
    assert line["status"] == "finished"
    assert line["seconds"] > 0
    assert served.api("GET", "views/runs?project=tests")["runs"][0]["project"] == "tests"


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        ("filter=rewad<0", "filter, character 1: there is no 'rewad'", "did you mean reward?"),
        ("filter=reward+%3C+0+and", "filter, character 15: expected a name, found its end", "names are"),
        ("search=***", "the search has no words", "refund"),
        ("srot=reward", "there is no query parameter 'srot'", "did you mean sort?"),
        ("sort=rewrad", "sort is 'rewrad'", "did you mean reward?"),
        ("status=traned", "status is 'traned'", "did you mean trained?"),
        ("limit=0", "limit is '0'", "from 1 to 1000"),
        ("limit=1001", "limit is '1001'", "from 1 to 1000"),
        ("step=-1", "step is '-1'", "from 0"),
        ("cursor=abc", "the cursor is none of this list", "next"),
        (f"cursor={cursor_of(NEWEST, 1.0, 2**63, 1)}", "the cursor is none of this list", "next"),
        (f"cursor={cursor_of(NEWEST, chr(0xD800), 1, 1)}", "the cursor is none of this list", "next"),
        ("step=1&step=2", "step is given 2 times", ""),
        ("group=%00", "group is no text", ""),
    ],
)
def test_what_cannot_be_read_is_said(served: Served, query: str, message: str, hint: str) -> None:
    answer = served.raw("GET", f"/api/v1/{RUN}/rollouts?{query}", None)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "invalid_input"
    assert message in error["message"]
    assert hint in error["hint"]


def test_rewards_that_no_sum_holds_are_shown(served: Served) -> None:
    served.register("tests", "huge")
    for reward in (1e200, -1e200, 1e308, 1e308, 1e308):
        opened = served.open("tests/huge", scenario_id="huge", group_id="huge")
        served.api("POST", f"rollouts/{opened['rollout_id']}/reward", {"reward": reward})
    for step, spread in ((1, 1e308), (2, 1.0)):
        metrics = {"reward": -1e308, "reward_std_dev": spread}
        logged = {"split": "train", "step": step, "metrics": metrics, "recorded_at": str(step)}
        served.api("POST", "models/tests/huge/log", logged)
    run = "views/runs/tests/huge"
    (group,) = served.api("GET", f"{run}/groups")["groups"]
    assert group["reward_mean"] == pytest.approx(6e307)
    assert group["reward_std_dev"] == pytest.approx(0.24**0.5 * 1e308)
    (scenario,) = served.api("GET", f"{run}/scenarios")["scenarios"]
    assert scenario["reward_last"] > 0
    served.api("GET", f"{run}/scenarios/huge")
    band = served.api("GET", f"{run}/series?metric=train/reward")["series"]["train/reward"]
    assert band["low"][0] == -1e308  # what the mean is; its spread alone would pass the largest number
    for path in (
        "views/runs",
        run,
        f"{run}/rollouts",
        f"{run}/extremes",
        f"{run}/steps",
        f"{run}/reward-check",
    ):
        served.api("GET", path)


def test_runs_that_are_not_there(served: Served) -> None:
    for path in ("", "/series", "/steps", "/groups", "/rollouts", "/scenarios", "/extremes"):
        answer = served.raw("GET", f"/api/v1/views/runs/tests/nothing{path}", None)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_what_figures_mean(served: Served) -> None:
    found = {metric["name"]: metric for metric in served.api("GET", "views/metrics")["metrics"]}
    assert found["loss/entropy"]["unit"] == "nats"


def test_a_purged_rollout_is_in_no_list_and_no_search(served: Served, rollout: str) -> None:
    served.api("POST", "data/purge", {"rollout_ids": [rollout]})
    assert lines(served, search="Ypsilanti") == []
    assert rollout not in [line["rollout_id"] for line in lines(served)]
    assert served.api("GET", f"{RUN}/groups?scenario=towns/1")["groups"] == []
    folder = served.server.path / "server"
    assert not any(b"ypsilanti" in file.read_bytes().lower() for file in folder.glob("art.db*"))
