"""Kinds of adapter: trainer and engine against PEFT itself, through the files that are published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_kit import load, load_adapter, make_model
from peft import PeftModel
from safetensors.torch import load_file, save_file
from trainer_kit import Recorder, load_peft, sample
from transformers import AutoModelForCausalLM

from art.config.model import LoraConfig
from art.errors import ConfigError
from art.server.self_check import check_adapter
from art.testing.tiny import tiny_model
from art.tokens.samples import SampledChoice
from art.trainer.base_models import describe
from art.trainer.checkpoint import ADAPTER, ADAPTER_CONFIG, CheckpointStore
from art.trainer.forward import Policy, adapter_config, make_row
from art.trainer.jobs import Trainer
from art.trainer.llama import LlamaBody
from art.trainer.peft_body import PeftBody
from art.trainer.protocol import TrainOutcome

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT = 2e-5
"""Nats. Logits of these models have a deviation of about 10, so float32 leaves a few millionths."""
SOME = ("q_proj", "o_proj", "up_proj")
KINDS: dict[str, dict[str, Any]] = {
    "rslora": {"rslora": True},
    "dora": {"dora": True},
    "both, on some": {"rslora": True, "dora": True, "target_modules": SOME},
}
PROMPT = [10, 20, 30, 40, 50]


def lora_of(kind: str) -> LoraConfig:
    return LoraConfig(**{"r": 4, "alpha": 8.0, **KINDS[kind]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with biases, whose rows a length does not multiply."""
    path = tmp_path_factory.mktemp("model")
    make_model(path, "llama-biases")
    return path


def random_policy(folder: Path, lora: LoraConfig, *, body: type[Any] = LlamaBody, **options: Any) -> Policy:
    """A policy whose adapter does something, its lengths included."""
    dtype = options.get("dtype", torch.float32)
    policy = Policy(body.load(folder, lora=lora, dtype=dtype), lora=lora, dtype=dtype, note="")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.parameters.items():
            if "magnitude" in name:
                parameter.mul_(torch.rand(parameter.shape, generator=generator) + 0.5)
            else:
                parameter.normal_(std=0.1, generator=generator)
    return policy


def write(policy: Policy, base: Path, folder: Path) -> Path:
    """The adapter as a checkpoint holds it."""
    folder.mkdir()
    save_file(policy.adapter_state(), folder / ADAPTER)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(adapter_config(policy.lora, str(base))))
    return folder


