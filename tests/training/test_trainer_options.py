"""What a job's options do to its gradient, against plain transformers and PEFT; and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from trainer_kit import Recorder, Sample, load_peft, sample

from art.errors import ArtError, ConfigError, InvalidInput, NotFound, TrainingFailed
from art.trainer.base_models import describe
from art.trainer.checkpoint import CheckpointStore, delete_checkpoint
from art.trainer.head import chunked_logprobs
from art.trainer.jobs import Trainer
from art.trainer.protocol import Progress, TrainJob, TrainOutcome
from art.types.policy import RolloutStatus

PROMPT = [10, 20, 30, 40, 50]
NO_PARITY = {"parity_mean": 1e9, "parity_p99": 1e9, "parity_k3": 1e9}
NO_CORRECTION = {"truncated_importance_sampling": None}
BETA1 = 0.9
REWARDS = (0.0, 1.0, 0.25, 0.0)
TEMPERATURE = 1.3
"""Not 1, so that a forgotten temperature shows."""


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def recorder(base: Path, tmp_path_factory: pytest.TempPathFactory, trainer: Trainer) -> Recorder:
    """A model at step 1, which differs from its base; every test trains step 2 and takes it away again."""
    made = Recorder(tmp_path_factory.mktemp("runs"), describe(base, name="tiny", source="folder"))
    trainer.prepare_model(made.prepare())
    drawn = sample(load_peft(base, folder_of(made, 0)), PROMPT, 4, seed=0)
    members = [made.trajectory(reward, made.call(one)) for reward, one in zip(REWARDS, drawn, strict=True)]
    run(trainer, made.job([members], config={"learning_rate": 0.05}))
    return made


@pytest.fixture(scope="module")
def model(base: Path, recorder: Recorder) -> Any:
    """Step 1 as any PEFT user loads it, its adapter trainable."""
    loaded = load_peft(base, folder_of(recorder, 1))
    for name, parameter in loaded.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return loaded


@pytest.fixture(scope="module")
def drawn(model: Any) -> list[Sample]:
    """Completions of step 1, of different lengths."""
    whole = sample(model, PROMPT, 4, seed=3, max_tokens=8, temperature=TEMPERATURE)
    return [
        Sample(one.prompt, one.tokens[:length], one.logprobs[:length])
        for one, length in zip(whole, (8, 3, 5, 6), strict=True)
    ]


@pytest.fixture(scope="module")
def shifted(drawn: list[Sample]) -> list[Sample]:
    """As if another policy had sampled them: ratios from 0.5 to 2."""
    generator = torch.Generator().manual_seed(7)
    return [
        replace(one, logprobs=(torch.tensor(one.logprobs) + noise).tolist())
        for one in drawn
        for noise in [(torch.rand(len(one.tokens), generator=generator) - 0.5) * 1.4]
    ]


def folder_of(recorder: Recorder, step: int) -> Path:
    return CheckpointStore(recorder.model_dir).folder(step)


def run(trainer: Trainer, job: TrainJob, events: list[Progress] | None = None) -> TrainOutcome:
    return trainer.train(job, on_progress=([] if events is None else events).append)


def job_of(recorder: Recorder, samples: Sequence[Sample], **config: Any) -> TrainJob:
    members = [
        recorder.trajectory(reward, recorder.call(one, step=1, temperature=TEMPERATURE))
        for reward, one in zip(REWARDS, samples, strict=True)
    ]
    return recorder.job([members], parent=1, config={"max_grad_norm": 1e9, **NO_PARITY, **config})


Gradient = dict[str, torch.Tensor]


def moments(recorder: Recorder) -> Gradient:
    tensors = load_file(folder_of(recorder, 2) / "optimizer.safetensors")
    return {n.removesuffix(".exp_avg"): t for n, t in tensors.items() if n.endswith("exp_avg")}


def train(
    trainer: Trainer, recorder: Recorder, samples: Sequence[Sample], **config: Any
) -> tuple[TrainOutcome, Gradient]:
    """The outcome of a job, and its gradient: Adam's first moment is beta1 * before + (1 - beta1) * gradient."""
    before = load_file(folder_of(recorder, 1) / "optimizer.safetensors")
    outcome = run(trainer, job_of(recorder, samples, adam_beta1=BETA1, **config))
    assert outcome.published
    assert all(math.isfinite(value) for value in outcome.metrics.values())
    gradient = {
        name: (moment - BETA1 * before[f"{name}.exp_avg"]) / (1 - BETA1)
        for name, moment in moments(recorder).items()
    }
    delete_checkpoint(folder_of(recorder, 2))
    return outcome, gradient


