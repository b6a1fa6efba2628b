"""Capture an agent's calls without touching its code: auto_trajectory, and trajectories that are yielded.

The agent below knows the OpenAI client alone. It calls twice in one conversation, then once in another one
(streamed), as an agent that summarises its own work would. Most rollouts hand it the model's client; one lets it
make its own, as an agent from a library does.
"""

from __future__ import annotations

import os
from typing import Any

import art

from openai import AsyncOpenAI


async def agent(client: AsyncOpenAI, model_name: str, question: str) -> str:
    messages: list[Any] = [{"role": "user", "content": question}]
    for follow_up in ("are you sure?", None):
        completion = await client.chat.completions.create(
            model=model_name, messages=messages, max_tokens=16, logprobs=True
        )
        messages.append({"role": "assistant", "content": completion.choices[0].message.content})
        if follow_up:
            messages.append({"role": "user", "content": follow_up})
    stream = await client.chat.completions.create(
        model=model_name,
        messages=[{"role": "system", "content": "Sum it up."}, {"role": "user", "content": str(messages)}],
        max_tokens=16,
        logprobs=True,
        stream=True,
    )
    parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    return "".join(parts)


async def captured(client: AsyncOpenAI, model_name: str, question: str) -> None:
    """A rollout: runs the agent and sets the reward on the trajectory that was recorded meanwhile."""
    summary = await agent(client, model_name, question)
    trajectory = art.auto_trajectory(required=True)
    trajectory.reward = 1.0 if summary else 0.0
    trajectory.metadata["question"] = question
    trajectory.log(summary)


async def yielding(client: AsyncOpenAI, model_name: str, question: str) -> str:
    """A rollout whose return value is its caller's; the trajectory leaves by yield_trajectory."""
    completion = await client.chat.completions.create(
        model=model_name, messages=[{"role": "user", "content": question}], max_tokens=16
    )
    choice = completion.choices[0]
    art.yield_trajectory(
        art.Trajectory(messages_and_choices=[{"role": "user", "content": question}, choice], reward=0.5)
    )
    return "the caller's own result"


async def main(base_model: str, art_path: str) -> dict[str, Any]:
    model = art.Model(
        name="agent",
        project="capture",
        inference_model_name="gpt-4o-mini",
        inference_base_url=os.environ["FAKE_OPENAI_BASE_URL"],
        inference_api_key="model-key",
        base_path=art_path,
    )
    name = model.get_inference_name()
    client = model.openai_client()
    outside = art.auto_trajectory()

    groups = await art.gather_trajectory_groups(
        art.TrajectoryGroup(art.capture_auto_trajectory(captured(client, name, question)) for _ in range(2))
        for question in ("is it warm?", "is it cold?")
    )
    yielded = await art.capture_yielded_trajectory(yielding(client, name, "is it day?"))
    own = AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)
    by_library = await art.capture_auto_trajectory(captured(own, name, "is it late?"))
    await model.log(groups, split="train", step=0)

    first = groups[0].trajectories[0]
    return {
        "outside": outside is None,
        "rewards": [t.reward for group in groups for t in group],
        "questions": [[t.metadata["question"] for t in group] for group in groups],
        "first_messages": [group.trajectories[0].messages()[:1] for group in groups],
        "roles": [message["role"] for message in first.messages()],
        "choices": sum(not isinstance(item, dict) for item in first.messages_and_choices),
        "histories": len(first.additional_histories),
        "summary_roles": [message["role"] for h in first.additional_histories for message in h.messages()],
        "logs": first.logs,
        "own_client_roles": [message["role"] for message in by_library.messages()],
        "yielded_reward": yielded.reward,
        "yielded_roles": [message["role"] for message in yielded.messages()],
    }