def by_peft(base: Path, adapter: Path) -> Any:
    """The adapter as any PEFT user loads it, trainable."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, adapter, is_trainable=True).eval()


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
    shared = np.random.default_rng(0).integers(0, 300, 20).tolist()
    return [
        choice(shared, [4, 5, 11]),
        choice(shared, [4, 6, 8, 9], 0.7),
        choice([*shared, 4, 5, 11, 7], [8, 1, 2]),
        choice([9], [1, 3]),
    ]


def plain_logprobs(model: Any, choices: Sequence[SampledChoice]) -> torch.Tensor:
    """Sequence by sequence, by the model's own logits."""
    found = []
    for one in choices:
        ids = torch.from_numpy(np.concatenate([one.prompt, one.completion]))
        logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0].float() / one.temperature, dim=-1)
        found.append(
            logprobs[len(one.prompt) - 1 : -1].gather(1, torch.from_numpy(one.completion)[:, None])[:, 0]
        )
    return torch.cat(found)


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "beside"])
@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_and_gradients_are_pefts(
    folder: Path, tmp_path: Path, kind: str, merge: bool
) -> None:
    policy, choices = random_policy(folder, lora_of(kind)), some_choices()
    for layer in policy.body._layers:
        for linear in layer.linears():
            linear.merge = merge
    model = by_peft(folder, write(policy, folder, tmp_path / "adapter"))
    expected = plain_logprobs(model, choices)
    found, _ = policy.logprobs(make_row(choices, policy.device), chunk=5)
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=0)
    weights = torch.linspace(-1, 1, len(found))
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    theirs = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert list(policy.parameters) == list(theirs)
    assert any("magnitude" in name for name in theirs) is policy.lora.dora
    for name, gradient in theirs.items():
        ours = policy.parameters[name].grad
        assert gradient is not None
        assert ours is not None
        torch.testing.assert_close(ours, gradient, atol=2e-5 * float(gradient.abs().max()), rtol=0, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_serves_what_is_trained(folder: Path, tmp_path: Path, kind: str) -> None:
    policy = random_policy(folder, lora_of(kind))
    engine = load(folder)
    tokens = np.random.default_rng(2).integers(0, 300, 24).tolist()
    check = load_adapter(engine, "v", write(policy, folder, tmp_path / "adapter"), tokens)
    assert (check.matched, check.unmatched) == (len(policy.parameters), [])
    assert check.probe_logprobs == pytest.approx(policy.probe(tokens), abs=EXACT)
    assert check.probe_logprobs != pytest.approx(check.base_probe_logprobs, abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_pefts_own_body_computes_the_same(folder: Path, kind: str) -> None:
    ours = random_policy(folder, lora_of(kind))
    theirs = Policy(
        PeftBody.load(folder, lora=ours.lora, dtype=torch.float32),
        lora=ours.lora,
        dtype=torch.float32,
        note="",
    )
    assert list(theirs.fresh_adapter) == list(ours.fresh_adapter)
    for name, tensor in theirs.fresh_adapter.items():
        if "magnitude" in name:
            torch.testing.assert_close(ours.fresh_adapter[name], tensor, atol=1e-6, rtol=1e-6, msg=name)
    theirs.load_adapter_state(ours.adapter_state())
    row = make_row(some_choices(), ours.device)
    with torch.no_grad():
        found, expected = (one.logprobs(row, chunk=64)[0] for one in (ours, theirs))
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=0)


def test_the_scale_of_rslora_falls_with_the_root_of_the_rank() -> None:
    assert LoraConfig(r=16, alpha=8).scale == 0.5
    assert LoraConfig(r=16, alpha=8, rslora=True).scale == 2.0


def test_a_fresh_dora_adapter_is_the_base_model(folder: Path) -> None:
    policy = Policy.load(folder, lora=LoraConfig(r=4, dora=True), dtype=torch.float32)
    row = make_row(some_choices(), policy.device)
    fresh, _ = policy.logprobs(row, chunk=64)
    with policy.adapter_off():
        base, _ = policy.logprobs(row, chunk=64)
    torch.testing.assert_close(fresh, base, atol=EXACT, rtol=0)


def test_lengths_are_taken_anew_when_a_matrix_has_changed(folder: Path, tmp_path: Path) -> None:
    policy, choices = random_policy(folder, LoraConfig(r=4, dora=True)), some_choices()
    row = make_row(choices, policy.device)
    before = policy.logprobs(row, chunk=64)[0].detach()
    with torch.no_grad():
        for name, parameter in policy.parameters.items():
            if "lora_B" in name:
                parameter.mul_(-3)
    expected = plain_logprobs(by_peft(folder, write(policy, folder, tmp_path / "adapter")), choices)
    found, _ = policy.logprobs(row, chunk=64)
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=0)
    assert not torch.allclose(found, before, atol=0.1)


