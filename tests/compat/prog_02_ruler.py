"""Let a judge model rank each group (RULER) instead of writing a reward function, and train on its scores."""

from __future__ import annotations

import os
from textwrap import dedent
from typing import Any

import art
from art.rewards import ruler, ruler_score_group

JUDGE = "openai/gpt-4o-mini"
RUBRIC = dedent("""
    - An answer that follows the system prompt is better than one that does not.
    - A short answer is better than a long one.
""")
TOPICS = ["is the sea blue?", "do birds swim?"]


def judge_params() -> dict[str, Any]:
    return {"base_url": os.environ["FAKE_OPENAI_BASE_URL"], "api_key": "judge-key"}


async def rollout(model: art.TrainableModel, question: str) -> art.Trajectory:
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "Answer yes, no or maybe."},
            {"role": "user", "content": question},
        ],
        reward=0.0,
    )
    response = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=16
    )
    trajectory.messages_and_choices.append(response.choices[0])
    return trajectory


async def score(group: art.TrajectoryGroup) -> art.TrajectoryGroup | None:
    return await ruler_score_group(group, JUDGE, judge_params(), RUBRIC, swallow_exceptions=True)


async def compare_by_hand() -> list[Any]:
    """The judge alone, on messages from anywhere."""
    prompt: list[Any] = [{"role": "user", "content": "is the sun old?"}]
    return await ruler(
        [[*prompt, {"role": "assistant", "content": answer}] for answer in ("yes", "no", "maybe", "")],
        JUDGE,
        extra_litellm_params={"api_base": os.environ["FAKE_OPENAI_BASE_URL"], "api_key": "judge-key"},
        rubric=RUBRIC,
    )


async def judge_that_is_down() -> art.TrajectoryGroup | None:
    """With swallow_exceptions a group whose judge fails is dropped, and the run goes on."""
    messages: list[Any] = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    group = art.TrajectoryGroup([art.Trajectory(messages_and_choices=messages, reward=0.0) for _ in range(2)])
    params = {"base_url": os.environ["FAKE_OPENAI_BASE_URL"] + "/nowhere", "api_key": "x", "num_retries": 0}
    return await ruler_score_group(group, JUDGE, params, swallow_exceptions=True)


async def main(base_model: str, art_path: str) -> dict[str, Any]:
    scores = await compare_by_hand()
    dropped = await judge_that_is_down()

    model = art.TrainableModel(run_name="ruler-001", project="ruler", base_model=base_model)
    backend = art.LocalBackend(path=art_path)
    try:
        await model.register(backend)
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(rollout(model, topic) for _ in range(4)) for topic in TOPICS),
            pbar_desc="gather",
            after_each=score,
            max_exceptions=0.5,
        )
        result = await backend.train(model, groups, learning_rate=1e-5)
        await model.log(groups, split="train", metrics=result.metrics, step=result.step)
    finally:
        await backend.close()
    return {
        "scores": [score.score for score in scores],
        "ids": [score.trajectory_id for score in scores],
        "explanations": [score.explanation for score in scores],
        "dropped": dropped is None,
        "groups": len(groups),
        "rewards": [[t.reward for t in group] for group in groups],
        "step": result.step,
    }
