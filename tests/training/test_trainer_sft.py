"""Supervised fine-tuning in the trainer: its loss against transformers', and that chunks are the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainer_kit import LORA, Recorder, load_peft, sample

from art.config.sft import ResolvedSFTConfig
from art.errors import InvalidInput, TrainingFailed
from art.store.blobs import BlobStore
from art.testing.tiny import tiny_model
from art.tokens.sft_samples import SftSequence, to_arrays
from art.trainer.base_models import describe
from art.trainer.checkpoint import CheckpointStore
from art.trainer.jobs import Trainer
from art.trainer.protocol import Progress, ResolvedBaseModel, SftJob, TrainOutcome
from art.trainer.sft import MOMENTS, train_sft
from art.types.jobs import SftSpec

torch.set_num_threads(1)
CONFIG: dict[str, Any] = {
    "batch_size": 2,
    "max_grad_norm": 1.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.99,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "packed_sequence_length": None,
    "logprob_calculation_chunk_size": 1024,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ResolvedBaseModel:
    folder = tiny_model(tmp_path_factory.mktemp("tiny") / "model", warm=False)
    return describe(folder, name=str(folder), source="folder")


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer(dtype="fp32")


def examples(count: int, seed: int = 0) -> list[SftSequence]:
    """Random sequences with a common beginning, two trained answers in each."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        rest = rng.integers(0, 250, int(rng.integers(10, 30))).tolist()
        token_ids = [1, 2, 3, 4, *rest]
        trained = [False] * 6 + [True] * 2 + [False] * 3 + [True] * (len(token_ids) - 11)
        made.append(SftSequence(token_ids, trained, number))
    return made


