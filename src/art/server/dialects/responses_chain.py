"""What a Responses request refers to and only the store knows: earlier answers, items of theirs, and their reasoning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from art.errors import InvalidInput, NotFound, ThreadNotFound
from art.server.auth import Principal
from art.server.dialects.responses_answer import output_item
from art.server.dialects.responses_items import (
    Item,
    Reference,
    Returned,
    Thinking,
    call_of_item,
    messages_of,
    parse_item,
)
from art.server.dialects.responses_request import DIALECT, ResponsesRequest
from art.server.runs import Run, told_again
from art.store.records import CallText
from art.store.store import Store
from art.store.true_text import true_history, true_text
from art.tokens.graph import node_name
from art.types.messages import Message
from art.types.tokens import CallRecord

_RESPONSE = re.compile(r"resp_(?P<call>call-[0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded call and its text."""

    call: CallRecord
    text: CallText
    whole: bool = True
    """False: the text is what redaction left of it."""

    @property
    def is_response(self) -> bool:
        """Whether clients may name it later."""
        return self.call.dialect == DIALECT and bool(self.text.kept["store"])

    @property
    def answer(self) -> Message:
        """The message of its only choice."""
        return Message.model_validate(self.text.completions[0])

    @property
    def runs(self) -> list[Run]:
        return told_again(self.answer, self.text.outlines[0], self.call.choices[0].token_count)


class Records:
    """The calls that one request refers to, each read once. Another project's, or another scoped key's, do not exist."""

    def __init__(self, store: Store, principal: Principal) -> None:
        self._store = store
        self._principal = principal
        self._found: dict[str, Recorded | None] = {}

    async def find(self, call_id: str) -> Recorded | None:
        """The call, or None where there is none that the key may see."""
        if call_id not in self._found:
            self._found[call_id] = await self._read(call_id)
        return self._found[call_id]

    async def _read(self, call_id: str) -> Recorded | None:
        call = await self._store.get_call(call_id)
        if call is None or self._principal.rollout_id not in (None, call.rollout_id):
            return None
        row = await self._store.find_rollout(call.rollout_id)
        if row is None or self._principal.project not in (None, row.project):
            return None
        text = await true_text(self._store, call)
        if text is None:
            return Recorded(call, await self._store.text_of(call_id), whole=False)
        return Recorded(call, text)

    async def response(self, response_id: str) -> Recorded:
        """The response of this id. NotFound, in the same words for one that does not exist and one that is hidden."""
        match = _RESPONSE.fullmatch(response_id)
        found = await self.find(match["call"]) if match else None
        if found is None or not found.is_response:
            raise NotFound(
                f"there is no response {response_id[:80]!r}",
                hint="responses made with store=false, and those of other projects and rollouts, are not found",
            )
        return found

    async def given(self, recorded: Recorded, *, whole: bool = True) -> list[Message]:
        """All messages that a call was given. With `whole`, ThreadNotFound where redaction has left something else."""
        given = await true_history(self._store, recorded.call)
        if given is None and whole:
            raise not_kept(f"the call {recorded.call.call_id}")
        if given is None:
            given = await self._store.history_of(recorded.call.call_id)
        return [Message.model_validate(message) for message in given]

    async def history(self, recorded: Recorded, *, whole: bool = True) -> tuple[str | None, list[Message]]:
        """The instructions of a response, and the messages it was given without them."""
        messages = await self.given(recorded, whole=whole)
        if recorded.text.kept["instructions"]:
            return messages[0].text, messages[1:]
        return None, messages


def not_kept(what: str) -> ThreadNotFound:
    """Why a conversation cannot be taken up from the store: the model must not be told markers for its own words."""
    return ThreadNotFound(
        f"{what} cannot be continued: what was said in it is not kept",
        cause="the project's rule of redaction keeps it until it was trained",
        hint="send the whole conversation",
    )


