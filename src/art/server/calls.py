"""One call to a model, whatever the dialect it came in: what was asked, and how it will be served."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from art.errors import InvalidInput, PromptTooLong
from art.server.places import Place
from art.server.sampling import ResolvedSampling, call_seed, resolve_sampling
from art.server.session import CallHeaders, Session, ending
from art.server.sessions import Located, Sessions
from art.server.structured import form_of, grammar_of
from art.server.text_prompt import text_prompt
from art.server.versions import ModelEntry
from art.tokens.graph import Match, Node, prefix_digests
from art.tokens.openings import opening_options
from art.tokens.prompt import Prompt, prompt_after
from art.types.messages import Message, Tool, ToolChoice


@dataclass(frozen=True, slots=True)
class CallRequest:
    """What a dialect parsed."""

    model: str
    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    """Further variables for the chat template."""
    asked: dict[str, Any] = field(default_factory=dict)
    """Sampling options that the request gave (names of SamplingParams and of sampling.UNSUPPORTED)."""
    n: int = 1
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_tool_calls: bool = True
    response_schema: dict[str, Any] | None = None
    """JSON schema that the answer's text must follow; {} is any JSON object. None is free text."""
    prompt: str | tuple[int, ...] | None = None
    """Text or tokens to be continued as they are, in place of `messages`, which is then empty until the call is planned."""
    wishes: dict[str, Any] = field(default_factory=dict)
    """Variables for chat templates that have them; others take no notice (`settled`)."""
    openings: frozenset[str] = frozenset()
    """Options that the history does not depend on, so that switching them makes no branch."""
    dialect: str = "openai.chat"
    continues: str | None = None
    """The rollout of the answer that the request names as the one it continues."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What the dialect needs in order to answer for this call later; stored with its text."""
    size: int = 0
    """Bytes of the request; large ones are tokenised beside the event loop."""

    def digests(self) -> list[str]:
        """Of the first 1, 2, ... messages, for the token memory."""
        lasting = {name: value for name, value in self.options.items() if name not in self.openings}
        return prefix_digests(self.messages, tools=self.tools, options=lasting)

    def settled(self, entry: ModelEntry) -> CallRequest:
        """With the wishes that the model's template can follow among its options. Before `digests`."""
        heard = {name: value for name, value in self.wishes.items() if name in entry.renderer.variables}
        openings = opening_options(entry.renderer, heard)
        return replace(self, options={**heard, **self.options}, wishes={}, openings=openings)


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A call that can be served: everything decided before the first token."""

    call_id: str
    request: CallRequest
    session: Session
    entry: ModelEntry
    step: int
    number: int
    branch: int
    prompt: Prompt
    parent: Node | None
    """The choice this call continues, of the same session."""
    new_messages: Sequence[Message]
    """Messages since the parent call; all of them without a parent."""
    sampling: ResolvedSampling
    max_tokens: int
    draw: int
    """The call's number in the rollout, as far as its seeds go."""
    seeds: tuple[int, ...]
    place: Place
    """Which of the rollout's system prompts and openings it has."""
    agent: str | None = None
    auxiliary: bool | None = None
    """What the caller said: whether it is a call on the side."""
    grammar: str = ""
    """What every choice must be, for the engine; "" is free text."""

    @property
    def parent_call_id(self) -> str | None:
        return self.parent.call_id if self.parent is not None else None

    @property
    def version(self) -> str:
        """`project/name@step`."""
        return self.entry.version(self.step)


