"""Keys for people and programs, with narrower rights than the admin key."""

from __future__ import annotations

import time

from art.errors import Conflict
from art.server.endpoint import ApiCall, ApiRoute
from art.server.keys import ADMIN_KEY_ID
from art.store.records import KeyRow, Role
from art.types import wire


async def create(call: ApiCall) -> wire.CreatedKey:
    request = call.body(wire.CreateKey)
    if call.principal.project is not None:  # a project's admin makes keys of that project alone
        call.principal.require_project(request.project or "every project")
    seconds = request.expires_in_seconds
    key, row = await call.gateway.keys.create_row(
        Role(request.role),
        request.project,
        expires=None if seconds is None else time.time() + seconds,
        label=request.label,
    )
    return wire.CreatedKey(key=key, info=_info(row))


async def list_keys(call: ApiCall) -> wire.KeyList:
    mine = call.principal.project
    rows = await call.gateway.store.list_keys()
    return wire.KeyList(keys=[_info(row) for row in rows if mine is None or row.project == mine])


async def rotate(call: ApiCall) -> wire.CreatedKey:
    """A new secret for the same rights."""
    key_id = await _own(call, "rotated")
    grace = call.body(wire.RotateKey).grace_seconds
    key, row = await call.gateway.keys.rotate(key_id, grace_seconds=grace)
    return wire.CreatedKey(key=key, info=_info(row))


async def revoke(call: ApiCall) -> wire.KeyInfo:
    """The key ends at once."""
    return _info(await call.gateway.keys.revoke(await _own(call, "revoked")))


async def _own(call: ApiCall, done: str) -> str:
    """The request's key id. Conflict for the admin key, which is the way back in; Forbidden for another project's."""
    key_id = call.param("key_id")
    if key_id == ADMIN_KEY_ID:
        raise Conflict(
            f"the admin key cannot be {done}",
            hint="stop the server, delete server/admin.key, start again: a new one is made",
        )
    row = await call.gateway.store.get_key(key_id)
    if row is not None and call.principal.project is not None:
        call.principal.require_project(row.project or "every project")
    return key_id


def _info(row: KeyRow) -> wire.KeyInfo:
    return wire.KeyInfo.model_validate(row.model_dump(exclude={"sha256"}))


ROUTES = [
    ApiRoute(
        "POST", "/api/v1/keys", Role.ADMIN, create, "Make a key; it is shown this once",
        request=wire.CreateKey, response=wire.CreatedKey, changes=True,
    ),
    ApiRoute("GET", "/api/v1/keys", Role.ADMIN, list_keys, "All keys but those of rollouts", response=wire.KeyList),
    ApiRoute(
        "POST", "/api/v1/keys/{key_id}/rotate", Role.ADMIN, rotate, "A new key with the rights of an old one, which ends",
        request=wire.RotateKey, response=wire.CreatedKey, changes=True,
    ),
    ApiRoute(
        "DELETE", "/api/v1/keys/{key_id}", Role.ADMIN, revoke, "Revoke a key; idempotent",
        response=wire.KeyInfo, changes=True,
    ),
]  # fmt: skip
