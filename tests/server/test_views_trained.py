"""Served against trained: what the trainer found of each choice before its first update, beside what was sampled."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
from train_kit import Trained

from art.store.traces import ChoiceTrace, read_traces, trace_file, write_traces
from art.types.wire_views import TokenPage, TrajectoryDetail


def shown(taught: Trained, rollout_id: str) -> TrajectoryDetail:
    return TrajectoryDetail.model_validate(taught.api("GET", f"views/rollouts/{rollout_id}"))


def tokens(taught: Trained, found: TrajectoryDetail) -> TokenPage:
    name, call_id = found.rollout.rollout_id, found.calls[0].call_id
    return TokenPage.model_validate(taught.api("GET", f"views/rollouts/{name}/tokens?call_id={call_id}"))


def test_what_was_trained_is_shown_beside_what_was_served(taught: Trained) -> None:
    group = taught.group([0.0, 1.0])
    names = [trajectory["rollout_id"] for trajectory in group["trajectories"]]
    assert all(tokens(taught, shown(taught, name)).trained_logprob is None for name in names)
    result = taught.train([group])
    assert result["published"], result["reason"]
    for name, sign in zip(names, (-1, 1), strict=True):
        found = shown(taught, name)
        choice = found.calls[0].choices[0]
        assert (choice.fate, choice.trained_step) == ("trained", result["step"])
        assert choice.advantage is not None
        assert choice.advantage * sign > 0
        assert found.rollout.advantage == choice.advantage
        page = tokens(taught, found)
        assert (page.advantage, all(page.mask)) == (choice.advantage, True)
        assert page.trained_logprob is not None
        gaps = [
            abs(theirs - ours)
            for theirs, ours in zip(page.trained_logprob, page.logprob, strict=True)
            if theirs is not None and ours is not None
        ]
        assert len(gaps) == page.total
        assert statistics.fmean(gaps) < 0.06  # the bound of the parity check
    folder = taught.server.path / "p" / "models" / "m" / "traces"
    assert list(folder.iterdir()) == []  # it lies with the tokens now
    taught.api("POST", "data/purge", {"rollout_ids": names})
    left = taught.query(
        "SELECT COUNT(*) FROM trained_choices WHERE call_id NOT IN (SELECT call_id FROM calls)"
    )
    assert left == [(0,)]


def test_what_was_not_compared_has_no_advantage(taught: Trained) -> None:
    group = taught.group([0.5, 0.5])
    assert not taught.train([group])["published"]
    found = shown(taught, group["trajectories"][0]["rollout_id"])
    assert found.rollout.status == "zero_variance"
    assert found.calls[0].choices[0].advantage is None
    assert tokens(taught, found).trained_logprob is None


def test_traces_are_written_whole_and_read_as_they_were(tmp_path: Path) -> None:
    file = trace_file(tmp_path, "job_2")
    left = trace_file(tmp_path, "job_1")
    write_traces(left, [])
    found = [
        ChoiceTrace("a", 0, 0.5, np.array([-1.0, np.nan, -0.25], dtype=np.float32)),
        ChoiceTrace("a", 1, None, np.empty(0, dtype=np.float32)),
        ChoiceTrace("b", 0, -2.0, np.array([-3.0], dtype=np.float32)),
    ]
    write_traces(file, found)
    assert not left.exists()  # of a job whose end nobody recorded
    read = read_traces(file)
    assert [(one.call_id, one.choice, one.advantage) for one in read] == [
        ("a", 0, 0.5),
        ("a", 1, None),
        ("b", 0, -2.0),
    ]
    for one, other in zip(read, found, strict=True):
        np.testing.assert_array_equal(one.logprobs, other.logprobs)
    assert read_traces(left) == []
