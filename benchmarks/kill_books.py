"""Whether a run that was killed on the way lost or doubled anything: the server's store against what the program was told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kill_watch import Watch

TOLD = "told.jsonl"
"""One line per train call that the program was answered: batch, step, published, rollouts."""


def problems(watch: Watch, told: Path, *, steps: int, per_step: int, calls: int) -> list[str]:
    """What is wrong, each in a line; none when every train call is one batch, every batch one step, and every rollout
    that the program was told of is trained once, with its `calls` calls. `per_step`: rollouts of a train call."""
    jobs = watch.query("SELECT job_id, batch, status, result FROM jobs ORDER BY batch")
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    return [
        *_batches(watch, steps=steps),
        *_jobs(jobs, lines, per_step=per_step),
        *_rollouts(watch, lines, calls=calls),
    ]


def _batches(watch: Watch, *, steps: int) -> Iterator[str]:
    """Batches are counted on, each trained from the step of the one before."""
    rows = watch.query("SELECT batch, parent_step, step, published, job_id FROM batches ORDER BY batch")
    numbers = [row[0] for row in rows]
    if numbers != list(range(1, steps + 1)):
        yield f"the batches are {numbers}, not 1 to {steps}"
    yield from (
        f"job {job} is {count} batches" for job, count in Counter(r[4] for r in rows).items() if count > 1
    )
    latest = 0
    for batch, parent, step, published, _ in rows:
        if parent != latest or step != parent + published:
            yield f"batch {batch} made step {step} of step {parent}; the latest was {latest}"
        latest = step
    known = [row[0] for row in watch.query("SELECT step FROM checkpoints ORDER BY step")]
    if known != list(range(latest + 1)):
        yield f"the recorded steps are {known}, not 0 to {latest}"
    if watch.step != latest:
        yield f"the latest step is {watch.step}, that of the last batch {latest}"


def _jobs(jobs: Sequence[Any], told: list[dict[str, Any]], *, per_step: int) -> Iterator[str]:
    """Every job has ended well and is what the program was told."""
    yield from (f"{job} has the status {status}" for job, _, status, _ in jobs if status != "succeeded")
    results = [json.loads(result) for _, _, status, result in jobs if status == "succeeded"]
    kept = [
        {
            "batch": result["batch"],
            "step": result["step"],
            "published": result["published"],
            "rollouts": [item["rollout_id"] for item in result["trajectories"]],
        }
        for result in results
    ]
    if kept != told:
        differing = [one["batch"] for one, other in zip(kept, told, strict=False) if one != other]
        yield f"{len(kept)} jobs are kept, {len(told)} were answered; batches {differing} differ"
    for result in kept:
        if len(result["rollouts"]) != per_step:
            yield f"batch {result['batch']} has {len(result['rollouts'])} rollouts, not {per_step}"
    counts = Counter(name for result in kept for name in result["rollouts"])
    yield from (f"rollout {name} is in {count} batches" for name, count in counts.items() if count > 1)


def _rollouts(watch: Watch, told: list[dict[str, Any]], *, calls: int) -> Iterator[str]:
    """A rollout that was trained has its reward and calls; every other one was cut off by a kill."""
    trained = {name for line in told for name in line["rollouts"]}
    rows = watch.query(
        "SELECT rollout_id, status, reward, (SELECT COUNT(*) FROM calls WHERE calls.rollout_id = rollouts.rollout_id)"
        " FROM rollouts"
    )
    for name, status, reward, count in rows:
        if name not in trained:
            if status != "infra_error":
                yield f"rollout {name} is {status} and in no batch"
        elif status not in ("trained", "zero_variance") or reward is None or count != calls:
            yield f"rollout {name} is {status}, with reward {reward} and {count} calls"
    missing = trained - {row[0] for row in rows}
    yield from (f"rollout {name} is not in the store" for name in sorted(missing))