def sft_job(
    recorder: Recorder, sequences: list[SftSequence], order: list[int], *, parent: int = 0, **changes: Any
) -> SftJob:
    job_id = changes.pop("job_id", f"sft-{parent + 1}")
    updates = -(-len(order) // changes.get("batch_size", CONFIG["batch_size"]))
    config = ResolvedSFTConfig(**{"learning_rates": [1e-2] * updates, **CONFIG, **changes})
    blob = BlobStore(recorder.blob_dir).append(f"project/{job_id}.blob", to_arrays(sequences, order))
    return SftJob(
        job_id=job_id,
        project="project",
        name="agent",
        batch=parent + 1,
        base=recorder.base,
        model_dir=str(recorder.model_dir),
        blob_dir=str(recorder.blob_dir),
        parent_step=parent,
        step=parent + 1,
        lora=LORA,
        sft=SftSpec(config=config, blob=blob, examples=len(order)),
    )


def quiet(_: Progress) -> None:
    pass


def train(trainer: Trainer, job: SftJob) -> TrainOutcome:
    return train_sft(trainer, job, on_progress=quiet)


@pytest.fixture
def recorder(trainer: Trainer, base: ResolvedBaseModel, tmp_path: Path) -> Recorder:
    made = Recorder(tmp_path, base)
    trainer.prepare_model(made.prepare())
    return made


def adapter(recorder: Recorder, step: int) -> dict[str, torch.Tensor]:
    return CheckpointStore(recorder.model_dir).load_adapter(step)


def test_the_loss_is_the_mean_cross_entropy_of_the_trained_tokens(
    trainer: Trainer, recorder: Recorder
) -> None:
    sequences = examples(3)
    outcome = train(trainer, sft_job(recorder, sequences, [0, 1, 2], batch_size=3))
    model = load_peft(Path(recorder.base.path), recorder.model_dir / "checkpoints" / "0000")
    losses = []
    with torch.no_grad():
        for one in sequences:
            ids, wanted = torch.tensor([one.token_ids]), torch.tensor(one.trained)[1:]
            logits = model(input_ids=ids).logits[0, :-1]
            losses.append(
                torch.nn.functional.cross_entropy(logits[wanted], ids[0, 1:][wanted], reduction="none")
            )
    expected = float(torch.cat(losses).mean())
    assert outcome.metrics["loss/train"] == pytest.approx(expected, rel=1e-5)
    assert outcome.metrics["data/step_trained_tokens"] == len(torch.cat(losses))
    assert outcome.metrics["data/step_num_gradient_steps"] == 1
    prompts = sum(len(one.token_ids) for one in sequences)
    assert outcome.metrics["data/step_trainer_tokens"] < prompts, "the common beginning is computed once"


def test_an_update_is_adams_on_that_loss(trainer: Trainer, recorder: Recorder) -> None:
    """Against PEFT and torch's own optimizer, over two updates with their own learning rates."""
    sequences = examples(4)
    rates = [1e-2, 3e-3]
    train(trainer, sft_job(recorder, sequences, [0, 1, 2, 3], learning_rates=rates))
    model = load_peft(Path(recorder.base.path), recorder.model_dir / "checkpoints" / "0000")
    parameters = {name: p for name, p in model.named_parameters() if "lora_" in name}
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(parameters.values(), betas=(0.9, 0.99), weight_decay=0.0)
    for number, rate in enumerate(rates):
        optimizer.zero_grad()
        losses = []
        for one in sequences[2 * number : 2 * number + 2]:
            ids, wanted = torch.tensor([one.token_ids]), torch.tensor(one.trained)[1:]
            logits = model(input_ids=ids).logits[0, :-1]
            losses.append(
                torch.nn.functional.cross_entropy(logits[wanted], ids[0, 1:][wanted], reduction="none")
            )
        torch.cat(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    found = adapter(recorder, 1)
    for name, parameter in parameters.items():
        ours = found[name.replace(".default", "")]
        assert torch.allclose(ours, parameter.detach(), rtol=1e-3, atol=2e-4), name


def test_packing_changes_nothing(trainer: Trainer, base: ResolvedBaseModel, tmp_path: Path) -> None:
    found = []
    for length in (None, 16):
        recorder = Recorder(tmp_path / str(length), base)
        trainer.prepare_model(recorder.prepare())
        job = sft_job(recorder, examples(6), [0, 1, 2, 3, 4, 5], batch_size=6, packed_sequence_length=length)
        found.append(train(trainer, job).metrics)
    assert found[1]["data/step_num_datums"] > found[0]["data/step_num_datums"]
    for name in ("loss/train", "loss/grad_norm", "loss/entropy"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-5), name


def test_calls_that_follow_one_another_are_one_call_bit_for_bit(
    trainer: Trainer, base: ResolvedBaseModel, tmp_path: Path
) -> None:
    whole, parts = Recorder(tmp_path / "whole", base), Recorder(tmp_path / "parts", base)
    for recorder in (whole, parts):
        trainer.prepare_model(recorder.prepare())
    sequences = examples(8)
    train(trainer, sft_job(whole, sequences, list(range(8))))
    train(trainer, sft_job(parts, sequences, [0, 1, 2, 3]))
    train(trainer, sft_job(parts, sequences, [4, 5, 6, 7], parent=1))
    one, two = adapter(whole, 1), adapter(parts, 2)
    assert all(torch.equal(one[name], two[name]) for name in one)
    store = CheckpointStore(parts.model_dir)
    assert store.load_state(2).updates == 4
    manifest = store.manifest(2)
    assert manifest.config is None
    assert manifest.sft is not None
    assert manifest.sft.learning_rates == [1e-2, 1e-2]


def test_it_learns_and_leaves_the_other_moments_alone(trainer: Trainer, recorder: Recorder) -> None:
    model = load_peft(Path(recorder.base.path), recorder.model_dir / "checkpoints" / "0000")
    drawn = sample(model, [10, 20, 30], 4, seed=0)
    members = [recorder.trajectory(index % 2, recorder.call(one)) for index, one in enumerate(drawn)]
    trainer.train(recorder.job([members]), on_progress=quiet)
    before = CheckpointStore(recorder.model_dir).load_optimizer(1)
    assert before
    assert not any(name.startswith(MOMENTS) for name in before)
    outcome = train(trainer, sft_job(recorder, examples(2), [0, 1] * 30, parent=1))
    assert outcome.metrics["loss/train_last"] < 0.9 * outcome.metrics["loss/train"]
    after = CheckpointStore(recorder.model_dir).load_optimizer(2)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert {name for name in after if name.startswith(MOMENTS)} == {MOMENTS + name for name in before}


def test_a_job_is_trained_once_and_a_cancelled_one_not_at_all(trainer: Trainer, recorder: Recorder) -> None:
    job = sft_job(recorder, examples(4), [0, 1, 2, 3])

    def cancel(progress: Progress) -> None:
        if progress.phase == "update":
            raise TrainingFailed("The request was cancelled")

    with pytest.raises(TrainingFailed, match="cancelled"):
        train_sft(trainer, job, on_progress=cancel)
    assert CheckpointStore(recorder.model_dir).steps() == [0]
    told: list[Progress] = []
    first = train_sft(trainer, job, on_progress=told.append)
    assert [one.phase for one in told if one.phase != "forward"] == [
        "samples",
        "samples",
        "update",
        "update",
        "publish",
    ]
    assert train(trainer, job) == first
    assert CheckpointStore(recorder.model_dir).steps() == [0, 1]


def test_what_is_left_out_and_what_is_refused(trainer: Trainer, recorder: Recorder) -> None:
    # Example 0 was too long: the gateway left it out, and its place in the order stays empty.
    outcome = train(trainer, sft_job(recorder, examples(3)[1:], [0, 0, 1, 2], job_id="part"))
    assert outcome.metrics["data/step_num_gradient_steps"] == 1
    nothing = train(trainer, sft_job(recorder, [], [0], parent=1))
    assert (nothing.published, nothing.step) == (False, 1)
    assert "too long" in nothing.reason
    strange = [SftSequence([1, 2, 999], [False, False, True], 0)]
    with pytest.raises(InvalidInput, match="token 999; the model has 258"):
        train(trainer, sft_job(recorder, strange, [0], parent=1))
    assert CheckpointStore(recorder.model_dir).steps() == [0, 1]
