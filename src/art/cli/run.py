"""`art run`: train as a run.toml says."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art.cli._served import Key
from art.cli._settings import File, Set, settings_of
from art.cli._usage import WrongUsage

if TYPE_CHECKING:
    from art.config.load import Loaded
    from art.run.loop import Outcome

JSON_LINES = "art.cli._output:RunEvent"
NOTHING_LEARNED = 3
"""Exit status when every batch was run and none published a step."""
BUDGET = 4
"""Exit status when the budget ended the run before its last batch."""

ModelName = Annotated[
    str | None, typer.Option("--model", metavar="PROJECT/NAME", help="Another name is a fresh start.")
]
Path_ = Annotated[
    Path | None, typer.Option("--path", help="Folder of the server, started when none runs there.")
]


def command(
    file: File = None,
    *,
    set_: Set = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Batches in all (run.steps).")] = None,
    model: ModelName = None,
    base_model: Annotated[str | None, typer.Option(help="A folder or a hub id (model.base_model).")] = None,
    url: Annotated[str | None, typer.Option(help="A server that runs already (run.url).")] = None,
    key: Key = None,
    path: Path_ = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line on stdout.")] = False,
) -> None:
    """Train a model as run.toml says (docs/run.md). Run it again and it goes on where it stopped.

    The first Ctrl-C lets the batch in hand end, the second stops at once. The settings, and who set them, are kept
    with the model: run.resolved.toml in its folder gives the same run again.

    Exit status: 0 when all batches are done, 1 when ART failed, 2 for a wrong command line, 3 when nothing was
    learned, 4 when the budget is used up, 130 after Ctrl-C, also where the batch in hand ended.

    Examples:

      art run --steps 50

      art run weather/run.toml --set train.learning_rate=1e-4 --set limits.max_tokens=8k --json
    """
    named: dict[str, dict[str, Any]] = {
        "run": {"steps": steps, "url": url},
        "model": {"base_model": base_model, **_named(model)},
        "server": {"path": None if path is None else str(path)},
    }
    loaded = settings_of(file, set_, named)
    if loaded.file is None and not loaded.origins:
        raise WrongUsage(
            "there is no run.toml here",
            hint="art init NAME writes a project with one; or name the file: art run FOLDER/run.toml",
        )
    from art.config.runnable import require_runnable

    require_runnable(loaded)
    outcome, stopped = _run(loaded, key, as_json=as_json)
    if stopped is not None:
        sys.exit(128 + stopped)
    if outcome.ended == "budget":
        raise typer.Exit(BUDGET)
    if outcome.trained and not outcome.published:
        raise typer.Exit(NOTHING_LEARNED)


def _run(loaded: Loaded, key: str | None, *, as_json: bool) -> tuple[Outcome, signal.Signals | None]:
    """What came of the run, and the signal that ended it before its last batch."""
    from art.run.display import Display
    from art.run.loop import Run
    from art.run.parts import load_parts
    from art.run.progress import Progress
    from art.run.server import backend_of
    from art.run.signals import Stopping

    parts = load_parts(loaded)
    progress = Progress(
        name=f"{loaded.model.project}/{loaded.model.name}",
        steps=loaded.run.steps,
        groups=loaded.run.groups_per_step,
        group_size=loaded.run.rollouts_per_group,
    )
    with (
        backend_of(loaded, key) as backend,
        Display(progress, events=sys.stdout if as_json else None) as display,
    ):
        stopping = Stopping(display.say)
        run = Run(loaded, parts, backend, progress, display, stopping)
        try:
            outcome = asyncio.run(run.go())
        except asyncio.CancelledError:
            if stopping.signal is None:
                raise
            sys.exit(128 + stopping.signal)
        display.say(_said(progress.name, outcome), event="end", **vars(outcome))
    return outcome, stopping.signal if outcome.ended == "stopped" else None


def _said(name: str, outcome: Outcome) -> str:
    if not outcome.trained:
        return ""
    where = f", {outcome.checkpoint_path}" if outcome.checkpoint_path else ""
    batches = "1 batch" if outcome.trained == 1 else f"{outcome.trained} batches"
    return f"{name}: {batches}, {outcome.published} published; step {outcome.step}{where}"


def _named(model: str | None) -> dict[str, str]:
    if model is None:
        return {}
    project, slash, name = model.partition("/")
    if not slash or not project or not name or "/" in name:
        raise WrongUsage(f"--model {model} names no model", hint="--model PROJECT/NAME")
    return {"project": project, "name": name}
