"""All weights trained: against plain transformers, published as a model, served as one, resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_kit import load, load_adapter, make_model
from safetensors.torch import load_file, save_file
from trainer_kit import Recorder, sample
from transformers import AutoModelForCausalLM

from art.config.model import ModelConfig
from art.config.train import default_learning_rate
from art.errors import ConfigError, InvalidInput, UnsupportedOption
from art.server.self_check import check_adapter
from art.testing.tiny import tiny_model
from art.tokens.samples import SampledChoice
from art.trainer.base_models import describe
from art.trainer.checkpoint import MODEL, CheckpointStore
from art.trainer.forward import Policy, make_row
from art.trainer.jobs import Trainer
from art.trainer.memory import require_memory
from art.trainer.protocol import TrainOutcome

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT = 2e-5
PROMPT = [10, 20, 30, 40, 50]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model", warm=False)


@pytest.fixture
def recorder(tiny: Path, tmp_path: Path, trainer: Trainer) -> Recorder:
    """A model at step 0."""
    made = Recorder(tmp_path / "runs", describe(tiny, name="tiny", source="folder"), lora=None)
    trainer.prepare_model(made.prepare())
    return made


def plain(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


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


def plain_logprobs(model: Any, choices: Sequence[SampledChoice]) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities, entropies), sequence by sequence."""
    found, entropies = [], []
    for one in choices:
        ids = torch.from_numpy(np.concatenate([one.prompt, one.completion]))
        logits = model(input_ids=ids[None]).logits[0].float() / one.temperature
        logprobs = logits.log_softmax(-1)[len(one.prompt) - 1 : -1]
        found.append(logprobs.gather(1, torch.from_numpy(one.completion)[:, None])[:, 0])
        entropies.append(-(logprobs.exp() * logprobs).sum(-1))
    return torch.cat(found), torch.cat(entropies)


@pytest.mark.parametrize("kind", ["llama-biases", "llama-tied", "qwen3"])
def test_the_gradient_of_every_weight_is_transformers_own(tmp_path: Path, kind: str) -> None:
    make_model(tmp_path, kind)
    policy = Policy.load(tmp_path, lora=None, dtype=torch.float32)
    assert "all weights" in policy.note
    choices = [choice([1, 2, 3, 4], [4, 5, 11]), choice([1, 2, 3, 4], [4, 6, 8], 0.7), choice([9], [1, 3])]
    model = plain(tmp_path)
    expected, entropies = plain_logprobs(model, choices)
    found, entropy = policy.logprobs(make_row(choices, policy.device), chunk=3, entropy_gradient=True)
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=0)
    torch.testing.assert_close(entropy, entropies, atol=EXACT, rtol=1e-5)
    weights = torch.linspace(-1, 1, len(found))
    (found * weights + 0.3 * entropy).sum().backward()
    (expected * weights + 0.3 * entropies).sum().backward()
    theirs = dict(model.named_parameters())
    assert list(policy.parameters) == list(theirs)
    for name, parameter in theirs.items():
        ours = policy.parameters[name].grad
        assert ours is not None
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(ours, parameter.grad, atol=2e-5 * scale, rtol=0, msg=name)


def test_entropies_have_no_gradient_unless_asked(tiny: Path) -> None:
    policy = Policy.load(tiny, lora=None, dtype=torch.float32)
    _, entropy = policy.logprobs(make_row([choice([1, 2], [3, 4])], policy.device), chunk=8)
    assert not entropy.requires_grad


def step(trainer: Trainer, recorder: Recorder, parent: int, **config: Any) -> TrainOutcome:
    """A step on fresh samples of the parent, drawn by plain transformers from what was published."""
    drawn = sample(plain(CheckpointStore(recorder.model_dir).folder(parent)), PROMPT, 4, seed=parent)
    members = [
        recorder.trajectory(float(number % 2), recorder.call(one, step=parent))
        for number, one in enumerate(drawn)
    ]
    outcome = trainer.train(
        recorder.job([members], parent=parent, config={"learning_rate": 1e-3, **config}),
        on_progress=lambda progress: None,
    )
    assert outcome.published
    assert outcome.metrics["parity/mean"] < EXACT
    return outcome


def test_steps_are_published_as_models_and_resumed_bit_for_bit(
    trainer: Trainer, recorder: Recorder, tmp_path: Path
) -> None:
    store = CheckpointStore(recorder.model_dir)
    for parent in (0, 1):
        outcome = step(trainer, recorder, parent)
    before, after = load_file(store.folder(0) / MODEL), load_file(store.folder(2) / MODEL)
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
    moved = [name for name, tensor in before.items() if not torch.equal(after[name], tensor)]
    assert len(moved) == len(before)
    info = outcome.checkpoint
    assert info is not None
    assert any("MB on disk" in note for note in outcome.notes)
    check = load_adapter(load(Path(recorder.base.path)), "v", Path(info.path), info.probe_token_ids)
    assert (check.matched, check.unmatched) == (len(after), [])
    assert check_adapter(info, check, "fp32") is None
    # A step is a base model by itself.
    assert describe(store.folder(2), name="step", source="folder").parameters == recorder.base.parameters
    # Everything that the step needs lies in step 1's files.
    store.folder(2).rename(tmp_path / "first")
    step(Trainer(dtype="fp32"), recorder, 1)
    for file in (MODEL, "optimizer.safetensors"):
        assert (store.folder(2) / file).read_bytes() == (tmp_path / "first" / file).read_bytes()


