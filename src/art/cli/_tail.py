"""Following a server's events. An event says that something changed, and what changed is read anew: a connection that
broke, and events that were dropped because we were slow, lose nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import httpx2
import typer

from art.cli._output import TailLine
from art.cli._text import coloured, reward, span, styled
from art.cli._trajectory import many, scenario_name
from art.cli._views import VIEWS, Views, run_path
from art.errors import InfraError, NotFound, ServerUnreachable
from art.types.policy import RolloutStatus
from art.types.wire_views import (
    MetricInfo,
    MetricList,
    RolloutLine,
    RolloutList,
    RunList,
    StepLine,
    StepList,
    TrajectoryDetail,
)
from art.utils.console import say
from art.utils.visible import clean, clean_json

Run = tuple[str, str]
SILENCE_SECONDS = 45.0
"""The server sends a comment every 15 seconds; three that are missing mean a dead connection."""
GATHER_SECONDS = 0.3
"""After an event, before what changed is read: changes come in crowds."""
OUTAGE_SECONDS = 600.0
"""How long a server that has answered before is waited for."""
PAUSE_FIRST, PAUSE_LAST = 0.5, 5.0
MAX_BACK = 10_000
_ENDED = {status.value for status in RolloutStatus} - {RolloutStatus.RUNNING.value}
"""Rollouts that --since goes back over, at most, of each run."""


class Tail:
    """What was shown already, and what is not yet."""

    def __init__(self, views: Views, only: Run | None, emit: Callable[[TailLine], None]) -> None:
        self._views = views
        self._only = only
        self._emit = emit
        self._ended: dict[Run, set[str]] = {}
        """Rollouts that were shown, or had ended before we began."""
        self._batches: dict[Run, int] = {}
        self._changed: dict[Run, set[str]] = {}
        """Runs of which events told, with the ids in them."""
        self._everything = False
        self._wake = asyncio.Event()
        self._infos: dict[str, MetricInfo] | None = None
        self._began = 0.0

    async def run(self, since: float) -> None:
        """Follow until cancelled. ServerUnreachable when the server stays away."""
        self._began = time.time() - since
        await self._catch_up()
        away: float | None = None
        pause = PAUSE_FIRST
        while True:
            try:
                async with self._views.connection.events(
                    f"{VIEWS}/events{self._query()}", last_event_id=0, silence_seconds=SILENCE_SECONDS
                ) as events:
                    if away is not None:
                        say("the server is back")
                    away, pause = None, PAUSE_FIRST
                    self._everything = True  # what happened between the last look and now
                    self._wake.set()
                    await self._follow(events)
            except (httpx2.TransportError, InfraError) as error:
                now = time.monotonic()
                if away is None:
                    away = now
                    say(f"the server went away ({type(error).__name__}), trying again")
                if now - away > OUTAGE_SECONDS:
                    raise ServerUnreachable(
                        f"the server was away for more than {OUTAGE_SECONDS / 60:.0f} minutes",
                        cause=str(error),
                    ) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_LAST)

    def _query(self) -> str:
        return (
            "" if self._only is None else "?" + urlencode({"project": self._only[0], "name": self._only[1]})
        )

    async def _follow(self, events: AsyncIterator[Mapping[str, Any]]) -> None:
        """Until the stream ends."""
        tasks = [
            asyncio.create_task(self._listen(events), name="tail-events"),
            asyncio.create_task(self._keep_showing(), name="tail-show"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _listen(self, events: AsyncIterator[Mapping[str, Any]]) -> None:
        async for event in events:
            project, name = event.get("project"), event.get("name")
            if project and name:
                found = self._changed.setdefault((str(project), str(name)), set())
                if event.get("status") in _ENDED:
                    found.add(str(event.get("id")))
            else:  # the server could not tell all, and says so
                self._everything = True
            self._wake.set()

    async def _keep_showing(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._wake.clear()
            changed, self._changed = self._changed, {}
            if self._everything:
                self._everything = False
                await self._catch_up()
            for run, ids in changed.items():
                if self._only in (None, run):
                    await self._look(run, ids)

    async def _catch_up(self) -> None:
        """Look at every run that was touched since we began."""
        if self._only is not None:
            await self._look(self._only, set())
            return
        async for page in self._views.pages(RunList, "/runs", limit=1000):
            for line in page.runs:  # newest first
                if line.updated_at < self._began and (line.project, line.name) not in self._batches:
                    return
                await self._look((line.project, line.name), set())

    async def _look(self, run: Run, ids: set[str]) -> None:
        """Show what is new in a run; `ids` are rollouts that changed, which may be old ones."""
        try:
            await self._rollouts(run, ids)
            await self._steps(run)
        except NotFound:
            return  # it was deleted, or is another project's

    async def _rollouts(self, run: Run, ids: set[str]) -> None:
        first = run not in self._ended
        seen = self._ended.setdefault(run, set())
        found: list[RolloutLine] = []
        pages = self._views.pages(
            RolloutList, run_path(run, "rollouts"), limit=MAX_BACK, sort="created_at", order="desc"
        )
        async for page in pages:
            found += page.rollouts
            if (
                not page.rollouts
                or page.rollouts[-1].created_at < self._began
                or (not first and _oldest_ended(page) in seen)
            ):
                break
        listed = {one.rollout_id for one in found}
        for rollout_id in ids - listed - seen:
            if (line := await self._rollout(rollout_id)) is not None:
                found.append(line)
        for line in sorted(found, key=_end):
            if line.status is RolloutStatus.RUNNING or line.rollout_id in seen:
                continue
            seen.add(line.rollout_id)
            if not first or _end(line) >= self._began:
                self._emit(_rollout_line(line))

    async def _rollout(self, rollout_id: str) -> RolloutLine | None:
        """One that is not among the newest; None for an id of something else."""
        try:
            path = f"/rollouts/{quote(rollout_id, safe='')}"
            return (await self._views.get(TrajectoryDetail, path)).rollout
        except NotFound:
            return None

    async def _steps(self, run: Run) -> None:
        first = run not in self._batches
        last = self._batches.get(run, -1)
        page = await self._views.get(StepList, run_path(run, "steps"), limit=50)
        for line in reversed(page.steps):
            if line.batch > last and (not first or line.time >= self._began):
                self._emit(await self._step_line(run, line))
        self._batches[run] = max([last, *(line.batch for line in page.steps)])

    async def _step_line(self, run: Run, line: StepLine) -> TailLine:
        if line.warnings and self._infos is None:
            known = await self._views.get(MetricList, "/metrics")
            self._infos = {info.name: info for info in known.metrics}
        published = f"step {line.step}" if line.published else f"no step: {clean(line.reason)}"
        took = "" if line.seconds is None else f"  in {span(line.seconds)}"
        text = (
            f"{'/'.join(run)}  batch {line.batch}  {published}  reward {reward(line.reward)} ± "
            f"{reward(line.reward_std_dev)}  {many(line.groups, 'group')}, {many(line.rollouts, 'rollout')}{took}"
        )
        for name in line.warnings:
            info = (self._infos or {}).get(name)
            value = line.metrics.get(name)
            told = f": {info.warning}" if info is not None and info.warning else ""
            text += f"\n  warning: {clean(name)} is {'?' if value is None else f'{value:.4g}'}{told}"
        return TailLine(kind="step", time=line.time, project=run[0], name=run[1], step=line, text=text)


def _oldest_ended(page: RolloutList) -> str:
    """Id of the oldest rollout of a page that has ended; those behind it ended before."""
    ended = [one.rollout_id for one in page.rollouts if one.status is not RolloutStatus.RUNNING]
    return ended[-1] if ended else ""


def _end(line: RolloutLine) -> float:
    return line.created_at + (line.seconds or 0.0)


def _rollout_line(line: RolloutLine) -> TailLine:
    worth = "no reward" if line.reward is None else f"reward {reward(line.reward)}"
    scenario = f"  {scenario_name(line)}" if line.scenario_id else ""
    failed = f"  {many(line.tool_errors, 'tool error')}" if line.tool_errors else ""
    more = clean(line.reason or line.preview)
    text = (
        f"{line.project}/{line.model}@{line.step}  {clean(line.rollout_id)}  {line.status.value}  {worth}  "
        f"{many(line.calls, 'call')}, {line.sampled_tokens:,} tokens{failed}{scenario}  {more}"
    ).rstrip()
    return TailLine(
        kind="rollout", time=_end(line), project=line.project, name=line.model, rollout=line, text=text
    )


def show(line: TailLine, *, as_json: bool) -> None:
    """One line, at once."""
    if as_json:
        typer.echo(clean_json(line.model_dump_json()))
        return
    when = time.strftime("%H:%M:%S", time.localtime(line.time))
    text = line.text
    if line.rollout is not None:
        status = line.rollout.status.value
        text = text.replace(f"  {status}  ", f"  {coloured(status)}  ", 1)
    first, *warnings = text.split("\n")
    typer.echo(f"{when}  {styled(first, bold=line.kind == 'step')}")
    for warning in warnings:
        typer.echo(styled(warning, fg="yellow"))
