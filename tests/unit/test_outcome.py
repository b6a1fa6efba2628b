"""What a step says of its trajectories: each status counted, and why nothing was trained, in one line."""

from __future__ import annotations

from art.config.train import TrainConfig
from art.server.outcome import conclude, status_counts, why_nothing
from art.store.records import JobRow, JobSpec, SelectedTrajectory
from art.trainer.protocol import RolloutOutcome, TrainOutcome
from art.types.policy import RolloutStatus
from art.types.wire import JobInfo, TrajectoryOutcome


def item(status: str, reason: str = "") -> TrajectoryOutcome:
    return TrajectoryOutcome(group=0, index=0, rollout_id="r", status=RolloutStatus(status), reason=reason)


def test_every_status_is_counted_also_those_that_did_not_occur() -> None:
    counts = status_counts([item("trained"), item("trained"), item("stale")], raised=3)
    assert counts["data/step_num_trained"] == 2
    assert counts["data/step_num_stale"] == 1
    assert counts["data/step_num_exceptions"] == 3
    assert {name.removeprefix("data/step_num_") for name, value in counts.items() if value == 0} == {
        "zero_variance",
        "overlong",
        "no_calls",
        "agent_error",
        "infra_error",
        "finished",
    }
    assert status_counts([item("evaluated")], raised=0)["data/step_num_evaluated"] == 1


def test_why_nothing_was_trained_is_one_line() -> None:
    found = [item("zero_variance", "all rewards are equal (1)")] * 4
    found += [
        item("no_calls", "it never\ncalled"),
        item("no_calls", "it never\ncalled"),
        item("no_calls", "b"),
    ]
    assert why_nothing(found, raised=2) == (
        "no signal: 4 zero_variance (all rewards are equal (1)); 3 no_calls (it never called, and 1 more); "
        "2 raised an exception"
    )
    assert why_nothing([], raised=0) == "no signal: the batch has no rollouts"


def job(*outcomes: TrajectoryOutcome | None) -> JobRow:
    trajectories = [
        SelectedTrajectory(
            group=0, index=n, label=None if outcome else f"r{n}", rollout_ids=[f"r{n}"], outcome=outcome
        )
        for n, outcome in enumerate(outcomes)
    ]
    info = JobInfo(job_id="j", project="p", name="m", status="running", created_at=1.0)
    return JobRow(info=info, spec=JobSpec(config=TrainConfig(), trajectories=trajectories), batch=1)


def test_what_the_server_left_out_and_what_the_trainer_left_out_are_told_together() -> None:
    said = RolloutOutcome(rollout_id="r1", group_id="0", status=RolloutStatus.ZERO_VARIANCE, reason="equal")
    outcome = TrainOutcome(step=0, published=False, reason="no signal: 1 zero_variance", rollouts=[said])
    result, _ = conclude(job(item("infra_error", "the engine died"), None), outcome)
    assert result.reason == "no signal: 1 infra_error (the engine died); 1 zero_variance (equal)"
    assert result.metrics["data/step_num_infra_error"] == result.metrics["data/step_num_zero_variance"] == 1
    trained = RolloutOutcome(rollout_id="r1", group_id="0", status=RolloutStatus.TRAINED)
    published = TrainOutcome(step=1, published=True, metrics={"loss/train": 0.5}, rollouts=[trained])
    result, _ = conclude(job(item("infra_error"), None), published)
    assert result.reason == ""
    assert result.metrics["loss/train"] == 0.5
    assert result.metrics["data/step_num_trained"] == 1
