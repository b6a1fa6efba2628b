"""What TRL's trainers make of random rewards and log-probabilities: advantages, losses and their gradients, as JSON.

    python trl_losses.py --out ../../tests/data/trl/cases.json            what the ordinary tests compare with
    python trl_losses.py --seed 7 --draws 25 --out fresh.json             as `make test-trl` calls it

Runs in TRL's own environment. Everything between the sampled tokens and the loss is TRL's code: a trainer is built
around a model of a few numbers, and what would come from that model (completions, log-probabilities, entropies) and from
a reward function is drawn at random instead. All in float64. `KINDS` names TRL's options for each kind of case.

Axes: B completions, T tokens of a completion. In the file, tokens are lists of lists as long as each completion.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is looked up

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

PROMPTS = 2
MAX_TOKENS = 5
MAX_COMPLETION_LENGTH = 8
"""TRL's constant in the divisor of `dr_grpo`."""
CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}
CAP = {"vllm_importance_sampling_clip_max": 1.5}
MASK = {**CAP, "vllm_importance_sampling_clip_min": 1 / 1.5}

#: Kind of case -> (trainer, its options). `num_iterations` 2 makes TRL take ratios to the log-probabilities before the
#: first update, which are drawn apart from the policy's.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {"loss_type": "grpo", **CLIP}),
    "grpo, on policy": ("grpo", {"loss_type": "grpo", "num_iterations": 1, **CLIP}),
    "grpo, rewards not scaled": ("grpo", {"loss_type": "grpo", "scale_rewards": "none", **CLIP}),
    "grpo, rewards scaled by the batch": ("grpo", {"loss_type": "grpo", "scale_rewards": "batch", **CLIP}),
    "grpo, one clip": ("grpo", {"loss_type": "grpo", "epsilon": 0.1}),
    "bnpo": ("grpo", {"loss_type": "bnpo", **CLIP}),
    "dapo": ("grpo", {"loss_type": "dapo", **CLIP}),
    "dr_grpo": ("grpo", {"loss_type": "dr_grpo", "scale_rewards": "none", **CLIP}),
    "gspo": ("grpo", {"loss_type": "grpo", "importance_sampling_level": "sequence", **CLIP}),
    "gspo, the paper's clip": (
        "grpo",
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 3e-4,
            "epsilon_high": 4e-4,
        },
    ),
    "luspo": ("grpo", {"loss_type": "luspo", "importance_sampling_level": "sequence", **CLIP}),
    "cispo": ("grpo", {"loss_type": "cispo", "epsilon_high": 1.2}),
    "cispo, wide": ("grpo", {"loss_type": "cispo", "epsilon_high": 5.0}),
    "grpo, kl": ("grpo", {"loss_type": "grpo", "beta": 0.2, "use_bias_correction_kl": False, **CLIP}),
    "dapo, kl": ("grpo", {"loss_type": "dapo", "beta": 0.05, "use_bias_correction_kl": False, **CLIP}),
    "dapo, entropy": ("grpo", {"loss_type": "dapo", "entropy_coef": 0.1, **CLIP}),
    "grpo, truncated by token": (
        "grpo",
        {"loss_type": "grpo", "vllm_importance_sampling_mode": "token_truncate", **CAP, **CLIP},
    ),
    "grpo, truncated by sequence": (
        "grpo",
        {"loss_type": "grpo", "vllm_importance_sampling_mode": "sequence_truncate", **CAP, **CLIP},
    ),
    "grpo, masked by token": (
        "grpo",
        {"loss_type": "grpo", "vllm_importance_sampling_mode": "token_mask", **MASK, **CLIP},
    ),
    "grpo, masked by sequence": (
        "grpo",
        {"loss_type": "grpo", "vllm_importance_sampling_mode": "sequence_mask", **MASK, **CLIP},
    ),
    "cispo, truncated by token, kl": (
        "grpo",
        {
            "loss_type": "cispo",
            "epsilon_high": 1.2,
            "vllm_importance_sampling_mode": "token_truncate",
            "beta": 0.1,
            "use_bias_correction_kl": False,
            **CAP,
        },
    ),
    "rloo": ("rloo", {}),
    "rloo, normalised over the batch": ("rloo", {"normalize_advantages": True}),
    "rloo, kl in the reward": ("rloo", {"beta": 0.1}),
}


def draw(rng: random.Random, *, tools: bool) -> dict[str, Any]:
    """Inputs of one case. Every third one has a group of equal rewards. `tools`: some tokens are a tool's."""
    size = rng.randint(2, 4)
    count = PROMPTS * size
    rewards = [round(rng.uniform(-1, 2), 3) for _ in range(count)]
    if rng.random() < 1 / 3:
        rewards[size:] = [0.1] * size
    lengths = [rng.randint(1, MAX_TOKENS) for _ in range(count)]

    def near(tokens: list[list[float]], deviation: float) -> list[list[float]]:
        return [[round(min(value + rng.gauss(0, deviation), -1e-3), 4) for value in row] for row in tokens]

    old = [[round(rng.uniform(-4, -0.05), 4) for _ in range(length)] for length in lengths]
    trained = [[not tools or rng.random() < 0.8 for _ in range(length)] for length in lengths]
    for row in trained:
        row[rng.randrange(len(row))] = True
    return {
        "group_size": size,
        "rewards": rewards,
        "trained": trained,
        "logprobs": near(old, 0.3),
        "old": old,
        "reference": near(old, 0.3),
        "served": near(old, 0.4),
        "entropy": [[round(rng.uniform(0, 4), 4) for _ in range(length)] for length in lengths],
    }


