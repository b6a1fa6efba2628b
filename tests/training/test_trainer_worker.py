"""The trainer's real process: protocol, cancellation, death, resumption; and that it learns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from trainer_kit import Recorder, Sample, load_peft, sample

from art.errors import InvalidInput, NotFound, TrainingFailed
from art.testing.tiny import byte_tokenizer, tiny_model
from art.testing.trainer_process import TrainerProcess
from art.trainer.base_models import describe
from art.trainer.checkpoint import CheckpointStore, file_sha256
from art.trainer.protocol import ResolvedBaseModel, TrainJob

PROMPT = [10, 20, 30, 40, 50]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ResolvedBaseModel:
    folder = tiny_model(tmp_path_factory.mktemp("tiny") / "model", warm=False)
    return describe(folder, name=str(folder), source="folder")


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainerProcess]:
    with TrainerProcess(tmp_path_factory.mktemp("cache"), ["--dtype", "fp32"]) as started:
        yield started


def jobs(recorder: Recorder, count: int) -> list[TrainJob]:
    """Jobs that follow one another, on rollouts that were all sampled from step 0."""
    model = load_peft(Path(recorder.base.path), recorder.model_dir / "checkpoints" / "0000")
    made = []
    for step in range(count):
        drawn = sample(model, PROMPT, 4, seed=step)
        members = [recorder.trajectory(i % 2, recorder.call(one)) for i, one in enumerate(drawn)]
        made.append(recorder.job([members], parent=step))
    return made


def test_a_job_over_the_channel(process: TrainerProcess, base: ResolvedBaseModel, tmp_path: Path) -> None:
    assert process.resolve(base.path) == base
    recorder = Recorder(tmp_path, base)
    info = process.prepare(recorder.prepare())
    assert info.is_base
    (job,) = jobs(recorder, 1)
    result, events = process.finish(process.send("train", job.model_dump(mode="json")))
    assert result["published"]
    assert [event["phase"] for event in events] == ["samples", "samples", "forward", "update", "publish"]
    assert process.train(job).model_dump(mode="json") == result
    process.call("delete_checkpoint", {"path": result["checkpoint"]["path"]})
    assert CheckpointStore(recorder.model_dir).steps() == [0]


def test_bad_requests_are_answered_and_the_worker_lives(process: TrainerProcess) -> None:
    with pytest.raises(NotFound, match="no base model"):
        process.resolve("/no/such/folder")
    with pytest.raises(InvalidInput, match="unknown method"):
        process.call("no_such_method", {})
    with pytest.raises(InvalidInput, match="does not fit the protocol"):
        process.call("train", {"job_id": "half a job"})
    assert process.process.poll() is None
    assert process.ready["notes"]


def test_cancelling_a_queued_job(process: TrainerProcess, base: ResolvedBaseModel, tmp_path: Path) -> None:
    """The second request is cancelled while the first still runs, so it must not start."""
    recorder = Recorder(tmp_path, base)
    process.prepare(recorder.prepare())
    first, second = jobs(recorder, 2)
    running = process.send("train", first.model_dump(mode="json"))
    waiting = process.send("train", second.model_dump(mode="json"))
    process.cancel(waiting)
    assert process.finish(running)[0]["published"]
    with pytest.raises(TrainingFailed, match="cancelled"):
        process.finish(waiting)
    assert CheckpointStore(recorder.model_dir).steps() == [0, 1]


def test_heartbeats_come_from_the_first_second_on_and_the_end_of_the_channel_ends_the_process(
    tmp_path: Path,
) -> None:
    with TrainerProcess(tmp_path) as started:
        deadline = time.monotonic() + 30
        while len(started.heartbeats) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [beat["seq"] for beat in started.heartbeats[:2]] == [0, 1]
        assert started.close() == 0


@pytest.mark.slow
def test_resuming_equals_going_on_bit_for_bit(base: ResolvedBaseModel, tmp_path: Path) -> None:
    straight = Recorder(tmp_path / "straight", base)
    resumed = Recorder(tmp_path / "resumed", base)
    with TrainerProcess(tmp_path / "cache") as one:
        one.prepare(straight.prepare())
        one.prepare(resumed.prepare())
        made = jobs(straight, 3)
        for job in made:
            assert one.train(job).published
    moved = [job.model_copy(update={"model_dir": str(resumed.model_dir)}) for job in made]
    with TrainerProcess(tmp_path / "cache") as first:
        first.train(moved[0])
    with TrainerProcess(tmp_path / "cache") as second:
        second.train(moved[1])
        second.train(moved[2])
    ours, theirs = (CheckpointStore(each.model_dir).folder(3) for each in (straight, resumed))
    for name in ("adapter_model.safetensors", "optimizer.safetensors", "trainer_state.json"):
        assert file_sha256(ours / name) == file_sha256(theirs / name), name


@pytest.mark.slow
def test_a_killed_job_is_trained_again_from_its_parent(base: ResolvedBaseModel, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, base)
    with TrainerProcess(tmp_path / "cache") as first:
        first.prepare(recorder.prepare())
        (job,) = jobs(recorder, 1)
        key = first.send("train", job.model_dump(mode="json"))
        assert first.next_message(key)["event"]["phase"] == "samples"
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait(timeout=30)
    with TrainerProcess(tmp_path / "cache") as second:
        assert second.train(job).step == 1
    assert CheckpointStore(recorder.model_dir).steps() == [0, 1]


WRITER = """
import sys, torch
from pathlib import Path
from art.trainer.checkpoint import CheckpointStore, TrainerState
source, target = CheckpointStore(Path(sys.argv[1])), CheckpointStore(Path(sys.argv[2]))
big = {f"t{i}": torch.full((1 << 20,), float(i)) for i in range(8)}
state = TrainerState.capture(batch=0, updates=0)
for step in range(10_000):
    manifest = source.manifest(0).model_copy(update={"step": step})
    target.write(manifest, adapter=big, adapter_config={}, optimizer=big, state=state)
    print(step, flush=True)
