"""`art doctor`: does this machine serve and train a base model as it should?"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from art.cli._output import DoctorReport, print_json
from art.cli._served import AsJson, run_to_the_end
from art.cli._usage import WrongUsage
from art.config.model import LoraConfig, ModelConfig
from art.errors import ArtError
from art.types.doctor import Check
from art.version import DISTRIBUTION, package_version

if TYPE_CHECKING:
    from art.model import TrainableModel
    from art.trajectories import Trajectory

JSON = ("art.cli._output:DoctorReport", "art.types.data_flow:DataFlow")
CHECK_FAILED = 3
"""Exit status when a check failed."""
SECONDS = 1800.0
"""For the checks that load the model; a large one takes minutes to read, a new one to download."""
PACKAGES = ("torch", "transformers", "peft", "tokenizers", "starlette", "openai", "httpx2", "pydantic")
SERVER_PARTS = ("torch", "transformers", "peft", "tokenizers", "starlette", "uvicorn", "jinja2")
"""Modules of the extra `server`."""
SAMPLES = 8
SERVED_RATE = {"lora": 1e-4, "full": 1e-5}
"""Learning rates of the step that is served."""


def command(
    base_model: Annotated[
        str | None,
        typer.Option(help="The base model to check: a folder or a hub id. Default: a tiny model of our own."),
    ] = None,
    *,
    training: Annotated[
        str, typer.Option(help="What is to be trained: lora, or full for all weights.")
    ] = "lora",
    rank: Annotated[int, typer.Option(help="The adapter's rank.")] = LoraConfig().r,
    quantization: Annotated[
        str | None, typer.Option(help="Round the base model's matrices: int8 or nf4.")
    ] = None,
    path: Annotated[
        Path, typer.Option(help="Folder whose converted base models are used; nothing else of it is touched.")
    ] = Path(".art"),
    serve: Annotated[
        bool, typer.Option("--serve/--no-serve", help="Also serve the model, sample and train over HTTP.")
    ] = True,
    data_flow: Annotated[
        bool, typer.Option("--data-flow", help="List every place data can go, now, and make no check.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="With --data-flow: the TOML file that a server would start with.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine, and that a base model fits and is served and trained as it should.

    One line a check, with what to do where something is wrong. Everything is tried in a temporary folder.

    Exit status: 0 when nothing failed, 1 when the checks could not be made, 2 for a wrong command line, 3 when a
    check failed, 130 after Ctrl-C.

    Examples:

      art doctor

      art doctor --base-model HuggingFaceTB/SmolLM2-135M-Instruct --training full --json

      art doctor --data-flow --path runs
    """
    if data_flow:
        show_data_flow(path, config, as_json=as_json)
        return
    if config is not None:
        raise WrongUsage("--config is for --data-flow", hint="leave it out")
    found: list[Check] = []
    for check in every_check(wanted(base_model, training, rank, quantization), path, serve=serve):
        found.append(check)
        if not as_json:
            typer.echo("\n".join(lines(check)))
    failed = any(check.status == "failed" for check in found)
    if as_json:
        print_json(DoctorReport(ok=not failed, checks=found))
    if failed:
        raise typer.Exit(CHECK_FAILED)


