"""A run as a stream of records: its rollouts with their calls and tokens, then what was logged of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

import numpy as np
from starlette.responses import Response, StreamingResponse

from art.errors import ArtError, NotFound
from art.server.endpoint import ApiCall, ApiRoute
from art.server.explain import withheld
from art.server.query import Query
from art.store import export_rows
from art.store.export_rows import ExportFilter
from art.store.records import CallText, Role
from art.store.remarks import Conversation
from art.store.store import Store
from art.store.trained_rows import array_name
from art.types.policy import RolloutStatus
from art.types.tokens import BlobRef, CallRecord, ChoiceRecord
from art.types.wire_export import ExportedCall, ExportedChoice, ExportedRollout, ExportEnd

logger = logging.getLogger(__name__)

T = TypeVar("T")
Turn = Callable[[], AbstractAsyncContextManager[None]]
"""Waits until it is the project's turn to read."""
MEDIA_TYPE = "application/x-ndjson"


async def export(call: ApiCall) -> Response:
    """`?step=&split=&status=`; the last line is `{"kind":"end","records":N}`."""
    query = Query(call.request.query_params, ("step", "split", "status"))
    status = query.text("status")
    if status is not None:
        status = query.one_of("status", [one.value for one in RolloutStatus], status)
    project, name = call.param("project"), call.param("name")
    if (
        await call.gateway.store.get_model(project, name) is None
    ):  # in the store, because a viewer serves no model
        raise NotFound(f"there is no run {project}/{name}", hint="`art ls` lists them")
    wanted = ExportFilter(project, name, query.number("step"), query.text("split"), status)
    turn = partial(call.gateway.looks.turn, project, call.principal.key_id, begun=True)
    return StreamingResponse(lines(call.gateway.store, wanted, turn), media_type=MEDIA_TYPE)


async def lines(store: Store, wanted: ExportFilter, turn: Turn) -> AsyncGenerator[bytes, None]:
    """The stream, a rollout at a time: no more than one is held, and each page and rollout is read in a turn of its own."""

    async def read(query: Callable[..., T]) -> T:
        async with turn():
            return await store.view(partial(query, wanted=wanted, after=after))

    count, after = 0, 0
    while page := await read(export_rows.rollouts):
        for place, rollout_id in page:
            after = place
            async with turn():
                record = await rollout_record(store, rollout_id)
            if record is not None:
                count += 1
                yield await asyncio.to_thread(_line, record)
    after = 0
    while logged := await read(export_rows.logged):
        for place, item in logged:
            after = place
            count += 1
            yield _line(item)
    yield _line(ExportEnd(records=count))


def _line(record: Any) -> bytes:
    return bytes(record.model_dump_json().encode() + b"\n")


async def rollout_record(store: Store, rollout_id: str) -> ExportedRollout | None:
    """One rollout whole; None when it was deleted meanwhile."""
    try:
        said = await store.remarks.conversation(rollout_id)
    except NotFound:
        return None
    row = said.row
    traces = await _traces(store, said)
    calls = []
    for call in said.calls:
        why = await withheld(store, call)
        arrays: dict[str, np.ndarray] = {}
        if not why and call.blob is not None:
            try:
                arrays = await store.read_arrays(call.blob)
            except ArtError as error:  # the rest of the run is worth having
                why = str(error)
        found = _call(call, said.texts.get(call.call_id, CallText()), arrays)
        for choice in found.choices:
            advantage, logprobs = traces.get((call.call_id, choice.index), (None, None))
            choice.advantage, choice.trained_logprobs = advantage, None if why else logprobs
        calls.append(found.model_copy(update={"withheld": why}))
    values = row.model_dump(mode="json", include=set(ExportedRollout.model_fields))
    return ExportedRollout(**values, calls=calls, flag=said.note.flag, note=said.note.note)


async def _traces(
    store: Store, said: Conversation
) -> dict[tuple[str, int], tuple[float | None, list[float] | None]]:
    """What the trainer kept of each choice: its advantage, and its own log-probabilities."""
    read: dict[BlobRef, dict[str, np.ndarray]] = {}
    found = {}
    for key, trained in said.trained.items():
        logprobs = None
        if trained.blob is not None:
            try:
                if trained.blob not in read:
                    read[trained.blob] = await store.read_arrays(trained.blob)
            except ArtError as error:
                logger.warning("the trainer's log-probabilities of %s are left out: %s", key[0], error)
                read[trained.blob] = {}
            logprobs = _list(read[trained.blob], array_name(*key))
        found[key] = (trained.advantage, logprobs)
    return found


def _call(call: CallRecord, text: CallText, arrays: dict[str, np.ndarray]) -> ExportedCall:
    values = call.model_dump(mode="json", include=set(ExportedCall.model_fields) - {"choices"})
    messages = [*text.completions, *({} for _ in call.choices)]
    return ExportedCall(
        **values,
        parent_choice=text.parent_choice,
        prompt_token_ids=_list(arrays, "prompt_token_ids"),
        tail=text.tail,
        tools=text.tools,
        choices=[_choice(choice, messages[place], arrays) for place, choice in enumerate(call.choices)],
    )


def _choice(choice: ChoiceRecord, message: dict[str, Any], arrays: dict[str, np.ndarray]) -> ExportedChoice:
    return ExportedChoice(
        **choice.model_dump(mode="json"),
        message=message,
        token_ids=_list(arrays, f"c{choice.index}.token_ids"),
        logprobs=_list(arrays, f"c{choice.index}.logprobs"),
        trainable=_list(arrays, f"c{choice.index}.trainable"),
    )


def _list(arrays: dict[str, np.ndarray], name: str) -> Any:
    found = arrays.get(name)
    return None if found is None else found.tolist()


ROUTES = [
    ApiRoute(
        "GET", "/api/v1/models/{project}/{name}/export", Role.ROLLOUT, export,
        "All that is recorded of a run, one record a line (wire_export)", media_type=MEDIA_TYPE,
    ),
]  # fmt: skip
