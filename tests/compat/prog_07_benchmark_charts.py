"""Compare prompted models: roll each out on the same questions, load what was logged, draw two charts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import art
from art.utils.benchmarking.charts import percentage_comparison_bar_chart, training_progress_chart
from art.utils.benchmarking.load_trajectories import load_trajectories
from art.utils.benchmarking.types import BenchmarkModelKey

import matplotlib

matplotlib.use("Agg")

PROJECT = "benchmark"
QUESTIONS = [("is the sea blue?", "yes"), ("do fish run?", "no")]
MODELS = {"small": "gpt-4.1-nano", "large": "gpt-4.1"}


async def rollout(model: art.Model, question: str, expected: str) -> art.Trajectory:
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": question}],
        reward=0.0,
        metadata={"question": question},
    )
    response = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_completion_tokens=16
    )
    trajectory.messages_and_choices.append(response.choices[0])
    correct = (response.choices[0].message.content or "").startswith(expected)
    trajectory.reward = float(correct)
    trajectory.metrics["correct"] = correct
    trajectory.metrics["length"] = len(response.choices[0].message.content or "")
    return trajectory.finish()


async def benchmark(model: art.Model, step: int) -> None:
    groups = await art.gather_trajectory_groups(
        (
            art.TrajectoryGroup(
                (rollout(model, question, expected) for _ in range(4)), metadata={"question": question}
            )
            for question, expected in QUESTIONS
        ),
        pbar_desc=model.name,
    )
    await model.log(groups, split="val", step=step)


async def main(base_model: str, art_path: str) -> dict[str, Any]:
    for name, inference_name in MODELS.items():
        model = art.Model(
            name=name,
            project=PROJECT,
            inference_model_name=inference_name,
            inference_base_url=os.environ["FAKE_OPENAI_BASE_URL"],
            inference_api_key="model-key",
            base_path=art_path,
        )
        for step in range(2):
            await benchmark(model, step)

    df = await load_trajectories(PROJECT, models=list(MODELS), art_path=art_path)
    keys = [BenchmarkModelKey(name, display_name=name.title(), split="val") for name in MODELS]
    out = Path(art_path)
    progress = training_progress_chart(
        df,
        "reward",
        models=keys,
        title="Reward over time",
        x_label="step",
        y_label="reward",
        perfect_score=1.0,
    )
    progress.savefig(out / "progress.png")
    bars = percentage_comparison_bar_chart(df, "correct", models=keys, title="Share correct", num_decimals=1)
    bars.savefig(out / "bars.png")
    return {
        "rows": df.height,
        "columns": df.columns,
        "models": sorted(df["model"].unique().to_list()),
        "steps": sorted(df["step"].unique().to_list()),
        "mean_reward": df["reward"].mean(),
        "charts": [str(out / "progress.png"), str(out / "bars.png")],
    }