def wanted(base_model: str | None, training: str, rank: int, quantization: str | None) -> ModelConfig:
    """What the options ask for; WrongUsage for what no model can be."""
    lora = {"r": rank} if rank != LoraConfig().r else {}
    try:
        return ModelConfig.model_validate(
            {"base_model": base_model or "", "training": training, "lora": lora, "quantization": quantization}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise WrongUsage(f"--{first['loc'][0]}: {first['msg']}") from error
    except ArtError as error:
        raise WrongUsage(error.message, cause=error.cause, hint=error.hint) from error


def show_data_flow(path: Path, config: Path | None, *, as_json: bool) -> None:
    """Every place data can go, now."""
    from art.cli import _data_flow

    told = _data_flow.report(path, config)
    typer.echo(told.model_dump_json(indent=2) if as_json else "\n".join(_data_flow.lines(told)))


def every_check(config: ModelConfig, path: Path, *, serve: bool) -> Iterator[Check]:
    """Each as soon as it is known."""
    yield environment()
    yield name_clash(packages_distributions())
    missing = [name for name in SERVER_PARTS if find_spec(name) is None]
    if missing:
        yield Check(
            name="server parts",
            status="failed",
            detail=f"{', '.join(missing)} cannot be imported: this machine can run agents, not serve or train",
            hint=f'pip install "{DISTRIBUTION}[server]"; a program that only uses a RemoteBackend needs none of it',
        )
        return
    with tempfile.TemporaryDirectory(prefix="art-doctor-") as scratch:
        made = diagnose(config, Path(scratch), path / "server" / "base_models")
        yield from made
        if serve:
            yield served(config, made, Path(scratch) / "served")


def environment() -> Check:
    """Versions and cores."""
    versions = {name: installed(name) for name in PACKAGES}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shown = ", ".join(f"{name} {number}" for name, number in versions.items() if number)
    return Check(
        name="environment",
        status="ok",
        detail=f"art {package_version()}, Python {platform.python_version()}, {shown}; {cores} cores",
        figures={
            "art": package_version(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": cores,
            "packages": versions,
        },
    )


def installed(name: str) -> str | None:
    """A distribution's version."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def name_clash(providers: Mapping[str, Sequence[str]]) -> Check:
    """Whether another distribution brings a package `art`, whose files would mix with ours.

    `providers`: by the name of each importable package, the distributions that bring it.
    """
    others = sorted(set(providers.get("art", ())) - {DISTRIBUTION})
    if not others:
        return Check(name="name clash", status="ok", detail="no other installed package is named art")
    named = ", ".join(others)
    return Check(
        name="name clash",
        status="failed",
        detail=f"{named} brings a package named art too, and the files of the two lie in one folder",
        hint=f"pip uninstall {' '.join(others)}, then pip install --force-reinstall --no-deps {DISTRIBUTION}",
        figures={"distributions": others},
    )


def diagnose(config: ModelConfig, scratch: Path, cache_dir: Path) -> list[Check]:
    """The checks that need torch, made by a process of their own (cli/_diagnosis.py)."""
    out = scratch / "checks.jsonl"
    argv = [sys.executable, "-m", "art.cli._diagnosis", "--out", str(out), "--scratch", str(scratch)]
    argv += ["--cache-dir", str(cache_dir.absolute()), "--config", config.model_dump_json()]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS)
        ended = (
            f"the process that makes the checks ended with status {done.returncode}"
            if done.returncode
            else ""
        )
        told = done.stderr.strip().splitlines()[-1:]
    except subprocess.TimeoutExpired:
        ended, told = f"the checks did not end within {SECONDS:.0f} s", []
    checks = (
        [Check.model_validate_json(line) for line in out.read_text().splitlines()] if out.exists() else []
    )
    if ended:
        checks.append(
            Check(
                name="diagnosis",
                status="failed",
                detail=": ".join([ended, *told]),
                hint="a status of -9 means that memory ran out; else run python -m art.cli._diagnosis --help",
            )
        )
    return checks


def served(config: ModelConfig, made: Sequence[Check], folder: Path) -> Check:
    """The parity check on a server of its own: one token is sampled several times, and trained on."""
    base = next((check for check in made if check.name == "base model" and check.status == "ok"), None)
    if base is None or any(check.status == "failed" for check in made):
        return Check(name="served", status="skipped", detail="a check before it failed")
    try:
        return run_to_the_end(
            sample_and_train(config.model_copy(update={"base_model": base.figures["path"]}), folder)
        )
    except ArtError as error:
        detail = f"{error.message}: {error.cause}" if error.cause else error.message
        return Check(name="served", status="failed", detail=detail, hint=error.hint)


async def sample_and_train(config: ModelConfig, folder: Path) -> Check:
    """ArtError where a part of the way fails, ParityFailed where engine and trainer disagree."""
    import art

    async with art.LocalBackend(path=folder) as backend:
        model = art.TrainableModel(
            name="doctor",
            project="doctor",
            base_model=config.base_model,
            training=config.training,
            lora=config.lora,
        )
        await model.register(backend)
        group = art.TrajectoryGroup(one_token(model, number) for number in range(SAMPLES))
        groups = await art.gather_trajectory_groups([group], pbar_desc=None)
        rate = SERVED_RATE[config.training]
        result = await backend.train(model, groups, config=art.TrainConfig(learning_rate=rate))
    figures = {name: value for name, value in result.metrics.items() if name.startswith("parity/")}
    if not result.published:
        return Check(name="served", status="failed", detail=result.reason, figures=figures)
    mean = figures.get("parity/mean", 0.0)
    detail = (
        f"{SAMPLES} sampled tokens were recorded and trained, the new step passed the engine's self-check; engine and "
        f"trainer differ by {mean:.2g} nats in the mean"
    )
    return Check(name="served", status="ok", detail=detail, figures=figures)


async def one_token(model: TrainableModel[Any, Any], number: int) -> Trajectory:
    """One call of one token; every other one is rewarded."""
    import art

    messages: list[Any] = [{"role": "user", "content": "Say a word."}]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=1
    )
    return art.Trajectory(messages_and_choices=[*messages, completion.choices[0]], reward=float(number % 2))


def lines(check: Check) -> list[str]:
    """A check for a person: a line, and what to do below it."""
    shown = [f"{check.status:8}{check.name}: {check.detail}"]
    return [*shown, f"{'':8}what to do: {check.hint}"] if check.hint else shown
