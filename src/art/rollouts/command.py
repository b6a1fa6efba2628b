"""Any program, in any language, as one rollout: it finds the model in its environment, and its reward is taken
from a reward command, from what it prints, or from its exit status."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.errors import AgentFailed, ArtError, ConfigError, InfraError, InvalidInput
from art.rollouts.environment import child_environment
from art.rollouts.failure import is_infrastructure
from art.rollouts.printed import Printed, printed_reward
from art.rollouts.process import Ended, run_process
from art.rollouts.session import RolloutSession
from art.rollouts.session import rollout as open_rollout
from art.types import wire
from art.types.policy import RolloutStatus
from art.utils.console import say

if TYPE_CHECKING:
    from art.model import TrainableModel
    from art.trajectories import Trajectory

PROGRAM_SECONDS = 3600.0
"""Default deadline of one run: a bound against hanging for ever, not an estimate."""
REWARD_SECONDS = 600.0
"""Deadline of a reward command: long enough for a judge or a test suite."""
KEPT_OUTPUT = 1 << 20
"""Bytes of a program's output, its end, that the reward is looked for in and a reward command gets."""
MAX_VARIABLE = 100_000
"""Bytes of a scenario in the environment; Linux takes at most 128 KiB a variable."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command to run for each rollout."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """What the program inherits; the session's variables and the scenario are added."""
    reward_command: str | None = None
    """For the shell: it gets the rollout's transcript as JSON on stdin and prints a reward."""
    timeout: float = PROGRAM_SECONDS
    """Seconds for one run."""
    stdin: int | None = asyncio.subprocess.DEVNULL
    """None: the program reads what we would read."""
    folder: Path | None = None
    """Where program and reward command run; None: where we do."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of one run of a program."""

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
    trajectory: Trajectory | None = None
    error: ArtError | None = None
    """Why there is no reward."""

    def summary(self) -> dict[str, Any]:
        """As JSON data."""
        names = ("rollout_id", "model", "status", "reason", "reward", "source", "calls", "tokens")
        return {name: getattr(self, name) for name in (*names, "exit_status", "seconds")}


@dataclass
class _Progress:
    """What is known of a run while it lasts; it survives the exception that ends it."""

    output: bytearray = field(default_factory=bytearray)
    ended: Ended | None = None
    source: str = ""

    def keep(self, part: bytes) -> None:
        self.output += part
        if len(self.output) > 2 * KEPT_OUTPUT:
            del self.output[:-KEPT_OUTPUT]


async def run_program(
    model: TrainableModel[Any, Any],
    program: Program,
    *,
    scenario: Any = None,
    on_output: Callable[[bytes], None] | None = None,
    **session_options: Any,
) -> Run:
    """Run the program once as a rollout of `model`. `session_options` are those of `art.rollout`.

    A run that was killed, ran out of time, printed an impossible reward or could not be judged comes back with
    `error` set and no reward. InfraError and ConfigError are raised: those say nothing about the program.
    """
    session = open_rollout(model, **session_options)
    progress = _Progress()
    error: ArtError | None = None
    with tempfile.TemporaryDirectory(prefix="art-rollout-") as folder:
        extra = _scenario_variables(scenario, Path(folder))
        try:
            async with session:
                await _run(session, program, extra, progress, on_output)
            if program.reward_command is not None:
                await _judge(session, program, scenario, extra, progress)
        except ArtError as failure:
            if is_infrastructure(failure) or isinstance(failure, ConfigError):
                raise
            error = failure
    return await _outcome(session, progress, error)


async def _run(
    session: RolloutSession,
    program: Program,
    extra: Mapping[str, str],
    progress: _Progress,
    on_output: Callable[[bytes], None] | None,
) -> None:
    """The program itself, inside its open rollout. Sets the session's reward unless a reward command will."""
    pulse = await _pulse(session)

    def output(part: bytes) -> None:
        progress.keep(part)
        if on_output is not None:
            on_output(part)

    ended = progress.ended = await run_process(
        program.command,
        environment=child_environment({**session.env, **extra}, inherited=program.environment),
        stdin=program.stdin,
        on_output=output,
        timeout=program.timeout,
        cwd=program.folder,
    )
    name = Path(program.command[0]).name
    if ended.status != 0:
        await _require_ours_was_well(session, pulse, f"{name} ended with exit status {ended.status}")
    if ended.failure:
        hint = "a longer --timeout gives it more time" if ended.timed_out else ""
        raise AgentFailed(f"{name} gave no result", cause=ended.failure, hint=hint)
    if program.reward_command is None:
        found = printed_reward(bytes(progress.output), name)
        progress.source = "printed" if found else "exit status"
        _reward(session, found or Printed(1.0 if ended.status == 0 else 0.0))


