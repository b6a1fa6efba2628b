"""Optimizers and learning rates: against their formulas, kept from step to step, changed, and refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainer_kit import Recorder, Sample, load_peft, sample

from art.config.optimizer import OptimizerConfig
from art.config.sft import ResolvedSFTConfig, TrainSFTConfig, resolve
from art.config.train import ResolvedTrainConfig, TrainConfig
from art.errors import ConfigError, InvalidInput, UnsupportedOption
from art.store.blobs import BlobStore
from art.tokens.sft_samples import SftSequence, to_arrays
from art.trainer.base_models import describe
from art.trainer.checkpoint import ADAPTER, OPTIMIZER, CheckpointStore
from art.trainer.jobs import Trainer
from art.trainer.optimizer import Optimizer, Saved
from art.trainer.protocol import SftJob, TrainOutcome
from art.trainer.sft import train_sft
from art.types.jobs import SftSpec
from art.utils.sft import create_lr_schedule

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "adam_beta1": 0.8},
    "adam": {"optimizer": "adam", "weight_decay": 0.1, "adam_epsilon": 1e-4},
    "sgd": {"optimizer": "sgd", "weight_decay": 0.1},
    "sgd with momentum": {"optimizer": "sgd", "sgd_momentum": 0.9},
    "adafactor": {"optimizer": "adafactor", "weight_decay": 0.1},
}
RATE = 0.05
PROMPT = [10, 20, 30, 40, 50]

# -- formulas

Matrix = torch.Tensor
Rule = Callable[[Matrix, list[Matrix], OptimizerConfig], Matrix]


def adam(w: Matrix, gradients: list[Matrix], config: OptimizerConfig) -> Matrix:
    """Kingma and Ba, arXiv:1412.6980; decoupled decay of Loshchilov and Hutter, arXiv:1711.05101, for adamw."""
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        if config.optimizer == "adamw":
            w = w * (1 - RATE * config.weight_decay)
        else:
            g = g + config.weight_decay * w
        m = config.adam_beta1 * m + (1 - config.adam_beta1) * g
        v = config.adam_beta2 * v + (1 - config.adam_beta2) * g**2
        unbiased = (v / (1 - config.adam_beta2**t)).sqrt() + config.adam_epsilon
        w = w - RATE * m / (1 - config.adam_beta1**t) / unbiased
    return w


def sgd(w: Matrix, gradients: list[Matrix], config: OptimizerConfig) -> Matrix:
    m = torch.zeros_like(w)
    for g in gradients:
        m = config.sgd_momentum * m + g + config.weight_decay * w
        w = w - RATE * m
    return w


def adafactor(w: Matrix, gradients: list[Matrix], config: OptimizerConfig) -> Matrix:
    """Shazeer and Stern, arXiv:1804.04235, algorithm 5, with the relative step bounded by the learning rate."""
    rows, columns = torch.zeros(len(w), 1, dtype=w.dtype), torch.zeros(1, w.shape[1], dtype=w.dtype)
    for t, g in enumerate(gradients, start=1):
        keep = 1 - t**-0.8
        size = max(1e-3, float(w.square().mean().sqrt())) * min(RATE, t**-0.5)
        w = w * (1 - RATE * config.weight_decay)
        rows = keep * rows + (1 - keep) * g.square().mean(1, keepdim=True)
        columns = keep * columns + (1 - keep) * g.square().mean(0, keepdim=True)
        update = g / (rows @ columns / rows.mean()).sqrt()
        w = w - size * update / max(1.0, float(update.square().mean().sqrt()))
    return w


RULES: dict[str, Rule] = {"adamw": adam, "adam": adam, "sgd": sgd, "adafactor": adafactor}
NOTHING = Saved(None, {})


def gradients(count: int) -> list[Matrix]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(5, 7, generator=generator, dtype=torch.float64) for _ in range(count)]


def weights() -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(4)
    return {"a.weight": torch.nn.Parameter(torch.randn(5, 7, generator=generator, dtype=torch.float64))}


def apply(parameters: dict[str, torch.nn.Parameter], optimizer: Optimizer, given: list[Matrix]) -> None:
    for gradient in given:
        optimizer.set_step_size(RATE)
        parameters["a.weight"].grad = gradient.clone()
        optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_is_its_formula(kind: str) -> None:
    config, parameters = OptimizerConfig(**OPTIMIZERS[kind]), weights()
    expected = RULES[config.optimizer](parameters["a.weight"].detach().clone(), gradients(4), config)
    apply(parameters, Optimizer(parameters, config, NOTHING), gradients(4))
    torch.testing.assert_close(parameters["a.weight"].detach(), expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_saved_state_goes_on_bit_for_bit(kind: str) -> None:
    config = OptimizerConfig(**OPTIMIZERS[kind])
    whole, parts = weights(), weights()
    apply(whole, Optimizer(whole, config, NOTHING), gradients(4))
    first = Optimizer(parts, config, NOTHING)
    apply(parts, first, gradients(4)[:2])
    kept = first.state()
    assert bool(kept) is (kind != "sgd")
    second = Optimizer(parts, config, Saved(config.optimizer, kept))
    apply(parts, second, gradients(4)[2:])
    assert torch.equal(whole["a.weight"], parts["a.weight"])
    other = Optimizer(parts, config, Saved("another", kept))
    assert not other.state()


def test_momentum_that_was_switched_off_is_forgotten() -> None:
    parameters = weights()
    moving = OptimizerConfig(optimizer="sgd", sgd_momentum=0.9)
    first = Optimizer(parameters, moving, NOTHING)
    apply(parameters, first, gradients(1))
    plain = Optimizer(parameters, OptimizerConfig(optimizer="sgd"), Saved("sgd", first.state()))
    assert not plain.state()


# -- learning rates


def rate_at(config: OptimizerConfig, peak: float, count: int) -> float:
    """Of the update before which `count` were made."""
    return Optimizer(weights(), config, NOTHING, updates=count).rate(peak)


def direct_rate(count: int, *, method: str, warmup: int, total: int, floor: float) -> float:
    """For a peak of 1."""
    if count < warmup:
        return (count + 1) / (warmup + 1)
    left = 1 - (count - warmup) / (total - warmup) if count < total else 0.0
    if method == "constant":
        return 1.0
    return floor + (1 - floor) * (left if method == "linear" else 0.5 - 0.5 * math.cos(math.pi * left))


@pytest.mark.parametrize("method", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 3, 8])
def test_the_rate_follows_its_formula(method: str, warmup: int) -> None:
    falling = {} if method == "constant" else {"schedule_updates": 8, "learning_rate_floor": 0.2}
    config = OptimizerConfig(
        learning_rate_schedule=method,  # type: ignore[arg-type]
        warmup_updates=warmup,
        **falling,  # type: ignore[arg-type]
    )
    rates = [rate_at(config, 0.5, count) for count in range(12)]
    expected = [
        0.5 * direct_rate(count, method=method, warmup=warmup, total=8, floor=0.2) for count in range(12)
    ]
    assert rates == pytest.approx(expected)
    assert min(rates[8:]) == max(rates[8:]) == pytest.approx(0.5 if method == "constant" else 0.1)
    if method != "constant":  # the list that `create_lr_schedule` makes for supervised training is the same
        ready = create_lr_schedule(8, 0.5, method, warmup, min_lr=0.1)  # type: ignore[arg-type]
        assert rates[:8] == pytest.approx(ready)


# -- what is refused


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"optimizer": "lion"}, "optimizer='lion'"),
        ({"optimizer": "paged_adamw_8bit"}, "optimizer='paged_adamw_8bit'"),
        ({"learning_rate_schedule": "polynomial"}, "learning_rate_schedule='polynomial'"),
        ({"optimizer": "sgd", "adam_beta1": 0.8}, "adam_beta1=0.8"),
        ({"optimizer": "adafactor", "adam_beta2": 0.8}, "adam_beta2=0.8"),
        ({"optimizer": "adafactor", "adam_epsilon": 1e-6}, "adam_epsilon=1e-06"),
        ({"sgd_momentum": 0.9}, "sgd_momentum=0.9"),
        ({"schedule_updates": 10}, "schedule_updates=10"),
        ({"learning_rate_floor": 0.5}, "learning_rate_floor=0.5"),
    ],
)
@pytest.mark.parametrize("kind", [TrainConfig, TrainSFTConfig])
def test_what_would_be_ignored_is_refused_by_name(
    kind: type[Any], options: dict[str, Any], refused: str
) -> None:
    with pytest.raises(UnsupportedOption) as caught:
        kind(learning_rate=0.1, **options)
    assert refused in caught.value.message
    assert caught.value.cause


def test_the_known_words_are_listed() -> None:
    with pytest.raises(UnsupportedOption) as caught:
        TrainConfig(optimizer="lion")  # type: ignore[arg-type]
    assert "adamw, adam, sgd, adafactor" in caught.value.cause


@pytest.mark.parametrize("kind", [TrainConfig, TrainSFTConfig])
def test_a_rate_is_chosen_for_adam_alone(kind: type[Any]) -> None:
    for name in ("sgd", "adafactor"):
        with pytest.raises(ConfigError, match="needs a learning_rate"):
            kind(optimizer=name)
        kind(optimizer=name, learning_rate=0.1)
    kind(optimizer="adam")


def test_schedules_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="warmup_updates=9"):
        TrainConfig(learning_rate_schedule="linear", schedule_updates=8, warmup_updates=9)
    with pytest.raises(ConfigError, match="learning_rate_schedule='cosine'") as caught:
        TrainConfig(learning_rate_schedule="cosine")
    assert "schedule_updates" in caught.value.cause
    with pytest.raises(UnsupportedOption, match="warmup_updates=2"):
        TrainSFTConfig(learning_rate=[0.1, 0.1], warmup_updates=2)
    with pytest.raises(InvalidInput, match="warmup_updates=5"):
        resolve(TrainSFTConfig(warmup_updates=5), examples=4, parameters=1000)


def test_a_schedule_of_supervised_training_spans_its_call_and_says_so() -> None:
    config, notes = resolve(TrainSFTConfig(learning_rate_schedule="linear"), examples=8, parameters=1000)
    assert len(config.learning_rates) == 4
    assert any("linear schedule spans the 4 updates" in note for note in notes)
    asked = TrainSFTConfig(learning_rate_schedule="linear", schedule_updates=9)
    assert not any("spans" in note for note in resolve(asked, examples=8, parameters=1000)[1])


def test_a_configuration_survives_its_json() -> None:
    config = ResolvedTrainConfig(
        learning_rate=0.1,
        optimizer="sgd",
        sgd_momentum=0.5,
        learning_rate_schedule="cosine",
        schedule_updates=5,
        warmup_updates=2,
    )
    assert ResolvedTrainConfig.model_validate_json(config.model_dump_json()) == config


# -- through jobs


@pytest.fixture
def recorder(base: Path, tmp_path: Path, trainer: Trainer) -> Recorder:
    made = Recorder(tmp_path / "one", describe(base, name="tiny", source="folder"))
    trainer.prepare_model(made.prepare())
    return made


@pytest.fixture
def other(base: Path, tmp_path: Path, trainer: Trainer) -> Recorder:
    made = Recorder(tmp_path / "two", describe(base, name="tiny", source="folder"))
    trainer.prepare_model(made.prepare())
    return made


DRAWN: list[Sample] = []
"""Completions of step 0, which is the same for all recorders: drawn once."""


def step(trainer: Trainer, recorder: Recorder, parent: int, **config: Any) -> TrainOutcome:
    """A step on samples of step 0: the same batch for every parent."""
    if not DRAWN:
        model = load_peft(Path(recorder.base.path), CheckpointStore(recorder.model_dir).folder(0))
        DRAWN.extend(sample(model, PROMPT, 4, seed=0))
    members = [recorder.trajectory(float(number % 2), recorder.call(one)) for number, one in enumerate(DRAWN)]
    return trainer.train(
        recorder.job([members], parent=parent, config=config), on_progress=lambda progress: None
    )


def sft(
    trainer: Trainer, recorder: Recorder, order: list[int], *, parent: int, **options: Any
) -> TrainOutcome:
    """A call on some of eight examples, two of them an update."""
    generator = np.random.default_rng(0)
    sequences = [
        SftSequence(generator.integers(0, 250, 12).tolist(), [False] * 6 + [True] * 6, number)
        for number in range(8)
    ]
    asked = TrainSFTConfig(**{"learning_rate": 0.02, "batch_size": 2, **options})
    config, _ = resolve(asked, examples=len(order), parameters=1000)
    job_id = f"sft-{parent + 1}"
    kept = [one for one in sequences if one.example in order]
    job = SftJob(
        job_id=job_id,
        project="project",
        name="agent",
        batch=parent + 1,
        base=recorder.base,
        model_dir=str(recorder.model_dir),
        blob_dir=str(recorder.blob_dir),
        parent_step=parent,
        step=parent + 1,
        lora=recorder.lora,
        sft=SftSpec(
            config=config,
            blob=BlobStore(recorder.blob_dir).append(f"project/{job_id}.blob", to_arrays(kept, order)),
            examples=len(order),
        ),
    )
    return train_sft(trainer, job, on_progress=lambda progress: None)


def files(recorder: Recorder, at: int) -> Iterator[bytes]:
    for file in (ADAPTER, OPTIMIZER):
        yield (CheckpointStore(recorder.model_dir).folder(at) / file).read_bytes()


@pytest.mark.parametrize("kind", ["adam", "sgd with momentum", "adafactor"])
def test_a_step_goes_on_in_another_process_bit_for_bit(
    trainer: Trainer, recorder: Recorder, other: Recorder, kind: str
) -> None:
    """The trainer of the second recorder is made anew after the first step; two updates are a step."""
    options = {**OPTIMIZERS[kind], "learning_rate": 0.05, "updates": 2}
    for parent in (0, 1):
        outcome = step(trainer, recorder, parent, **options)
        again = step(Trainer(dtype="fp32"), other, parent, **options)
        assert outcome.published
        assert outcome.metrics["data/step_num_gradient_steps"] == 2
        assert outcome.metrics["loss/grad_norm"] == again.metrics["loss/grad_norm"]
    assert list(files(recorder, 2)) == list(files(other, 2))
    store = CheckpointStore(recorder.model_dir)
    assert store.load_state(2).optimizers == {"rl": options["optimizer"]}
    before, after = store.load_adapter(1), store.load_adapter(2)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_another_optimizer_starts_anew_and_says_so(trainer: Trainer, recorder: Recorder) -> None:
    store = CheckpointStore(recorder.model_dir)
    notes = [step(trainer, recorder, 0).notes, step(trainer, recorder, 1).notes]
    assert not any("the optimizer is" in note for of_step in notes for note in of_step)
    changed = step(trainer, recorder, 2, optimizer="adam")
    assert any("the optimizer is adam and was adamw" in note for note in changed.notes)
    counts = {name: value for name, value in store.load_optimizer(3).items() if name.endswith(".step")}
    assert counts
    assert {float(count) for count in counts.values()} == {1.0}
    plain = step(trainer, recorder, 3, optimizer="sgd", learning_rate=0.1)
    assert any("the optimizer is sgd and was adam" in note for note in plain.notes)
    assert store.load_optimizer(4) == {}
    back = step(trainer, recorder, 4)
    assert any("the optimizer is adamw and was sgd" in note for note in back.notes)


def test_a_checkpoint_that_names_no_optimizer_is_adamws(trainer: Trainer, recorder: Recorder) -> None:
    step(trainer, recorder, 0)
    store = CheckpointStore(recorder.model_dir)
    moments = store.load_optimizer(1)
    assert Saved.of("rl", moments, {}).optimizer == "adamw"
    assert Saved.of("sft", moments, {}) == NOTHING
    assert Saved.of("rl", store.load_optimizer(0), {}) == NOTHING


def test_the_rate_follows_the_models_updates_over_steps_restarts_and_supervised_calls(
    trainer: Trainer, recorder: Recorder
) -> None:
    schedule: dict[str, Any] = {
        "learning_rate": 0.01,
        "learning_rate_schedule": "linear",
        "warmup_updates": 1,
        "schedule_updates": 5,
        "learning_rate_floor": 0.2,
    }
    expected = [rate_at(ResolvedTrainConfig(**schedule), 0.01, count) for count in range(7)]
    assert expected == pytest.approx([0.005, 0.01, 0.008, 0.006, 0.004, 0.002, 0.002])
    first = step(trainer, recorder, 0, **schedule, updates=2)
    assert first.metrics["loss/learning_rate"] == pytest.approx(sum(expected[:2]) / 2)
    # A call of supervised training between them does not count.
    sft(trainer, recorder, [0, 1, 2, 3], parent=1)
    state = CheckpointStore(recorder.model_dir).load_state(2)
    assert (state.updates, state.sft_updates) == (4, 2)
    for number, parent in enumerate((2, 3, 4), start=2):
        outcome = step(Trainer(dtype="fp32"), recorder, parent, **schedule)
        assert outcome.metrics["loss/learning_rate"] == pytest.approx(expected[number])
    assert CheckpointStore(recorder.model_dir).load_state(5).updates == 7


def test_a_supervised_schedule_over_a_call_is_the_list_of_its_rates(
    trainer: Trainer, recorder: Recorder, other: Recorder
) -> None:
    order = list(range(8))
    outcome = sft(
        trainer,
        recorder,
        order,
        parent=0,
        learning_rate_schedule="cosine",
        warmup_updates=1,
        learning_rate_floor=0.1,
    )
    rates = create_lr_schedule(4, 0.02, "cosine", 1, min_lr=0.002)
    assert outcome.metrics["loss/learning_rate"] == pytest.approx(rates[-1])
    sft(trainer, other, order, parent=0, learning_rate=rates)
    assert list(files(recorder, 1)) == list(files(other, 1))


@pytest.mark.parametrize("kind", ["adamw", "sgd with momentum", "adafactor"])
def test_a_supervised_schedule_goes_on_from_call_to_call(
    trainer: Trainer, recorder: Recorder, other: Recorder, kind: str
) -> None:
    options = {**OPTIMIZERS[kind], "learning_rate_schedule": "linear", "schedule_updates": 4}
    sft(trainer, recorder, list(range(8)), parent=0, **options)
    sft(trainer, other, [0, 1, 2, 3], parent=0, **options)
    sft(trainer, other, [4, 5, 6, 7], parent=1, **options)
    assert list(files(recorder, 1)) == list(files(other, 2))
    state = CheckpointStore(other.model_dir).load_state(2)
    assert (state.optimizers, state.sft_updates) == ({"sft": options["optimizer"]}, 4)


def test_a_resolved_configuration_of_an_older_checkpoint_is_read() -> None:
    found = ResolvedSFTConfig.model_validate({"learning_rates": [0.1], "batch_size": 1, "adam_beta1": 0.9})
    assert (found.optimizer, found.learning_rate_schedule) == ("adamw", "constant")
