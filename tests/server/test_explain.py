"""`art explain`: over the API and on the command line, of running, finished and trained rollouts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from chat_kit import TOOLS, Served, says
from train_kit import Trained

from art.cli.explain import lines
from art.types.explain import Explanation


def explained(server: Any, rollout_id: str, query: str = "") -> Explanation:
    return Explanation.model_validate(server.api("GET", f"rollouts/{rollout_id}/explain{query}"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "art.cli.main", "explain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def fates(told: Explanation) -> list[tuple[str, str]]:
    return [(choice.fate, choice.reason) for call in told.calls for choice in call.choices]


def test_every_call_with_its_fate(served: Served) -> None:
    opened = served.open(scenario_id="oslo")
    agent = served.agent(opened)
    ask: dict[str, Any] = {"model": "gpt-4o", "tools": TOOLS}
    history: list[Any] = says("the weather in Oslo")
    first = agent.chat.completions.create(messages=history, temperature=0.2, max_tokens=10**6, **ask)
    call = first.choices[0].message.tool_calls[0]
    history += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    agent.chat.completions.create(messages=history, n=2, extra_headers={"X-ART-Agent": "teller"}, **ask)
    agent.chat.completions.create(
        model="gpt-4o", messages=[{"role": "system", "content": "Titles."}, *says("greet")]
    )
    name = opened["rollout_id"]

    running = explained(served, name)
    assert running.next == "the agent's end, then a reward, then a train call that holds it"
    assert fates(running) == [
        ("trainable", ""),
        ("trainable", ""),
        ("filtered", "not continued"),
        ("auxiliary", "it has no tools, and others have"),
    ]
    one, two, title = running.calls
    assert (one.parent, two.parent, title.parent) == (None, 0, None)
    assert (one.branch, two.branch, title.branch, two.agent) == (0, 0, 1, "teller")
    assert (one.tool_count, title.tool_count) == (1, 0)
    assert "temperature 0.2 -> 1.0" in one.overrides
    assert "model gpt-4o -> tests/alpha" in one.overrides
    assert any(item.startswith("max_tokens 1000000 -> ") for item in one.overrides)
    assert two.reused_tokens == one.prompt_tokens + one.choices[0].token_count
    assert title.auxiliary
    assert one.choices[0].tokens is None

    served.api("POST", f"rollouts/{name}/reward", {"reward": 0.75, "agents": {"teller": -1}})
    served.api("POST", f"rollouts/{name}/finish", {})
    told = explained(served, name, "?tokens=true")
    assert told.next == "a train call that holds it"
    assert [(c.reward, c.reward_of) for call in told.calls for c in call.choices] == [
        (0.75, "rollout"),
        (-1.0, "agent"),
        (None, ""),
        (None, ""),
    ]
    tokens = told.calls[2].choices[0].tokens
    assert tokens is not None
    assert "".join(token.text for token in tokens) == "Grüße, 你好 🙂!<|im_end|>"
    assert all(token.trainable and token.logprob <= 0 for token in tokens)
    assert told.calls[1].prompt_tail is not None
    assert "sunny" in told.calls[1].prompt_tail
    assert "Oslo" not in told.calls[1].prompt_tail

    shown = "\n".join(lines(told))
    assert "will be trained, reward 0.75 (the rollout's)" in shown
    assert "will be trained, reward -1 (the agent's)" in shown
    assert "overruled: temperature 0.2 -> 1.0" in shown
    assert "   > ⟦Let me see. <tool_call>" in shown
    assert "⟦Grüße" not in shown  # it is left out
    assert "filtered: not continued" in shown


def test_the_main_branch_goes_past_a_title_and_over_the_choice_that_was_continued(served: Served) -> None:
    opened = served.open()
    agent = served.agent(opened)
    agent.chat.completions.create(
        model="x", messages=[{"role": "system", "content": "Titles."}, *says("greet")]
    )
    asked: list[Any] = says("a fruit")
    fruits = agent.chat.completions.create(model="x", messages=asked, tools=TOOLS, n=6)
    chosen = next(c for c in fruits.choices if c.message.content != fruits.choices[0].message.content)
    asked += [chosen.message, *says("count")]
    agent.chat.completions.create(model="x", messages=asked, tools=TOOLS)
    info = served.rollout(opened["rollout_id"])
    assert [call["branch"] for call in info["calls"]] == [0, 1, 1]
    assert [call["auxiliary"] for call in info["calls"]] == [True, False, False]
    said = [message["content"] for message in info["messages"]]
    assert said == ["a fruit", chosen.message.content, "count", "one two three four five"]
    taken = info["messages"][1]["choice"][
        "index"
    ]  # of choices that said the same, any is the one that was meant
    assert fruits.choices[taken].message.content == chosen.message.content
    assert fates(explained(served, opened["rollout_id"])).count(("filtered", "not continued")) == 5


def test_what_a_client_left_and_what_an_evaluation_made(served: Served) -> None:
    opened = served.open(purpose="evaluate")
    served.agent(opened).chat.completions.create(model="alpha", messages=says("count"), temperature=0)
    told = explained(served, opened["rollout_id"])
    assert fates(told) == [("evaluation", "sampled in an evaluation session")]
    assert told.next == ""
    assert "nothing to train" in lines(told)[1]

    opened = served.open(sampling="caller")
    agent = served.agent(opened)
    agent.chat.completions.create(model="alpha", messages=says("count"), temperature=0)
    agent.chat.completions.create(model="beta", messages=says("count"))
    first, other = fates(explained(served, opened["rollout_id"]))
    assert first[0] == "filtered"
    assert "greedily" in first[1]
    assert other == ("filtered", "sampled by tests/beta@0, which is another model")


def test_a_trained_rollout_and_one_without_a_signal(taught: Trained) -> None:
    good = taught.group([0.0, 1.0])
    flat = taught.group([0.5, 0.5])
    result = taught.train([good, flat])
    told = explained(taught, good["trajectories"][0]["rollout_id"])
    (choice,) = told.calls[0].choices
    assert (told.status, told.next) == ("trained", "")
    assert (choice.fate, choice.trained_step, choice.trained_tokens) == (
        "trained",
        result["step"],
        choice.token_count,
    )
    assert f"was trained into step {result['step']}" in "\n".join(lines(told))
    told = explained(taught, flat["trajectories"][0]["rollout_id"])
    assert told.status == "zero_variance"
    assert fates(told) == [("filtered", "all rewards of its group are equal (0.5)")]


def test_the_command_line(served: Served, tmp_path: Any) -> None:
    opened = served.open()
    served.agent(opened).chat.completions.create(model="gpt-4o", messages=says("count \x1b]0;title\x07"))
    name, url = opened["rollout_id"], served.server.url
    remote = run(name, "--url", url, "--key", served.server.admin_key, "--json")
    assert remote.returncode == 0, remote.stderr
    assert Explanation.model_validate(json.loads(remote.stdout)) == explained(served, name)
    local = run(name, "--path", str(served.server.path), "--tokens")
    assert local.returncode == 0, local.stderr
    assert "⟦one two three four five<|im_end|>⟧" in local.stdout
    assert "waits for the agent's end" in local.stdout
    assert "\\x1b]0;title\\x07" in local.stdout
    assert "\x1b" not in local.stdout
    for arguments, words in (
        (("none", "--path", str(served.server.path)), "there is no rollout none"),
        ((name, "--path", str(tmp_path)), "is no server's folder"),
        ((name, "--url", url, "--key", "art_x_y"), "key"),
    ):
        failed = run(*arguments)
        assert failed.returncode == 1
        assert failed.stderr.startswith("error: ")
        assert words in failed.stderr


@pytest.mark.parametrize("query", ["?tokens=yes", "?tokens="])
def test_a_query_that_is_neither_is_refused(served: Served, query: str) -> None:
    opened = served.open()
    path = f"/api/v1/rollouts/{opened['rollout_id']}/explain{query}"
    assert served.raw("GET", path).status_code == 400
    assert served.raw("GET", path, key=opened["api_key"]).status_code == 403
