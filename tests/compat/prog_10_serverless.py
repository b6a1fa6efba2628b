"""Train on the hosted service: register, roll out, train, log, read the step, delete the model.

Only the service's address differs from a program that rents its GPUs.
"""

from __future__ import annotations

import os
import random
from typing import Any

import art
from art import ServerlessBackend

QUESTIONS = [("is the sea blue?", "yes"), ("do fish run?", "no")]


async def rollout(model: art.Model, question: str, expected: str, attempt: int) -> art.Trajectory:
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": question}], reward=0.0)
    response = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=trajectory.messages(),
        max_completion_tokens=16,
        logprobs=True,
    )
    trajectory.messages_and_choices.append(response.choices[0])
    correct = (response.choices[0].message.content or "").startswith(expected)
    trajectory.reward = float(correct) + 0.1 * random.Random(f"{question}-{attempt}").random()
    return trajectory


async def main(base_model: str, art_path: str) -> dict[str, Any]:
    backend = ServerlessBackend(
        api_key=os.environ.get("SERVERLESS_API_KEY", "service-key"),
        base_url=os.environ["FAKE_OPENAI_BASE_URL"],
    )
    model = art.TrainableModel(
        name="hosted-001",
        project="serverless",
        entity="acme",
        base_model="OpenPipe/Qwen3-14B-Instruct",
        base_path=art_path,
    )
    await model.register(backend)
    start = await model.get_step()
    steps, names = [], []
    try:
        for _ in range(2):
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(rollout(model, question, expected, i) for i in range(4))
                    for question, expected in QUESTIONS
                ),
                pbar_desc="gather",
            )
            result = await backend.train(model, groups, learning_rate=1e-5, scale_rewards=True)
            await model.log(groups, split="train", metrics=result.metrics, step=result.step)
            steps.append(result.step)
            names.append(model.get_inference_name(step=result.step))
        final = await model.get_step()
        await model.delete_checkpoints(best_checkpoint_metric="train/reward")
        await backend.delete(model)
    finally:
        await backend.close()
    return {
        "start": start,
        "steps": steps,
        "final": final,
        "inference_names": names,
        "base_url": model.inference_base_url,
        "artifact_name": result.artifact_name,
        "metrics": sorted(result.metrics),
        "is_serverless_result": isinstance(result, art.ServerlessTrainResult),
    }
