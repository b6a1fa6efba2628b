"""Keys and roles against a live server: one rule per route, and every route is tried with every role."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chat_kit import Served, says

from art.errors import ServerStartFailed
from art.server.app import api_routes
from art.store.records import Role


def make_key(served: Served, role: str, **options: Any) -> str:
    return str(served.api("POST", "keys", {"role": role, **options})["key"])


@pytest.fixture(scope="module")
def keys(served: Served) -> dict[str, str]:
    return {role.value: make_key(served, role.value) for role in Role}


@pytest.mark.parametrize("route", api_routes(), ids=lambda route: f"{route.method} {route.path}")
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
