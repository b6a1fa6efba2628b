"""`art eval`: how good an agent is with a model, with a confidence interval, from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict

from art.cli._output import Evaluated
from art.cli._served import (
    AsJson,
    Key,
    ModelName,
    Path_,
    Url,
    backend_of,
    choose_model,
    run_to_the_end,
)
from art.cli._settings import Set, checked, only, parsed
from art.cli._units import count_option
from art.cli._usage import WrongUsage
from art.errors import InvalidInput

if TYPE_CHECKING:
    from art.evals.comparison import Comparison
    from art.evals.result import EvalResult

JSON = "art.cli._output:Evaluated"
BELOW = 3
"""Exit status when the mean is under --fail-under."""

Agent = Annotated[
    str,
    typer.Argument(help="module:name of a rollout function, an agent, or what makes one.", metavar="AGENT"),
]
Scenarios = Annotated[Path, typer.Option(help="One JSON value a line; each is one scenario.")]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        help="Of any OpenAI-compatible service, instead of a server of ART; its key in OPENAI_API_KEY.",
    ),
]
# Not shown, like --key: it belongs into the environment.
ApiKey = Annotated[str | None, typer.Option("--api-key", envvar="OPENAI_API_KEY", hidden=True)]
Against = Annotated[
    Path | None,
    typer.Option(help="What an earlier `art eval --json` printed: compared scenario by scenario."),
]
FailUnder = Annotated[
    float | None,
    typer.Option(help="Exit with status 3 when the mean reward is under this.", show_default=False),
]


class EvalSettings(BaseModel):
    """What `--set eval.NAME=VALUE` can say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    success_at: float = 1.0
    """A run passes with at least this reward."""
    seed: int = 0
    """Of the server's sampling and of the intervals."""


def command(
    agent: Agent,
    *,
    scenarios: Scenarios,
    reward: Annotated[str | None, typer.Option(help="module:name of reward(result[, scenario]).")] = None,
    repeats: Annotated[int, count_option("Runs of each scenario.", at_least=1)] = 1,
    concurrency: Annotated[int, count_option("Runs at the same time.", at_least=1)] = 8,
    against: Against = None,
    fail_under: FailUnder = None,
    set_: Set = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate an agent with a model: mean reward with its 95 % interval, pass@k, latency and tokens.

    AGENT is imported from the current folder: what `art.evaluate` takes, such as `async def rollout(model, scenario)`.
    The model is one of an ART server (--model project/name@step), or any OpenAI-compatible one (--base-url URL
    --model NAME). `--set eval.success_at=0.5` says from which reward on a run passes, `--set eval.seed=1` draws anew.

    Exit status: 0, 1 when ART failed, 2 for a wrong command line, 3 when the mean is under --fail-under, 130 after
    Ctrl-C.

    Examples:

      art eval agent:rollout --scenarios held_out.jsonl --model shop/agent@12 --repeats 4 --json > step12.json

      art eval agent:rollout --scenarios held_out.jsonl --base-url https://api.openai.com/v1 --model gpt-4o --against step12.json
    """
    from art.evals.comparison import compare
    from art.evals.result import EvalResult
    from art.rollouts.isolated import load
    from art.rollouts.program_groups import read_scenarios

    given = read_scenarios(scenarios)
    how = checked(EvalSettings, "eval", only(parsed(set_ or []), ("eval",)).get("eval", {}))
    earlier = None if against is None else EvalResult.load(_read(against))
    sys.path.insert(0, str(Path.cwd()))  # a console script does not look there by itself
    options = {
        "reward": None if reward is None else load(reward),
        "repeats": repeats,
        "success_at": how.success_at,
        "max_concurrency": concurrency,
        "seed": how.seed,
    }
    if base_url is not None:
        _refuse_with_base_url(url=url, path=path)
        result = run_to_the_end(_plain(model, base_url, api_key, load(agent), given, options))
    else:
        with backend_of(url, key, path) as backend:
            result = run_to_the_end(_served(backend, model, load(agent), given, options))
    comparison = None if earlier is None else compare(earlier, result, seed=how.seed)
    _show(result, comparison, as_json=as_json)
    if fail_under is not None and result.mean < fail_under:
        typer.echo(f"the mean reward {result.mean:.4g} is under {fail_under:g}", err=True)
        raise typer.Exit(BELOW)


def _show(result: EvalResult, comparison: Comparison | None, *, as_json: bool) -> None:
    if as_json:
        more = {} if comparison is None else {"comparison": comparison.summary()}
        typer.echo(Evaluated.model_validate({**result.summary(), **more}).model_dump_json())
        return
    for line in [*result.lines(), *(comparison.lines() if comparison is not None else [])]:
        typer.echo(line)


def _refuse_with_base_url(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise WrongUsage(
                f"--{name} would be ignored", cause="--base-url names the service", hint="give one of them"
            )


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{file} holds no evaluation", cause=str(error), hint="art eval --json writes one"
        ) from error


async def _served(
    backend: Any, model: str | None, rollout: Any, scenarios: list[Any], options: dict[str, Any]
) -> EvalResult:
    from art.evals.evaluation import evaluate

    chosen = await choose_model(backend, model, None)
    return await evaluate(chosen.model, rollout, scenarios, step=chosen.step, **options)


async def _plain(
    name: str | None,
    base_url: str,
    api_key: str | None,
    rollout: Any,
    scenarios: list[Any],
    options: dict[str, Any],
) -> EvalResult:
    from art.evals.evaluation import evaluate
    from art.model import Model

    if not name:
        raise WrongUsage("--base-url needs --model NAME", hint="the name that the service knows the model by")
    model: Model[Any, Any] = Model(
        name="evaluated",
        project="eval",
        inference_base_url=base_url,
        inference_api_key=api_key or "none",
        inference_model_name=name,
    )
    return await evaluate(model, rollout, scenarios, split=None, **options)
