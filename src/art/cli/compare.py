"""`art compare`: two runs, two steps, or two evaluations, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli._complete import model_names
from art.cli._lists import columns
from art.cli._output import Compared, FigureDifference, RunComparison, print_json
from art.cli._served import AsJson, Key, ReadPath, Url
from art.cli._text import number, styled, table
from art.cli._usage import WrongUsage
from art.cli._views import Views, read, run_path
from art.cli.show import train_call
from art.errors import ArtError, InvalidInput, NotFound
from art.evals.comparison import Comparison
from art.evals.comparison import compare as compare_paired
from art.evals.result import EvalResult, EvalRun, ScenarioRuns
from art.types.metrics import in_order
from art.types.wire import CheckpointList
from art.types.wire_views import MetricInfo, MetricList, RolloutList, RunDetail, RunList

JSON = "art.cli._output:RunComparison"
MAX_RUNS = 10_000
"""Evaluation rollouts of one side."""
SHOWN_RUNS = 50
"""The newest, among which an example is looked for."""


def _side(metavar: str) -> Any:
    return typer.Argument(
        help="Needed: project/name, project/name@step, or what art eval --json wrote.",
        metavar=metavar,
        show_default=False,
        autocompletion=model_names,
    )


@dataclass(frozen=True)
class Read:
    """One side of the comparison."""

    label: str
    figures: Mapping[str, float]
    evaluation: EvalResult | None


def command(
    a: Annotated[str | None, _side("A")] = None,
    b: Annotated[str | None, _side("B")] = None,
    *,
    metric: Annotated[
        list[str] | None, typer.Option(help="Only figures that begin so, as loss/ or val/; repeatable.")
    ] = None,
    url: Url = None,
    key: Key = None,
    path: ReadPath = None,
    as_json: AsJson = False,
) -> None:
    """Compare B with A: every figure with its difference, and evaluations scenario by scenario.

    A run is compared by its newest figures, a step by those of the train call that published it. Evaluation rollouts
    of the same scenarios are paired, and the difference has a 95 % interval; without --metric a star marks the better side.

    Examples:

      art compare shop/agent@4 shop/agent@12 --metric loss/ --metric train/

      art compare before.json after.json --json
    """
    if a is None or b is None:
        raise _one_is_missing(a, url, key, path)
    infos: dict[str, MetricInfo] = {}
    both = RunComparison(a=a, b=b, figures=[], evaluation=None)
    if _is_file(a) and _is_file(b):
        first, second = _of_file(a), _of_file(b)
    elif _is_file(a) or _is_file(b):
        raise WrongUsage(
            "a file of art eval can be compared with another one alone", hint="give two files, or two runs"
        )
    else:
        first, second, infos = read(lambda views: _both(views, a, b), url, key, path)
    wanted = tuple(metric or ("",))
    both.figures = differences(first.figures, second.figures, infos, wanted)
    found = paired(first, second)
    both.evaluation = None if found is None else Compared.model_validate(found.summary())
    if not both.figures and (metric or found is None):
        raise NotFound(
            f"{a} and {b} have nothing that could be compared",
            hint="no figure has a name that --metric begins with"
            if metric
            else "neither was trained or evaluated",
        )
    if as_json:
        print_json(both)
        return
    for line in _lines(both, found):
        typer.echo(line)


def _one_is_missing(given: str | None, url: str | None, key: str | None, path: Path | None) -> WrongUsage:
    """What to give, by names that are there."""
    try:
        example = read(lambda views: _two_names(views, given), url, key, path)
    except ArtError:  # nothing can be looked at: an example will do
        example = "shop/agent@4 shop/agent@12"
    return WrongUsage(
        "art compare needs two things to compare",
        cause=f"it was given {given} alone" if given else "it was given none",
        hint=f"two runs, two steps, or two files of art eval --json: art compare {example}",
    )


async def _two_names(views: Views, given: str | None) -> str:
    """Two runs, what was given first; two steps of a run that is alone. NotFound where there is nothing of the kind."""
    lines = (await views.get(RunList, "/runs", limit=SHOWN_RUNS)).runs
    runs = [f"{line.project}/{line.name}" for line in lines]
    named = (given or "").partition("@")[0]
    first = given if given and named in runs else next(iter(runs), None)
    if first is None:
        raise NotFound("there is no run yet")
    run = first.partition("@")[0]
    if others := [one for one in runs if one != run]:
        return f"{first} {others[0]}"
    project, _, name = run.partition("/")
    route = f"/api/v1/models{run_path((project, name)).removeprefix('/runs')}/checkpoints"
    checkpoints = (await views.get(CheckpointList, route)).checkpoints
    steps = [f"{run}@{number}" for number in sorted(one.step for one in checkpoints)]
    if len(steps) < 2:
        raise NotFound(f"{run} is alone, and has one step")
    before = first if first in steps[:-1] else steps[0]
    return f"{before} {steps[-1]}"


def differences(
    a: Mapping[str, float], b: Mapping[str, float], infos: Mapping[str, MetricInfo], prefixes: tuple[str, ...]
) -> list[FigureDifference]:
    """Every figure that either has, in the order in which a person looks at them."""
    found = []
    for name in in_order(a.keys() | b.keys()):
        if not name.startswith(prefixes):
            continue
        info = infos.get(name)
        first, second = a.get(name), b.get(name)
        difference = None if first is None or second is None else second - first
        found.append(
            FigureDifference(
                name=name,
                unit=info.unit if info else "",
                a=first,
                b=second,
                difference=difference,
                better=_better(difference, info.direction if info else ""),
            )
        )
    return found


def _better(difference: float | None, direction: str) -> Any:
    if not difference or not direction:
        return ""
    return "b" if (difference > 0) == (direction == "up") else "a"


def paired(a: Read, b: Read) -> Comparison | None:
    """The evaluations, by scenario; None where they have none in common."""
    if a.evaluation is None or b.evaluation is None:
        return None
    if not a.evaluation.means.keys() & b.evaluation.means.keys():
        return None
    return compare_paired(a.evaluation, b.evaluation)


def _lines(both: RunComparison, evaluation: Comparison | None) -> list[str]:
    rows = [
        (
            one.name,
            number(one.a) + ("*" if one.better == "a" else " "),
            number(one.b) + ("*" if one.better == "b" else " "),
            "" if one.difference is None else f"{one.difference:+.4g}",
            one.unit if one.unit != "1" else "",
        )
        for one in both.figures
    ]
    out = [styled(f"a {both.a}   b {both.b}", bold=True)]
    if rows:
        out += table(columns("figure a> b> b-a> unit"), rows)
    if evaluation is not None:
        out += ["", *evaluation.lines()]
    return out


def _is_file(name: str) -> bool:
    return name.endswith(".json") and Path(name).is_file()


def _of_file(name: str) -> Read:
    try:
        result = EvalResult.load(json.loads(Path(name).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{name} holds no evaluation", cause=str(error), hint="art eval --json writes one"
        ) from error
    figures = {"mean reward": result.mean, **{f"pass@{k}": value for k, value in result.pass_at_k.items()}}
    if result.latency is not None:
        figures["seconds a run"] = result.latency.mean
    tokens = {"prompt tokens": result.prompt_tokens, "completion tokens": result.completion_tokens}
    return Read(result.model, {**figures, **tokens}, result)


async def _both(views: Views, a: str, b: str) -> tuple[Read, Read, dict[str, MetricInfo]]:
    first, second = await _read(views, a), await _read(views, b)
    names = first.figures.keys() | second.figures.keys()
    known = (await views.get(MetricList, "/metrics")).metrics
    return first, second, infos_of(names, known)


def infos_of(names: Any, known: list[MetricInfo]) -> dict[str, MetricInfo]:
    """What each of these figures means; a pattern's `*` is one part of a name, and an exact name wins over it."""
    exact = {info.name: info for info in known}
    patterns = [info for info in known if "*" in info.name]
    found = {}
    for name in names:
        info = exact.get(name) or next((one for one in patterns if _matches(one.name, name)), None)
        if info is not None:
            found[name] = info
    return found


