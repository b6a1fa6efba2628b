"""What a step adds up to: by whose reward, over which tokens, on whose moments; and what the parity check measures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from trainer_kit import Recorder, Sample, load_peft, sample

from art.config.train import ResolvedTrainConfig
from art.trainer.base_models import describe
from art.trainer.checkpoint import CheckpointStore, delete_checkpoint
from art.trainer.head import chunked_logprobs
from art.trainer.jobs import Trainer
from art.trainer.parity import parity_metrics, past_bound
from art.trainer.protocol import TrainJob, TrainOutcome

PROMPT, OTHER = [10, 20, 30, 40, 50], [60, 70, 80]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def recorder(base: Path, tmp_path: Path, trainer: Trainer) -> Recorder:
    """A model at step 0."""
    made = Recorder(tmp_path, describe(base, name="tiny", source="folder"))
    trainer.prepare_model(made.prepare())
    return made


def samples(recorder: Recorder, count: int, *, prompt: list[int] = PROMPT) -> list[Sample]:
    """Completions of step 0."""
    model = load_peft(Path(recorder.base.path), CheckpointStore(recorder.model_dir).folder(0))
    return sample(model, prompt, count, seed=len(prompt))


def group(recorder: Recorder, rewards: list[float], *, prompt: list[int] = PROMPT) -> list[Any]:
    """Rollouts of one call each."""
    drawn = samples(recorder, len(rewards), prompt=prompt)
    return [
        recorder.trajectory(reward, recorder.call(one)) for reward, one in zip(rewards, drawn, strict=True)
    ]


def run(trainer: Trainer, job: TrainJob) -> TrainOutcome:
    outcome = trainer.train(job, on_progress=lambda progress: None)
    assert outcome.published
    return outcome


def moments(recorder: Recorder, step: int, kind: str = "exp_avg") -> dict[str, torch.Tensor]:
    """Adam's moments of the B matrices; those of the A matrices have no gradient while B is zero."""
    file = CheckpointStore(recorder.model_dir).folder(step) / "optimizer.safetensors"
    return {
        name: tensor
        for name, tensor in load_file(file).items()
        if name.endswith(f".{kind}") and "lora_B" in name
    }


def gradient(trainer: Trainer, recorder: Recorder, groups: list[Any]) -> dict[str, torch.Tensor]:
    """Of the batch, times (1 - beta1): Adam's first moment after one step. The step is taken back."""
    run(trainer, recorder.job(groups, config={"max_grad_norm": 1e9}))
    found = moments(recorder, 1)
    delete_checkpoint(CheckpointStore(recorder.model_dir).folder(1))
    return found


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5 * float(tensor.abs().max()), rtol=0)


def test_every_rollout_goes_by_its_own_reward(trainer: Trainer, recorder: Recorder) -> None:
    """Two groups of one size push together as each does alone, half as much."""
    first = group(recorder, [0, 1, 0.5, 0])
    second = group(recorder, [1, 0, 0, 0.5], prompt=OTHER)
    one, two = (gradient(trainer, recorder, [each]) for each in (first, second))
    assert_close(
        gradient(trainer, recorder, [first, second]), {name: (one[name] + two[name]) / 2 for name in one}
    )


def test_tokens_that_are_not_trained_count_in_no_mean(trainer: Trainer, recorder: Recorder) -> None:
    """On the recorded policy the ratio is 1, so the loss is the rollouts' mean advantage with a minus: 0."""
    first, second = samples(recorder, 2)
    forced = [True] + [False] * (len(first.tokens) - 1)
    assert not all(forced)
    members = [
        recorder.trajectory(0, recorder.call(first, trainable=forced)),
        recorder.trajectory(1, recorder.call(second)),
    ]
    outcome = run(trainer, recorder.job([members], config={"loss_fn": "ppo"}))
    assert outcome.metrics["data/step_trained_tokens"] == 1 + len(second.tokens)
    assert outcome.metrics["loss/train"] == pytest.approx(0.0, abs=1e-5)


def test_a_step_goes_on_with_its_parents_moments(trainer: Trainer, recorder: Recorder) -> None:
    """Where the learning rate moves nothing, the same batch has the same gradient g again:
    (1 - beta) g after the first step, (1 - beta) (1 + beta) g after the second."""
    members = group(recorder, [0, 1, 0.5, 0])
    config = {"learning_rate": 1e-12, "max_grad_norm": 1e9, "adam_beta1": 0.9}
    for parent in (0, 1):
        run(trainer, recorder.job([members], parent=parent, config=config))
    assert {float(count) for count in moments(recorder, 2, "step").values()} == {2.0}
    first = moments(recorder, 1)
    assert_close(moments(recorder, 2), {name: 1.9 * moment for name, moment in first.items()})


def test_the_parity_figures_estimate_what_they_say() -> None:
    """Four tokens sampled in proportion to `served` give the mean over `served` itself."""
    served, trained = (0.5, 0.25, 0.25), (0.125, 0.375, 0.5)
    ratios = [math.log(q / p) for p, q in zip(served, trained, strict=True)]
    figures = parity_metrics(torch.tensor([ratios[0], *ratios], dtype=torch.float64))
    divergence = sum(p * math.log(p / q) for p, q in zip(served, trained, strict=True))
    assert figures["parity/k3"] == pytest.approx(divergence)
    absolute = [abs(ratios[0]), *map(abs, ratios)]
    assert figures["parity/mean"] == pytest.approx(sum(absolute) / 4)
    assert figures["parity/max"] == pytest.approx(max(absolute))
    assert figures["parity/tokens"] == 4


def test_figures_past_their_bound_are_named() -> None:
    config = ResolvedTrainConfig(learning_rate=1e-3)
    good = {"parity/mean": 0.01, "parity/p99": 0.1, "parity/k3": 1e-4, "parity/tokens": 10_000.0}
    assert past_bound(good, config) == []
    assert past_bound({}, config) == []
    for name, value in (("parity/mean", 0.07), ("parity/p99", 0.4), ("parity/k3", 0.005)):
        (told,) = past_bound({**good, name: value}, config)
        assert told.startswith(name)
        (told,) = past_bound({**good, name: math.nan}, config)
        assert told.startswith(name)


def test_the_head_of_bfloat16_weights_is_normalised_in_float32() -> None:
    torch.manual_seed(0)
    hidden, head = torch.randn(9, 16).bfloat16(), torch.randn(400, 16).bfloat16()
    target, temperature = torch.randint(0, 400, (9,)), torch.rand(9) + 0.5
    found, _ = chunked_logprobs(hidden, head, target, temperature, chunk=9)
    logprobs = torch.log_softmax((hidden @ head.T).float() / temperature[:, None], dim=-1)
    torch.testing.assert_close(found, logprobs.gather(1, target[:, None])[:, 0], atol=1e-5, rtol=0)
