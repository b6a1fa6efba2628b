"""The store: what is answered is kept, what is repeated changes nothing."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from art.config.model import ModelConfig
from art.config.train import TrainConfig
from art.errors import ConfigError, Conflict, InfraError, InvalidInput, NotFound
from art.store.purge import PurgeFilter
from art.store.records import (
    AuditRow,
    CallText,
    IdempotencyRow,
    JobRow,
    JobSpec,
    LoggedTrajectory,
    ModelRow,
    Outcomes,
    RewardChange,
    RolloutChange,
    RolloutFilter,
    RolloutRow,
)
from art.store.redaction import KeptCall
from art.store.schema import MIGRATIONS, migrate
from art.store.store import Store
from art.types.jobs import CheckpointInfo, ChoiceFate, ResolvedBaseModel
from art.types.policy import Fate, RolloutStatus, SamplingParams
from art.types.tokens import CallRecord, ChoiceRecord, VersionSpan
from art.types.wire import JobInfo, JobResult

T = TypeVar("T")


def run(main: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await main()

    return asyncio.run(bounded())


@asynccontextmanager
async def opened(root: Path, **options: Any) -> AsyncIterator[Store]:
    store = await Store.open(root, **options)
    try:
        yield store
    finally:
        await store.close()


def base() -> ResolvedBaseModel:
    return ResolvedBaseModel(
        name="b", path="/b", sha256="x", parameters=10, context_length=64, source="folder"
    )


def model_row(name: str = "m") -> ModelRow:
    return ModelRow(
        project="p", name=name, config=ModelConfig(base_model="b"), base=base(), model_dir="/nowhere"
    )


def rollout(rollout_id: str = "r1", model: str = "m") -> RolloutRow:
    return RolloutRow(rollout_id=rollout_id, project="p", model=model, step=0, metadata={"note": "secret"})


def call(call_id: str = "c1", rollout_id: str = "r1", **values: Any) -> CallRecord:
    choice = ChoiceRecord(
        index=0, finish_reason="stop", token_count=2, spans=[VersionSpan(start=0, end=2, version="p/m@0")]
    )
    sampling = SamplingParams(temperature=0.7, stop=("x",))
    return CallRecord(
        call_id=call_id,
        rollout_id=rollout_id,
        choices=[choice],
        sampling_used=sampling,
        version="p/m@0",
        **values,
    )


def arrays(*tokens: int) -> dict[str, np.ndarray]:
    return {
        "prompt_token_ids": np.array(tokens, dtype=np.int32),
        "c0.token_ids": np.array([7, 8], dtype=np.int32),
        "c0.logprobs": np.array([-0.5, -0.25], dtype=np.float32),
    }


def job_row(job_id: str = "j1") -> JobRow:
    info = JobInfo(job_id=job_id, project="p", name="m", status="queued", created_at=1.0)
    return JobRow(info=info, spec=JobSpec(config=TrainConfig()))


def test_a_call_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    async def main() -> None:
        text = CallText(tail=[{"role": "user", "content": "é"}], completions=[{"content": "hi"}])
        async with opened(tmp_path) as store:
            await store.open_rollout(rollout())
            stored = await store.add_call(call(number=0), arrays=arrays(1, 2, 3), text=text)
            await store.add_call(call("c2", number=1, parent_call_id="c1"), arrays=arrays(4), text=CallText())
        async with opened(tmp_path) as store:
            assert await store.get_call("c1") == stored
            assert stored.blob is not None
            read = await store.read_arrays(stored.blob)
            for name, array in arrays(1, 2, 3).items():
                np.testing.assert_array_equal(read[name], array)
                assert read[name].dtype == array.dtype
            assert await store.text_of("c1") == text
            assert [item.call_id for item in await store.calls_of("r1")] == ["c1", "c2"]
            assert [item.call_id for item, _ in await store.recent_calls("p", "m", 1)] == ["c2"]
            assert await store.get_call("nothing") is None
            with pytest.raises(NotFound):
                await store.text_of("nothing")

    run(main)


def test_opening_a_rollout_twice_opens_it_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            first = await store.open_rollout(rollout())
            await store.set_reward(
                RewardChange(rollout_id="r1", reward=0.5, metrics={"steps": 3}, metadata={"more": True})
            )
            again = await store.open_rollout(rollout())
            assert again.reward == 0.5
            assert again.created_at == first.created_at
            assert again.metrics == {"steps": 3}
            assert again.metadata == {"note": "secret", "more": True}
            with pytest.raises(Conflict):
                await store.open_rollout(rollout(model="other"))

    run(main)


def test_an_ending_is_never_overwritten(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            for name in ("r1", "r2", "r3"):
                await store.open_rollout(rollout(name))
            await store.finish_rollout("r1", RolloutStatus.AGENT_ERROR, "boom")
            kept = await store.finish_rollout("r1", RolloutStatus.FINISHED)
            assert (kept.status, kept.reason) == (RolloutStatus.AGENT_ERROR, "boom")
            await store.finish_rollout("r2")
            assert await store.interrupt_running("stopped") == 1
            rows = {row.rollout_id: row for row in await store.list_rollouts(RolloutFilter(project="p"))}
            assert rows["r2"].status is RolloutStatus.FINISHED
            assert (rows["r3"].status, rows["r3"].reason) == (RolloutStatus.INFRA_ERROR, "stopped")
            assert rows["r3"].reward is None, "an infrastructure failure is never a reward"
            only = await store.list_rollouts(RolloutFilter(status=RolloutStatus.FINISHED))
            assert [row.rollout_id for row in only] == ["r2"]
            with pytest.raises(NotFound):
                await store.set_reward(RewardChange(rollout_id="r9", reward=1.0))

    run(main)


def test_a_failing_write_takes_no_other_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.open_rollout(rollout())
            writes = [
                store.add_call(call(f"c{index % 50}", number=index), arrays=arrays(1), text=CallText())
                for index in range(100)
            ]
            results = await asyncio.gather(*writes, return_exceptions=True)
            assert sum(isinstance(item, CallRecord) for item in results) == 50
            assert sum(isinstance(item, Conflict) for item in results) == 50
            assert len(await store.calls_of("r1")) == 50
            with pytest.raises(NotFound):
                await store.add_call(call("cx", "no-rollout"), arrays=arrays(1), text=CallText())

    run(main)


def test_a_write_outlives_its_cancelled_caller(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.open_rollout(rollout())
            task = asyncio.create_task(store.set_reward(RewardChange(rollout_id="r1", reward=1.0)))
            await asyncio.sleep(0)
            task.cancel()
            await store.put_model(model_row())  # the writer goes in order: the reward is decided now
            assert (await store.get_rollout("r1")).reward in (None, 1.0)
            await store.set_reward(RewardChange(rollout_id="r1", reward=2.0))
            assert (await store.get_rollout("r1")).reward == 2.0

    run(main)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            pass
        with pytest.raises(InfraError):
            await store.list_models()

    run(main)


class Censor:
    """Replaces every text."""

    def content(self, value: Any, project: str | None = None) -> Any:
        if isinstance(value, str):
            return "#"
        if isinstance(value, dict):
            return {name: self.content(item) for name, item in value.items()}
        return [self.content(item) for item in value] if isinstance(value, list) else value

    report = content

    def call(self, call: CallRecord, text: CallText, project: str | None = None) -> KeptCall:
        return KeptCall(call, CallText.model_validate(self.content(text.model_dump(mode="json"))))

    def seals(self, project: str | None = None) -> bool:
        return False


def test_every_content_passes_the_redaction(tmp_path: Path) -> None:
    """No file of the store holds a secret that the hook removes."""
    secret = "secret"

    async def main() -> None:
        async with opened(tmp_path, redact=Censor()) as store:
            await store.put_model(model_row())
            await store.open_rollout(rollout())
            text = CallText(
                tail=[{"content": secret}], tools=[{"name": secret}], completions=[{"content": secret}]
            )
            stored = await store.add_call(call(), arrays=arrays(5, 6), text=text)
            await store.set_reward(RewardChange(rollout_id="r1", reward=1.0, metadata={"who": secret}))
            await store.finish_rollout("r1", RolloutStatus.AGENT_ERROR, secret)
            change = RewardChange(rollout_id="r1", reward=1.0, metadata={"again": secret})
            await store.submit_job(job_row(), rewards=[change])
            logged = LoggedTrajectory(
                project="p", name="m", split="val", step=0, group=0, index=0, reward=1.0,
                body={"messages_and_choices": [{"content": secret}], "logs": [secret]},
            )  # fmt: skip
            await store.add_history(
                project="p", name="m", step=0, recorded_at="t", data={"val/reward": 1.0},
                trajectories=[logged], outcomes=Outcomes(),
            )  # fmt: skip
            assert stored.blob is not None
            assert not stored.blob.sealed

    run(main)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file


def test_damaged_tokens_are_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.open_rollout(rollout())
            first = await store.add_call(call("c1"), arrays=arrays(1), text=CallText())
            assert first.blob is not None
            file = tmp_path / "blobs" / first.blob.path
            # A crash in the middle of an append leaves bytes that nothing names.
            with file.open("ab") as handle:
                handle.write(b"half a buf")
            second = await store.add_call(call("c2", number=1), arrays=arrays(2), text=CallText())
            assert second.blob is not None
            assert (await store.read_arrays(second.blob))["prompt_token_ids"].tolist() == [2]
            damaged = bytearray(file.read_bytes())
            damaged[first.blob.offset + first.blob.length - 1] ^= 1
            file.write_bytes(damaged)
            with pytest.raises(InvalidInput, match="damaged"):
                await store.read_arrays(first.blob)
            outside = first.blob.model_copy(update={"path": "../../etc/passwd"})
            with pytest.raises(InvalidInput, match="leaves the store"):
                await store.read_arrays(outside)

    run(main)


def checkpoint(step: int) -> CheckpointInfo:
    return CheckpointInfo(project="p", name="m", step=step, path=f"/c/{step}", created_at=step + 1.0)


def test_checkpoints_advance_the_latest_step(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.put_model(model_row())
            for step in (0, 1, 2, 1):
                await store.put_checkpoint(checkpoint(step), {"loss/train": 0.1 * step}, f"j{step}")
            model = await store.get_model("p", "m")
            assert model is not None
            assert model.step == 2
            rows = await store.list_checkpoints("p", "m")
            assert [(row.info.step, row.job_id) for row in rows] == [(0, "j0"), (1, "j1"), (2, "j2")]
            assert await store.remove_checkpoint("p", "m", 1)
            assert not await store.remove_checkpoint("p", "m", 1)
            assert [row.info.step for row in await store.list_checkpoints("p", "m")] == [0, 2]
            assert (await store.put_model(model_row())).step == 2, "a model that exists stays as it is"

    run(main)


def test_steps_of_a_registration_that_did_not_end_are_not_the_models(tmp_path: Path) -> None:
    """The row of a model comes last: a fork's step 5 may lie in the store when the name is registered anew."""

    def info(step: int) -> CheckpointInfo:
        return CheckpointInfo(project="p", name="m", step=step, path=f"/c/{step:04d}")

    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.put_checkpoint(info(5))
            await store.put_checkpoint(info(0))
            await store.put_model(model_row())
            assert [row.info.step for row in await store.list_checkpoints("p", "m")] == [0]
            assert await store.last_step("p", "m") == 0
            await store.put_checkpoint(info(1))
            await store.put_model(model_row())
            assert await store.last_step("p", "m") == 1, "a model that is there keeps its steps"

    run(main)


