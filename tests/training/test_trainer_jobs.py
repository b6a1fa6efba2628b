"""Training jobs in one process: what is trained, what is left out and why, what is refused, what is published."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from trainer_kit import LORA, Recorder, Sample, load_peft, sample

from art.config.model import LoraConfig
from art.errors import (
    ArtError,
    ConfigError,
    InvalidInput,
    InvalidReward,
    NotFound,
    ParityFailed,
    TrainingFailed,
)
from art.trainer.base_models import describe
from art.trainer.checkpoint import CheckpointStore, delete_checkpoint, file_sha256
from art.trainer.figures import check_finite
from art.trainer.jobs import Trainer
from art.trainer.protocol import SET_ASIDE, CheckpointInfo, Progress, TrainJob, TrainOutcome
from art.types.policy import Fate, RolloutStatus

PROMPT = [10, 20, 30, 40, 50]
NO_PARITY = {"parity_mean": 1e9, "parity_p99": 1e9, "parity_k3": 1e9}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def recorder(base: Path, tmp_path: Path, trainer: Trainer) -> Recorder:
    """A model at step 0."""
    made = Recorder(tmp_path, describe(base, name="tiny", source="folder"))
    trainer.prepare_model(made.prepare())
    return made


def step_folder(recorder: Recorder, step: int) -> Path:
    return CheckpointStore(recorder.model_dir).folder(step)


def samples(recorder: Recorder, count: int = 4, *, step: int = 0, **options: Any) -> list[Sample]:
    model = load_peft(Path(recorder.base.path), step_folder(recorder, step))
    return sample(model, options.pop("prompt", PROMPT), count, seed=step, **options)


def group(recorder: Recorder, rewards: list[float], *, step: int = 0, **options: Any) -> list[Any]:
    """Rollouts of one call each."""
    drawn = samples(recorder, len(rewards), step=step)
    return [
        recorder.trajectory(reward, recorder.call(one, step=step, **options))
        for reward, one in zip(rewards, drawn, strict=True)
    ]


def run(trainer: Trainer, job: TrainJob) -> TrainOutcome:
    return trainer.train(job, on_progress=lambda progress: None)


def statuses(outcome: TrainOutcome) -> list[RolloutStatus]:
    return [rollout.status for rollout in outcome.rollouts]


def published(recorder: Recorder) -> list[int]:
    return CheckpointStore(recorder.model_dir).steps()


def test_a_step_is_trained_and_published(trainer: Trainer, recorder: Recorder) -> None:
    events: list[Progress] = []
    job = recorder.job([group(recorder, [0, 1, 0, 1])])
    outcome = trainer.train(job, on_progress=events.append)
    assert outcome.published
    assert outcome.step == 1
    assert outcome.reason == ""
    assert statuses(outcome) == [RolloutStatus.TRAINED] * 4
    assert [rollout.advantage for rollout in outcome.rollouts] == pytest.approx([-1, 1, -1, 1])
    assert {fate.fate for fate in outcome.fates} == {Fate.TRAINED}
    assert [event.phase for event in events] == ["samples", "samples", "forward", "update", "publish"]
    assert outcome.metrics["parity/mean"] < 1e-5
    assert outcome.metrics["data/step_trained_tokens"] == sum(fate.trained_tokens for fate in outcome.fates)
    assert outcome.metrics["data/step_num_gradient_steps"] == 1
    assert outcome.metrics["loss/grad_norm"] > 0
    assert outcome.metrics["train/reward"] == 0.5
    assert all(math.isfinite(value) for value in outcome.metrics.values())
    before, after = (load_file(step_folder(recorder, step) / "adapter_model.safetensors") for step in (0, 1))
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_the_manifest_says_where_a_step_comes_from(trainer: Trainer, recorder: Recorder) -> None:
    outcome = run(trainer, recorder.job([group(recorder, [0, 1])], history="template"))
    manifest = CheckpointStore(recorder.model_dir).manifest(1)
    assert (manifest.parent_step, manifest.batch, manifest.job_id) == (0, 1, "job-1")
    assert manifest.base.sha256 == recorder.base.sha256
    assert manifest.history == "template"
    assert manifest.sample_digest
    assert not manifest.is_base
    folder = step_folder(recorder, 1)
    assert set(manifest.files) == {path.name for path in folder.iterdir()} - {"manifest.json"}
    assert all(file_sha256(folder / name) == digest for name, digest in manifest.files.items())
    assert outcome.checkpoint is not None
    assert outcome.checkpoint.sha256 == manifest.files["adapter_model.safetensors"]


def test_the_probe_of_a_checkpoint_is_what_plain_peft_computes(trainer: Trainer, recorder: Recorder) -> None:
    outcome = run(trainer, recorder.job([group(recorder, [0, 1])], config={"learning_rate": 0.1}))
    assert outcome.checkpoint is not None
    ids = torch.tensor(outcome.checkpoint.probe_token_ids)
    for folder, equal in ((outcome.checkpoint.path, True), (str(step_folder(recorder, 0)), False)):
        with torch.no_grad():
            logits = load_peft(Path(recorder.base.path), Path(folder))(input_ids=ids[None]).logits[0]
        expected = torch.log_softmax(logits.float(), -1)[:-1].gather(1, ids[1:, None])[:, 0].tolist()
        # The parent's adapter must not pass for the new one.
        assert (outcome.checkpoint.probe_logprobs == pytest.approx(expected, abs=1e-4)) is equal


def test_step_zero_is_the_base_model(trainer: Trainer, recorder: Recorder) -> None:
    info = trainer.prepare_model(recorder.prepare())
    assert info.is_base
    assert info.step == 0
    tensors = load_file(Path(info.path) / "adapter_model.safetensors")
    assert all(not tensor.any() for name, tensor in tensors.items() if "lora_B" in name)
    assert info == trainer.prepare_model(recorder.prepare())


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([0.5, 0.5], "all rewards of its group are equal (0.5)"),
        (
            [1e9, 1e9 + 1],
            "all rewards of its group are equal for their size: they differ by 1, from 1000000000 to 1000000001,"
            " and up to 1000 counts as equal (1e-6 of the largest, at least 1e-6)",
        ),
    ],
)
def test_how_equal_rewards_are_equal_is_said(
    trainer: Trainer, recorder: Recorder, rewards: list[float], reason: str
) -> None:
    outcome = run(trainer, recorder.job([group(recorder, rewards)]))
    assert not outcome.published
    assert {item.reason for item in outcome.rollouts} == {reason}


def test_a_model_can_start_from_an_adapter(trainer: Trainer, recorder: Recorder, tmp_path: Path) -> None:
    run(trainer, recorder.job([group(recorder, [0, 1])]))
    adapter = step_folder(recorder, 1)
    other = Recorder(tmp_path / "other", recorder.base)
    info = trainer.prepare_model(other.prepare(initial_adapter=str(adapter)))
    assert not info.is_base
    assert file_sha256(Path(info.path) / "adapter_model.safetensors") == file_sha256(
        adapter / "adapter_model.safetensors"
    )
    wrong = Recorder(tmp_path / "wrong", recorder.base, lora=LoraConfig(r=16))
    with pytest.raises(ConfigError, match="another shape") as caught:
        trainer.prepare_model(wrong.prepare(initial_adapter=str(adapter)))
    assert "16" in caught.value.cause
    with pytest.raises(NotFound, match="no PEFT adapter"):
        trainer.prepare_model(wrong.prepare(initial_adapter=str(tmp_path)))


def test_what_a_registration_left_behind_is_not_the_next_models_start(
    trainer: Trainer, recorder: Recorder, tmp_path: Path
) -> None:
    """Killed before the model was recorded, then asked for again with another beginning."""
    run(trainer, recorder.job([group(recorder, [0, 1])]))
    trained = step_folder(recorder, 1)
    half = Recorder(tmp_path / "half", recorder.base)

    def served(info: CheckpointInfo) -> tuple[str, str]:
        assert published(half) == [info.step], "nothing of the other one is beside it"
        return Path(info.path).name, file_sha256(Path(info.path) / "adapter_model.safetensors")

    started = served(trainer.prepare_model(half.prepare(initial_adapter=str(trained))))
    assert started == ("0000", file_sha256(trained / "adapter_model.safetensors"))
    other = served(trainer.prepare_model(half.prepare(initial_adapter=str(step_folder(recorder, 0)))))
    assert other == ("0000", file_sha256(step_folder(recorder, 0) / "adapter_model.safetensors"))
    forked = served(trainer.prepare_model(half.prepare(fork_of=str(trained))))
    assert forked == ("0001", started[1])
    kept = trainer.prepare_model(half.prepare(fork_of=str(trained)))
    assert kept == trainer.prepare_model(half.prepare(fork_of=str(trained))), "the same one is kept"
    fresh = trainer.prepare_model(half.prepare())
    assert fresh.is_base
    half.lora = LoraConfig(r=16)
    wider = trainer.prepare_model(half.prepare())
    assert served(wider)[0] == "0000"
    tensors = load_file(Path(wider.path) / "adapter_model.safetensors")
    assert {len(tensor) for name, tensor in tensors.items() if "lora_A" in name} == {16}
    aside = sorted(path.name[:4] for path in (half.model_dir / SET_ASIDE).iterdir())
    assert aside == ["0000", "0000", "0000", "0001"], "set aside, not lost"


def test_the_same_job_again_returns_the_recorded_outcome(trainer: Trainer, recorder: Recorder) -> None:
    job = recorder.job([group(recorder, [0, 1])])
    first = run(trainer, job)
    digest = file_sha256(step_folder(recorder, 1) / "adapter_model.safetensors")
    assert run(trainer, job) == first
    assert published(recorder) == [0, 1]
    assert file_sha256(step_folder(recorder, 1) / "adapter_model.safetensors") == digest


@pytest.mark.parametrize("damage", ["", "null", "cut", "gone"])
def test_a_step_that_nobody_recorded_is_set_aside_and_never_changed(
    trainer: Trainer, recorder: Recorder, damage: str
) -> None:
    """The server records step 0 as the latest: step 1 was left by a job whose end nobody heard of."""
    run(trainer, recorder.job([group(recorder, [0, 1])]))
    manifest = step_folder(recorder, 1) / "manifest.json"
    if damage == "null":
        manifest.write_text(manifest.read_text().replace('"train/reward": 0.5', '"train/reward": null'))
        assert "null" in manifest.read_text()
    elif damage == "cut":
        manifest.write_bytes(b"\xff{")
    elif damage == "gone":
        manifest.unlink()
    digest = file_sha256(step_folder(recorder, 1) / "adapter_model.safetensors")
    outcome = run(trainer, recorder.job([group(recorder, [1, 0])], job_id="another"))
    assert (outcome.step, published(recorder)) == (1, [0, 1])
    (aside,) = (recorder.model_dir / SET_ASIDE).iterdir()
    assert file_sha256(aside / "adapter_model.safetensors") == digest
    assert CheckpointStore(recorder.model_dir).manifest(1).job_id == "another"


def test_a_damaged_manifest_of_an_older_step_does_not_stop_training(
    trainer: Trainer, recorder: Recorder
) -> None:
    run(trainer, recorder.job([group(recorder, [0, 1])]))
    (step_folder(recorder, 0) / "manifest.json").write_text("{")
    assert run(trainer, recorder.job([group(recorder, [0, 1], step=1)], parent=1, job_id="next")).step == 2


@pytest.mark.parametrize("size", [1e200, 1e308])
def test_rewards_of_any_size_train_as_their_scores(trainer: Trainer, recorder: Recorder, size: float) -> None:
    outcome = run(trainer, recorder.job([group(recorder, [size, -size])]))
    assert [rollout.advantage for rollout in outcome.rollouts] == [1.0, -1.0]
    assert all(math.isfinite(value) for value in outcome.metrics.values())
    assert outcome.metrics["train/reward_std_dev"] == pytest.approx(size)
    assert "null" not in json.dumps(
        json.loads((step_folder(recorder, 1) / "manifest.json").read_text())["metrics"]
    )


def test_advantages_past_float32_publish_nothing(trainer: Trainer, recorder: Recorder) -> None:
    job = recorder.job([group(recorder, [1e200, -1e200])], config={"normalize_advantages": False})
    with pytest.raises(TrainingFailed, match="not finite") as caught:
        run(trainer, job)
    assert "normalize_advantages" in caught.value.hint
    assert published(recorder) == [0]


def test_figures_and_weights_that_are_no_numbers_are_not_published(
    trainer: Trainer, recorder: Recorder
) -> None:
    policy = trainer.policy(recorder.base, LORA)
    policy.load_adapter_state(policy.fresh_adapter)
    check_finite({"loss/train": 1.0}, policy)
    with pytest.raises(TrainingFailed, match="loss/train is nan"):
        check_finite({"loss/train": math.nan}, policy)
    name, parameter = next(iter(policy.parameters.items()))
    with torch.no_grad():
        parameter[0, 0] = math.inf
    with pytest.raises(TrainingFailed, match=re.escape(name)):
        check_finite({}, policy)
    manifest = CheckpointStore(recorder.model_dir).manifest(0)
    with pytest.raises(TrainingFailed, match="not finite"):
        manifest.model_copy(update={"metrics": {"train/reward": math.nan}}).to_json()


def test_no_signal_publishes_nothing_and_says_why(trainer: Trainer, recorder: Recorder) -> None:
    tenth = [0.1, 0.1, 0.1 + 1e-17, 0.30000000000000004 / 3]
    outcome = run(trainer, recorder.job([group(recorder, tenth), []]))
    assert not outcome.published
    assert outcome.step == 0
    assert outcome.checkpoint is None
    assert statuses(outcome) == [RolloutStatus.ZERO_VARIANCE] * 4
    assert "4 zero_variance" in outcome.reason
    assert "equal" in outcome.rollouts[0].reason
    assert {fate.fate for fate in outcome.fates} == {Fate.FILTERED}
    assert any("empty" in note for note in outcome.notes)
    assert published(recorder) == [0]


def test_what_cannot_train_is_left_out_with_its_reason(trainer: Trainer, recorder: Recorder) -> None:
    good = group(recorder, [0, 1])
    greedy = recorder.trajectory(1, recorder.call(samples(recorder, 1)[0], temperature=0.0))
    foreign = recorder.trajectory(1, recorder.call(samples(recorder, 1)[0], version="project/other@0"))
    forced = samples(recorder, 1)[0]
    grammar = recorder.trajectory(1, recorder.call(forced, trainable=[False] * len(forced.tokens)))
    long = Sample(prompt=[1] * 90, tokens=[2] * 20, logprobs=[-1.0] * 20)
    overlong = recorder.trajectory(1, recorder.call(long))
    alone = group(recorder, [1])
    job = recorder.job(
        [[*good, greedy, foreign, grammar, overlong, recorder.trajectory(1)], alone, []],
        config={"max_sequence_length": 100},
    )
    outcome = run(trainer, job)
    assert outcome.published
    S = RolloutStatus
    assert statuses(outcome) == [
        S.TRAINED, S.TRAINED, S.NO_CALLS, S.NO_CALLS, S.NO_CALLS, S.OVERLONG, S.NO_CALLS, S.ZERO_VARIANCE,
    ]  # fmt: skip
    reasons = [rollout.reason for rollout in outcome.rollouts]
    for reason, words in zip(
        reasons[2:],
        ["temperature 0", "another model", "grammar", "110 tokens", "made no call", "nothing to compare"],
        strict=True,
    ):
        assert words in reason
    fates = {(fate.call_id): fate for fate in outcome.fates}
    assert fates[greedy.choices[0].call_id].fate is Fate.FILTERED
    assert fates[overlong.choices[0].call_id].fate is Fate.OVERLONG
    assert all(fate.reason for fate in outcome.fates if fate.fate is not Fate.TRAINED)
    assert len(fates) == 7


def test_stale_rollouts(trainer: Trainer, recorder: Recorder) -> None:
    run(trainer, recorder.job([group(recorder, [0, 1])]))
    old, new = group(recorder, [0, 1], step=0), group(recorder, [0, 1], step=1)
    outcome = run(trainer, recorder.job([[*old, *new]], parent=1, config={"max_steps_off_policy": 0}))
    assert statuses(outcome) == [RolloutStatus.STALE] * 2 + [RolloutStatus.TRAINED] * 2
    assert "1 steps ago" in outcome.rollouts[0].reason
    assert {fate.fate for fate in outcome.fates} == {Fate.STALE, Fate.TRAINED}


def test_old_rollouts_are_trained_but_not_held_to_parity(trainer: Trainer, recorder: Recorder) -> None:
    run(trainer, recorder.job([group(recorder, [0, 1])], config={"learning_rate": 0.5}))
    outcome = run(trainer, recorder.job([group(recorder, [0, 1], step=0)], parent=1))
    assert outcome.published
    assert "parity/mean" not in outcome.metrics


def test_a_choice_named_twice_counts_once(trainer: Trainer, recorder: Recorder) -> None:
    first, second = group(recorder, [0, 1])
    copied = recorder.trajectory(0.5, *first.choices)
    twice = second.model_copy(update={"choices": [*second.choices, *second.choices]})
    outcome = run(trainer, recorder.job([[first, twice, copied]]))
    assert statuses(outcome) == [RolloutStatus.TRAINED, RolloutStatus.TRAINED, RolloutStatus.NO_CALLS]
    assert "named twice" in outcome.rollouts[2].reason
    last = {fate.call_id: fate.fate for fate in outcome.fates}
    assert set(last.values()) == {Fate.TRAINED}
    assert [fate.fate for fate in outcome.fates].count(Fate.DUPLICATE) == 2
    lengths = [fate.trained_tokens for fate in outcome.fates if fate.fate is Fate.TRAINED]
    assert outcome.metrics["data/step_trained_tokens"] == sum(lengths)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(trainer: Trainer, recorder: Recorder, reward: float) -> None:
    with pytest.raises(InvalidReward, match="reward"):
        run(trainer, recorder.job([group(recorder, [0, reward])]))
    assert published(recorder) == [0]


def test_damaged_records_are_refused_by_name(trainer: Trainer, recorder: Recorder) -> None:
    job = recorder.job([group(recorder, [0, 1])])
    blob = recorder.blob_dir / "project/rollout.blob"
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(InvalidInput, match=r"rollout\.blob"):
        run(trainer, job)


def test_tokens_of_another_vocabulary_are_refused(trainer: Trainer, recorder: Recorder) -> None:
    foreign = Sample(prompt=[1], tokens=[100_000], logprobs=[-1.0])
    members = [recorder.trajectory(reward, recorder.call(foreign)) for reward in (0.0, 1.0)]
    with pytest.raises(InvalidInput, match="100000"):
        run(trainer, recorder.job([members]))


@pytest.mark.parametrize(
    ("cause", "shift", "temperature"), [("template or adapter", 2.0, 1.0), ("dtype", 0.15, 1.0)]
)
def test_parity_past_the_bound_stops_the_step(
    trainer: Trainer, recorder: Recorder, cause: str, shift: float, temperature: float
) -> None:
    drawn = samples(recorder, 4)
    for one in drawn:
        one.logprobs = [value - shift for value in one.logprobs]
    members = [recorder.trajectory(i % 2, recorder.call(one)) for i, one in enumerate(drawn)]
    with pytest.raises(ParityFailed, match="does not reproduce") as caught:
        run(trainer, recorder.job([members]))
    assert caught.value.cause.startswith(cause)
    assert published(recorder) == [0]


def test_a_forgotten_temperature_is_named(trainer: Trainer, recorder: Recorder) -> None:
    run(trainer, recorder.job([group(recorder, [0, 1])], config={"learning_rate": 0.5}))
    drawn = samples(recorder, 4, step=1)  # recorded at temperature 1 ...
    members = [
        recorder.trajectory(i % 2, recorder.call(one, step=1, temperature=0.3)) for i, one in enumerate(drawn)
    ]  # ... and said to be sampled at 0.3
    with pytest.raises(ParityFailed) as caught:
        run(trainer, recorder.job([members], parent=1))
    assert caught.value.cause.startswith("temperature")


def test_an_unapplied_adapter_is_named(trainer: Trainer, recorder: Recorder) -> None:
    run(trainer, recorder.job([group(recorder, [0, 1])], config={"learning_rate": 0.5}))
    stale = samples(recorder, 4, step=0)
    members = [recorder.trajectory(i % 2, recorder.call(one, step=1)) for i, one in enumerate(stale)]
    with pytest.raises(ParityFailed) as caught:
        run(trainer, recorder.job([members], parent=1))
    assert caught.value.cause.startswith("adapter")


def test_each_calls_own_temperature_is_applied(trainer: Trainer, recorder: Recorder) -> None:
    members = []
    for index, temperature in enumerate((0.5, 1.0, 1.7)):
        (one,) = samples(recorder, 1, temperature=temperature)
        members.append(recorder.trajectory(index, recorder.call(one, temperature=temperature)))
    assert run(trainer, recorder.job([members])).metrics["parity/max"] < 1e-4


def test_a_loss_that_is_not_finite_publishes_nothing(trainer: Trainer, recorder: Recorder) -> None:
    members = group(recorder, [0, 1])
    broken = Sample(prompt=PROMPT, tokens=[1, 2], logprobs=[-1000.0, -1000.0])
    bad = recorder.trajectory(0, recorder.call(broken))
    config = {**NO_PARITY, "loss_fn": "ppo"}  # whose ratio has no bound where the advantage is negative
    with pytest.raises(TrainingFailed, match="loss is"):
        run(trainer, recorder.job([[*members, bad]], job_id="bad", config=config))
    assert published(recorder) == [0]
    clean = run(trainer, recorder.job([members]))
    digest = file_sha256(step_folder(recorder, 1) / "adapter_model.safetensors")
    delete_checkpoint(step_folder(recorder, 1))
    assert (
        run(Trainer(dtype="fp32"), recorder.job([members])).metrics["loss/train"]
        == clean.metrics["loss/train"]
    )
    # The failed job left nothing behind in this process.
    assert file_sha256(step_folder(recorder, 1) / "adapter_model.safetensors") == digest


def adapter_after(trainer: Trainer, recorder: Recorder, groups: list[Any], **config: Any) -> dict[str, Any]:
    """Gradient-like fingerprint: Adam's first moment after one step is (1 - beta1) * gradient."""
    outcome = run(trainer, recorder.job(groups, config={"max_grad_norm": 1e9, **config}))
    folder = step_folder(recorder, 1)
    tensors = {n: t for n, t in load_file(folder / "optimizer.safetensors").items() if n.endswith("exp_avg")}
    delete_checkpoint(folder)
    return {"loss": outcome.metrics["loss/train"], "rows": outcome.metrics["data/step_num_datums"], **tensors}


