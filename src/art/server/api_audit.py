"""Who changed what, and when."""

from __future__ import annotations

from art.errors import Forbidden, InvalidInput
from art.server.endpoint import ApiCall, ApiRoute
from art.store.records import Role
from art.types.wire_audit import AuditEntry, AuditList

MAX_ENTRIES = 1000
"""Of one answer; older ones are asked for with `before`."""


async def list_audit(call: ApiCall) -> AuditList:
    """`?limit=` entries at most, newest first; with `?before=ID` those older than that one."""
    if call.principal.project is not None:
        raise Forbidden(
            "the audit log is of all projects, this key belongs to one",
            hint="use an admin key without a project",
        )
    limit, before = _number(call, "limit", 100), _number(call, "before", None)
    assert limit is not None
    rows = await call.gateway.store.list_audit(min(limit, MAX_ENTRIES), before=before)
    return AuditList(entries=[AuditEntry.model_validate(row.model_dump()) for row in rows])


def _number(call: ApiCall, name: str, default: int | None) -> int | None:
    given = call.request.query_params.get(name)
    if given is None:
        return default
    if not given.isascii() or not given.isdecimal() or not 1 <= len(given) <= 18 or int(given) < 1:
        raise InvalidInput(f"{name} is {given!r}", hint="a whole number above 0")
    return int(given)


ROUTES = [
    ApiRoute(
        "GET", "/api/v1/audit", Role.ADMIN, list_audit, "Changes, newest first: who, what, when, from where",
        response=AuditList,
    ),
]  # fmt: skip
