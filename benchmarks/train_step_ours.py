"""Our side of the comparison of GRPO steps: the public client, and the server it starts with its engine and trainer."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from peers.step_task import GROUP, PROMPTS, SETTINGS, TOKENS, messages, reward
from safetensors import safe_open

import art

CONFIG = art.TrainConfig(
    learning_rate=SETTINGS["learning_rate"],
    adam_beta2=SETTINGS["adam_beta2"],
    weight_decay=SETTINGS["weight_decay"],
    max_grad_norm=SETTINGS["max_grad_norm"],
    loss_fn="ppo",
    entropy_coef=0.0,  # TRL's is 0
    epsilon=SETTINGS["epsilon"],
    epsilon_high=SETTINGS["epsilon_high"],
)


class OurSide:
    """A model on a server of its own. A context manager; `ready` and the answers of `step` are TRL's side's."""

    def __init__(self, base_model: Path, scratch: Path, *, dtype: str, threads: int) -> None:
        settings = scratch / "serve.toml"
        workers = f'threads = {threads}\ndtype = "{dtype}"\n'
        settings.write_text(f"[engine]\n{workers}[trainer]\n{workers}")
        self._backend = art.LocalBackend(path=scratch / "runs", serve_args=["--config", str(settings)])
        self._model = art.TrainableModel(
            name="step",
            project="bench",
            base_model=str(base_model),
            lora={"r": SETTINGS["rank"], "alpha": SETTINGS["alpha"]},
        )
        self._loop = asyncio.Runner()
        self._usage: list[tuple[int, int, int]] = []

    def __enter__(self) -> OurSide:
        self._loop.run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._close())
        self._loop.close()

    async def _open(self) -> None:
        await self._model.register(self._backend)

    async def _close(self) -> None:
        await self._backend.close()

    def step(self) -> dict[str, Any]:
        """One whole step: from the first call to the first answer of the new version."""
        self._usage.clear()
        began = time.perf_counter()
        figures = self._loop.run(self._step())
        figures["seconds"] = time.perf_counter() - began
        return figures

    async def _step(self) -> dict[str, Any]:
        began = time.perf_counter()
        groups = await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup(self._run(number, member) for member in range(GROUP))
                for number in range(len(PROMPTS))
            ),
            pbar_desc=None,
        )
        gathered = time.perf_counter()
        result = await self._model.train(groups, config=CONFIG)
        trained = time.perf_counter()
        async with art.rollout(self._model, purpose="evaluate") as session:
            await session.openai_client().chat.completions.create(
                model=session.model_name, messages=messages(PROMPTS[0]), max_tokens=1
            )
        assert isinstance(result, art.LocalTrainResult)
        assert result.published, result.reason
        assert session.step == result.step, "the new version does not serve"
        return {
            "tokens": int(result.metrics["data/step_trained_tokens"]),
            "lengths": sorted({completion for _, _, completion in self._usage}),
            "kept": sum(outcome.status == "trained" for outcome in result.trajectories),
            "updates": int(result.metrics["data/step_num_gradient_steps"]),
            "computed_tokens": int(result.metrics["data/step_trainer_tokens"]),
            "prompt_tokens": [count for _, count in sorted({usage[:2] for usage in self._usage})],
            "trainable": trainable(Path(result.checkpoint_path or "")),
            "sampling_seconds": gathered - began,
            "training_seconds": trained - gathered,
            "notes": result.notes,
        }

    async def _run(self, number: int, member: int) -> art.Trajectory:
        """One rollout: a question, an answer, and its reward."""
        async with art.rollout(
            self._model, scenario_id=str(number), group_id=str(number), member=member
        ) as session:
            answer = await session.openai_client().chat.completions.create(
                model=session.model_name, messages=messages(PROMPTS[number]), max_tokens=TOKENS
            )
            session.reward = reward(answer.choices[0].message.content or "")
        self._usage.append((number, answer.usage.prompt_tokens, answer.usage.completion_tokens))
        return session.trajectory


def trainable(checkpoint: Path) -> int:
    """Numbers in the adapter."""
    with safe_open(str(checkpoint / "adapter_model.safetensors"), framework="numpy") as file:
        return sum(_numbers(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def _numbers(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def with_end_token(base_model: Path, target: Path, end: str) -> Path:
    """The same model, with `end` for its end token and a template that ends turns in plain words.

    With an end token that the model does not write, every completion has all the tokens it may have, on both sides,
    and no draw is changed. Weights and tokens are the base model's own.
    """
    target.mkdir()
    for file in base_model.iterdir():
        (target / file.name).symlink_to(file.resolve())
    added = json.loads((base_model / "tokenizer.json").read_text())["added_tokens"]
    number = next(token["id"] for token in added if token["content"] == end)
    changes: dict[str, dict[str, Any]] = {
        "config.json": {"eos_token_id": number},
        "generation_config.json": {"eos_token_id": number},
        "tokenizer_config.json": {"eos_token": end},
    }
    for name, values in changes.items():
        file = base_model / name
        settings = json.loads(file.read_text()) if file.exists() else {}
        (target / name).unlink(missing_ok=True)
        (target / name).write_text(json.dumps({**settings, **values}))
    (target / "chat_template.jinja").unlink(missing_ok=True)
    (target / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return target


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + ' ###\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
