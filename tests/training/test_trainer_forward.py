"""The trainer's forward pass on tries against plain transformers and PEFT, sequence by sequence.

Both bodies are held to the reference: our own, and the one of transformers and PEFT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import get_peft_model_state_dict
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from art.config.model import LoraConfig
from art.errors import ConfigError
from art.tokens.samples import SampledChoice
from art.trainer import attention, llama
from art.trainer.body import Body
from art.trainer.forward import Policy, adapter_config, choose_dtype, make_row
from art.trainer.head import chunked_logprobs
from art.trainer.llama import LlamaBody
from art.trainer.peft_body import PeftBody

VOCAB = 300


pytestmark = pytest.mark.usefixtures("one_thread")


SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama3 positions, tied": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "tie_word_embeddings": True,
            "rope_scaling": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32}),
}


def save_model(kind: str, path: Path) -> Path:
    """A random model with biases and norms that do something."""
    torch.manual_seed(0)
    config, model, more = MODELS[kind]
    made = model(config(**SIZES, **more))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2 if "norm" in name else 0.05)
    made.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model("llama", tmp_path_factory.mktemp("llama"))


def make_policy(folder: Path, dtype: torch.dtype = torch.float32, body: type[Any] = LlamaBody) -> Policy:
    """A policy whose adapter does something."""
    lora = LoraConfig(r=4, alpha=8)
    made: Body = body.load(folder, lora=lora, dtype=dtype)
    policy = Policy(made, lora=lora, dtype=dtype, note="")
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.parameters.values():
        with torch.no_grad():
            parameter.normal_(std=0.1, generator=generator)
    return policy


def choice(prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0) -> SampledChoice:
    return SampledChoice(
        call_id=f"{prompt}{completion}",
        choice=0,
        rollout=0,
        prompt=np.array(prompt, dtype=np.int64),
        completion=np.array(completion, dtype=np.int64),
        logprobs=np.zeros(len(completion), dtype=np.float32),
        trainable=np.ones(len(completion), dtype=np.bool_),
        temperature=temperature,
    )


def some_choices() -> list[SampledChoice]:
    """A shared prompt, a continued call, a rewritten history, a stranger, twins; several temperatures."""
    shared = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()
    return [
        choice(shared, [4, 5, 11]),
        choice(shared, [4, 6, 8, 9], 0.7),
        choice([*shared, 4, 5, 11, 7], [8, 1, 2], 1.3),
        choice([*shared[:20], 3, 3], [5, 5]),
        choice([9], [1, 3]),
        choice(shared, [4, 5, 11], 0.7),
    ]


class Reference:
    """PEFT's own model with a policy's adapter: one sequence after another, all logits at once."""

    def __init__(self, folder: Path, policy: Policy) -> None:
        self.policy = Policy(
            PeftBody.load(folder, lora=policy.lora, dtype=policy.dtype),
            lora=policy.lora,
            dtype=policy.dtype,
            note="",
        )
        self.policy.load_adapter_state(policy.adapter_state())
        self._model = self.policy.body.peft
        self._model.get_base_model().set_attn_implementation("eager")

    def logprobs(self, choices: Sequence[SampledChoice]) -> torch.Tensor:
        found = []
        for one in choices:
            ids = torch.from_numpy(np.concatenate([one.prompt, one.completion]))
            logits = self._model(input_ids=ids[None]).logits[0].float() / one.temperature
            logprobs = torch.log_softmax(logits, dim=-1)[len(one.prompt) - 1 : -1]
            found.append(logprobs.gather(1, torch.from_numpy(one.completion)[:, None])[:, 0])
        return torch.cat(found)


def reference(folder: Path, policy: Policy, choices: Sequence[SampledChoice]) -> torch.Tensor:
    return Reference(folder, policy).logprobs(choices)


def gradients(policy: Policy, value: torch.Tensor) -> dict[str, torch.Tensor]:
    names, parameters = list(policy.parameters), list(policy.parameters.values())
    return dict(zip(names, torch.autograd.grad(value, parameters), strict=True))


@pytest.mark.parametrize("body", [LlamaBody, PeftBody])
@pytest.mark.parametrize(("queries", "merge"), [(64, 8_000), (7, 0), (16, 100), (1, 0)])
def test_a_trie_gives_the_log_probabilities_and_gradients_of_its_sequences(
    folder: Path, queries: int, merge: int, body: type[Any]
) -> None:
    policy, choices = make_policy(folder, body=body), some_choices()
    assert_equal_to_reference(folder, policy, choices, queries=queries, merge=merge)


@pytest.mark.parametrize("body", [LlamaBody, PeftBody])
@pytest.mark.parametrize("queries", [1, 7, 64])
def test_a_chain_gives_the_log_probabilities_and_gradients_of_its_sequence(
    folder: Path, queries: int, body: type[Any]
) -> None:
    """One path, on which two calls are trained."""
    tokens = np.random.default_rng(1).integers(0, VOCAB, 60).tolist()
    choices = [choice(tokens[:40], tokens[40:44]), choice(tokens[:50], tokens[50:], 0.7)]
    policy = make_policy(folder, body=body)
    assert len(make_row(choices, policy.device).trie.paths) == 1
    assert_equal_to_reference(folder, policy, choices, queries=queries)


def test_an_adapter_is_added_to_the_weights_anew_when_it_has_changed(folder: Path) -> None:
    policy, choices = make_policy(folder), some_choices()
    row = make_row(choices, policy.device)
    before, _ = policy.logprobs(row, chunk=64)
    with torch.no_grad():
        for parameter in policy.parameters.values():
            parameter.mul_(-1.5)
    expected = reference(folder, policy, choices)
    found, _ = policy.logprobs(row, chunk=64)
    torch.testing.assert_close(found, expected, atol=3e-6, rtol=0)
    with torch.no_grad():  # here it is computed beside the weights
        torch.testing.assert_close(policy.logprobs(row, chunk=64)[0], expected, atol=3e-6, rtol=0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        before.sum().backward()  # its weights are gone
    found.sum().backward()


def test_a_second_copy_of_the_weights_is_for_float32_where_there_is_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = LlamaBody.load(folder, lora=LoraConfig(), dtype=torch.float32)
    assert llama.merges(body.config, torch.float32, body.device)
    assert not llama.merges(body.config, torch.bfloat16, body.device)
    size = 4 * llama.layer_numbers(body.config)
    monkeypatch.setattr(llama, "memory_bytes", lambda device: 6 * size)
    assert not llama.merges(body.config, torch.float32, body.device)


@pytest.mark.parametrize("kind", MODELS)
def test_our_own_body_is_every_kind_of_model(kind: str, tmp_path: Path) -> None:
    policy = Policy.load(save_model(kind, tmp_path), lora=LoraConfig(r=4, alpha=8), dtype=torch.float32)
    assert isinstance(policy.body, LlamaBody)
    policy = make_policy(tmp_path)
    assert_equal_to_reference(tmp_path, policy, some_choices())
    policy.tree = False
    for one in some_choices():
        found, _ = policy.logprobs(make_row([one], policy.device), chunk=64)
        torch.testing.assert_close(found, reference(tmp_path, policy, [one]), atol=3e-6, rtol=0)


def assert_equal_to_reference(
    folder: Path,
    policy: Policy,
    choices: Sequence[SampledChoice],
    **plan: int,
) -> None:
    """Log-probabilities, and the gradient of every matrix of the adapter."""
    row = make_row(choices, policy.device)
    row = replace(row, blocks=attention.plan_attention(row.trie, device=policy.device, **plan))
    found, _ = policy.logprobs(row, chunk=5)
    model = Reference(folder, policy)
    expected = model.logprobs(choices)
    weights = torch.linspace(-1, 1, len(found))
    torch.testing.assert_close(found, expected, atol=3e-6, rtol=0)
    ours = gradients(policy, (found * weights).sum())
    theirs = gradients(model.policy, (expected * weights).sum())
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, atol=1e-5 * float(gradient.abs().max()), rtol=0)


def test_each_token_is_computed_once(folder: Path) -> None:
    policy, choices = make_policy(folder), some_choices()
    (row,) = policy.rows(choices, budget=4096)
    assert row.trie.size < sum(len(one.path) for one in choices) / 2
    assert len(row.target) == sum(len(one.completion) for one in choices)


@pytest.mark.parametrize("budget", [20, 45, 60, 4096])
def test_packing_changes_no_log_probability(folder: Path, budget: int) -> None:
    policy, choices = make_policy(folder), some_choices()
    expected = dict(
        zip(
            map(id, choices),
            reference(folder, policy, choices).split([len(c.completion) for c in choices]),
            strict=True,
        )
    )
    for row in policy.rows(choices, budget=budget):
        found, _ = policy.logprobs(row, chunk=1024)
        for index, one in enumerate(row.choices):
            torch.testing.assert_close(found[row.owner == index], expected[id(one)], atol=2e-6, rtol=0)


def test_bfloat16_stays_within_rounding_of_its_own_plain_pass(folder: Path) -> None:
    policy, choices = make_policy(folder, torch.bfloat16), some_choices()
    assert {parameter.dtype for parameter in policy.parameters.values()} == {torch.float32}
    found, _ = policy.logprobs(make_row(choices, policy.device), chunk=1024)
    assert float((found - reference(folder, policy, choices)).abs().mean()) < 0.02
    assert all(bool(g.isfinite().all()) for g in gradients(policy, found.sum()).values())


def test_the_check_on_the_first_batch_passes_and_runs_once(folder: Path) -> None:
    policy = make_policy(folder)
    assert policy.verify(some_choices(), chunk=64) is None
    assert policy.tree
    assert policy.verified


def test_wrong_tree_attention_is_found_and_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, choices = make_policy(folder), some_choices()
    expected = reference(folder, policy, choices)
    monkeypatch.setattr(attention, "_bias", lambda rows, keys, tout: torch.zeros(len(rows), len(keys)))
    reason = policy.verify(choices, chunk=64)
    assert reason is not None
    assert "one by one" in reason
    rows = policy.rows(choices, budget=4096)
    assert all(len(row.trie.paths) == 1 for row in rows)
    found = torch.cat([policy.logprobs(row, chunk=64)[0] for row in rows])
    assert float(found.sum()) == pytest.approx(float(expected.sum()), abs=1e-4)


def test_models_with_local_attention_take_no_tries(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kinds = ["full_attention", "sliding_attention"]
    config = Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1, layer_types=kinds
    )
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    policy = Policy.load(tmp_path, lora=LoraConfig(), dtype=torch.float32)
    assert isinstance(policy.body, PeftBody)
    assert "sliding-window" in policy.note
    assert "sliding_attention" in str(policy.body.local_attention)
    assert not policy.tree


def test_adapters_that_are_not_ours_are_pefts(folder: Path) -> None:
    lora = LoraConfig(r=4, target_modules=("q_proj", "embed_tokens"))
    policy = Policy.load(folder, lora=lora, dtype=torch.float32)
    assert isinstance(policy.body, PeftBody)
    assert "embed_tokens" in policy.note


def test_a_fresh_adapter_is_the_base_model(folder: Path) -> None:
    policy = Policy.load(folder, lora=LoraConfig(r=4, alpha=8), dtype=torch.float32)
    row = make_row(some_choices(), policy.device)
    fresh, _ = policy.logprobs(row, chunk=64)
    with policy.adapter_off():
        base, _ = policy.logprobs(row, chunk=64)
    assert torch.equal(fresh, base)
    again = Policy.load(folder, lora=LoraConfig(r=4, alpha=8), dtype=torch.float32)
    assert all(torch.equal(again.fresh_adapter[name], one) for name, one in policy.fresh_adapter.items())


def test_the_adapters_files_are_pefts_own(folder: Path, tmp_path: Path) -> None:
    policy = make_policy(folder)
    theirs = PeftBody.load(folder, lora=policy.lora, dtype=torch.float32).peft
    assert set(policy.adapter_state()) == set(get_peft_model_state_dict(theirs))
    written = adapter_config(policy.lora, str(folder))
    expected = theirs.peft_config["default"].to_dict()
    expected["target_modules"] = sorted(expected["target_modules"])
    assert {name: expected[name] for name in written} == written | {"inference_mode": False}


def test_the_head_in_chunks_in_float64() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(11, 16, dtype=torch.float64, requires_grad=True)
    head = torch.randn(50, 16, dtype=torch.float64)
    target, temperature = torch.randint(0, 50, (11,)), torch.rand(11) + 0.5
    found, entropy = chunked_logprobs(hidden, head, target, temperature, chunk=4)
    logprobs = torch.log_softmax(hidden @ head.T / temperature[:, None], dim=-1)
    expected = logprobs.gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy.double(), -(logprobs.exp() * logprobs).sum(-1), atol=1e-5, rtol=0)
    weights = torch.randn(11, dtype=torch.float64)
    (ours,) = torch.autograd.grad((found * weights).sum(), hidden)
    (theirs,) = torch.autograd.grad((expected * weights).sum(), hidden)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_probe_is_the_log_probability_of_each_token_given_its_past(folder: Path) -> None:
    policy = make_policy(folder)
    tokens = [5, 9, 200, 3, 3]
    expected = reference(folder, policy, [choice(tokens[:1], tokens[1:])])
    assert policy.probe(tokens) == pytest.approx(expected.tolist(), abs=2e-6)


def test_an_adapter_of_another_shape_is_refused_whole(folder: Path) -> None:
    policy = make_policy(folder)
    before = policy.adapter_state()
    wrong = {name: tensor[:2] if "lora_A" in name else tensor for name, tensor in before.items()}
    with pytest.raises(ConfigError, match="does not fit"):
        policy.load_adapter_state(wrong)
    with pytest.raises(ConfigError, match="does not fit"):
        policy.load_adapter_state(dict(list(before.items())[1:]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.adapter_state().items())


def test_unknown_target_modules_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="attaching the adapter"):
        Policy.load(folder, lora=LoraConfig(target_modules=("no_such_layer",)), dtype=torch.float32)


def test_the_type_is_as_asked_or_explained() -> None:
    assert choose_dtype("bf16") == (torch.bfloat16, "as asked")
    assert choose_dtype("fp32") == (torch.float32, "as asked")
    dtype, reason = choose_dtype("auto")
    assert dtype in (torch.float32, torch.bfloat16)
    assert reason