async def resolved(ask: ResponsesRequest, records: Records) -> ResponsesRequest:
    """The request with all its messages.

    NotFound for what does not exist; InvalidInput for a response that cannot be continued, and for the result of a
    call that nobody made.
    """
    before: list[Message] = []
    rollout_id: str | None = None
    if ask.previous is not None:
        recorded = await records.response(ask.previous)
        _check_whole(recorded, ask.previous)
        _check_new(ask.items, recorded)
        rollout_id = recorded.call.rollout_id
        _, given = await records.history(recorded)
        answer = recorded.answer.model_copy(update={"recorded": node_name(recorded.call.call_id, 0)})
        before = [*given, answer]
    items = [await _found(item, records) for item in ask.items]
    new = messages_of(await _with_reasoning(items, records))
    system = [] if ask.instructions is None else [Message(role="system", content=ask.instructions)]
    messages = [*system, *before, *new]
    _check_results(messages)
    size = ask.call.size + sum(len(message.text) for message in before)
    call = replace(ask.call, messages=messages, size=size, continues=rollout_id)
    return replace(ask, call=call)


def _check_whole(recorded: Recorded, response_id: str) -> None:
    if not recorded.whole:
        raise not_kept(f"the response {response_id}")
    if recorded.call.choices[0].finish_reason in ("cancelled", "error"):
        raise InvalidInput(
            f"the response {response_id} cannot be continued",
            cause="it ended before its answer was whole",
            hint="continue the response before it",
        )


def _call_of(item: Item) -> str | None:
    if isinstance(item, Reference):
        return call_of_item(item.item_id)
    return None if isinstance(item, Returned) else item.call


def _check_new(items: Sequence[Item], recorded: Recorded) -> None:
    """InvalidInput for an item of the response that is continued: the turn would stand there twice."""
    for number, item in enumerate(items):
        call_id = _call_of(item)
        if call_id == recorded.call.call_id:
            raise InvalidInput(
                f"`input[{number}]` is an item of the response that `previous_response_id` names",
                hint="send only what is new, or the whole history without previous_response_id",
            )


async def _found(item: Item, records: Records) -> Item:
    """The item itself where it is a reference."""
    if not isinstance(item, Reference):
        return item
    call_id = call_of_item(item.item_id)
    recorded = await records.find(call_id) if call_id is not None else None
    if recorded is not None and recorded.is_response and recorded.whole:
        for index, run in enumerate(recorded.runs or [Run("", 0, 0)]):
            output = output_item(recorded.call.call_id, index, run, status="completed")
            if output["id"] == item.item_id:
                return parse_item(output, item.number)
    raise NotFound(
        f"there is no item {item.item_id[:80]!r} (`input[{item.number}]`)",
        hint="items of responses made with store=false must be sent whole",
    )


async def _with_reasoning(items: Sequence[Item], records: Records) -> list[Item]:
    """Reasoning that the client did not send, from our record where it says which. InvalidInput for a foreign seal."""
    sent = {item.call for item in items if isinstance(item, Thinking) and item.text is not None}
    out: list[Item] = []
    for item in items:
        if not isinstance(item, Thinking) or item.text is not None or item.call in sent - {None}:
            out.append(item)
            continue
        recorded = await records.find(item.call) if item.call is not None else None
        if recorded is None and item.sealed:
            raise InvalidInput(
                f"the `encrypted_content` of `input[{item.number}]` is of no call of this server",
                cause="only the server that sealed a reasoning can read it",
                hint="leave the reasoning item out",
            )
        if recorded is None or not recorded.whole:
            out.append(item)
        else:
            out.append(replace(item, text=recorded.answer.reasoning))
        sent.add(item.call)  # one record is the whole reasoning of its answer
    return out


def _check_results(messages: Sequence[Message]) -> None:
    """InvalidInput for a result whose call stands nowhere before it."""
    known: set[str | None] = set()
    for message in messages:
        known.update(call.id for call in message.tool_calls)
        if message.role == "tool" and message.tool_call_id not in known:
            raise InvalidInput(
                f"no function call has the call_id {str(message.tool_call_id)[:80]!r} of a function_call_output",
                hint="send the function_call item before its output, or the previous_response_id of its response",
            )
