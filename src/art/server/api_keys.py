"""Keys for people and programs, with narrower rights than the admin key."""

from __future__ import annotations

import time

from art.errors import Conflict
from art.server.endpoint import ApiCall, ApiRoute
from art.server.keys import ADMIN_KEY_ID, no_key
from art.store.key_rows import day_of
from art.store.records import KeyRow, Role
from art.types import wire_keys


async def create(call: ApiCall) -> wire_keys.CreatedKey:
    request = call.body(wire_keys.CreateKey)
    if call.principal.project is not None:  # a project's admin makes keys of that project alone
        call.principal.require_project(request.project or "every project")
    seconds = request.expires_in_seconds
    key, row = await call.gateway.keys.create(
        Role(request.role),
        request.project,
        expires=None if seconds is None else time.time() + seconds,
        label=request.label,
        quotas=request.quotas,
    )
    return wire_keys.CreatedKey(key=key, info=await _info(call, row))


async def list_keys(call: ApiCall) -> wire_keys.KeyList:
    mine = call.principal.project
    rows = await call.gateway.store.list_keys()
    used = await _used(call)
    return wire_keys.KeyList(keys=[_told(row, used) for row in rows if mine is None or row.project == mine])


async def change(call: ApiCall) -> wire_keys.KeyInfo:
    """New quotas hold from the next request on; what was used until now counts."""
    key_id = await _own(call, "limited")
    changes = call.body(wire_keys.ChangeKey).quotas.model_dump(exclude_unset=True)
    return await _info(call, await call.gateway.keys.change_quotas(key_id, changes))


async def rotate(call: ApiCall) -> wire_keys.CreatedKey:
    """A new secret for the same rights."""
    key_id = await _own(call, "rotated")
    grace = call.body(wire_keys.RotateKey).grace_seconds
    key, row = await call.gateway.keys.rotate(key_id, grace_seconds=grace)
    return wire_keys.CreatedKey(key=key, info=await _info(call, row))


async def revoke(call: ApiCall) -> wire_keys.KeyInfo:
    """The key ends at once."""
    return await _info(call, await call.gateway.keys.revoke(await _own(call, "revoked")))


async def _own(call: ApiCall, done: str) -> str:
    """The request's key id. Conflict for the admin key, which is the way back in.

    NotFound for a key that is not there, and in the same words for another project's.
    """
    key_id, mine = call.param("key_id"), call.principal.project
    row = await call.gateway.store.get_key(key_id)
    if row is None or mine not in (None, row.project):
        raise no_key(key_id)
    if key_id == ADMIN_KEY_ID:
        raise Conflict(
            f"the admin key cannot be {done}",
            hint="stop the server, delete server/admin.key, start again: a new one is made",
        )
    return key_id


async def _used(call: ApiCall) -> dict[str, int]:
    """Tokens that were used today, by account."""
    return await call.gateway.store.accounts.tokens_of_all(day_of(time.time()))


async def _info(call: ApiCall, row: KeyRow) -> wire_keys.KeyInfo:
    return _told(row, await _used(call))


def _told(row: KeyRow, used: dict[str, int]) -> wire_keys.KeyInfo:
    tokens = used.get(row.account or row.key_id, 0)
    kept = row.model_dump(include=set(wire_keys.KeyInfo.model_fields))
    return wire_keys.KeyInfo.model_validate({**kept, "tokens_today": tokens})


ROUTES = [
    ApiRoute(
        "POST", "/api/v1/keys", Role.ADMIN, create, "Make a key; it is shown this once",
        request=wire_keys.CreateKey, response=wire_keys.CreatedKey, changes=True,
    ),
    ApiRoute(
        "GET", "/api/v1/keys", Role.ADMIN, list_keys, "All keys but those of rollouts", response=wire_keys.KeyList
    ),
    ApiRoute(
        "PATCH", "/api/v1/keys/{key_id}", Role.ADMIN, change, "Change a key's quotas; what is not named stays",
        request=wire_keys.ChangeKey, response=wire_keys.KeyInfo, changes=True,
    ),
    ApiRoute(
        "POST", "/api/v1/keys/{key_id}/rotate", Role.ADMIN, rotate, "A new key with the rights of an old one, which ends",
        request=wire_keys.RotateKey, response=wire_keys.CreatedKey, changes=True,
    ),
    ApiRoute(
        "DELETE", "/api/v1/keys/{key_id}", Role.ADMIN, revoke, "Revoke a key; idempotent",
        response=wire_keys.KeyInfo, changes=True,
    ),
]  # fmt: skip
