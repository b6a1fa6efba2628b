"""Who asks, and what they may: so that a page says beforehand what would be refused."""

from __future__ import annotations

from art.server.endpoint import ApiCall, ApiRoute
from art.store.records import Role
from art.types.wire_keys import OwnKey


async def own_key(call: ApiCall) -> OwnKey:
    principal = call.principal
    return OwnKey(
        key_id=principal.key_id,
        role=principal.role.value,
        project=principal.project,
        read_only=call.gateway.read_only,
    )


ROUTES = [
    ApiRoute(
        "GET", "/api/v1/views/key", Role.INFER, own_key, "What the key that asks may do", response=OwnKey
    ),
]
