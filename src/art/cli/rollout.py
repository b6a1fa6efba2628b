"""`art rollout`: run any program once, as a rollout of a model."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art.cli._output import ProgramRun
from art.cli._served import BaseModel, Key, ModelName, Path_, Url, backend_of, choose_model, run_to_the_end
from art.cli._units import span_option
from art.cli._usage import WrongUsage
from art.types.policy import Purpose

if TYPE_CHECKING:
    from art.backends.server import ServerBackend
    from art.rollouts.command import Program, Run

JSON = "art.cli._output:ProgramRun"
CONTEXT = {"allow_interspersed_args": False}
"""Options behind the program's name are the program's."""
NO_REWARD = 3
"""Exit status when the program ran and there is nothing to train on: killed, out of time, no usable reward, no call."""

Command = Annotated[
    list[str], typer.Argument(help="The program and its arguments.", metavar="-- PROGRAM ...")
]
RewardCommand = Annotated[
    str | None,
    typer.Option(
        help='For the shell: gets the transcript as JSON on stdin, prints a number or {"reward": ...}.'
    ),
]
Timeout = Annotated[
    float | None, span_option("How long one run may take: 30s, 10m (default: an hour).", show_default=False)
]
Purpose_ = Annotated[Purpose, typer.Option(help="evaluate leaves the program's sampling as it is.")]
Seed = Annotated[
    int | None,
    typer.Option(min=0, help="Of the draws; by default another one each time.", show_default=False),
]


def command(
    program: Command,
    *,
    model: ModelName = None,
    base_model: BaseModel = None,
    purpose: Purpose_ = Purpose.TRAIN,
    scenario: Annotated[str | None, typer.Option(help="JSON for the program: ART_SCENARIO.")] = None,
    reward_command: RewardCommand = None,
    timeout: Timeout = None,
    seed: Seed = None,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The result as JSON on stdout, the program's output on stderr.")
    ] = False,
) -> None:
    """Run a program once, as a rollout of a model; it may be written in any language.

    It finds the model in OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, and its scenario in
    ART_SCENARIO and ART_SCENARIO_FILE. Its reward: the reward command's; else what its last line says (a number, or
    JSON with "reward"); else 1 for exit status 0 and 0 for another.

    Exit status: 0 with a reward (whatever it is), 1 when ART failed, 2 for a wrong command line, 3 when there is no
    reward or no call to train on, 130 after Ctrl-C.

    Examples:

      art rollout --model shop/agent -- node agent.js

      art rollout --model shop/agent --scenario '{"city": "Oslo"}' --reward-command "python judge.py" -- ./agent
    """
    made = program_of(program, reward_command, timeout, stdin=None)
    wanted = scenario_of(scenario, "--scenario") if scenario is not None else None
    with backend_of(url, key, path) as backend:
        options = {"purpose": purpose, "run_seed": secrets.randbelow(2**31) if seed is None else seed}
        done = run_to_the_end(_run(backend, (model, base_model), made, wanted, options, to_stderr=as_json))
    if as_json:
        typer.echo(ProgramRun.model_validate(done.summary()).model_dump_json())
    typer.echo(line_of(done), err=True)
    typer.echo(explain_hint(done.rollout_id, url, backend), err=True)
    if done.reward is None or not done.calls:
        raise typer.Exit(NO_REWARD)


async def _run(
    backend: ServerBackend,
    names: tuple[str | None, str | None],
    program: Program,
    scenario: Any,
    options: dict[str, Any],
    *,
    to_stderr: bool,
) -> Run:
    from art.rollouts.command import run_program
    from art.rollouts.fit import scenario_id

    chosen = await choose_model(backend, *names)
    stream = (sys.stderr if to_stderr else sys.stdout).buffer

    def through(part: bytes) -> None:
        stream.write(part)
        stream.flush()

    if scenario is not None:
        options["scenario_id"] = scenario_id(scenario)
    return await run_program(
        chosen.model, program, scenario=scenario, on_output=through, step=chosen.step, **options
    )


def program_of(
    program: list[str],
    reward_command: str | None,
    timeout: float | None,
    *,
    stdin: int | None = subprocess.DEVNULL,
) -> Program:
    """What the command line runs, once it is known that it exists. ConfigError otherwise."""
    from art.rollouts.command import PROGRAM_SECONDS, Program

    if shutil.which(program[0]) is None:
        raise WrongUsage(
            f"there is no program {program[0]!r}",
            hint="it is looked for in PATH; a file here is ./name, and must be executable",
        )
    return Program(
        command=program,
        environment=dict(os.environ),
        reward_command=reward_command,
        timeout=PROGRAM_SECONDS if timeout is None else timeout,
        stdin=stdin,
    )


def scenario_of(text: str, where: str) -> Any:
    """A scenario as data. ConfigError, with `where`, for what is no JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise WrongUsage(
            f"{where} is no JSON", cause=str(error), hint='a text needs quotes of its own: "\\"Oslo\\""'
        ) from error


def explain_hint(rollout_id: str, url: str | None, backend: ServerBackend) -> str:
    """The command that tells more about a rollout of this server."""
    where = f"--url {url}" if url else f"--path {backend.base_path()}"
    return f"art explain {rollout_id} {where}"


def line_of(run: Run) -> str:
    """One line for a person."""
    reward = "no reward" if run.reward is None else f"reward {run.reward:g} ({run.source})"
    calls = "1 call" if run.calls == 1 else f"{run.calls} calls"
    why = f": {'; '.join(run.reason.splitlines())}" if run.reason else ""
    return f"{run.rollout_id}: {reward}, {calls}, {run.tokens} tokens, {run.status.value}{why}"
