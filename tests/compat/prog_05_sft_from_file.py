"""Warm a model up with supervised examples from a JSONL file, then with a few that a program made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import art
from art.local import LocalBackend
from art.utils.sft import create_lr_schedule, get_file_row_count, iterate_file, train_sft_from_file

PROJECT = "sft"
NAME = "sft-001"
EXAMPLES = [("is snow cold?", "yes"), ("do fish fly?", "no"), ("will it rain?", "maybe")] * 2


def write_examples(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for question, answer in EXAMPLES:
            messages = [
                {"role": "system", "content": "Answer yes, no or maybe."},
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")


def made_examples() -> list[art.Trajectory]:
    return [
        art.Trajectory(
            messages_and_choices=[
                {"role": "user", "content": f"is {n} big?"},
                {"role": "assistant", "content": "yes" if n > 5 else "no"},
            ],
            reward=0.0,
        )
        for n in (1, 3, 7, 9)
    ]


async def ask(model: art.TrainableModel, question: str) -> str:
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=[{"role": "user", "content": question}],
        max_tokens=16,
        temperature=0,
    )
    return completion.choices[0].message.content or ""


async def main(base_model: str, art_path: str) -> dict[str, Any]:
    data = Path(art_path) / "examples.jsonl"
    write_examples(data)
    schedule = create_lr_schedule(total_steps=4, peak_lr=1e-3, method="cosine", warmup_steps=1, min_lr=1e-5)
    seen = [t.messages()[1]["content"] for t in iterate_file(str(data), epochs=2, seed=1)]

    model = art.TrainableModel(name=NAME, project=PROJECT, base_model=base_model)
    async with LocalBackend(path=art_path) as backend:
        await model.register(backend)
        before = await model.get_step()
        await train_sft_from_file(
            model=model,
            file_path=str(data),
            epochs=1,
            batch_size=2,
            peak_lr=1e-3,
            schedule_type="linear",
            warmup_ratio=0.1,
            verbose=True,
        )
        after_file = await model.get_step()
        await model.train_sft(
            made_examples(), config=art.TrainSFTConfig(learning_rate=[1e-4, 5e-5], batch_size=2)
        )
        after_made = await model.get_step()
        answer = await ask(model, "is snow cold?")

    history = Path(art_path) / PROJECT / "models" / NAME / "history.jsonl"
    rows = [json.loads(line) for line in history.read_text().splitlines()]
    return {
        "rows": get_file_row_count(str(data)),
        "schedule": list(schedule),
        "seen": seen,
        "steps": [before, after_file, after_made],
        "losses": [row["loss/train"] for row in rows if "loss/train" in row],
        "answer": answer,
        "auto_config": art.TrainSFTConfig().batch_size,
    }
