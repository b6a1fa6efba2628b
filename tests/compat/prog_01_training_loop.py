"""Train on a yes/no question with hand-built trajectories: gather, train, log, validate, repeat.

The plainest program there is: a rollout function that writes its own messages, a loop over steps that
starts where the last run stopped, and a look at the files that the run left behind.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import art
from art.local import LocalBackend

PROJECT = "weather"
NAME = "forecaster-001"
STEPS = 2
GROUP_SIZE = 4


@dataclass
class Scenario:
    id: str
    question: str
    expected: str


TRAIN = [
    Scenario("rain", "will it rain today?", "yes"),
    Scenario("snow", "can a fish sing?", "no"),
]
VAL = [Scenario("sun", "is the sun warm?", "yes")]


async def rollout(model: art.Model, scenario: Scenario, attempt: int) -> art.Trajectory:
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "Answer yes, no or maybe."},
            {"role": "user", "content": scenario.question},
        ],
        metadata={"scenario_id": scenario.id, "attempt": attempt},
        reward=0,
    )
    client = model.openai_client()
    async with trajectory.track_duration("llm"):
        completion = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages(),
            max_completion_tokens=16,
            temperature=1.0,
        )
    choice = completion.choices[0]
    trajectory.messages_and_choices.append(choice)

    answer = (choice.message.content or "").strip().lower()
    correct = answer.startswith(scenario.expected)
    # Users are hard to please in their own ways: a little noise on top of the right answer.
    mood = random.Random(f"{scenario.id}-{attempt}").random()
    trajectory.reward = (1.0 if correct else 0.0) + 0.1 * mood
    trajectory.metrics["correct"] = correct
    trajectory.log(f"{scenario.id}: {answer!r}")
    return trajectory.finish()


async def main(base_model: str, art_path: str) -> dict[str, Any]:
    model = art.TrainableModel(name=NAME, project=PROJECT, base_model=base_model)
    rewards: list[float] = []
    steps: list[int] = []
    losses: list[dict[str, float]] = []
    with LocalBackend(path=art_path) as backend:
        await model.register(backend)
        start = await model.get_step()
        for _ in range(start, STEPS):
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(rollout(model, scenario, attempt) for attempt in range(GROUP_SIZE))
                    for scenario in TRAIN
                ),
                pbar_desc="train",
                max_exceptions=1,
            )
            result = await backend.train(model, groups, learning_rate=1e-4)
            await model.log(groups, split="train", metrics=result.metrics, step=result.step)
            steps.append(result.step)
            losses.append(result.metrics)
            rewards.append(sum(t.reward for g in groups for t in g) / sum(len(g) for g in groups))
        val = await art.gather_trajectories(
            (rollout(model, scenario, attempt) for scenario in VAL for attempt in range(2)), pbar_desc="val"
        )
        await model.log(val, split="val")
        final_step = await model.get_step()

    folder = Path(art_path) / PROJECT / "models" / NAME
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return {
        "start": start,
        "steps": steps,
        "final_step": final_step,
        "rewards": rewards,
        "train_metrics": sorted(losses[-1]),
        "checkpoint_path": result.checkpoint_path,
        "history_keys": sorted({key for row in rows for key in row}),
        "history_steps": [row["step"] for row in rows],
        "logged_files": sorted(str(p.relative_to(folder)) for p in folder.glob("trajectories/*/*")),
        "durations": [t.metrics["llm_duration"] for t in val],
        "last_message": groups[0].trajectories[0].messages()[-1],
    }