def same(found: Gradient, expected: Gradient) -> bool:
    """Equal up to float32's rounding, relative to the largest entry of each matrix."""
    assert set(found) == set(expected)
    return all(
        float((found[name] - tensor).abs().max()) <= 2e-5 * max(float(tensor.abs().max()), 1e-3)
        for name, tensor in expected.items()
    )


def logprobs_of(model: Any, one: Sample) -> torch.Tensor:
    """[T] in float64 with a gradient, by transformers and PEFT."""
    ids = torch.tensor([[*one.prompt, *one.tokens]])
    logits = model(input_ids=ids).logits[0, len(one.prompt) - 1 : -1].double() / TEMPERATURE
    chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(one.tokens)[:, None])
    return chosen[:, 0]


def reference(
    model: Any,
    samples: Sequence[Sample],
    loss: Callable[[torch.Tensor, torch.Tensor, float, Sample], torch.Tensor],
) -> Gradient:
    """The gradient of mean over rollouts of mean over tokens of `loss(logprobs, recorded, advantage, sample)`."""
    model.zero_grad(set_to_none=True)
    mean = sum(REWARDS) / len(REWARDS)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in REWARDS) / len(REWARDS))
    total = torch.zeros((), dtype=torch.float64)
    for one, reward in zip(samples, REWARDS, strict=True):
        recorded = torch.tensor(one.logprobs, dtype=torch.float64)
        total = total + loss(logprobs_of(model, one), recorded, (reward - mean) / deviation, one).mean()
    (total / len(samples)).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if "lora_" in name}


def ppo(now: torch.Tensor, old: torch.Tensor, a: float, one: Sample) -> torch.Tensor:
    r = torch.exp(now - old)
    return -torch.minimum(r * a, r.clamp(0.8, 1.28) * a)


def gspo(now: torch.Tensor, old: torch.Tensor, a: float, one: Sample) -> torch.Tensor:
    s = torch.exp((now - old).mean())
    return -torch.minimum(s * a, s.clamp(0.9, 1.2) * a).expand(len(now))


def cispo(now: torch.Tensor, old: torch.Tensor, a: float, one: Sample) -> torch.Tensor:
    return -torch.exp(now - old).clamp(0, 1.5).detach() * a * now


def weighted(now: torch.Tensor, old: torch.Tensor, a: float, one: Sample) -> torch.Tensor:
    return -torch.exp(now - old) * a


@pytest.mark.parametrize(
    ("config", "loss"),
    [
        ({"loss_fn": "ppo"}, ppo),
        ({"loss_fn": "gspo", "epsilon": 0.1, "epsilon_high": 0.2}, gspo),
        ({"loss_fn": "cispo", "epsilon_high": 0.5}, cispo),
        ({"loss_fn": "importance_sampling"}, weighted),
    ],
)
@pytest.mark.parametrize("row", [None, 16])
def test_the_gradient_of_each_loss_is_plain_pefts(
    trainer: Trainer,
    recorder: Recorder,
    model: Any,
    shifted: list[Sample],
    config: dict[str, Any],
    loss: Any,
    row: int | None,
) -> None:
    """Off-policy tokens, also cut into rows of 16 tokens: a completion is never cut."""
    _, found = train(trainer, recorder, shifted, packed_sequence_length=row, **config, **NO_CORRECTION)
    assert same(found, reference(model, shifted, loss))
    assert not same(found, reference(model, shifted, lambda now, old, a, one: -a * now))


