"""What the engine's tests share: small random models, the same in transformers, and an engine run by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from art.engine.protocol import AdapterCheck, AdapterRef, Sampled, SampleRequest
from art.engine.step import StepEvent
from art.engine.torch.engine import TorchEngine
from art.errors import ArtError
from art.testing.engine_process import join

VOCAB = 300
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "llama-tied": lambda: LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-biases": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-rope-llama3": lambda: LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama-rope-linear": lambda: LlamaConfig(**SIZES, rope_parameters=LINEAR),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**{name: value for name, value in SIZES.items() if name != "head_dim"}),
    "qwen3": lambda: Qwen3Config(**SIZES),
}


def make_model(
    folder: Path, name: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Any:
    """A random model, saved in `folder`."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more threads only wait for one another on models this small
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=dtype)
    for parameter in model.parameters():
        # Norms and biases start at constants that would hide a missing one.
        torch.nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.2)
    model.save_pretrained(folder)
    return model.eval()


def make_adapter(model_folder: Path, folder: Path, *, seed: int, **changes: Any) -> Any:
    """A random non-zero LoRA, saved in `folder`, and the PEFT model that has it."""
    torch.manual_seed(seed)
    values = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "init_lora_weights": False} | changes
    peft = get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder), LoraConfig(**values))
    peft.save_pretrained(folder, save_embedding_layers=False)
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_folder), folder).eval()


def load(folder: Path, **options: Any) -> TorchEngine:
    """The folder's engine in fp32, with few slots unless told otherwise."""
    return TorchEngine.load(str(folder), **({"dtype": "fp32", "max_batch": 8, "threads": 1} | options))


def load_adapter(
    engine: TorchEngine, version: str, folder: Path, probe: list[int] | None = None
) -> AdapterCheck:
    return engine.load_adapter(AdapterRef(version, str(folder), probe or [1, 2, 3, 4, 5]))


class Runner:
    """Submits requests and collects their events."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine = engine
        self.events: dict[int, list[Sampled]] = {}

    def submit(self, request: SampleRequest) -> int:
        key = len(self.events)
        self.events[key] = []
        self.engine.submit(key, request)
        return key

    def step(self) -> bool:
        """One step; False when the engine had nothing to do."""
        events: list[StepEvent] | None = self.engine.step()
        for key, event in events or ():
            assert not isinstance(event, ArtError), event
            self.events[key].append(event)
        return events is not None

    def finish(self) -> None:
        while self.step():
            pass

    def result(self, key: int) -> Sampled:
        return join(self.events[key])


def run(engine: TorchEngine, *requests: SampleRequest) -> list[Sampled]:
    """Sample the requests together."""
    runner = Runner(engine)
    keys = [runner.submit(request) for request in requests]
    runner.finish()
    return [runner.result(key) for key in keys]


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in lengths]


def greedy(prompt: list[int], max_tokens: int = 24, **changes: Any) -> SampleRequest:
    return SampleRequest(prompt, max_tokens=max_tokens, temperature=0.0, **changes)


def reference_tokens(model: Any, prompt: list[int], max_tokens: int = 24) -> list[int]:
    """transformers' greedy tokens."""
    ids = torch.tensor([prompt])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=None,
    )
    return out[0, len(prompt) :].tolist()


def reference_logprobs(
    model: Any, prompt: list[int], tokens: list[int], temperature: float = 1.0
) -> torch.Tensor:
    """log-softmax(logits / temperature) of `tokens` after `prompt`, by a plain forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(tokens)[:, None]).squeeze(1)