@pytest.mark.parametrize("aggregation", ["rollout", "token"])
def test_the_step_does_not_depend_on_how_it_is_cut(
    trainer: Trainer, recorder: Recorder, aggregation: str
) -> None:
    groups = [group(recorder, [0, 1, 0.5, 0]), group(recorder, [1, 0, 0])]
    whole = adapter_after(trainer, recorder, groups, loss_aggregation=aggregation)
    cut = adapter_after(
        trainer, recorder, groups, loss_aggregation=aggregation, packed_sequence_length=16,
        logprob_calculation_chunk_size=3,
    )  # fmt: skip
    assert whole["rows"] == 1
    assert cut["rows"] > 2
    assert cut["loss"] == pytest.approx(whole["loss"], abs=1e-6)
    for name, moment in whole.items():
        if isinstance(moment, torch.Tensor):
            torch.testing.assert_close(cut[name], moment, atol=1e-5 * float(moment.abs().max()), rtol=0)


def test_a_branch_does_not_change_its_rollouts_weight(trainer: Trainer, recorder: Recorder) -> None:
    """Cutting one rollout's call into two calls trains the same tokens the same way."""
    first, second = samples(recorder, 2, max_tokens=6)
    half = len(first.tokens) // 2
    head = Sample(first.prompt, first.tokens[:half], first.logprobs[:half])
    tail = Sample([*first.prompt, *first.tokens[:half]], first.tokens[half:], first.logprobs[half:])
    other = recorder.trajectory(1, recorder.call(second))
    whole = adapter_after(trainer, recorder, [[recorder.trajectory(0, recorder.call(first)), other]])
    split = [[recorder.trajectory(0, recorder.call(head), recorder.call(tail)), other]]
    found = adapter_after(trainer, recorder, split)
    assert found["loss"] == pytest.approx(whole["loss"], abs=1e-6)
    for name, moment in whole.items():
        if isinstance(moment, torch.Tensor):
            torch.testing.assert_close(found[name], moment, atol=1e-5 * float(moment.abs().max()), rtol=0)