def test_on_policy_all_losses_have_one_gradient(
    trainer: Trainer, recorder: Recorder, drawn: list[Sample]
) -> None:
    """At a ratio of 1 each is the policy gradient."""
    _, expected = train(trainer, recorder, drawn)
    for name in ("cispo", "gspo", "importance_sampling"):
        outcome, found = train(trainer, recorder, drawn, loss_fn=name)
        assert same(found, expected), name
        assert outcome.metrics["parity/max"] < 1e-4


def test_the_correction_holds_in_a_job(
    trainer: Trainer, recorder: Recorder, model: Any, shifted: list[Sample]
) -> None:
    def loss(now: torch.Tensor, old: torch.Tensor, a: float, one: Sample) -> torch.Tensor:
        return (
            -torch.exp(now - old) * a * (torch.exp(now - old).clamp(max=1.2) / torch.exp(now - old)).detach()
        )

    outcome, found = train(
        trainer, recorder, shifted, loss_fn="importance_sampling", truncated_importance_sampling=1.2
    )
    assert same(found, reference(model, shifted, loss))
    assert 0 < outcome.metrics["loss/truncated_fraction"] < 1


def test_recomputed_logprobs_take_the_place_of_recorded_ones(
    trainer: Trainer, recorder: Recorder, model: Any, shifted: list[Sample]
) -> None:
    """The ratio is then 1, and the recorded ones only weigh: min(trainer / served, 1.2)."""

    def loss(now: torch.Tensor, old: torch.Tensor, a: float, one: Sample) -> torch.Tensor:
        weight = torch.exp(now - old).clamp(max=1.2).detach()
        return -torch.exp(now - now.detach()) * a * weight

    events: list[Progress] = []
    run(trainer, job_of(recorder, shifted, precalculate_logprobs=True), events)
    delete_checkpoint(folder_of(recorder, 2))
    assert [event.phase for event in events] == [
        "samples",
        "samples",
        "lookback",
        "forward",
        "update",
        "publish",
    ]
    outcome, found = train(
        trainer, recorder, shifted, precalculate_logprobs=True, truncated_importance_sampling=1.2
    )
    assert same(found, reference(model, shifted, loss))
    assert outcome.metrics["loss/clip_fraction"] == 0
    assert outcome.metrics["parity/mean"] > 0.1  # still measured against what was served


REFERENCES: list[dict[str, Any]] = [
    {},
    {"kl_penalty_reference_step": 0},
]


@pytest.mark.parametrize("place", REFERENCES)
@pytest.mark.parametrize("kind", ["reward", "loss"])
def test_the_penalty_against_the_base_model(
    trainer: Trainer,
    recorder: Recorder,
    model: Any,
    drawn: list[Sample],
    kind: str,
    place: dict[str, Any],
) -> None:
    """Adapter off and step 0 are the same reference; plain PEFT computes it with the adapter disabled."""
    coef = 0.4
    with torch.no_grad(), model.disable_adapter():
        of_base = {tuple(one.tokens): logprobs_of(model, one) for one in drawn}
    every = torch.cat([torch.tensor(one.logprobs).double() - of_base[tuple(one.tokens)] for one in drawn])

    def as_reward(now: torch.Tensor, old: torch.Tensor, a: float, one: Sample) -> torch.Tensor:
        kl = old - of_base[tuple(one.tokens)]
        return -(a + coef * (every.mean() - kl)) * torch.exp(now - old)

    def as_loss(now: torch.Tensor, old: torch.Tensor, a: float, one: Sample) -> torch.Tensor:
        d = now - of_base[tuple(one.tokens)]
        return -a * torch.exp(now - old) + coef * (torch.exp(-d) - 1 + d)

    outcome, found = train(trainer, recorder, drawn, kl_penalty_coef=coef, kl_penalty=kind, **place)
    assert same(found, reference(model, drawn, as_reward if kind == "reward" else as_loss))
    expected = every if kind == "reward" else torch.exp(-every) - 1 + every
    assert outcome.metrics["loss/kl_policy_ref"] == pytest.approx(float(expected.mean()), abs=1e-5)
    assert abs(outcome.metrics["loss/kl_policy_ref"]) > 1e-3


