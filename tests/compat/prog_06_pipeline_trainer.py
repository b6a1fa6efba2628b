"""Train without waiting for the slowest rollout: PipelineTrainer gathers, trains and evaluates side by side."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import art
from art.local import LocalBackend
from art.pipeline_trainer import PipelineTrainer, keep_recent_and_top, make_group_rollout_fn

PROJECT = "pipeline"
NAME = "pipeline-001"
Scenario = dict[str, Any]
Config = dict[str, Any]


def scenarios() -> Iterator[Scenario]:
    questions = itertools.cycle([("is the sea big?", "yes"), ("can a bird sleep?", "no")])
    for number, (question, expected) in enumerate(questions):
        yield {"id": number, "question": question, "expected": expected}


async def rollout(model: art.TrainableModel, scenario: Scenario, config: Config) -> art.Trajectory:
    messages: art.Messages = [
        {"role": "system", "content": config["system_prompt"]},
        {"role": "user", "content": scenario["question"]},
    ]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=config["max_tokens"]
    )
    choice = completion.choices[0]
    correct = (choice.message.content or "").startswith(scenario["expected"])
    return art.Trajectory(
        messages_and_choices=[*messages, choice],
        reward=float(correct) + 0.1 * random.random(),
        metrics={"correct": correct},
        metadata={"scenario_id": scenario["id"]},
    )


class Evaluation:
    """Counts its calls: the trainer decides when to evaluate."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    async def __call__(
        self, model: art.TrainableModel, step: int, config: Config
    ) -> dict[str, list[art.Trajectory]]:
        self.steps.append(step)
        held_out = {"id": -1, "question": "will snow fall?", "expected": "yes"}
        return {"val": [await rollout(model, held_out, config) for _ in range(2)]}


async def main(base_model: str, art_path: str) -> dict[str, Any]:
    model = art.TrainableModel(name=NAME, project=PROJECT, base_model=base_model)
    evaluation = Evaluation()
    config: Config = {"system_prompt": "Answer yes, no or maybe.", "max_tokens": 16}
    async with LocalBackend(path=art_path) as backend:
        await model.register(backend)
        before = await model.get_step()
        trainer = PipelineTrainer(
            model,
            backend,
            make_group_rollout_fn(rollout, n=4),
            scenarios(),
            config,
            evaluation,
            num_rollout_workers=2,
            min_batch_size=2,
            max_batch_size=2,
            max_steps_off_policy=2,
            learning_rate=1e-4,
            loss_fn="cispo",
            max_steps=2,
            eval_every_n_steps=1,
            eval_at_start=True,
            log_interval_seconds=5,
            checkpoint_retention_strategy=keep_recent_and_top(recent=2, top=1, metric="val/reward"),
            resume=False,
        )
        await trainer.train(handle_signals=False)
        after = await model.get_step()
    folder = Path(art_path) / PROJECT / "models" / NAME
    return {
        "steps": [before, after],
        "evaluated": sorted(set(evaluation.steps)),
        "checkpoints": sorted(int(p.name) for p in (folder / "checkpoints").iterdir()),
        "splits": sorted(p.name for p in folder.glob("trajectories/*")),
        "history": (folder / "history.jsonl").read_text(),
    }
