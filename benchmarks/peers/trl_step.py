"""TRL's side of the comparison of GRPO steps: `GRPOTrainer` on the CPU, one step for each line it is sent.

    python trl_step.py --model FOLDER --setting "one backward pass" --steps 6 --threads 2

Runs in TRL's own environment, started by benchmarks/train_step.py. It answers each line on its standard input with
{"seconds", "tokens", "lengths", "kept"}: of one whole step from the first sampled token to the updated weights. The first
line it prints, once the trainer is ready, says what it runs with. Whatever the libraries print goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is looked up

import torch
from datasets import Dataset
from peft import LoraConfig
from step_task import GROUP, PROMPTS, SETTINGS, TOKENS, TRL_SETTINGS, messages, reward
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Watched(GRPOTrainer):
    """Counts what is trained."""

    lengths: list[int]
    kept: int

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        batch = super()._generate_and_score_completions(inputs)
        self.lengths = batch["completion_mask"].sum(dim=1).tolist()
        self.kept = int((batch["advantages"] != 0).sum())
        return batch


class OnCommand(TrainerCallback):
    """Holds every step until a line asks for it, and reports it."""

    def __init__(self, answers: Any) -> None:
        self.answers = answers
        self.trainer: Watched | None = None
        self.began = 0.0

    def say(self, **figures: Any) -> None:
        print(json.dumps(figures), file=self.answers, flush=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not sys.stdin.readline():
            sys.exit(0)
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seconds = time.perf_counter() - self.began
        assert self.trainer is not None
        lengths = self.trainer.lengths
        self.say(seconds=seconds, tokens=sum(lengths), lengths=sorted(set(lengths)), kept=self.trainer.kept)


def reward_of(completions: list[Any], **_: Any) -> list[float]:
    """TRL's form of a reward function."""
    return [reward(completion[0]["content"]) for completion in completions]


def make_config(folder: str, options: argparse.Namespace) -> GRPOConfig:
    """What is given to both sides, and the setting's own."""
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=options.dtype == "bf16",
        max_steps=options.steps,
        num_generations=GROUP,
        max_completion_length=TOKENS,
        temperature=1.0,
        beta=0.0,
        loss_type="grpo",
        epsilon=SETTINGS["epsilon"],
        epsilon_high=SETTINGS["epsilon_high"],
        learning_rate=SETTINGS["learning_rate"],
        lr_scheduler_type="constant",
        adam_beta2=SETTINGS["adam_beta2"],
        weight_decay=SETTINGS["weight_decay"],
        max_grad_norm=SETTINGS["max_grad_norm"],
        gradient_checkpointing=False,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        logging_steps=1000,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **TRL_SETTINGS[options.setting],
    )


@contextlib.contextmanager
def standard_output_kept() -> Iterator[Any]:
    """A file that goes where standard output went; what prints from here on goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with answers:
        yield answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--setting", choices=TRL_SETTINGS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    rows = [{"prompt": messages(prompt)} for prompt in PROMPTS]
    lora = LoraConfig(r=SETTINGS["rank"], lora_alpha=SETTINGS["alpha"], target_modules="all-linear")
    with standard_output_kept() as answers, tempfile.TemporaryDirectory() as folder:
        callback = OnCommand(answers)
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        trainer = Watched(
            model=AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype),
            reward_funcs=reward_of,
            args=make_config(folder, options),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[callback],
            peft_config=lora,
        )
        callback.trainer = trainer
        rendered = [
            tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
            for row in rows
        ]
        callback.say(
            setting=options.setting,
            dtype=str(dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
            trainable=sum(value.numel() for value in trainer.model.parameters() if value.requires_grad),
            prompt_tokens=[len(ids) for ids in rendered],
            versions={
                name: importlib.metadata.version(name) for name in ("trl", "torch", "transformers", "peft")
            },
        )
        trainer.train()


if __name__ == "__main__":
    main()