def _matches(pattern: str, name: str) -> bool:
    wanted, parts = pattern.split("/"), name.split("/")
    return len(wanted) == len(parts) and all(
        one == other or _part(one, other) for one, other in zip(wanted, parts, strict=True)
    )


def _part(pattern: str, part: str) -> bool:
    before, star, after = pattern.partition("*")
    return bool(star) and part.startswith(before) and part.endswith(after)


async def _read(views: Views, name: str) -> Read:
    wanted, at, step = name.partition("@")
    if at and not step.isdecimal():
        raise WrongUsage(f"{name!r} names no step", hint="project/name@3")
    run = await views.run(wanted)
    if not at:
        detail = await views.get(RunDetail, run_path(run))
        figures = {figure.name: figure.last for figure in detail.figures}
        return Read(name, figures, await _evaluation(views, run, detail.run.step, name))
    return Read(name, await _figures(views, run, int(step)), await _evaluation(views, run, int(step), name))


async def _figures(views: Views, run: tuple[str, str], step: int) -> dict[str, float]:
    """Of the train call that published a step; of its checkpoint, where it was published elsewhere."""
    route = f"/api/v1/models{run_path(run).removeprefix('/runs')}/checkpoints"
    checkpoints = (await views.get(CheckpointList, route)).checkpoints
    checkpoint = next((one for one in checkpoints if one.step == step), None)
    line = await train_call(views, run, step)
    if checkpoint is None and line is None:
        raise NotFound(f"{'/'.join(run)} has no step {step}", hint=f"art ls checkpoints {'/'.join(run)}")
    return {**(checkpoint.metrics if checkpoint else {}), **(line.metrics if line else {})}


async def _evaluation(views: Views, run: tuple[str, str], step: int, label: str) -> EvalResult | None:
    """The evaluation rollouts that a step served, as an evaluation; None where there are none."""
    scenarios: dict[str, list[EvalRun]] = {}
    pages = views.pages(
        RolloutList,
        run_path(run, "rollouts"),
        limit=MAX_RUNS,
        step=step,
        filter="purpose = evaluate",
        sort="created_at",
        order="asc",
    )
    async for page in pages:
        for one in page.rollouts:
            if one.scenario_id is not None and one.reward is not None:
                done = EvalRun(
                    reward=one.reward,
                    seconds=one.seconds or 0.0,
                    calls=one.calls,
                    completion_tokens=one.sampled_tokens,
                    rollout_id=one.rollout_id,
                )
                scenarios.setdefault(one.scenario_id, []).append(done)
    if not scenarios:
        return None
    runs = [ScenarioRuns(id=name, runs=found) for name, found in scenarios.items()]
    return EvalResult(model=label, scenarios=runs, repeats=max(len(found.runs) for found in runs))