def test_the_same_idempotency_key_is_the_same_job(tmp_path: Path) -> None:
    def claim(ref: str, digest: str = "d") -> IdempotencyRow:
        return IdempotencyRow(scope="jobs:p/m", key="k", digest=digest, ref=ref)

    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.put_model(model_row())
            await store.open_rollout(rollout())
            change = RewardChange(rollout_id="r1", reward=1.0)
            first = await store.submit_job(job_row("j1"), rewards=[change], idempotency=claim("j1"))
            other = RewardChange(rollout_id="r1", reward=9.0)
            again = await store.submit_job(job_row("j2"), rewards=[other], idempotency=claim("j2"))
            assert again.info.job_id == first.info.job_id == "j1"
            row = await store.get_rollout("r1")
            assert (row.reward, row.status) == (1.0, RolloutStatus.FINISHED), "the repetition changed nothing"
            with pytest.raises(NotFound):
                await store.get_job("j2")
            with pytest.raises(Conflict):
                await store.submit_job(job_row("j3"), idempotency=claim("j3", "another body"))

    run(main)


def test_a_job_keeps_its_place_over_restarts_and_ends_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.put_model(model_row())
            await store.put_checkpoint(CheckpointInfo(project="p", name="m", step=4, path="/c/4"), {}, None)
            await store.open_rollout(rollout())
            await store.add_call(call(), arrays=arrays(1), text=CallText())
            await store.submit_job(job_row("j1"))
            started = await store.start_job("j1")
            assert (started.batch, started.parent_step, started.info.attempts) == (1, 4, 0)
            await store.count_attempt("j1")
        async with opened(tmp_path) as store:
            assert [job.info.job_id for job in await store.open_jobs()] == ["j1"]
            again = await store.start_job("j1", "restarted")
            assert (again.batch, again.parent_step, again.info.attempts) == (1, 4, 1)
            result = JobResult(step=5, published=True, batch=1, metrics={"loss/train": 1.0})
            outcomes = Outcomes(
                rollouts=[RolloutChange(rollout_id="r1", status=RolloutStatus.TRAINED)],
                choices=[ChoiceFate(call_id="c1", choice=0, fate=Fate.TRAINED, trained_tokens=2)],
            )
            for _ in range(2):  # a repetition must not count the batch twice
                done = await store.complete_job("j1", result, outcomes)
                assert done.info.status == "succeeded"
            model = await store.get_model("p", "m")
            assert model is not None
            assert model.batch == 1
            assert (await store.get_rollout("r1")).status is RolloutStatus.TRAINED
            stored = await store.get_call("c1")
            assert stored is not None
            assert stored.choices[0].fate is Fate.TRAINED
            failed = await store.fail_job("j1", status="failed", error={"code": "error"})
            assert failed.info.status == "succeeded", "what has succeeded cannot fail any more"
            kinds = [(event.id, event.type) for event in await store.events_after("j1", 1)]
            assert kinds == [(2, "started"), (3, "restarted"), (4, "succeeded")]
            with pytest.raises(Conflict):
                await store.start_job("j1")
            assert await store.open_jobs() == []

    run(main)