async def plan_call(
    sessions: Sessions,
    request: CallRequest,
    located: Located,
    digests: Sequence[str],
    *,
    headers: CallHeaders,
) -> CallPlan:
    """Decide prompt, parameters and seeds of a call. The caller holds `session.planning`.

    PromptTooLong with the numbers, LimitReached, UnsupportedOption, InvalidInput with the template's reason.
    """
    session, entry = located.session, located.entry
    sampling = resolve_sampling(request.asked, session.rule)
    _check_tools(request, entry)
    _check_options(request.options, entry)
    if request.prompt is not None:
        prompt, said = await text_prompt(sessions.off_loop, located, request.prompt, size=request.size)
        request = replace(request, messages=said)
    else:
        match = located.borrowed or session.graph.match(digests, request.messages)
        at_most = entry.context_length - 1
        prompt = await chat_prompt(sessions, request, entry, match, digests, at_most=at_most)
    room = _room(entry, len(prompt.token_ids))
    form = form_of(request.tools, request.tool_choice, request.response_schema, request.parallel_tool_calls)
    grammar = await grammar_of(sessions.off_loop, form, entry, prompt.token_ids)
    if session.stopped:
        raise ending(session.id)
    number, draw = session.begin_call(), session.take_draw()
    left = session.tokens_left()
    if left is not None:
        room = min(room, max(1, left // request.n))
    parent = prompt.node if located.borrowed is None else None
    _announce(sessions, session, sampling)
    return CallPlan(
        call_id=f"call-{uuid.uuid4().hex}",
        request=request,
        session=session,
        entry=entry,
        step=located.step,
        number=number,
        branch=session.graph.branch_for(parent, prompt.turn),
        prompt=prompt,
        parent=parent,
        new_messages=request.messages[prompt.depth :] if parent is not None else request.messages,
        sampling=sampling,
        max_tokens=min(room, sampling.params.max_tokens or room),
        draw=draw,
        seeds=tuple(
            call_seed(session.seeds, draw, choice, sampling.params.seed, session.rule)
            for choice in range(request.n)
        ),
        agent=headers.agent,
        auxiliary=headers.auxiliary,
        place=session.places.of(request.messages),
        grammar=grammar,
    )


async def count_prompt(
    sessions: Sessions, request: CallRequest, entry: ModelEntry, match: Match, digests: Sequence[str]
) -> int:
    """Tokens of the prompt that a chat would have, whether it fits or not. Refused like the chat itself."""
    _check_tools(request, entry)
    _check_options(request.options, entry)
    prompt = await chat_prompt(sessions, request, entry, match, digests, at_most=None)
    return len(prompt.token_ids)


async def chat_prompt(
    sessions: Sessions,
    request: CallRequest,
    entry: ModelEntry,
    match: Match,
    digests: Sequence[str],
    *,
    at_most: int | None,
) -> Prompt:
    """The tokens of a chat behind the known path `match`."""
    return await sessions.off_loop.run(
        request.size,
        prompt_after,
        entry.renderer,
        match,
        request.messages,
        digests,
        tools=request.tools,
        options=request.options,
        history=entry.row.config.history,
        at_most=at_most,
    )


def _check_tools(request: CallRequest, entry: ModelEntry) -> None:
    """InvalidInput for tools where the model's template cannot hold their results."""
    if request.tools and entry.proof.tools_refused:
        raise InvalidInput(
            f"{entry.wire_name} cannot take tools",
            cause=f"its chat template holds no tool results: {entry.proof.tools_refused}",
            hint="register the model with a chat_template that has a tool role",
        )


def _room(entry: ModelEntry, prompt_tokens: int) -> int:
    """Tokens that the context leaves for the completion."""
    room = entry.context_length - prompt_tokens
    if room < 1:
        raise PromptTooLong(
            f"the prompt has {prompt_tokens} tokens, {entry.wire_name} takes {entry.context_length}"
            " with its completion",
            hint="shorten or summarise the history, or use a base model with a longer context",
        )
    return room


def _check_options(options: Mapping[str, Any], entry: ModelEntry) -> None:
    """A template variable that the template never reads would be ignored, so it is refused."""
    unread = sorted(set(options) - entry.renderer.variables)
    if unread:
        raise InvalidInput(
            f"the chat template of {entry.wire_name} has no variable {unread[0]!r}",
            cause="chat_template_kwargs become variables of the chat template",
            hint=f"leave it out; the template reads: {', '.join(sorted(entry.renderer.variables))}",
        )


def _announce(sessions: Sessions, session: Session, sampling: ResolvedSampling) -> None:
    """Say once per kind of session which of the caller's values are not followed."""
    for override in sampling.overrides:
        sessions.announce(
            f"{session.row.purpose.value} {session.rule} {override.name}",
            f"in training sessions {override.name}={override.asked!r} is sampled as {override.used!r}"
            ' (sampling="caller" switches this off)',
        )