def test_the_base_model_is_the_reference_and_comes_and_goes(
    trainer: Trainer, recorder: Recorder, tiny: Path
) -> None:
    step(trainer, recorder, 0)
    outcome = step(trainer, recorder, 1, kl_penalty_coef=0.1)
    assert outcome.metrics["loss/kl_policy_ref"] != 0
    policy = trainer.policy(recorder.base, None)
    trained = policy.probe(PROMPT)
    with policy.adapter_off():
        assert policy.probe(PROMPT) == pytest.approx(
            plain_logprobs(plain(tiny), [choice(PROMPT[:1], PROMPT[1:])])[0].tolist(), abs=EXACT
        )
    assert policy.probe(PROMPT) == trained
    assert outcome.metrics["parity/mean"] < EXACT
    to_itself = step(trainer, recorder, 2, kl_penalty_coef=0.1, kl_penalty_reference_step=2)
    assert to_itself.metrics["loss/kl_policy_ref"] == pytest.approx(0, abs=1e-6)
    with pytest.raises(UnsupportedOption, match="kl_ref_adapter_path='x'"):
        step(trainer, recorder, 3, kl_penalty_coef=0.1, kl_ref_adapter_path="x")
    assert CheckpointStore(recorder.model_dir).steps() == [0, 1, 2, 3]


def test_a_trainer_changes_between_kinds(trainer: Trainer, recorder: Recorder, tmp_path: Path) -> None:
    other = Recorder(tmp_path / "lora", recorder.base)
    trainer.prepare_model(other.prepare())
    assert trainer.policy(recorder.base, None).note != trainer.policy(other.base, other.lora).note
    step(trainer, recorder, 0)


def test_bfloat16_rounds_in_the_products_and_not_the_weights(tiny: Path) -> None:
    exact, rounded = (Policy.load(tiny, lora=None, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    assert {parameter.dtype for parameter in rounded.parameters.values()} == {torch.float32}
    row = make_row([choice(PROMPT, [1, 2, 3]), choice(PROMPT, [1, 5])], exact.device)
    one, two = (policy.logprobs(row, chunk=64)[0] for policy in (exact, rounded))
    assert 0 < float((one - two).detach().abs().mean()) < 0.06
    two.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in rounded.parameters.values())


def test_the_engine_takes_no_model_but_a_version_of_its_own(tmp_path: Path) -> None:
    base, other = tmp_path / "base", tmp_path / "other"
    make_model(base)
    engine = load(base)
    make_model(other, seed=1)
    good = load_adapter(engine, "good", other)
    assert good.unmatched == []
    tensors = load_file(other / MODEL)

    def changed(name: str, tensors: dict[str, torch.Tensor]) -> Path:
        folder = tmp_path / name
        shutil.copytree(other, folder)
        save_file(tensors, folder / MODEL)
        return folder

    gone = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp.up_proj" not in name}
    with pytest.raises(InvalidInput, match="not a version") as caught:
        load_adapter(engine, "v", changed("gone", gone))
    assert "layers.1.mlp.up_proj" in caught.value.cause
    cut = {
        name: tensor[:-1].clone() if "layers.1.mlp.up_proj" in name else tensor
        for name, tensor in tensors.items()
    }
    with pytest.raises(InvalidInput, match="not a version"):
        load_adapter(engine, "v", changed("cut", cut))
    more = load_adapter(engine, "more", changed("more", {**tensors, "model.layers.9.bias": torch.ones(2)}))
    assert more.unmatched == ["model.layers.9.bias"]


def test_a_config_of_all_weights_has_no_adapter() -> None:
    assert ModelConfig(base_model="m").adapter is not None
    assert ModelConfig(base_model="m", training="full").adapter is None
    with pytest.raises(UnsupportedOption, match="lora="):
        ModelConfig.model_validate({"base_model": "m", "training": "full", "lora": {"r": 4}})
    with pytest.raises(UnsupportedOption, match="initial_adapter='x'"):
        ModelConfig(base_model="m", training="full", initial_adapter="x")
    text = ModelConfig(base_model="m", training="full").model_dump_json()
    assert ModelConfig.model_validate(json.loads(text)).training == "full"


def test_its_learning_rate_is_a_tenth() -> None:
    for size in (10**6, 10**8, 10**9):
        assert default_learning_rate(size, whole=True) == pytest.approx(default_learning_rate(size) / 10)


def test_a_model_that_does_not_fit_is_refused_with_the_numbers() -> None:
    require_memory("small", numbers=10**8, memory=4 * 10**9)
    with pytest.raises(ConfigError, match="all weights of large does not fit") as caught:
        require_memory("large", numbers=10**9, memory=24 * 10**9)
    assert "20 GB" in caught.value.cause
    assert "14.4 GB" in caught.value.cause
