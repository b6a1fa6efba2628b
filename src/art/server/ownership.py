"""Which recorded rollouts and calls a request for one model may name.

Ids come from the program and may be anyone's. Whatever reads, trains or changes by such an id asks here first;
what belongs to another project or model is answered exactly as what does not exist.
"""

from __future__ import annotations

import re
from pathlib import Path

from art.errors import Forbidden
from art.server.auth import Principal
from art.server.auxiliary import judged
from art.store.records import RolloutRow
from art.store.rollout_rows import no_rollout
from art.store.store import Store
from art.types.tokens import CallRecord

_HUB_NAME = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)?")
"""`model` or `organisation/model`. As a path below the server's folder it would be no model: those lie deeper."""


async def visible_rollout(store: Store, rollout_id: str, principal: Principal) -> RolloutRow:
    """The rollout. NotFound when there is none, and in the same words when it is another project's."""
    row = await store.get_rollout(rollout_id)
    if principal.project not in (None, row.project):
        raise no_rollout(rollout_id)
    return row


def require_own_files(root: Path, given: str | None, principal: Principal) -> None:
    """Forbidden for a path of the server's folder `root` outside of the key's own project: its files are others'.

    Whether anything is there is not looked at. A name of a hub, and a path elsewhere, are not this function's business.
    """
    if given is None or principal.project is None or _HUB_NAME.fullmatch(given):
        return
    try:
        path = Path(given).expanduser().resolve()
    except (OSError, ValueError, RuntimeError):  # nothing that could be opened
        return
    own = (root / principal.project).resolve()
    if path.is_relative_to(root.resolve()) and not path.is_relative_to(own):
        raise Forbidden(
            f"{given[:200]!r} lies in the server's folder, outside of the project {principal.project!r}",
            hint="use a key of all projects, or a copy of the files elsewhere",
        )


class OwnRecords:
    """The records of `project/name`, each read once."""

    def __init__(self, store: Store, project: str, name: str) -> None:
        self._store = store
        self._key = (project, name)
        self._rollouts: dict[str, RolloutRow | None] = {}
        self._calls: dict[str, CallRecord | None] = {}
        self._calls_of: dict[str, list[CallRecord]] = {}

    async def rollout(self, rollout_id: str) -> RolloutRow | None:
        """A rollout of this model, or None."""
        if rollout_id not in self._rollouts:
            row = await self._store.find_rollout(rollout_id)
            ours = row is not None and (row.project, row.model) == self._key
            self._rollouts[rollout_id] = row if ours else None
        return self._rollouts[rollout_id]

    async def call(self, call_id: str) -> CallRecord | None:
        """A call recorded in a rollout of this model, or None."""
        if call_id not in self._calls:
            call = await self._store.get_call(call_id)
            ours = call is not None and await self.rollout(call.rollout_id) is not None
            self._calls[call_id] = call if ours else None
        return self._calls[call_id]

    async def neighbour(self, call_id: str) -> str | None:
        """`project/name` of the project's other model whose rollout holds the call; None where there is none."""
        call = await self._store.get_call(call_id)
        row = await self._store.find_rollout(call.rollout_id) if call is not None else None
        if row is None or row.project != self._key[0] or row.model == self._key[1]:
            return None
        return f"{row.project}/{row.model}"

    async def calls_of(self, rollout_id: str) -> list[CallRecord]:
        """The calls of a rollout of this model, those on the side marked; none where it is no such rollout."""
        if rollout_id not in self._calls_of:
            row = await self.rollout(rollout_id)
            calls = judged(await self._store.calls_of(rollout_id), row.auxiliary) if row is not None else []
            self._calls_of[rollout_id] = calls
            self._calls.update({call.call_id: call for call in calls})
        return self._calls_of[rollout_id]

    def sampled(self, call: CallRecord) -> bool:
        """True for a call that this model answered. An agent may call others inside its rollout (an opponent, a judge)."""
        return call.version.rpartition("@")[0] == "/".join(self._key)
