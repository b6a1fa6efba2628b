"""What `art COMMAND --json` prints where that is not an answer of the server as it stands. `art schema COMMAND` shows it."""

from __future__ import annotations

from typing import Literal

import typer
from pydantic import BaseModel, ConfigDict

from art.evals.result import Prices, ScenarioRuns
from art.types.doctor import Check
from art.types.policy import RolloutStatus
from art.types.wire import Checkpoint
from art.types.wire_views import RolloutLine, StepLine
from art.utils.visible import clean_json


class Output(BaseModel):
    """Nothing is printed that the schema does not name."""

    model_config = ConfigDict(extra="forbid")


def print_json(value: BaseModel) -> None:
    """One document on stdout."""
    typer.echo(json_text(value))


def json_text(value: BaseModel) -> str:
    """The document."""
    return clean_json(value.model_dump_json(indent=2))


class ErrorDetail(Output):
    """As `error:`, `cause:` and `hint:` without --json."""

    code: str
    """Stable across releases."""
    message: str
    cause: str
    hint: str


class CommandError(Output):
    """What --json makes of an error: the last line of stderr."""

    error: ErrorDetail


class Serving(Output):
    """`art serve`: printed in one line when the server answers."""

    url: str
    """For programs on this machine."""
    tls_url: str | None
    path: str
    """The server's folder."""
    admin_key_file: str
    pid: int


class Lineage(Output):
    """`art checkpoint lineage`."""

    steps: list[Checkpoint]
    """From the one that was asked for back to the first."""
    deleted: int | None
    """A parent that is not there any more, where the line breaks."""
    forks: list[str]


class Backup(Output):
    """`art backup` and `art restore`."""

    schema_version: int
    created_at: float
    art_version: str
    root: str
    """The folder it is a copy of."""
    models: int
    rollouts: int
    deleted_meanwhile: list[str]
    """What the database named and the server deleted before it was copied."""


class ProgramRun(Output):
    """`art rollout`."""

    rollout_id: str
    model: str
    """`project/name@step`."""
    status: RolloutStatus
    reason: str
    reward: float | None
    source: str
    """Where the reward comes from; empty without one."""
    calls: int
    tokens: int
    """Sampled tokens."""
    exit_status: int | None
    """-N when signal N killed it; None when it did not come so far."""
    seconds: float


class ScenarioOutcome(Output):
    """All runs of one scenario."""

    scenario_id: str
    rewards: list[float]
    statuses: dict[str, int]
    runs: list[ProgramRun]
    lost: list[ErrorDetail]
    """Runs that a failure of ART itself ended."""


class StepOutcome(Output):
    """What became of the train call."""

    step: int
    published: bool
    reason: str
    checkpoint_path: str | None


class ProgramRuns(Output):
    """`art rollouts`."""

    groups: list[ScenarioOutcome]
    train: StepOutcome | None


class Compared(Output):
    """Two evaluations, paired by scenario."""

    a: str
    b: str
    scenarios: int
    """Those that both have a reward for; only these are compared."""
    mean_a: float
    mean_b: float
    difference: float
    """Mean over scenarios of b's mean reward minus a's."""
    ci95: tuple[float, float] | None
    """Paired bootstrap interval of the difference."""
    p_value: float
    wins: int
    losses: int
    unpaired: int
    significant: bool
    """More than chance explains."""


class LatencySeconds(Output):
    mean: float
    p50: float
    p95: float


class Evaluated(Output):
    """`art eval`."""

    model: str
    scenarios: list[ScenarioRuns]
    repeats: int
    seed: int
    success_at: float
    prices: Prices | None
    mean: float
    ci95: tuple[float, float] | None
    pass_at_k: dict[str, float]
    latency_seconds: LatencySeconds | None
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    failures: int
    infra_failures: int
    comparison: Compared | None = None
    """With --against."""


class DoctorReport(Output):
    """`art doctor`; with --data-flow it is a DataFlow."""

    ok: bool
    checks: list[Check]


class DemoResult(Output):
    """`art demo`."""

    task: str
    base_model: str
    eval_before: float
    eval_after: float
    ci95_before: tuple[float, float]
    ci95_after: tuple[float, float]
    best_constant: float
    """Of the best agent that always does the same."""
    steps: int
    seconds: float
    checkpoint: str | None


class ShownStep(Output):
    """`art show project/name@step`."""

    model: str
    checkpoint: Checkpoint | None
    """None for one that was deleted."""
    step: StepLine | None
    """The train call that published it; None for what was not trained here."""


class FigureDifference(Output):
    """One figure of both."""

    name: str
    unit: str
    a: float | None
    b: float | None
    difference: float | None
    """b minus a."""
    better: Literal["a", "b", ""]
    """Empty where neither direction is better, or nothing differs."""


class RunComparison(Output):
    """`art compare`."""

    a: str
    b: str
    figures: list[FigureDifference]
    evaluation: Compared | None
    """Of the evaluation rollouts both have for the same scenarios."""


class QueryResult(Output):
    """`art sql`."""

    columns: list[str]
    rows: list[list[str | int | float | None]]
    """A blob is its length in bytes, as `<12 bytes>`."""
    truncated: bool
    """There were more rows than --limit."""


class TailLine(Output):
    """`art tail`: one of these a line."""

    kind: Literal["rollout", "step"]
    time: float
    """Seconds since 1970: of the rollout's end, of the train call's."""
    project: str
    name: str
    rollout: RolloutLine | None = None
    step: StepLine | None = None
    text: str
    """For a person."""


class Dashboard(Output):
    """`art ui`: printed in one line when the page can be opened."""

    url: str
    """With a key in it: whoever has the address sees everything in the folder."""
    folder: str
    server_runs: bool
    """False: served by this command, read-only, until it ends."""


class ProjectWritten(Output):
    """`art init`."""

    folder: str
    template: str
    files: list[str]
    """In the folder."""


class RunnableRun(Output):
    """`art config check`."""

    model: str
    scenarios: int
    held_out: int
    steps: int
    rollouts: int
    """Of all steps."""
    concurrency: int


class RunEvent(BaseModel):
    """`art run`: something that happened, one a line."""

    model_config = ConfigDict(extra="allow")

    event: Literal["start", "note", "step", "demonstrations", "end"]
    """What else there is goes by this: of a `step` its batch, step, reward and metrics; of the `end` how it ended."""