def padded(rows: list[list[float]]) -> Tensor:
    """[B, T], filled with 0 on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows])


class Scripted:
    """Puts a case's numbers in the place of what a trainer would get from its model and its reward function."""

    case: dict[str, Any]
    answers: list[tuple[Tensor, Tensor | None]]
    """What the coming calls of the model give: log-probabilities and entropies, both [B, T]."""

    def _calculate_rewards(self, *_: Any) -> Tensor:
        return torch.tensor(self.case["rewards"])[:, None]

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor | None, None]:
        logprobs_B_T, entropies_B_T = self.answers.pop(0)
        return logprobs_B_T, entropies_B_T, None


class ScriptedGrpo(Scripted, GRPOTrainer):
    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        case = self.case
        completions = [[1] * len(row) for row in case["trained"]]
        tools = [[int(value) for value in row] for row in case["trained"]]
        prompt_ids = [[1]] * len(prompts)
        return prompt_ids, completions, tools, [""] * len(prompts), case["served"], {}, None, []


class ScriptedRloo(Scripted, RLOOTrainer):
    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        return [[1]] * len(prompts), [[1] * len(row) for row in self.case["trained"]], [""] * len(prompts)


def make_trainer(name: str, options: dict[str, Any], case: dict[str, Any], folder: str) -> Any:
    """The trainer of one case. What needs a second model or another process is switched on afterwards."""
    kind, config = {"grpo": (ScriptedGrpo, GRPOConfig), "rloo": (ScriptedRloo, RLOOConfig)}[name]
    count = len(case["rewards"])
    corrected = "vllm_importance_sampling_mode" in options
    shared = {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "per_device_train_batch_size": count,
        "gradient_accumulation_steps": 1,
        "num_generations": case["group_size"],
        "max_completion_length": MAX_COMPLETION_LENGTH,
    }
    if name == "grpo":
        shared |= {"num_iterations": 2, "beta": 0.0}
    settings = {**shared, **options, "beta": 0.0}
    words = Tokenizer(WordLevel({"<end>": 0, "word": 1}, unk_token="<end>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>")
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2,
            hidden_size=4,
            intermediate_size=4,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
        )
    )
    trainer = kind(
        model=model,
        reward_funcs=lambda **_: [],
        args=config(**settings),
        train_dataset=Dataset.from_dict({"prompt": ["word"] * PROMPTS}),
        processing_class=tokenizer,
    )
    trainer.case = case
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trainer.beta = options.get("beta", 0.0)
    trainer.ref_model = trainer.model  # asked for the reference's log-probabilities, which are scripted
    if name == "grpo":
        trainer.use_vllm = corrected
        trainer.vllm_importance_sampling_correction = corrected
    return trainer


def found_by(name: str, options: dict[str, Any], case: dict[str, Any], folder: str) -> dict[str, Any]:
    """Advantages; for GRPO's trainer the loss too, and its gradients by log-probabilities and entropies."""
    trainer = make_trainer(name, options, case, folder)
    takes_old = name == "rloo" or options.get("num_iterations") != 1
    trainer.answers = [(padded(case["old"]), None)] if takes_old else []
    trainer.answers += [(padded(case["reference"]), None)] if options.get("beta") else []
    inputs = trainer._generate_and_score_completions([{"prompt": "word"} for _ in case["rewards"]])
    assert not trainer.answers, "TRL asked for fewer log-probabilities than were meant for it"
    found: dict[str, Any] = {"advantages": inputs["advantages"].tolist()}
    if name == "rloo":
        return found
    logprobs_B_T = padded(case["logprobs"]).requires_grad_()
    entropies_B_T = padded(case["entropy"]).requires_grad_()
    trainer.answers = [(logprobs_B_T, entropies_B_T)]
    loss = trainer._compute_loss(trainer.model, inputs)
    assert loss.dtype == torch.float64, loss.dtype
    loss.backward()
    found["loss"] = float(loss.detach())
    found["gradient"] = by_completion(logprobs_B_T.grad, case)
    if "entropy_coef" in options:
        found["entropy_gradient"] = by_completion(entropies_B_T.grad, case)
    return found


def by_completion(values_B_T: Tensor, case: dict[str, Any]) -> list[list[float]]:
    """The numbers at the completions' own places; behind them, and at a tool's tokens, there must be none."""
    shown = []
    for row, trained in zip(values_B_T.tolist(), case["trained"], strict=True):
        assert not any(row[len(trained) :])
        assert all(value == 0 for value, own in zip(row, trained, strict=False) if not own)
        shown.append(row[: len(trained)])
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=2, help="cases of each kind")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, (name, chosen) in KINDS.items():
            rng = random.Random(f"{options.seed} {kind}")
            for _ in range(options.draws):
                case = draw(rng, tools=name == "grpo")
                found = found_by(name, chosen, case, folder)
                cases.append(
                    {"kind": kind, "trainer": name, "options": chosen, "inputs": case, "found": found}
                )
    versions = {name: importlib.metadata.version(name) for name in ("trl", "torch", "transformers")}
    versions["torch"] = versions["torch"].partition("+")[0]
    report = {
        "versions": versions,
        "seed": options.seed,
        "max_completion_length": MAX_COMPLETION_LENGTH,
        "cases": cases,
    }
    lines = ",\n".join(json.dumps(case) for case in report.pop("cases"))
    options.out.write_text(f'{json.dumps(report)[:-1]}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