def test_several_updates_each_see_a_share(trainer: Trainer, recorder: Recorder) -> None:
    outcome = run(trainer, recorder.job([group(recorder, [0, 1, 0, 1])], config={"updates": 2}))
    assert outcome.metrics["data/step_num_gradient_steps"] == 2
    state = json.loads((step_folder(recorder, 1) / "trainer_state.json").read_text())
    assert state["updates"] == 2
    assert state["batch"] == 1


def test_cancelling_publishes_nothing(trainer: Trainer, recorder: Recorder) -> None:
    def stop(progress: Progress) -> None:
        if progress.phase == "forward":
            raise TrainingFailed("The request was cancelled")

    job = recorder.job([group(recorder, [0, 1])])
    with pytest.raises(TrainingFailed, match="cancelled"):
        trainer.train(job, on_progress=stop)
    assert published(recorder) == [0]
    assert run(trainer, job).published


def test_damaged_checkpoints_are_refused(trainer: Trainer, recorder: Recorder) -> None:
    job = recorder.job([group(recorder, [0, 1])])
    path = step_folder(recorder, 0) / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, path)
    with pytest.raises(InvalidInput, match="damaged"):
        run(trainer, job)
    with pytest.raises(NotFound, match="step 7") as caught:
        run(trainer, recorder.job([group(recorder, [0, 1])], parent=7, job_id="later"))
    assert "the steps 0 are there" in caught.value.hint


def test_deleting_a_checkpoint(recorder: Recorder, tmp_path: Path) -> None:
    folder = step_folder(recorder, 0)
    delete_checkpoint(folder)
    assert not folder.exists()
    delete_checkpoint(folder)
    with pytest.raises(ArtError, match="no checkpoint"):
        delete_checkpoint(tmp_path)
    assert tmp_path.exists()


def test_the_adapter_is_written_in_pefts_format(trainer: Trainer, recorder: Recorder) -> None:
    config = json.loads((step_folder(recorder, 0) / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", LORA.r, LORA.alpha)
    assert config["target_modules"] == sorted(LORA.target_modules)
