"""Base weights of 8 and 4 bits: rounded once, the same for engine and trainer, packed in the trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_kit import load, load_adapter, make_model
from safetensors.torch import load_file
from trainer_kit import Recorder, load_peft, sample

from art.config.model import LoraConfig, ModelConfig
from art.errors import ConfigError, UnsupportedOption
from art.server.self_check import check_adapter
from art.testing.tiny import tiny_model
from art.trainer.base_models import resolve_base_model
from art.trainer.checkpoint import CheckpointStore
from art.trainer.forward import Policy
from art.trainer.jobs import Trainer
from art.trainer.llama import LlamaBody
from art.trainer.quantized import BLOCK, NF4, Packed, PackedStack
from art.trainer.quantized_model import kind_of, quantize_folder

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS: tuple[Any, ...] = ("int8", "nf4")
PROMPT = [10, 20, 30, 40, 50]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model", warm=False)


def directly(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """Number by number: the nearest code of the block, times its scale."""
    size = BLOCK if kind == "nf4" and weight.shape[1] % BLOCK == 0 else weight.shape[1]
    codes = torch.tensor([k / 127 for k in range(-127, 128)] if kind == "int8" else NF4)
    found = []
    for block in weight.reshape(-1, size).float():
        scale = block.abs().max().bfloat16().float()
        nearest = (block[:, None] / scale - codes).abs().argmin(dim=1)
        found.append((codes[nearest] * scale).bfloat16())
    return torch.stack(found).view(weight.shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(6, 128), (5, 80)])
def test_a_matrix_is_rounded_to_the_nearest_code(kind: Any, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    packed = Packed.of(weight, kind)
    dense = packed.dense()
    assert dense.dtype == torch.bfloat16
    torch.testing.assert_close(dense, directly(weight, kind), rtol=0, atol=0)
    per_weight = (packed.codes.nbytes + packed.scale_B.nbytes) / weight.numel()
    assert per_weight < (1.1 if kind == "int8" else 0.6)
    error = float((dense.float() - weight).abs().mean())
    assert error < (0.02 if kind == "int8" else 0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_rounded_is_packed_without_a_loss(kind: Any, dtype: torch.dtype) -> None:
    weight = torch.randn(64, 192, generator=torch.Generator().manual_seed(1)) * 0.02
    weight[3] = 0
    weight[4, :64] *= 1000
    dense = Packed.of(weight, kind).dense()
    assert bool(dense.isfinite().all())
    assert not dense[3].any()
    again = Packed.of(dense.to(dtype), kind)
    assert torch.equal(again.dense(), dense)
    stack = PackedStack([again, again], dtype).dense()
    assert torch.equal(stack, torch.cat([dense, dense]).to(dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_a_base_model_is_rounded_once_and_is_a_model_of_its_own(
    tiny: Path, tmp_path: Path, kind: Any
) -> None:
    plain = resolve_base_model(str(tiny), cache_dir=tmp_path)
    found = resolve_base_model(str(tiny), cache_dir=tmp_path, quantization=kind)
    folder = Path(found.path)
    assert (folder != tiny, found.sha256 != plain.sha256) == (True, True)
    assert (found.parameters, found.name) == (plain.parameters, plain.name)
    assert kind_of(folder) == kind
    before, after = load_file(tiny / "model.safetensors"), load_file(folder / "model.safetensors")
    for name, tensor in before.items():
        matrix = name.endswith("_proj.weight")
        assert torch.equal(after[name].float(), tensor.float()) is not matrix, name
        if matrix:
            assert torch.equal(after[name], Packed.of(tensor, kind).dense())
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_base_model(str(tiny), cache_dir=tmp_path, quantization=kind) == found
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert quantize_folder(folder, kind, cache_dir=tmp_path) == folder
    other = "nf4" if kind == "int8" else "int8"
    with pytest.raises(ConfigError, match=f"quantization='{other}'"):
        resolve_base_model(str(folder), cache_dir=tmp_path, quantization=other)


def test_other_files_in_the_folder_are_another_model(tmp_path: Path) -> None:
    base = tmp_path / "base"
    make_model(base)
    first = quantize_folder(base, "int8", cache_dir=tmp_path / "cache")
    make_model(base, seed=1)
    assert quantize_folder(base, "int8", cache_dir=tmp_path / "cache") != first


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path / "base")
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    (tmp_path / "base" / "config.json").write_text(
        json.dumps({**config, "architectures": ["GPT2LMHeadModel"]})
    )
    with pytest.raises(ConfigError, match="quantization='nf4'") as caught:
        quantize_folder(tmp_path / "base", "nf4", cache_dir=tmp_path)
    assert "GPT2LMHeadModel" in caught.value.cause


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_on_it_are_trained_and_served(tiny: Path, tmp_path: Path, kind: Any, dora: bool) -> None:
    """Samples and reference are those of PEFT on the rounded folder."""
    base = resolve_base_model(str(tiny), cache_dir=tmp_path, quantization=kind)
    recorder = Recorder(tmp_path, base, lora=LoraConfig(r=4, alpha=8, dora=dora))
    trainer = Trainer(dtype="fp32")
    trainer.prepare_model(recorder.prepare())
    store = CheckpointStore(recorder.model_dir)
    for parent in (0, 1):
        drawn = sample(load_peft(Path(base.path), store.folder(parent)), PROMPT, 4, seed=parent)
        members = [
            recorder.trajectory(float(number % 2), recorder.call(one, step=parent))
            for number, one in enumerate(drawn)
        ]
        outcome = trainer.train(
            recorder.job([members], parent=parent, config={"learning_rate": 0.02}),
            on_progress=lambda progress: None,
        )
        assert outcome.metrics["parity/mean"] < 2e-5
    info = outcome.checkpoint
    assert info is not None
    check = load_adapter(load(Path(base.path)), "v", Path(info.path), info.probe_token_ids)
    assert check_adapter(info, check, "fp32") is None
    policy = trainer.policy(base, recorder.lora)
    assert isinstance(policy.body, LlamaBody)
    for layer in policy.body._layers:
        assert all(isinstance(linear.frozen, PackedStack) for linear in layer.linears())
    assert f"packed as {kind}" in " ".join(outcome.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_have_the_gradients_of_the_model_they_stand_for(
    tiny: Path, tmp_path: Path, kind: Any
) -> None:
    folder = quantize_folder(tiny, kind, cache_dir=tmp_path)
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in folder.iterdir():
        if path.is_file() and path.name != "quantization.json":
            (plain / path.name).write_bytes(path.read_bytes())
    found = []
    for where in (folder, plain):
        policy = Policy.load(where, lora=LoraConfig(r=4, alpha=8), dtype=torch.float32)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in policy.parameters.values():
                parameter.normal_(std=0.1, generator=generator)
        logprobs = torch.tensor(policy.probe(PROMPT))
        policy.logprobs(_row(policy), chunk=8)[0].sum().backward()
        found.append((logprobs, {name: p.grad for name, p in policy.parameters.items()}))
    torch.testing.assert_close(found[0][0], found[1][0], atol=2e-6, rtol=0)
    for name, gradient in found[1][1].items():
        assert gradient is not None
        ours = found[0][1][name]
        assert ours is not None
        torch.testing.assert_close(ours, gradient, atol=1e-5 * float(gradient.abs().max()), rtol=0, msg=name)


def _row(policy: Policy) -> Any:
    import numpy as np

    from art.tokens.samples import SampledChoice
    from art.trainer.forward import make_row

    ids = np.array([60, 70, 80], dtype=np.int64)
    choice = SampledChoice(
        call_id="c",
        choice=0,
        rollout=0,
        prompt=np.array(PROMPT, dtype=np.int64),
        completion=ids,
        logprobs=np.zeros(3, dtype=np.float32),
        trainable=np.ones(3, dtype=np.bool_),
        temperature=1.0,
    )
    return make_row([choice], policy.device)


def test_all_weights_are_not_trained_rounded() -> None:
    with pytest.raises(UnsupportedOption, match="quantization='nf4'"):
        ModelConfig(base_model="m", training="full", quantization="nf4")