def test_dora_in_bfloat16_stays_within_rounding(folder: Path) -> None:
    exact, rounded = (
        random_policy(folder, LoraConfig(r=4, alpha=8, dora=True), dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
    )
    rounded.load_adapter_state(exact.adapter_state())
    plain = [
        random_policy(folder, LoraConfig(r=4, alpha=8), dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    plain[1].load_adapter_state(plain[0].adapter_state())
    row = make_row(some_choices(), exact.device)
    dora, lora = (
        float((one.logprobs(row, chunk=64)[0] - two.logprobs(row, chunk=64)[0]).detach().abs().mean())
        for one, two in ((exact, rounded), (plain[0], plain[1]))
    )
    assert dora < 2 * lora + 0.02
    (rounded.logprobs(row, chunk=64)[0].sum()).backward()
    assert all(
        bool(one.grad is not None and one.grad.isfinite().all()) for one in rounded.parameters.values()
    )


def test_a_row_of_zeros_stays_one(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight[3] = 0
    model.save_pretrained(tmp_path / "model")
    policy = Policy.load(tmp_path / "model", lora=LoraConfig(r=4, dora=True), dtype=torch.float32)
    found, _ = policy.logprobs(make_row(some_choices(), policy.device), chunk=64)
    found.sum().backward()
    for parameter in policy.parameters.values():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())
    engine = load(tmp_path / "model")
    check = load_adapter(engine, "v", write(policy, tmp_path / "model", tmp_path / "adapter"), PROMPT)
    assert check.probe_logprobs == pytest.approx(policy.probe(PROMPT), abs=EXACT)


# -- through jobs


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model", warm=False)


def step(trainer: Trainer, recorder: Recorder, parent: int) -> TrainOutcome:
    """A step on fresh samples of the parent, drawn by PEFT: what it publishes, PEFT reads."""
    model = load_peft(Path(recorder.base.path), CheckpointStore(recorder.model_dir).folder(parent))
    drawn = sample(model, PROMPT, 4, seed=parent)
    members = [
        recorder.trajectory(float(number % 2), recorder.call(one, step=parent))
        for number, one in enumerate(drawn)
    ]
    outcome = trainer.train(
        recorder.job([members], parent=parent, config={"learning_rate": 0.02}),
        on_progress=lambda progress: None,
    )
    assert outcome.published
    assert outcome.metrics["parity/mean"] < EXACT
    return outcome


@pytest.mark.parametrize("kind", ["rslora", "dora"])
def test_steps_are_trained_published_and_resumed_bit_for_bit(tiny: Path, tmp_path: Path, kind: str) -> None:
    recorder = Recorder(tmp_path, describe(tiny, name="tiny", source="folder"), lora=lora_of(kind))
    trainer = Trainer(dtype="fp32")
    start = trainer.prepare_model(recorder.prepare())
    for parent in (0, 1):
        outcome = step(trainer, recorder, parent)
    store = CheckpointStore(recorder.model_dir)
    before, after = (load_file(Path(one) / ADAPTER) for one in (start.path, store.folder(2)))
    assert all(not torch.equal(after[name], tensor) for name, tensor in before.items())
    assert any(name.endswith("lora_magnitude_vector") for name in after) is (kind == "dora")
    info = outcome.checkpoint
    assert info is not None
    engine = load(tiny)
    check = load_adapter(engine, "v", Path(info.path), info.probe_token_ids)
    assert check_adapter(info, check, "fp32") is None
    # The same step again in another process's trainer: everything it needs lies in step 1's files.
    store.folder(2).rename(tmp_path / "first")
    step(Trainer(dtype="fp32"), recorder, 1)
    for file in (ADAPTER, "optimizer.safetensors"):
        assert (store.folder(2) / file).read_bytes() == (tmp_path / "first" / file).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_starts_from_an_adapter_of_its_own_kind_alone(
    tiny: Path, tmp_path: Path, kind: str, trainer: Trainer
) -> None:
    policy = random_policy(tiny, lora_of(kind))
    adapter = write(policy, tiny, tmp_path / "adapter")
    base = describe(tiny, name="tiny", source="folder")
    recorder = Recorder(tmp_path / "same", base, lora=policy.lora)
    info = trainer.prepare_model(recorder.prepare(initial_adapter=str(adapter)))
    assert info.probe_logprobs == pytest.approx(policy.probe(info.probe_token_ids), abs=EXACT)
    for field in KINDS[kind]:
        other = Recorder(
            tmp_path / field,
            base,
            lora=policy.lora.model_copy(update={field: LoraConfig.model_fields[field].default}),
        )
        with pytest.raises(ConfigError, match="another shape") as caught:
            trainer.prepare_model(other.prepare(initial_adapter=str(adapter)))
        assert field in caught.value.cause


@pytest.mark.parametrize(
    ("name", "value"), [("alpha_pattern", {"q_proj": 4}), ("bias", "all"), ("layers_to_transform", [0])]
)
def test_settings_of_an_adapter_that_would_be_lost_are_refused_by_name(
    tiny: Path, tmp_path: Path, trainer: Trainer, name: str, value: object
) -> None:
    policy = random_policy(tiny, LoraConfig(r=4))
    adapter = write(policy, tiny, tmp_path / "adapter")
    config = json.loads((adapter / ADAPTER_CONFIG).read_text())
    (adapter / ADAPTER_CONFIG).write_text(json.dumps({**config, name: value}))
    recorder = Recorder(tmp_path, describe(tiny, name="tiny", source="folder"), lora=policy.lora)
    with pytest.raises(ConfigError, match="cannot be trained") as caught:
        trainer.prepare_model(recorder.prepare(initial_adapter=str(adapter)))
    assert name in caught.value.cause


def test_an_adapter_on_the_head_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="LM head"):
        Policy.load(folder, lora=LoraConfig(target_modules=("q_proj", "lm_head")), dtype=torch.float32)
