"""Branch a run: train one model, fork its first checkpoint into a second, then clean the first one up.

Written against the older `await model.train(...)`, which also logs.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import art
from art.local import LocalBackend

PROJECT = "branches"
QUESTIONS = ["will it rain?", "is the sky red?"]


async def rollout(model: art.TrainableModel, question: str, attempt: int) -> art.Trajectory:
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=[{"role": "user", "content": question}],
        max_completion_tokens=16,
    )
    choice = completion.choices[0]
    reward = float((choice.message.content or "").startswith("no"))
    return art.Trajectory(
        messages_and_choices=[{"role": "user", "content": question}, choice],
        reward=reward + 0.1 * random.Random(f"{question}-{attempt}").random(),
    )


async def train_once(model: art.TrainableModel) -> None:
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(model, question, i) for i in range(4)) for question in QUESTIONS),
        pbar_desc=model.name,
    )
    await model.train(groups, config=art.TrainConfig(learning_rate=1e-4))


async def log_validation(model: art.TrainableModel, step: int, reward: float) -> None:
    """The benchmark's result for a step; made up here, so that step 1 is the best."""
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}],
        reward=reward,
    )
    await model.log([art.TrajectoryGroup([trajectory])], split="val", step=step)


def checkpoints(art_path: str, name: str) -> list[int]:
    folder = Path(art_path) / PROJECT / "models" / name / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


async def main(base_model: str, art_path: str) -> dict[str, Any]:
    backend = LocalBackend(path=art_path)
    try:
        first = art.TrainableModel(name="first", project=PROJECT, base_model=base_model)
        await first.register(backend)
        await log_validation(first, step=0, reward=0.1)
        await train_once(first)
        await log_validation(first, step=1, reward=0.9)
        await train_once(first)
        await log_validation(first, step=2, reward=0.4)

        second = art.TrainableModel(name="second", project=PROJECT, base_model=base_model)
        await backend._experimental_fork_checkpoint(
            second, from_model="first", not_after_step=1, verbose=True
        )
        await second.register(backend)
        forked_at = await second.get_step()
        await train_once(second)

        before = checkpoints(art_path, "first")
        await first.delete_checkpoints(best_checkpoint_metric="val/reward")
        after = checkpoints(art_path, "first")
        answer = await rollout(first, QUESTIONS[0], 0)
        return {
            "before": before,
            "after": after,
            "forked_at": forked_at,
            "second_step": await second.get_step(),
            "second_checkpoints": checkpoints(art_path, "second"),
            "still_serves": len(answer.messages()) == 2,
            "names": [first.get_inference_name(), first.get_inference_name(step=1)],
        }
    finally:
        await backend.close()