async def train(store: Store, job_id: str, step: int, outcomes: Outcomes) -> JobResult:
    """A job of these outcomes, from its submission to its end."""
    await store.submit_job(job_row(job_id))
    job = await store.start_job(job_id)
    assert job.batch is not None
    result = JobResult(step=step, published=True, batch=job.batch)
    done = (await store.complete_job(job_id, result, outcomes)).info.result
    assert done is not None
    return done


def outcome(status: RolloutStatus, fate: Fate, *, reason: str = "", tokens: int = 0) -> Outcomes:
    """Of the rollout r1 and its call c1."""
    return Outcomes(
        rollouts=[RolloutChange(rollout_id="r1", status=status, reason=reason)],
        choices=[ChoiceFate(call_id="c1", choice=0, fate=fate, reason=reason, trained_tokens=tokens)],
    )


TRAINED = outcome(RolloutStatus.TRAINED, Fate.TRAINED, tokens=2)


def test_what_was_trained_stays_trained_and_names_every_step(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.put_model(model_row())
            await store.open_rollout(rollout())
            await store.add_call(call(), arrays=arrays(1, 2), text=CallText())
            assert (await train(store, "j1", 1, TRAINED)).notes == []
            flat = outcome(RolloutStatus.ZERO_VARIANCE, Fate.FILTERED, reason="all equal")
            await train(store, "j2", 1, flat)
            await store.set_outcomes(outcome(RolloutStatus.EVALUATED, Fate.EVALUATION, reason="late"))
            assert (await store.get_rollout("r1")).status is RolloutStatus.TRAINED
            (choice,) = (await store.calls_of("r1"))[0].choices
            assert (choice.fate, choice.trained_tokens, choice.trained_step) == (Fate.TRAINED, 2, 1)
            for step in (4, 7):
                done = await train(store, f"j{step}", step, TRAINED)
            assert done.notes == ["1 rollout was trained in step 4 already"]
            (choice,) = (await store.calls_of("r1"))[0].choices
            assert (choice.trained_step, choice.reason) == (7, "trained before, into step 1, 4")

    run(main)


def test_a_log_changes_nothing_that_a_job_decided_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.put_model(model_row())
            for decided in (TRAINED, outcome(RolloutStatus.ZERO_VARIANCE, Fate.FILTERED, reason="equal")):
                number = decided.rollouts[0].status.value
                await store.open_rollout(rollout("r1"))
                await store.add_call(call(), arrays=arrays(1, 2), text=CallText())
                await store.set_outcomes(decided)
                await store.add_history(
                    project="p", name="m", step=0, recorded_at=number, data={"number": number}, trajectories=[],
                    outcomes=outcome(RolloutStatus.STALE, Fate.STALE, reason="too old"),
                )  # fmt: skip
                row, kept = await store.get_rollout("r1"), (await store.calls_of("r1"))[0].choices[0]
                assert (row.status, row.reason) == (decided.rollouts[0].status, decided.rollouts[0].reason)
                assert (kept.fate, kept.reason) == (decided.choices[0].fate, decided.choices[0].reason)
                await store.purge(PurgeFilter(project="p"))

    run(main)


def test_an_agents_failure_is_still_told_when_its_rollout_was_trained(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.put_model(model_row())
            await store.open_rollout(rollout())
            await store.finish_rollout("r1", RolloutStatus.AGENT_ERROR, "it raised KeyError")
            for step in (1, 2):
                await train(store, f"j{step}", step, TRAINED)
                row = await store.get_rollout("r1")
                assert (row.status, row.reason) == (
                    RolloutStatus.TRAINED,
                    "ended as agent_error: it raised KeyError",
                )

    run(main)


@pytest.mark.parametrize("after", [False, True], ids=["while the job runs", "after its end"])
def test_a_call_that_ends_after_its_rollout_was_submitted_gets_a_fate(tmp_path: Path, after: bool) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.put_model(model_row())
            await store.open_rollout(rollout())
            await store.add_call(call(), arrays=arrays(1, 2), text=CallText())
            if after:
                await train(store, "j1", 1, TRAINED)
            late = await store.add_call(call("late"), arrays=arrays(1, 2), text=CallText())
            if not after:
                assert late.choices[0].fate is Fate.PENDING, "the job may still fail"
                await train(store, "j1", 1, TRAINED)
            found = {item.call_id: item.choices[0] for item in await store.calls_of("r1")}
            assert found["c1"].fate is Fate.TRAINED
            assert (found["late"].fate, found["late"].reason) == (
                Fate.FILTERED,
                "the rollout was submitted before the call ended",
            )

    run(main)


def test_a_job_whose_place_was_taken_gets_a_new_one_and_overwrites_no_batch(tmp_path: Path) -> None:
    def result(step: int, batch: int) -> JobResult:
        return JobResult(step=step, published=True, batch=batch)

    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.put_model(model_row())
            for job in ("left", "own", "later"):
                await store.submit_job(job_row(job))
            # A job whose step is recorded, and whose end is not, keeps its place.
            await store.start_job("own")
            await store.put_checkpoint(checkpoint(1), {}, "own")
            again = await store.start_job("own")
            assert (again.batch, again.parent_step) == (1, 0)
            await store.complete_job("own", result(1, 1), Outcomes())
            # One that was left behind while another took its place does not.
            left = await store.start_job("left")
            later = await store.start_job("later")
            assert (left.batch, left.parent_step) == (later.batch, later.parent_step) == (2, 1)
            await store.put_checkpoint(checkpoint(2), {}, "later")
            await store.complete_job("later", result(2, 2), Outcomes())
            with pytest.raises(Conflict, match="that of later"):
                await store.complete_job("left", result(2, 2), Outcomes())
            placed = await store.start_job("left")
            assert (placed.batch, placed.parent_step) == (3, 2)
            await store.complete_job("left", result(3, 3), Outcomes())
            batches = await store._db.read(
                lambda conn: conn.execute("SELECT batch, job_id FROM batches").fetchall()
            )
            assert [tuple(row) for row in batches] == [(1, "own"), (2, "later"), (3, "left")]

    run(main)


def test_latest_is_a_step_that_is_there_and_that_no_job_trains_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.put_model(model_row())
            for step in range(4):
                assert await store.put_checkpoint(checkpoint(step)) == step
            with pytest.raises(Conflict, match="in use"):
                await store.remove_checkpoint("p", "m", 3)
            await store.remove_checkpoint("p", "m", 2)
            assert await store.deleted_steps("p", "m") == {2}
            with pytest.raises(NotFound):
                await store.set_latest("p", "m", 2)
            await store.set_latest("p", "m", 1)
            assert await store.put_checkpoint(checkpoint(3)) == 1, "it is recorded already: nothing changes"
            await store.submit_job(job_row("j1"))
            with pytest.raises(Conflict, match="being trained"):
                await store.set_latest("p", "m", 0)
            model = await store.get_model("p", "m")
            assert model is not None
            assert model.step == 1

    run(main)


def test_a_queued_job_is_cancelled_at_once_a_running_one_by_wish(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.put_model(model_row())
            await store.submit_job(job_row("j1"))
            assert (await store.cancel_job("j1")).info.status == "cancelled"
            await store.submit_job(job_row("j2"))
            await store.start_job("j2")
            wished = await store.cancel_job("j2")
            assert wished.info.status == "running"
            assert wished.cancel_requested

    run(main)


def test_history_rows_are_recorded_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            for expected in (True, False):
                new = await store.add_history(
                    project="p", name="m", step=1, recorded_at="t", data={"val/reward": 0.5, "step": 1},
                    trajectories=[], outcomes=Outcomes(),
                )  # fmt: skip
                assert new is expected
            assert await store.list_history("p", "m") == [{"val/reward": 0.5, "step": 1}]

    run(main)


def test_nan_is_never_stored(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.open_rollout(rollout())
            with pytest.raises(ValueError, match="JSON"):
                await store.set_reward(
                    RewardChange(rollout_id="r1", reward=1.0, metrics={"metric": float("nan")})
                )
            assert (await store.get_rollout("r1")).reward is None

    run(main)


def test_the_audit_table_keeps_changes_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            for target in ("a", "b"):
                await store.add_audit(AuditRow(key_id="k", action="POST /x", target=target, detail={"n": 1}))
            assert [row.target for row in await store.list_audit()] == ["b", "a"]

    run(main)


def test_kill_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    """A process is killed while it writes; every call it printed is there afterwards, whole."""
    program = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        import numpy as np
        from art.store.records import CallText, RolloutRow
        from art.store.store import Store
        from art.types.tokens import CallRecord, ChoiceRecord

        async def main():
            store = await Store.open(Path(sys.argv[1]))
            await store.open_rollout(RolloutRow(rollout_id="r", project="p", model="m", step=0))
            number = 0
            while True:
                call = CallRecord(call_id=f"c{number}", rollout_id="r", number=number,
                                  choices=[ChoiceRecord(index=0, finish_reason="stop", token_count=1)])
                arrays = {"prompt_token_ids": np.full(2000, number, dtype=np.int32)}
                await store.add_call(call, arrays=arrays, text=CallText())
                print(number, flush=True)
                number += 1

        asyncio.run(main())
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    answered = []
    for line in process.stdout:
        answered.append(int(line))
        if len(answered) == 40:
            process.kill()
    process.wait()
    assert len(answered) >= 40

    async def main() -> None:
        async with opened(tmp_path) as store:
            calls = {item.number: item for item in await store.calls_of("r")}
            assert set(answered) <= set(calls)
            for number, stored in calls.items():
                assert stored.blob is not None
                read = await store.read_arrays(stored.blob)
                assert (read["prompt_token_ids"] == number).all()

    run(main)


class TestMigrations:
    def test_each_runs_once_and_brings_an_old_folder_forward(self, tmp_path: Path) -> None:
        conn = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        conn.row_factory = sqlite3.Row
        first = (("CREATE TABLE a (x TEXT)",),)
        assert migrate(conn, first) == 1
        conn.execute("INSERT INTO a VALUES ('kept')")
        second = (*first, ("ALTER TABLE a ADD COLUMN y TEXT DEFAULT 'new'",))
        for _ in range(2):
            assert migrate(conn, second) == 2
        assert tuple(conn.execute("SELECT x, y FROM a").fetchone()) == ("kept", "new")

    def test_a_failing_one_leaves_nothing_behind(self, tmp_path: Path) -> None:
        conn = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        conn.row_factory = sqlite3.Row
        with pytest.raises(sqlite3.Error):
            migrate(conn, (("CREATE TABLE a (x TEXT)", "NOT SQL"),))
        assert conn.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'a'").fetchone()[0] == 0
        assert migrate(conn, (("CREATE TABLE a (x TEXT)",),)) == 1

    def test_a_newer_folder_is_refused(self, tmp_path: Path) -> None:
        conn = sqlite3.connect(tmp_path / "art.db", isolation_level=None)
        conn.row_factory = sqlite3.Row
        migrate(conn)
        conn.execute("INSERT INTO schema_version VALUES (?, 0)", (len(MIGRATIONS) + 1,))
        conn.close()
        with pytest.raises(ConfigError, match="schema version"):
            run(lambda: Store.open(tmp_path))


def test_a_rollout_that_failed_for_no_fault_of_its_own_does_not_count_as_a_repetition(tmp_path: Path) -> None:
    def alike(rollout_id: str, identity: str = "[0, 0]") -> RolloutRow:
        return rollout(rollout_id).model_copy(update={"seed_identity": identity})

    async def main() -> None:
        async with opened(tmp_path) as store:
            assert [(await store.open_rollout(alike(name))).repeat for name in ("a", "b")] == [0, 1]
            assert (await store.open_rollout(alike("c", "[0, 1]"))).repeat == 0
            assert (await store.open_rollout(rollout("d"))).repeat == 0
            await store.finish_rollout("a")
            await store.finish_rollout("b", RolloutStatus.INFRA_ERROR, "the engine died")
            assert (await store.open_rollout(alike("e"))).repeat == 1
            await store.finish_rollout("e", RolloutStatus.AGENT_ERROR, "a fault of its own")
        async with opened(tmp_path) as store:  # a server that was started anew still knows
            await store.interrupt_running("stopped")
            assert (await store.open_rollout(alike("f"))).repeat == 2
            assert (await store.open_rollout(alike("e"))).repeat == 1, "as it was opened"

    run(main)
