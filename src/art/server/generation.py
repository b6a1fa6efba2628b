"""Runs a planned call: samples its choices side by side, gives out their text, records them.

A call runs in a task of its own, and clients read it: one that goes away leaves it to another that sends the same
request, or to its end, which is an orderly one: the engine is told, and what was sampled until then is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from art.engine.protocol import Sampled, SampleRequest
from art.errors import ArtError, DeadlineExceeded, InfraError, LimitReached, NotFound, Overloaded
from art.server.admission import Ticket
from art.server.calls import CallPlan
from art.server.capture import Choice, Completed, Times, node_of, record, recorded_end
from art.server.sessions import Sessions
from art.server.structured import callable_tools, check_engine
from art.server.text_prompt import PlainText
from art.server.versions import Lease, Versions
from art.store.store import Store
from art.tokens.formats import OutputParser
from art.tokens.stops import StopMatcher
from art.tokens.tokenizer import Detokenizer
from art.types.messages import Piece, ToolCall

LOADS = 3
"""Times that a choice asks an engine which turns out not to hold the adapter: each time it is loaded anew."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What a choice has to say next."""

    choice: int
    pieces: list[Piece]


class CallRun:
    """One running call. `start` once. Every reader: `attach`, `deltas` or nothing, `result`, and at last `deliver` or `leave`."""

    def __init__(
        self, plan: CallPlan, *, versions: Versions, sessions: Sessions, store: Store, seconds: float
    ) -> None:
        """`seconds`: the call's deadline, its wait for the engine included."""
        self.plan = plan
        self.choices = [Choice(index) for index in range(plan.request.n)]
        self.times = Times(started=time.time())
        self._seconds = seconds
        self._versions = versions
        self._sessions = sessions
        self._store = store
        self._said: list[Delta] = []
        self._news = asyncio.Event()
        """Set, and replaced, when more is said."""
        self._over = False
        self._readers = 0
        self._giving_up: asyncio.TimerHandle | None = None
        self._told: bool | None = None
        """Whether the record says that the answer reached its client; None before it is written."""
        self._task: asyncio.Task[Completed] | None = None
        self._stopped: ArtError | None = None
        self._ending: asyncio.Task[None] | None = None

    def start(self, place: Ticket) -> CallRun:
        """Begin; the call's place among the admitted ones is given back when it has ended."""
        self.plan.session.enter()
        self.plan.session.runs.add(self)
        self._task = asyncio.create_task(self._run(), name=self.plan.call_id)

        def left(task: asyncio.Task[Completed]) -> None:
            if not task.cancelled():
                task.exception()  # heard: its readers get it, and there may be none
            # Not inside the task: one that is cancelled before it begins never runs its `finally`.
            self.plan.session.runs.discard(self)
            self.plan.session.leave()
            place.close()
            self._over = True
            self._wake()

        self._task.add_done_callback(left)
        return self

    def when_over(self, tell: Callable[[int], None]) -> None:
        """`tell` gets the tokens that the call has used, prompt and answers, when it has ended: 0 where nothing was sampled."""
        assert self._task is not None

        def ended(_: asyncio.Task[Completed]) -> None:
            sampled = sum(len(choice.token_ids) for choice in self.choices)
            tell(len(self.plan.prompt.token_ids) + sampled if sampled else 0)

        self._task.add_done_callback(ended)

    async def deltas(self) -> AsyncIterator[Delta]:
        """What the choices say from their beginning, as it is sampled; ends when everything is recorded."""
        at = 0
        while True:
            news = self._news
            while at < len(self._said):
                yield self._said[at]
                at += 1
            if self._over:
                return
            if news is self._news:  # nothing was said meanwhile
                await news.wait()

    async def begun(self, seconds: float) -> bool:
        """Whether something was said; waits for that, or the end, for `seconds` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._said and not self._over:
                    await self._news.wait()
        return bool(self._said)

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def result(self) -> Completed:
        """The recorded call, or the error that ended it. Cancelling the wait does not cancel the call."""
        assert self._task is not None
        return await asyncio.shield(self._task)

    @property
    def unread(self) -> bool:
        """Nobody waits for the answer."""
        return self._readers == 0

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self._task is not None and not self._task.done()

    @property
    def failed(self) -> bool:
        """It ended without an answer."""
        task = self._task
        return task is not None and task.done() and (task.cancelled() or task.exception() is not None)

    def attach(self) -> None:
        """Somebody waits for the answer."""
        self._readers += 1
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    async def deliver(self) -> None:
        """A reader gets the whole answer."""
        self._readers -= 1
        if self._told is False:
            self._told = True
            await self._say_how_it_ended()

    async def leave(self, *, wait: float) -> None:
        """A reader has gone before it had the whole answer. Without another within `wait` seconds the call ends."""
        assert self._task is not None
        self._readers -= 1
        if not self.unread:
            return
        if self._task.done():
            if self._told and not self.failed:
                self._told = False
                await self._say_how_it_ended()
        elif wait > 0:
            self._giving_up = asyncio.get_running_loop().call_later(wait, self._give_up)
        else:
            await self._cancel()

    def _give_up(self) -> None:
        cancelling = asyncio.create_task(self._cancel(), name=f"{self.plan.call_id}-left")
        self._ending = cancelling  # held until it is done

    async def _cancel(self) -> None:
        """Stop sampling, record what there is."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    def stop(self, reason: ArtError) -> None:
        """End the call from the server's side: what was sampled is recorded, the client gets `reason`."""
        assert self._task is not None
        self._stopped = reason
        self._task.cancel()

    async def _run(self) -> Completed:
        try:
            await self._in_time()
        except (asyncio.CancelledError, Exception) as error:
            # The boundary of a call: however it ends, what was sampled is written down.
            reason = "cancelled" if isinstance(error, asyncio.CancelledError) else "error"
            if isinstance(error, InfraError | Overloaded):
                self.plan.session.failed += 1
                self.plan.session.give_back(self.plan.draw)
            for choice in self.choices:  # the ones that had ended were not delivered either
                choice.finish_reason = reason
            self.plan.session.graph.abandon(self.plan.parent, self.plan.branch, self.plan.prompt.turn)
            if any(choice.token_ids for choice in self.choices):
                await asyncio.shield(asyncio.ensure_future(self._record()))
            if self._stopped is not None:
                raise self._stopped from None
            raise
        await self._record()
        return Completed(plan=self.plan, choices=self.choices, created=self.times.started)

    async def _in_time(self) -> None:
        """Sample every choice within the call's deadline. DeadlineExceeded past it."""
        try:
            async with asyncio.timeout(self._seconds):
                with self._versions.hold(self.plan.entry, self.plan.step):
                    await self._all([asyncio.create_task(self._sample(choice)) for choice in self.choices])
        except TimeoutError:
            sampled = sum(len(choice.token_ids) for choice in self.choices)
            raise DeadlineExceeded(
                f"the call was not answered within {self._seconds:g} s",
                cause=f"{sampled} tokens were sampled by then" if sampled else "it waited for the engine",
                hint="ask for fewer tokens, run fewer agents at once, or allow more (X-ART-Timeout, max_call_seconds)",
            ) from None

    async def _all(self, samplers: list[asyncio.Task[None]]) -> None:
        """Wait for every sampler; the first failure, or the call's cancellation, ends the others."""
        try:
            done, _ = await asyncio.wait(
                samplers, timeout=self.plan.session.seconds_left(), return_when=asyncio.FIRST_EXCEPTION
            )
            for sampler in done:
                sampler.result()
        finally:
            for sampler in samplers:
                sampler.cancel()
            await asyncio.wait(samplers)
        for choice in self.choices:  # the rollout's wall time ended first
            choice.finish_reason = choice.finish_reason or "length"
        if not any(choice.token_ids for choice in self.choices):
            raise LimitReached(
                f"the wall time of the rollout {self.plan.session.id} ended before the model answered",
                hint="open it with a larger limits.max_seconds",
            )

    async def _sample(self, choice: Choice) -> None:
        """Sample one choice when its turn has come."""
        plan, text = self.plan, _TextOf(self.plan)
        try:
            for again in reversed(range(LOADS)):
                async with (
                    self._versions.turn(plan.entry, plan.session.id),
                    self._versions.lease(plan.entry, plan.step) as lease,
                ):
                    if await self._ask(lease, choice, text, again=again > 0):
                        break
        finally:
            self._say(choice, text.finish())
        if choice.finish_reason is None:
            raise InfraError("the engine ended a choice without a finish reason")
        if choice.message.tool_calls and choice.finish_reason == "stop":
            choice.finish_reason = "tool_calls"

    async def _ask(self, lease: Lease, choice: Choice, text: _TextOf, *, again: bool) -> bool:
        """Have the engine sample a choice. False where it did not hold the adapter and may be asked `again`."""
        if self.plan.grammar:
            check_engine(lease.engine.capabilities)

        def take(event: Sampled) -> None:
            self._take(choice, event, text)
            if text.stopped and event.finish_reason is None:
                raise _Stopped

        try:
            await lease.engine.generate(self._request(lease, choice), take)
        except _Stopped:
            pass
        except NotFound as error:
            # The process that had loaded the adapter ended between the load and this call; nothing was sampled.
            self._versions.lost(self.plan.entry, self.plan.step)
            if again:
                return False
            raise InfraError(
                "the engine was started anew", cause=str(error), hint="send the call again"
            ) from error
        return True

    def _request(self, lease: Lease, choice: Choice) -> SampleRequest:
        plan = self.plan
        params = plan.sampling.params
        return SampleRequest(
            prompt_token_ids=plan.prompt.token_ids,
            version=lease.version,
            cache_salt=lease.salt,
            max_tokens=plan.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            seed=plan.seeds[choice.index],
            stop_token_ids=tuple(sorted(plan.entry.proof.stop_token_ids)),
            top_logprobs=params.top_logprobs,
            grammar=plan.grammar,
        )

    def _take(self, choice: Choice, event: Sampled, text: _TextOf) -> None:
        """Take over an event's tokens up to a stop string."""
        if event.cached_tokens:
            choice.cached_tokens = event.cached_tokens
        if event.token_ids and self.times.first_token is None:
            self.times.first_token = time.time()
        for at, token in enumerate(event.token_ids):
            choice.add(event, at)
            self._say(choice, text.feed(token))
            if text.stopped:
                choice.finish_reason, choice.stop_sequence = "stop", text.stops.matched
                return
        choice.finish_reason = event.finish_reason

    def _say(self, choice: Choice, pieces: list[Piece]) -> None:
        if not self.plan.request.parallel_tool_calls:
            pieces = _first_call_only(choice.pieces, pieces)
        if pieces:
            choice.say(pieces)
            self._said.append(Delta(choice.index, pieces))
            self._wake()

    async def _record(self) -> None:
        self.times.finished = time.time()
        plan = self.plan
        plan.session.tokens += sum(len(choice.token_ids) for choice in self.choices)
        self._told = not self.unread
        await record(self._store, plan, self.choices, self.times, delivered=self._told)
        for choice in self.choices:
            if choice.token_ids:
                self._sessions.remember(plan.session, plan.entry, node_of(plan, choice))

    async def _say_how_it_ended(self) -> None:
        """Correct the record, which was written before it was known whether the answer would reach its client."""
        reasons = {choice.index: recorded_end(choice, delivered=bool(self._told)) for choice in self.choices}
        await self._store.set_finish_reasons(self.plan.call_id, reasons)


