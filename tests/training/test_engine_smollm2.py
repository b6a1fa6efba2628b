"""The engine on a real model: SmolLM2-135M in bf16 and fp32, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_kit import greedy, load, reference_logprobs, reference_tokens, run
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from art.engine.protocol import SampleRequest
from art.trainer.base_models import resolve_base_model

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
NEAR_TIE = 0.25
"""Logits: in bf16 greedy tokens may part only where the two best are this close."""
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Count from one to five.",
    "Why is the sky blue?",
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = getattr(request.config, "cache", None)
    root = Path(cache.mkdir("art-base-models")) if cache else tmp_path_factory.mktemp("base-models")
    return Path(
        resolve_base_model(NAME, cache_dir=root).path
    )  # `make setup` installs the package that has it


@pytest.fixture(scope="module")
def asked(folder: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [
        tokenizer.encode(template.format(question), add_special_tokens=False).ids for question in QUESTIONS
    ]


def reference(folder: Path, dtype: torch.dtype) -> Any:
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


@pytest.mark.timeout(400)
def test_fp32_greedy_equals_generate(folder: Path, asked: list[list[int]]) -> None:
    model = reference(folder, torch.float32)
    choices = run(load(folder, threads=2), *[greedy(prompt, 20) for prompt in asked])
    assert [choice.token_ids for choice in choices] == [
        reference_tokens(model, prompt, 20) for prompt in asked
    ]


@pytest.mark.timeout(400)
def test_bf16_stays_within_its_bounds(folder: Path, asked: list[list[int]]) -> None:
    model = reference(folder, torch.bfloat16)
    engine = load(folder, dtype="bf16", threads=2)
    assert engine.capabilities.dtype == "bf16"
    for prompt, choice in zip(asked, run(engine, *[greedy(prompt, 12) for prompt in asked]), strict=True):
        theirs = reference_tokens(model, prompt, 12)
        at = next(
            (i for i, pair in enumerate(zip(choice.token_ids, theirs, strict=True)) if pair[0] != pair[1]),
            None,
        )
        if at is not None:
            with torch.no_grad():
                best = model(torch.tensor([prompt + theirs[:at]])).logits[0, -1].float().topk(2).values
            assert best[0] - best[1] <= NEAR_TIE
    requests = [SampleRequest(prompt, max_tokens=24, seed=seed) for prompt in asked for seed in range(3)]
    expected, served = [], []
    for request, choice in zip(requests, run(engine, *requests), strict=True):
        expected.append(reference_logprobs(model, request.prompt_token_ids, choice.token_ids))
        served.append(torch.tensor(choice.logprobs))
    difference = (torch.cat(expected) - torch.cat(served)).double()
    assert difference.abs().mean() <= 0.06
    assert difference.abs().quantile(0.99) <= 0.3
    assert (difference.exp() - 1 - difference).mean() <= 4e-3