def test_a_policy_that_is_its_own_reference_pays_nothing(
    trainer: Trainer, recorder: Recorder, drawn: list[Sample]
) -> None:
    """Also: the adapter is put back after the reference was computed."""
    _, expected = train(trainer, recorder, drawn)
    for place in ({"kl_penalty_reference_step": 1}, {"kl_ref_adapter_path": str(folder_of(recorder, 1))}):
        outcome, found = train(trainer, recorder, drawn, kl_penalty_coef=0.4, **place)
        assert abs(outcome.metrics["loss/kl_policy_ref"]) < 1e-5
        assert same(found, expected)
    _, pulled = train(trainer, recorder, drawn, kl_penalty_coef=0.4, kl_penalty_reference_step=0)
    assert not same(pulled, expected)


@pytest.mark.parametrize(
    ("config", "kind", "said"),
    [
        ({"kl_penalty_coef": 0.1, "kl_penalty_reference_step": 9}, NotFound, "step 9"),
        ({"kl_penalty_coef": 0.1, "kl_ref_adapter_path": "/no/such/folder"}, NotFound, "/no/such/folder"),
        ({"loss_fn": "no_such_module:loss"}, ConfigError, "no_such_module"),
        ({"loss_fn": "math:exp"}, TrainingFailed, "LossInputs"),
    ],
)
def test_what_is_not_there_is_named_and_nothing_is_published(
    trainer: Trainer,
    recorder: Recorder,
    drawn: list[Sample],
    config: dict[str, Any],
    kind: type[ArtError],
    said: str,
) -> None:
    with pytest.raises(kind) as caught:
        run(trainer, job_of(recorder, drawn, **config))
    assert said in str(caught.value)
    assert CheckpointStore(recorder.model_dir).steps() == [0, 1]


OWN = """
def doubled(inputs):
    return -2 * inputs.advantages_N * inputs.ratio_N
"""


def test_a_third_partys_loss_trains_a_job(
    trainer: Trainer,
    recorder: Recorder,
    drawn: list[Sample],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "losses_of_a_third_party.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    _, plain = train(trainer, recorder, drawn)
    _, found = train(trainer, recorder, drawn, loss_fn="losses_of_a_third_party:doubled")
    assert same(found, {name: 2 * tensor for name, tensor in plain.items()})


def test_the_entropys_gradient_in_float64() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(11, 16, dtype=torch.float64, requires_grad=True)
    head = torch.randn(50, 16, dtype=torch.float64)
    target, temperature = torch.randint(0, 50, (11,)), torch.rand(11, dtype=torch.float64) + 0.5
    first, second = torch.randn(2, 11, dtype=torch.float64)
    found, entropy = chunked_logprobs(hidden, head, target, temperature, chunk=4, entropy_gradient=True)
    (ours,) = torch.autograd.grad((found * first + entropy * second).sum(), hidden)
    logprobs = torch.log_softmax(hidden @ head.T / temperature[:, None], dim=-1)
    chosen, exact = logprobs.gather(1, target[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)
    (theirs,) = torch.autograd.grad((chosen * first + exact * second).sum(), hidden)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_the_entropy_bonus_is_plain_pefts(
    trainer: Trainer, recorder: Recorder, model: Any, drawn: list[Sample]
) -> None:
    def loss(now: torch.Tensor, old: torch.Tensor, a: float, one: Sample) -> torch.Tensor:
        ids = torch.tensor([[*one.prompt, *one.tokens]])
        logits = model(input_ids=ids).logits[0, len(one.prompt) - 1 : -1].double() / TEMPERATURE
        every = torch.log_softmax(logits, -1)
        return -a * torch.exp(now - old) + 0.5 * (every.exp() * every).sum(-1)

    _, found = train(trainer, recorder, drawn, entropy_coef=0.5)
    assert same(found, reference(model, drawn, loss))


def test_the_step_size_follows_the_batch(trainer: Trainer, recorder: Recorder, drawn: list[Sample]) -> None:
    outcome, _ = train(
        trainer, recorder, drawn, learning_rate=1e-3, num_trajectories_learning_rate_multiplier_power=0.5
    )
    assert outcome.metrics["loss/learning_rate"] == pytest.approx(2e-3)
    outcome, _ = train(
        trainer, recorder, drawn, learning_rate=1e-3, scale_learning_rate_by_reward_std_dev=True
    )
    expected = 1e-3 * outcome.metrics["train/reward_std_dev"]  # one group: the batch's is the group's
    assert outcome.metrics["loss/learning_rate"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"advantages": "dr_grpo"}, [-0.3125, 0.6875, -0.0625, -0.3125]),
        ({"advantages": "rloo"}, [-0.3125 * 4 / 3, 0.6875 * 4 / 3, -0.0625 * 4 / 3, -0.3125 * 4 / 3]),
        ({"advantages": "rank"}, [-2 / 3, 1, 1 / 3, -2 / 3]),
        ({"advantages": "dr_grpo", "advantage_balance": 1.0}, [0, 0.6875, 0, 0]),
        ({"advantages": "dr_grpo", "advantage_balance": -0.5}, [-0.3125, 0.34375, -0.0625, -0.3125]),
    ],
)
def test_advantages_of_a_job(
    trainer: Trainer,
    recorder: Recorder,
    drawn: list[Sample],
    config: dict[str, Any],
    expected: list[float],
) -> None:
    outcome, _ = train(trainer, recorder, drawn, **config)
    assert [rollout.advantage for rollout in outcome.rollouts] == pytest.approx(expected)


