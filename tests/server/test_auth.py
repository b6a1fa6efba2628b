"""Keys and roles against a live server: one rule per route, and every route is tried with every role."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chat_kit import Served, says

from art.errors import ServerStartFailed
from art.server.app import api_routes
from art.server.keys import Keys
from art.store.records import KeyRow, Role
from art.store.store import Store


def make_key(served: Served, role: str, **options: Any) -> str:
    return str(served.api("POST", "keys", {"role": role, **options})["key"])


@pytest.fixture(scope="module")
def keys(served: Served) -> dict[str, str]:
    return {role.value: make_key(served, role.value) for role in Role}


ROUTES = [route for route in api_routes() if route.path != "/api/v1/views/events"]
"""Without the stream that has no end; test_authorisation asks it too."""


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_keeps_its_rule(served: Served, keys: dict[str, str], route: Any) -> None:
    path = re.sub(r"{\w+}", "nothing", route.path)
    for role in Role:
        status = served.raw(route.method, path, {"bad": 1}, key=keys[role.value]).status_code
        allowed = role.includes(route.role)
        # With the right role the request is read, and refused for what it says.
        assert (status in (200, 400, 404)) is allowed, (role, status)
        assert (status == 403) is not allowed, (role, status)
    for key in ("art_nobody_x", "sk-other", f"{served.server.admin_key}x", "art_admin_"):
        assert served.raw(route.method, path, {"bad": 1}, key=key).status_code == 401


def test_no_key_is_told_what_to_do(served: Served) -> None:
    for path in ("/api/v1/health", "/v1/models", "/r/x/v1/models", "/anything"):
        response = httpx2.get(served.server.url + path, timeout=30)
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert "admin.key" in response.json()["error"]["hint"]


def test_a_key_as_anthropics_sdk_sends_it(served: Served) -> None:
    headers = {"x-api-key": served.server.admin_key}
    assert httpx2.get(f"{served.server.url}/api/v1/health", headers=headers, timeout=30).status_code == 200


def test_a_projects_key_sees_its_project_alone(served: Served) -> None:
    key = make_key(served, "admin", project="other")
    names = [model["inference_name"] for model in served.api("GET", "models", key=key)["models"]]
    assert names == ["other/alpha"]
    forbidden = [
        ("GET", "models/tests/alpha", None),
        ("GET", "models/tests/alpha/history", None),
        ("POST", "models", {"project": "tests", "name": "x", "config": {"base_model": served.base_model}}),
        ("POST", "jobs", {"project": "tests", "name": "alpha", "groups": []}),
        ("POST", "keys", {"role": "infer", "project": "tests"}),
        ("POST", "keys", {"role": "infer"}),
    ]
    for method, path, body in forbidden:
        assert served.raw(method, f"/api/v1/{path}", body, key=key).status_code == 403, path
    job = served.api("POST", "jobs", {"project": "tests", "name": "alpha", "groups": []})["job_id"]
    theirs, missing = served.open()["rollout_id"], "no-such-rollout"
    chat = {"model": "other/alpha", "messages": says("hi")}
    for method, path, body in [
        ("GET", "/api/v1/rollouts/{}", None),
        ("POST", "/api/v1/rollouts/{}/reward", {"reward": 1}),
        ("POST", "/api/v1/rollouts/{}/finish", {}),
        ("POST", "/r/{}/v1/chat/completions", chat),
    ]:
        answers = [served.raw(method, path.format(name), body, key=key) for name in (theirs, missing)]
        assert [answer.status_code for answer in answers] == [404, 404], path
        assert answers[0].text.replace(theirs, missing) == answers[1].text
    for method, end in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
        answers = [served.raw(method, f"/api/v1/jobs/{name}{end}", key=key) for name in (job, missing)]
        assert [answer.status_code for answer in answers] == [404, 404], end
        assert answers[0].text.replace(job, missing) == answers[1].text
    assert served.rollout(theirs)["status"] == "running"
    opened = served.raw("POST", "/api/v1/rollouts", {"model": "tests/alpha"}, key=key)
    assert opened.status_code in (403, 404)
    assert served.api("GET", "keys", key=key)["keys"] == [
        item for item in served.api("GET", "keys")["keys"] if item["project"] == "other"
    ]


def test_a_revoked_key_ends_at_once(served: Served) -> None:
    made = served.api("POST", "keys", {"role": "infer", "label": "for a test"})
    assert served.raw("GET", "/api/v1/health", key=made["key"]).status_code == 200
    for _ in range(2):
        assert served.api("DELETE", f"keys/{made['info']['key_id']}")["revoked_at"]
    assert served.raw("GET", "/api/v1/health", key=made["key"]).status_code == 401
    assert served.raw("DELETE", "/api/v1/keys/admin").status_code == 409
    assert served.raw("DELETE", "/api/v1/keys/nothing").status_code == 404


def test_an_expired_key_is_none(served: Served) -> None:
    key = make_key(served, "infer", expires_in_seconds=0.001)
    assert served.raw("GET", "/api/v1/health", key=key).status_code == 401


def test_a_rollouts_key_may_only_call_models(served: Served) -> None:
    opened = served.open()
    key = opened["api_key"]
    for route in api_routes():
        path = re.sub(r"{\w+}", opened["rollout_id"], route.path)
        assert served.raw(route.method, path, {}, key=key).status_code == 403, route.path


def test_no_secret_is_stored(served: Served) -> None:
    made = make_key(served, "infer")
    opened = served.open()
    folder = Path(served.server.path) / "server"
    with sqlite3.connect(folder / "art.db") as conn:
        conn.execute("PRAGMA wal_checkpoint(FULL)")
    kept = b"".join(
        file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "admin.key"
    )
    for token in (made, opened["api_key"], served.server.admin_key):
        assert token.encode() not in kept
    assert (folder / "admin.key").stat().st_mode & 0o777 == 0o600


def test_an_admin_key_that_others_can_read_is_refused(start_art_server: Any, tmp_path: Path) -> None:
    server = start_art_server(tmp_path)
    server.stop()
    (tmp_path / "server" / "admin.key").chmod(0o644)
    with pytest.raises(ServerStartFailed, match="can be read by others"):
        server.start()


def test_a_rollouts_key_ends_with_the_key_that_opened_it(served: Served) -> None:
    opener = served.api("POST", "keys", {"role": "rollout", "project": "tests"})
    opened = served.api("POST", "rollouts", {"model": "tests/alpha"}, key=opener["key"])

    def status() -> int:
        return served.raw("GET", "/v1/models", key=opened["api_key"]).status_code

    assert status() == 200
    rotated = served.api("POST", f"keys/{opener['info']['key_id']}/rotate", {})
    assert status() == 200  # the rollout is the new key's now
    served.api("DELETE", f"keys/{rotated['info']['key_id']}")
    assert status() == 401


def test_another_projects_keys_do_not_exist(served: Served) -> None:
    admin = make_key(served, "admin", project="other")
    theirs = served.api("POST", "keys", {"role": "infer", "project": "tests"})["info"]["key_id"]
    for method, end, body in (("DELETE", "", None), ("PATCH", "", {"quotas": {}}), ("POST", "/rotate", {})):
        for key_id in (theirs, "admin", "nothing"):
            answer = served.raw(method, f"/api/v1/keys/{key_id}{end}", body, key=admin)
            assert answer.status_code == 404, (method, key_id)
            assert answer.json()["error"]["message"] == f"there is no key {key_id}"
    (kept,) = [info for info in served.api("GET", "keys")["keys"] if info["key_id"] == theirs]
    assert kept["revoked_at"] is None


def test_a_projects_key_cannot_train_on_from_files_of_another(served: Served) -> None:
    """Checkpoints are folders; whoever names the folder has the weights."""
    trainer = make_key(served, "train", project="other")
    theirs = f"{served.server.path}/tests/models/alpha/checkpoints/0000"
    for config in (
        {"base_model": theirs},
        {"base_model": served.base_model, "initial_adapter": theirs},
        {"base_model": f"{served.server.path}/other/../tests/models/alpha/checkpoints/0000"},
        {"base_model": f"{served.server.path}/server"},
    ):
        body = {"project": "other", "name": "thief", "config": config}
        answer = served.raw("POST", "/api/v1/models", body, key=trainer)
        assert answer.status_code == 403, config
        assert "outside of the project" in answer.json()["error"]["message"]
        assert served.raw("POST", "/api/v1/models/other/alpha/fork", body, key=trainer).status_code == 403


def test_a_change_undoes_no_other(tmp_path: Path) -> None:
    """Revoking, rotating and limiting at once: what was revoked stays so."""

    async def main() -> None:
        store = await Store.open(tmp_path)
        try:
            keys = Keys(store)
            for _ in range(20):
                token, row = await keys.create(Role.INFER)
                changes = [keys.change_quotas(row.key_id, {"max_concurrent": n}) for n in (1, 2)]
                await asyncio.gather(
                    changes[0], keys.revoke(row.key_id), changes[1], keys.authenticate(token)
                )
                kept = await store.get_key(row.key_id)
                assert kept is not None
                assert kept.revoked_at is not None
                assert await keys.authenticate(token) is None
                assert await Keys(store).authenticate(token) is None
        finally:
            await store.close()

    asyncio.run(main())


def test_what_was_read_before_a_revocation_is_not_believed_after_it(tmp_path: Path) -> None:
    """A request that looks its key up while the key is revoked must not bring it back."""

    async def main() -> None:
        store = await Store.open(tmp_path)
        try:
            token, _ = await Keys(store).create(Role.INFER)
            keys = Keys(store)  # as after a start: nothing in memory
            read = store.get_key

            async def slowly(key_id: str) -> KeyRow | None:
                found = await read(key_id)
                store.get_key = read  # type: ignore[method-assign]
                await keys.revoke(key_id)
                return found

            store.get_key = slowly  # type: ignore[method-assign]
            assert await keys.authenticate(token) is None
            assert await keys.authenticate(token) is None
        finally:
            await store.close()

    asyncio.run(main())