def _reward(session: RolloutSession, found: Printed) -> None:
    session.metrics.update(found.metrics)
    session.reward = found.reward


async def _judge(
    session: RolloutSession,
    program: Program,
    scenario: Any,
    extra: Mapping[str, str],
    progress: _Progress,
) -> None:
    """Ask the reward command. The rollout has ended and stays `finished`: its reward may also come later."""
    info = await _info(session)
    assert progress.ended is not None
    assert program.reward_command is not None
    transcript = {
        "rollout_id": session.rollout_id,
        "model": session.model_name,
        "scenario": scenario,
        "messages": [{k: v for k, v in message.items() if k != "choice"} for message in info.messages],
        "calls": len(info.calls),
        "exit_status": progress.ended.status,
        "seconds": progress.ended.seconds,
        "output": bytes(progress.output[-KEPT_OUTPUT:]).decode(errors="replace"),
    }
    said = _Progress()
    with tempfile.TemporaryFile() as stdin:
        stdin.write(json.dumps(transcript, ensure_ascii=False).encode(errors="replace"))
        stdin.seek(0)
        ended = await run_process(
            ("/bin/sh", "-c", program.reward_command),
            environment=child_environment(
                {**extra, "ART_ROLLOUT_ID": session.rollout_id}, inherited=program.environment
            ),
            stdin=stdin,
            on_output=said.keep,
            timeout=REWARD_SECONDS,
            cwd=program.folder,
        )
    found = None if ended.status != 0 else printed_reward(bytes(said.output), "the reward command")
    if found is None:
        why = ended.failure or (
            f"its exit status is {ended.status}" if ended.status else "it printed no reward"
        )
        raise InvalidInput(
            "the reward command judged nothing",
            cause=why,
            hint='it must print a number, or JSON like {"reward": 0.5}, as its last line',
        )
    _reward(session, found)
    await session.set_reward(found.reward)
    progress.source = "reward command"


async def _outcome(session: RolloutSession, progress: _Progress, error: ArtError | None) -> Run:
    info = await _info(session)
    if info.status is RolloutStatus.INFRA_ERROR:
        raise InfraError(f"rollout {session.rollout_id} was lost", cause=info.reason)
    reward = None if error is not None else session.reward
    return Run(
        rollout_id=session.rollout_id,
        model=session.model_name,
        status=info.status,
        reason=info.reason or (str(error) if error else ""),
        reward=reward,
        source="" if reward is None else progress.source,
        calls=len(info.calls),
        tokens=sum(choice.token_count for call in info.calls for choice in call.choices),
        exit_status=None if progress.ended is None else progress.ended.status,
        seconds=0.0 if progress.ended is None else round(progress.ended.seconds, 3),
        trajectory=session.trajectory if reward is not None else None,
        error=error,
    )


async def _info(session: RolloutSession) -> wire.RolloutInfo:
    return await session.model.backend().connection.api.rollout(session.rollout_id)


async def _require_ours_was_well(session: RolloutSession, pulse: tuple[object, ...], what: str) -> None:
    """InfraError when the program may have failed because a part of ART did: that is no bad run."""
    failed = (await _info(session)).failed_calls
    if failed:
        cause = f"the server could not answer {failed} of its calls"
    elif pulse != await _pulse(session):
        cause = "the server or one of its workers was started again meanwhile"
    else:
        return
    raise InfraError(
        f"{what} while a part of ART was away",
        cause=cause,
        hint="run it again; server/logs in the server's folder says what happened",
    )


async def _pulse(session: RolloutSession) -> tuple[object, ...]:
    """Changes when the server or one of its workers dies or is started again."""
    health = await session.model.backend().connection.api.health()
    restarts = sum(worker.restarts for worker in health.workers)
    return health.pid, health.started_at, restarts, health.status


def _scenario_variables(scenario: Any, folder: Path) -> dict[str, str]:
    """ART_SCENARIO_FILE, and ART_SCENARIO where the scenario is small enough for a variable."""
    if scenario is None:
        return {}
    text = json.dumps(scenario, ensure_ascii=False)
    file = folder / "scenario.json"
    file.write_text(text, encoding="utf-8", errors="replace")
    variables = {"ART_SCENARIO_FILE": str(file)}
    if len(text.encode(errors="replace")) <= MAX_VARIABLE:
        # \u escapes keep the variable printable whatever the locale.
        variables["ART_SCENARIO"] = json.dumps(scenario)
    else:
        say(
            "the scenario is too long for ART_SCENARIO; the program finds it in ART_SCENARIO_FILE",
            style="dim",
        )
    return variables