class _Stopped(Exception):
    """The answer ended at a stop string, which only the gateway knows."""


@dataclass(slots=True)
class _TextOf:
    """Tokens of one choice -> text, reasoning and tool calls: detokeniser, stop strings, parser in a row."""

    plan: CallPlan
    stops: StopMatcher = field(init=False)
    parser: OutputParser = field(init=False)
    detokenizer: Detokenizer = field(init=False)

    def __post_init__(self) -> None:
        request = self.plan.request
        formats = self.plan.entry.formats
        if request.prompt is not None:  # nothing in it is a call or a thought
            self.detokenizer = self.plan.entry.renderer.tokenizer.detokenizer()
            self.stops, self.parser = StopMatcher(self.plan.sampling.params.stop), PlainText()
            return
        self.detokenizer = self.plan.entry.renderer.tokenizer.detokenizer(keep=formats.kept_token_ids)
        self.stops = StopMatcher(self.plan.sampling.params.stop)
        self.parser = formats.parser(
            callable_tools(request.tools, request.tool_choice),
            prompt_token_ids=self.plan.prompt.token_ids,
        )

    @property
    def stopped(self) -> bool:
        return self.stops.matched is not None

    def feed(self, token: int) -> list[Piece]:
        """What has become certain with this token. A stop token says nothing."""
        if token in self.plan.entry.proof.stop_token_ids:
            return []
        return self._parse(self.stops.feed(self.detokenizer.feed(token)))

    def finish(self) -> list[Piece]:
        """What was held back."""
        out = self._parse(self.stops.feed(self.detokenizer.finish()) + self.stops.finish())
        return out + self.parser.finish()

    def _parse(self, text: str) -> list[Piece]:
        return self.parser.feed(text) if text else []


def _first_call_only(before: list[Piece], pieces: list[Piece]) -> list[Piece]:
    """`pieces` without calls behind the first one."""
    seen = any(isinstance(piece, ToolCall) for piece in before)
    out: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, ToolCall):
            if seen:
                continue
            seen = True
        out.append(piece)
    return out
