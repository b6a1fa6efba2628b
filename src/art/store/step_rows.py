"""What the rollouts of a batch took: tokens, seconds, and how old their tokens are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from art.store.sql import Conn, loads, rows


def figures(
    conn: Conn, rollout_ids: Sequence[str], *, parent_step: int, since: float
) -> tuple[dict[str, float], float]:
    """(figures of a batch's rollouts, when the last of their calls ended); nothing and `since` when none called.

    A rollout takes its time from its first call's begin to its last call's end. Time before `since`, when the last call
    of the batches before ended, is theirs: rollouts that ran beside those of an earlier batch share it. Tokens are as old
    as there are steps between the one that sampled them and `parent_step`, on top of which they are trained.
    """
    ids = json.dumps(list(rollout_ids))
    spans = rows(
        conn,
        "SELECT MIN(started_at) AS began, MAX(COALESCE(finished_at, started_at)) AS ended, COUNT(*) AS calls,"
        " SUM(prompt_token_count) AS prompts FROM calls WHERE rollout_id IN (SELECT value FROM json_each(?))"
        " GROUP BY rollout_id",
        ids,
    )
    if not spans:
        return {}, since
    sampled = rows(
        conn,
        "SELECT choices.spans, choices.token_count AS tokens FROM choices JOIN calls USING (call_id)"
        " WHERE rollout_id IN (SELECT value FROM json_each(?))",
        ids,
    )
    found = {
        "data/step_num_calls": float(sum(row["calls"] for row in spans)),
        "data/step_prompt_tokens": float(sum(row["prompts"] for row in spans)),
        "data/step_actor_tokens": float(sum(row["tokens"] for row in sampled)),
        "time/step_actor_s": covered(((row["began"], row["ended"]) for row in spans), since),
    }
    ages = _ages((row["spans"] for row in sampled), parent_step)
    if tokens := sum(count for _, count in ages):
        found["offpolicy/mean_steps"] = sum(age * count for age, count in ages) / tokens
        found["offpolicy/max_steps"] = float(max(age for age, _ in ages))
    return found, max(since, *(row["ended"] for row in spans))


def covered(intervals: Iterable[tuple[float, float]], since: float) -> float:
    """Seconds behind `since` that lie in at least one of the intervals."""
    total, reached = 0.0, since
    for began, ended in sorted(intervals):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total


def _ages(spans: Iterable[str], parent_step: int) -> list[tuple[int, int]]:
    """(steps, tokens) of each piece of an answer that one version sampled."""
    found = []
    for text in spans:
        for span in loads(text):
            step = str(span["version"]).rpartition("@")[2]
            count = int(span["end"]) - int(span["start"])
            if step.isdecimal() and count > 0:
                found.append((max(0, parent_step - int(step)), count))
    return found