def test_reinforce_pp_compares_groups_over_the_batch(
    trainer: Trainer, recorder: Recorder, drawn: list[Sample]
) -> None:
    calls = [recorder.call(one, step=1, temperature=TEMPERATURE) for one in drawn]
    loud = [recorder.trajectory(reward, call) for reward, call in zip((0, 1), calls[:2], strict=True)]
    quiet = [recorder.trajectory(reward, call) for reward, call in zip((0, 0.1), calls[2:], strict=True)]
    job = recorder.job([loud, quiet], parent=1, config={**NO_PARITY, "advantages": "reinforce++"})
    outcome = run(trainer, job)
    delete_checkpoint(folder_of(recorder, 2))
    deviation = math.sqrt((0.25 + 0.0025) / 2)
    assert [rollout.advantage for rollout in outcome.rollouts] == pytest.approx(
        [-0.5 / deviation, 0.5 / deviation, -0.05 / deviation, 0.05 / deviation]
    )


def test_long_completions_are_worth_less(trainer: Trainer, recorder: Recorder, drawn: list[Sample]) -> None:
    """Lengths 8, 3, 5, 6 with a buffer of 4 tokens before 8: 1, 0, 1/4 and 1/2 of the penalty."""
    config = {"overlong_max_length": 8, "overlong_buffer": 4, "overlong_penalty": 2.0}
    outcome, _ = train(trainer, recorder, drawn, advantages="dr_grpo", **config)
    judged = [0.0 - 2.0, 1.0, 0.25 - 0.5, 0.0 - 1.0]
    mean = sum(judged) / 4
    assert [rollout.advantage for rollout in outcome.rollouts] == pytest.approx(
        [one - mean for one in judged]
    )
    assert outcome.metrics["train/reward"] == pytest.approx(sum(REWARDS) / 4)  # the reward that was given
    assert outcome.metrics["train/overlong_penalty"] == pytest.approx(-3.5 / 4)


def test_groups_that_are_too_easy_or_too_hard_are_left_out(
    trainer: Trainer, recorder: Recorder, drawn: list[Sample]
) -> None:
    outcome = run(trainer, job_of(recorder, drawn, group_mean_range=(0.5, 1.0)))
    assert not outcome.published
    assert {rollout.status for rollout in outcome.rollouts} == {RolloutStatus.FINISHED}
    assert "mean reward 0.3125 is outside" in outcome.rollouts[0].reason
    assert "4 finished" in outcome.reason


def test_a_damaged_adapter_is_no_reference(
    trainer: Trainer, recorder: Recorder, drawn: list[Sample], tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(
        (folder_of(recorder, 1) / "adapter_model.safetensors").read_bytes()
    )
    with pytest.raises(InvalidInput, match="damaged"):
        run(trainer, job_of(recorder, drawn, kl_penalty_coef=0.1, kl_ref_adapter_path=str(tmp_path)))
