"""Sub-agents and branches: who earns which reward, what it is compared with, and that a rollout's weight stays."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_kit import Trained

import art
from art.algorithms.advantages import grpo
from art.algorithms.aggregation import token_weights
from art.config.model import LoraConfig
from art.config.train import ResolvedTrainConfig, TrainConfig
from art.errors import InvalidReward
from art.server.batch import Batch
from art.store.records import CallText, JobSpec, RewardChange, RolloutRow
from art.store.store import Store
from art.trainer.batch import Batch as Loaded
from art.trainer.batch import load_batch
from art.trainer.protocol import TrainJob
from art.types.jobs import ResolvedBaseModel
from art.types.policy import Fate, RolloutStatus
from art.types.tokens import CallRecord, ChoiceRecord
from art.types.wire import GroupIn, TrajectoryIn


async def add_call(
    store: Store, rollout: str, number: int, agent: str | None, tokens: list[int], **options: Any
) -> str:
    """A call of one choice for each length in `tokens`; its prompt tells calls apart."""
    call_id = f"{rollout}-{number}"
    choices = [
        ChoiceRecord(index=i, finish_reason="stop", token_count=count) for i, count in enumerate(tokens)
    ]
    call = CallRecord(
        call_id=call_id, rollout_id=rollout, number=number, agent=agent, version="p/m@0", choices=choices, **options
    )  # fmt: skip
    arrays: dict[str, np.ndarray] = {"prompt_token_ids": np.asarray([number + 1], dtype=np.int32)}
    for i, count in enumerate(tokens):
        arrays[f"c{i}.token_ids"] = np.full(count, i + 5, dtype=np.int32)
        arrays[f"c{i}.logprobs"] = np.full(count, -1, dtype=np.float32)
    await store.add_call(call, arrays=arrays, text=CallText())
    return call_id


def with_store(folder: Path, work: Callable[[Store], Coroutine[Any, Any, JobSpec]]) -> JobSpec:
    async def main() -> JobSpec:
        store = await Store.open(folder)
        try:
            for name in ("a", "b", "c"):
                await store.open_rollout(RolloutRow(rollout_id=name, project="p", model="m", step=0))
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(main())


async def select(store: Store, rewards: dict[str, float], **config: Any) -> JobSpec:
    batch = Batch(store, "p", "m", TrainConfig(**config))
    whole = [
        TrajectoryIn(reward=reward, rollout_id=name, selects_rollout=True) for name, reward in rewards.items()
    ]
    await batch.add(0, GroupIn(trajectories=whole))
    return await batch.finish()


def loaded(folder: Path, spec: JobSpec) -> Loaded:
    """The batch as the trainer reads it."""
    base = ResolvedBaseModel(name="b", path="b", sha256="", parameters=1, context_length=64, source="folder")
    job = TrainJob(
        job_id="j", project="p", name="m", batch=1, base=base, model_dir="m", blob_dir=str(folder / "blobs"),
        parent_step=0, step=1, lora=LoraConfig(), config=ResolvedTrainConfig(learning_rate=1e-3), groups=spec.groups,
    )  # fmt: skip
    return load_batch(job, max_length=64)


def weights(batch: Loaded, aggregation: Any) -> dict[tuple[str, int], float]:
    """What one token of each choice weighs in the loss."""
    found = [(member.index, choice) for member in batch.members for choice in member.choices]
    counts = torch.tensor([len(choice.completion) for _, choice in found])
    per_token = token_weights(
        torch.tensor([index for index, _ in found]).repeat_interleave(counts),
        torch.ones(int(counts.sum())),
        torch.tensor([member.trajectory.weight for member in batch.members], dtype=torch.float64),
        aggregation=aggregation,
    )
    ends = torch.cumsum(counts, 0)
    return {(c.call_id, c.choice): float(per_token[end - 1]) for (_, c), end in zip(found, ends, strict=True)}


async def three_agents(store: Store) -> None:
    for name, lengths in (("a", [3, 4, 5, 6]), ("b", [2, 2, 9, 1]), ("c", [1, 1, 1, 1])):
        for number, (agent, length) in enumerate(zip(("plan", "code", "code", None), lengths, strict=True)):
            await add_call(store, name, number, agent, [length])


def test_an_agents_reward_is_compared_with_the_same_agent_of_the_other_rollouts(tmp_path: Path) -> None:
    async def work(store: Store) -> JobSpec:
        await three_agents(store)
        for name, plan, code in (("a", 1.0, 0.0), ("b", 0.0, 0.0), ("c", 0.0, 1.0)):
            await store.set_reward(RewardChange(rollout_id=name, agents={"plan": plan, "code": code}))
        return await select(store, {"a": 5.0, "b": 6.0, "c": 10.0})

    spec = with_store(tmp_path, work)
    assert [group.group_id for group in spec.groups] == ["0/agent:plan", "0/agent:code", "0"]
    batch = loaded(tmp_path, spec)
    rewards = {"0/agent:plan": [1.0, 0.0, 0.0], "0/agent:code": [0.0, 0.0, 1.0], "0": [5.0, 6.0, 10.0]}
    for group_id, given in rewards.items():
        mine = [member for member in batch.members if member.group_id == group_id]
        assert [member.trajectory.rollout_id for member in mine] == ["a", "b", "c"]
        expected = grpo(torch.tensor(given, dtype=torch.float64)).tolist()
        assert [member.advantage for member in mine] == pytest.approx(expected)
        number = {"0/agent:plan": [0], "0/agent:code": [1, 2], "0": [3]}[group_id]
        assert [choice.call_id for choice in mine[0].choices] == [f"a-{n}" for n in number]


@pytest.mark.parametrize("aggregation", ["rollout", "token"])
def test_parts_change_no_tokens_weight(tmp_path: Path, aggregation: str) -> None:
    async def plain(store: Store) -> JobSpec:
        await three_agents(store)
        return await select(store, {"a": 1.0, "b": 2.0, "c": 3.0}, loss_aggregation=aggregation)

    async def parted(store: Store) -> JobSpec:
        for name, value in (("a", 1.0), ("b", 0.0), ("c", 2.0)):
            calls = {f"{name}-2": value}
            await store.set_reward(RewardChange(rollout_id=name, agents={"plan": value}, calls=calls))
        return await select(store, {"a": 1.0, "b": 2.0, "c": 3.0}, loss_aggregation=aggregation)

    before = weights(loaded(tmp_path, with_store(tmp_path, plain)), aggregation)
    spec = with_store(tmp_path, parted)
    after = weights(loaded(tmp_path, spec), aggregation)
    assert len(spec.groups) == 3
    assert after == pytest.approx(before)
    for name in "abc" if aggregation == "rollout" else "":
        parts = [
            item.weight for group in spec.groups for item in group.trajectories if item.rollout_id == name
        ]
        assert sum(parts) == pytest.approx(1.0)


def test_a_calls_own_reward_is_compared_with_the_same_call_of_the_same_agent(tmp_path: Path) -> None:
    async def work(store: Store) -> JobSpec:
        await three_agents(store)
        await add_call(store, "a", 4, "code", [2, 2])  # a third call, with two choices
        for name in "abc":
            calls = {f"{name}-1": float(ord(name)), f"{name}-2": 0.5}
            await store.set_reward(
                RewardChange(rollout_id=name, calls=calls, agents={"code": 9.0, "plan": 1.0})
            )
        await store.set_reward(RewardChange(rollout_id="a", calls={"a-4/0": 3.0, "a-4/1": 4.0}))
        await add_call(store, "c", 4, None, [2, 2])
        return await select(store, {"a": 5.0, "b": 6.0, "c": 10.0})

    spec = with_store(tmp_path, work)
    found = {
        group.group_id: [(item.rollout_id, item.reward, [c.call_id for c in item.choices]) for item in group.trajectories]
        for group in spec.groups
    }  # fmt: skip
    assert found == {
        "0/agent:plan": [("a", 1.0, ["a-0"]), ("b", 1.0, ["b-0"]), ("c", 1.0, ["c-0"])],
        "0/call:code:0": [("a", 97.0, ["a-1"]), ("b", 98.0, ["b-1"]), ("c", 99.0, ["c-1"])],
        "0/call:code:1": [("a", 0.5, ["a-2"]), ("b", 0.5, ["b-2"]), ("c", 0.5, ["c-2"])],
        "0": [("a", 5.0, ["a-3"]), ("b", 6.0, ["b-3"]), ("c", 10.0, ["c-3", "c-4"])],
        "0/call:code:2": [("a", 3.0, ["a-4"]), ("a", 4.0, ["a-4"])],
    }
    batch = loaded(tmp_path, spec)
    fates = {(fate.call_id, fate.choice): fate for fate in batch.choice_fates()}
    assert fates["b-2", 0].reason == "all rewards of its group are equal (0.5)"
    assert (fates["a-4", 0].fate, fates["a-4", 1].fate) == (Fate.TRAINED, Fate.TRAINED)
    assert fates["a-1", 0].fate is Fate.TRAINED
    # Of several choices that nothing goes on from, one stands for the agent, unless they have rewards of their own.
    assert [(fate.call_id, fate.choice, fate.reason) for fate in spec.fates] == [("c-4", 1, "not continued")]


def test_a_reward_for_an_agent_that_made_no_call_is_noted(tmp_path: Path) -> None:
    async def work(store: Store) -> JobSpec:
        await three_agents(store)
        await store.set_reward(RewardChange(rollout_id="b", agents={"plann": 1.0}))
        return await select(store, {"a": 5.0, "b": 6.0})

    spec = with_store(tmp_path, work)
    assert [group.group_id for group in spec.groups] == ["0"]
    assert spec.notes == ["rollout b: the agent 'plann' has a reward and made no call (X-ART-Agent)"]


def test_a_call_on_the_side_is_left_out_with_its_reason(tmp_path: Path) -> None:
    async def work(store: Store) -> JobSpec:
        for name in "ab":
            first = await add_call(store, name, 0, None, [3], tool_count=1)
            await add_call(store, name, 1, None, [3], tool_count=1, parent_call_id=first)
            await add_call(store, name, 2, None, [9], system_number=1, opening_number=1)
        await store.set_reward(RewardChange(rollout_id="b", auxiliary={"b-2": False}))
        return await select(store, {"a": 0.0, "b": 1.0})

    spec = with_store(tmp_path, work)
    taken = [ref.call_id for item in spec.groups[0].trajectories for ref in item.choices]
    assert taken == ["a-0", "a-1", "b-0", "b-1", "b-2"]
    (left,) = spec.fates
    assert (left.call_id, left.fate, left.reason) == (
        "a-2",
        Fate.AUXILIARY,
        "it has no tools, and others have",
    )


# -- over HTTP, to the end


def opened(taught: Trained, **options: Any) -> str:
    return str(taught.api("POST", "rollouts", {"model": "p/m", **options})["rollout_id"])


def ask(taught: Trained, rollout_id: str, text: str, agent: str = "", **headers: str) -> str:
    body = {"model": "p/m", "messages": [{"role": "user", "content": text}], "max_tokens": 6}
    given = headers | {"X-ART-Rollout": rollout_id} | ({"X-ART-Agent": agent} if agent else {})
    response = taught.raw("POST", "/v1/chat/completions", body, **given)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["art"]["call_id"])


def test_agents_and_calls_are_trained_by_their_own_rewards(taught: Trained) -> None:
    rollouts = []
    for number in range(2):
        name = opened(taught, scenario_id="team", member=number)
        ask(taught, name, "plan it", "plan")
        call = ask(taught, name, "do it", "work")
        lost = ask(taught, name, "sum it up", "sum")
        rewards = {"agents": {"plan": float(number), "sum": 0.25}, "calls": {call: 1.0 - number}}
        info = taught.api("POST", f"rollouts/{name}/reward", {"reward": 0.5, **rewards})
        assert info["agent_rewards"] == rewards["agents"]
        taught.api("POST", f"rollouts/{name}/finish", {})
        rollouts.append((name, call, lost))
    group = {
        "trajectories": [
            {"rollout_id": name, "selects_rollout": True, "reward": 0.5} for name, _, _ in rollouts
        ]
    }
    result = taught.train([group])
    assert result["published"]
    for item in result["trajectories"]:
        assert (item["status"], item["reason"]) == (
            "trained",
            "agent:sum: all rewards of its group are equal (0.25)",
        )
    assert result["metrics"]["data/step_num_trajectories"] == 2
    assert result["metrics"]["data/step_num_scenarios"] == 1
    for name, _call, lost in rollouts:
        for item in taught.rollout(name)["calls"]:
            (choice,) = item["choices"]
            trained = item["call_id"] != lost
            assert choice["fate"] == ("trained" if trained else "filtered")
            assert choice["trained_step"] == (result["step"] if trained else None)
            assert choice["trained_tokens"] == (choice["token_count"] if trained else 0)


def test_rewards_for_what_is_not_there_are_refused_and_keep_nothing(taught: Trained) -> None:
    name, other = opened(taught), opened(taught)
    mine, theirs = ask(taught, name, "hi"), ask(taught, other, "hi")
    for calls in ({theirs: 1.0}, {"no-such-call": 1.0}, {f"{mine}/7": 1.0}, {f"{mine}/x": 1.0}):
        answer = taught.raw("POST", f"/api/v1/rollouts/{name}/reward", {"reward": 1.0, "calls": calls})
        assert answer.status_code == 404, answer.text
        assert "has no call" in answer.json()["error"]["message"]
    assert taught.rollout(name)["reward"] is None
    for body in ({}, {"metrics": {"x": 1}}, {"calls": {mine: "1"}}, {"agents": {"a": None}}):
        assert taught.raw("POST", f"/api/v1/rollouts/{name}/reward", body).status_code == 400
    raw = '{"agents": {"a": NaN}}'
    headers = {"Authorization": f"Bearer {taught.server.admin_key}", "Content-Type": "application/json"}
    url = f"{taught.server.url}/api/v1/rollouts/{name}/reward"
    assert taught.http.post(url, content=raw, headers=headers).status_code == 400
    assert taught.api("POST", f"rollouts/{name}/reward", {"calls": {f"{mine}/0": 2.0}})["reward"] is None
    assert taught.rollout(name)["calls"][0]["choices"][0]["reward"] == 2.0


def test_a_hostile_history_is_trained_as_it_was_sampled(taught: Trained) -> None:
    """The tiny model itself: parity between what was recorded and what the trainer computes."""
    group, sampled = [], 0
    for number in range(4):
        name = f"r-{uuid.uuid4().hex[:12]}"
        history: list[dict[str, Any]] = [{"role": "user", "content": "Is it warm?"}]
        for _ in range(3):
            choice = taught.chat(name, messages=history, max_tokens=6)
            sampled += len(choice["token_ids"])
            text = (choice["message"]["content"] or "").strip()
            history += [{"role": "assistant", "content": f" {text}\n"}, {"role": "user", "content": "Sure?"}]
        calls = taught.rollout(name)["calls"]
        assert {call["branch"] for call in calls} == {0}
        assert all(call["reused_token_count"] for call in calls[1:])
        group.append({"rollout_id": name, "selects_rollout": True, "reward": float(number % 2)})
    result = taught.train([{"trajectories": group}])
    assert result["published"]
    assert result["metrics"]["data/step_trained_tokens"] == sampled
    assert result["metrics"]["parity/mean"] < 0.06
    assert {item["status"] for item in result["trajectories"]} == {RolloutStatus.TRAINED.value}


def test_a_session_gives_its_agents_and_calls_their_rewards(taught: Trained) -> None:
    async def main() -> None:
        backend = art.RemoteBackend(taught.server.url, taught.server.admin_key)
        model = art.TrainableModel(name="m", project="p", base_model=taught.base_model)
        await model.register(backend)
        session = art.rollout(model, auxiliary="train")
        async with session:
            client = session.openai_client()
            answer = await client.chat.completions.create(
                model="gpt-4o", messages=[{"role": "user", "content": "hi"}], max_tokens=4,
                extra_headers={"X-ART-Agent": "plan"},
            )  # fmt: skip
            session.agent_rewards["plan"] = 0.5
            session.call_rewards[answer.choices[0].art["call_id"]] = 0.25
            session.agent_rewards["plan"] = float("nan")
            with pytest.raises(InvalidReward):
                await session.set_reward(1.0)
            session.agent_rewards["plan"] = 0.5
        info = taught.rollout(session.rollout_id)
        assert (info["reward"], info["agent_rewards"]) == (1.0, {"plan": 0.5})
        assert [choice["reward"] for call in info["calls"] for choice in call["choices"]] == [0.25]
        told = taught.api("GET", f"rollouts/{session.rollout_id}/explain")
        assert (told["auxiliary"], told["calls"][0]["choices"][0]["reward_of"]) == ("train", "call")
        await backend.close()

    asyncio.run(main())


def test_the_callers_word_about_a_call_on_the_side(taught: Trained) -> None:
    name = opened(taught)
    ask(taught, name, "work")
    noted = ask(taught, name, "a title", **{"X-ART-Auxiliary": "true"})
    calls = taught.rollout(name)["calls"]
    assert [(call["auxiliary"], call["auxiliary_reason"]) for call in calls] == [
        (False, ""),
        (True, "the caller says so"),
    ]
    taught.api("POST", f"rollouts/{name}/reward", {"auxiliary": {noted: False}})
    assert not any(call["auxiliary"] for call in taught.rollout(name)["calls"])
    answer = taught.raw(
        "POST", "/v1/chat/completions", {"model": "p/m", "messages": []}, **{"X-ART-Auxiliary": "perhaps"}
    )
    assert answer.status_code == 400