"""


def test_sigkill_while_a_checkpoint_is_written_leaves_whole_ones_only(
    process: TrainerProcess, base: ResolvedBaseModel, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path / "source", base)
    process.prepare(recorder.prepare())
    target = CheckpointStore(tmp_path / "target")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(recorder.model_dir), str(tmp_path / "target")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "0\n"
    deadline = time.monotonic() + 60
    while not (half := list(target.root.glob(".tmp-*"))) and time.monotonic() < deadline:
        pass
    writer.kill()
    acknowledged = [0, *(int(line) for line in writer.stdout)]
    writer.wait(timeout=30)
    assert half
    steps = target.steps()
    assert set(acknowledged) <= set(steps) <= {*acknowledged, acknowledged[-1] + 1}
    for step in steps:
        files = target.manifest(step).files
        assert all(file_sha256(target.folder(step) / name) == digest for name, digest in files.items())
    target.remove_leftovers()
    assert sorted(path.name for path in target.root.iterdir()) == [f"{step:04d}" for step in steps]


@pytest.mark.slow
def test_it_learns_from_its_own_samples(
    process: TrainerProcess, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """yes, no and maybe come evenly; only maybe is rewarded. Sampled by plain PEFT, so loading is tested too."""
    torch.set_num_threads(1)
    tokenizer = byte_tokenizer()
    recorder = Recorder(tmp_path, process.resolve(str(tiny_model_dir)))
    folder = Path(process.prepare(recorder.prepare()).path)
    prompts = [
        tokenizer.encode(f"<|im_start|>user\nis the {word} big<|im_end|>\n<|im_start|>assistant\n").ids
        for word in ("sky", "sea", "fish", "bird")
    ]

    def reward(drawn: Sample) -> float:
        return float(tokenizer.decode(drawn.tokens, skip_special_tokens=True) == "maybe")

    curve = []
    parent = 0
    for seed in range(30):
        model = load_peft(tiny_model_dir, folder)
        job, rewards = recorder.sampled_job(
            model, prompts, reward, parent=parent, seed=seed, config={"learning_rate": 2e-3}
        )
        curve.append(sum(rewards) / len(rewards))
        outcome = process.train(job)
        if outcome.checkpoint is not None:
            parent, folder = outcome.step, Path(outcome.checkpoint.path)
            assert outcome.metrics["parity/mean"] < 1e-4
    assert sum(curve[:3]) / 3 < 0.55
    assert sum(curve[-3:]) / 3 > 0.8
