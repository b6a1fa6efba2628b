"""Every route with every kind of key, on its own project and on another one, against a table written by hand.

And what is told: to a key of one project no answer names, counts or hints at what is another's.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from authorisation_kit import ROLES, Answered, Asked, Side, World, asked_of, key_id, world
from starlette.routing import Route

OWN, SIBLING = Side("ours", "mallard", "roll-own"), Side("ours", "mallard", "roll-sibling")
OTHER = Side("zebra", "quagga", "roll-striped")

# The columns: keys of the project `ours` with the four roles, asking for what is their project's, and for what is
# another project's; an admin key of all projects; and the key of one rollout, asking for that rollout, for another one
# of its project, and for one of another project. 403: the key has no right. 404: as if it did not exist.
COLUMNS = (
    *(f"{role} own" for role in ROLES),
    *(f"{role} other" for role in ROLES),
    "admin of all",
    *("scoped own", "scoped sibling", "scoped other"),
)
TABLE = """
GET    /api/v1/health                                  200 200 200 200  200 200 200 200  200  403 403 403
GET    /api/v1/openapi.json                            200 200 200 200  200 200 200 200  200  403 403 403
GET    /api/v1/audit                                   403 403 403 403  403 403 403 403  200  403 403 403

POST   /api/v1/models                                  403 403 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/models                                  200 200 200 200  200 200 200 200  200  403 403 403
GET    /api/v1/models/{project}/{name}                 200 200 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/models/{project}/{name}/checkpoints     200 200 200 200  403 403 403 403  200  403 403 403
DELETE /api/v1/models/{project}/{name}/checkpoints     403 403 200 200  403 403 403 403  200  403 403 403
POST   /api/v1/models/{project}/{name}/fork            403 403 409 409  403 403 403 403  409  403 403 403
POST   /api/v1/models/{project}/{name}/rollback        403 403 200 200  403 403 403 403  200  403 403 403
POST   /api/v1/models/{project}/{name}/log             403 403 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/models/{project}/{name}/history         200 200 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/models/{project}/{name}/export          403 200 200 200  403 403 403 403  200  403 403 403

POST   /api/v1/rollouts                                403 200 200 200  403 404 404 404  200  403 403 403
GET    /api/v1/rollouts/{rollout_id}                   403 200 200 200  403 404 404 404  200  403 403 403
GET    /api/v1/rollouts/{rollout_id}/upstream_calls    403 200 200 200  403 404 404 404  200  403 403 403
GET    /api/v1/rollouts/{rollout_id}/explain           403 200 200 200  403 404 404 404  200  403 403 403
POST   /api/v1/rollouts/{rollout_id}/reward            403 200 200 200  403 404 404 404  200  403 403 403
POST   /api/v1/rollouts/{rollout_id}/finish            403 200 200 200  403 404 404 404  200  403 403 403

GET    /api/v1/views/rollouts/{rollout_id}             403 200 200 200  403 404 404 404  200  403 403 403
GET    /api/v1/views/rollouts/{rollout_id}/tokens      403 200 200 200  403 404 404 404  200  403 403 403
GET    /api/v1/views/runs/{project}/{name}/groups/{group_id:path}  403 200 200 200  403 403 403 403  200  403 403 403
PUT    /api/v1/rollouts/{rollout_id}/note              403 200 200 200  403 404 404 404  200  403 403 403
GET    /api/v1/views/saved                             200 200 200 200  200 200 200 200  400  403 403 403
PUT    /api/v1/views/saved/{project}                   403 200 200 200  403 403 403 403  200  403 403 403
DELETE /api/v1/views/saved/{project}                   403 404 404 404  403 403 403 403  404  403 403 403
PUT    /api/v1/models/{project}/{name}/run-config      403 403 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/views/events                            200 200 200 200  200 200 200 200  200  403 403 403
GET    /api/v1/views/server                            403 403 403 200  403 403 403 200  200  403 403 403
GET    /api/v1/views/key                               200 200 200 200  200 200 200 200  200  403 403 403

GET    /api/v1/jobs/{job_id}                           403 403 200 200  403 403 404 404  200  403 403 403
GET    /api/v1/jobs/{job_id}/events                    403 403 200 200  403 403 404 404  200  403 403 403
POST   /api/v1/jobs/{job_id}/cancel                    403 403 200 200  403 403 404 404  200  403 403 403
POST   /api/v1/jobs                                    403 403 200 200  403 403 403 403  200  403 403 403
POST   /api/v1/jobs/sft                                403 403 200 200  403 403 403 403  200  403 403 403

POST   /api/v1/keys                                    403 403 403 200  403 403 403 403  200  403 403 403
GET    /api/v1/keys                                    403 403 403 200  403 403 403 200  200  403 403 403
PATCH  /api/v1/keys/{key_id}                           403 403 403 200  403 403 403 404  200  403 403 403
POST   /api/v1/keys/{key_id}/rotate                    403 403 403 200  403 403 403 404  200  403 403 403
DELETE /api/v1/keys/{key_id}                           403 403 403 200  403 403 403 404  200  403 403 403
POST   /api/v1/data/purge                              403 403 403 200  403 403 403 403  200  403 403 403
POST   /api/v1/data/retention                          403 403 403 200  403 403 403 403  200  403 403 403
GET    /api/v1/data/retention                          403 403 403 200  403 403 403 200  200  403 403 403
GET    /api/v1/data/flow                               403 403 403 403  403 403 403 403  200  403 403 403

GET    /api/v1/views/metrics                           200 200 200 200  200 200 200 200  200  403 403 403
GET    /api/v1/views/runs                              200 200 200 200  200 200 200 200  200  403 403 403
GET    /api/v1/views/runs/{project}/{name}             200 200 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/views/runs/{project}/{name}/series      200 200 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/views/runs/{project}/{name}/steps       200 200 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/views/runs/{project}/{name}/groups      403 200 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/views/runs/{project}/{name}/rollouts    403 200 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/views/runs/{project}/{name}/scenarios   403 200 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/views/runs/{project}/{name}/scenarios/{scenario_id:path}  403 200 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/views/runs/{project}/{name}/extremes    403 200 200 200  403 403 403 403  200  403 403 403
GET    /api/v1/views/runs/{project}/{name}/reward-check  200 200 200 200  403 403 403 403  200  403 403 403

GET    /v1/models                                      200 200 200 200  200 200 200 200  200  200 200 200
GET    /v1/models/{model:path}                         200 200 200 200  404 404 404 404  200  200 200 404
GET    /v1/responses/{response_id}                     200 200 200 200  404 404 404 404  200  200 404 404
POST   /v1/chat/completions                            200 200 200 200  404 404 404 404  200  200 200 404
POST   /v1/completions                                 200 200 200 200  404 404 404 404  200  200 200 404
POST   /v1/responses                                   200 200 200 200  404 404 404 404  200  200 200 404
POST   /v1/messages                                    200 200 200 200  404 404 404 404  200  200 200 404
POST   /v1/messages/count_tokens                       200 200 200 200  404 404 404 404  200  200 200 404
POST   /v1/{route:path}                                404 404 404 404  404 404 404 404  404  404 404 404

GET    /r/{rollout}/v1/models                          200 200 200 200  200 200 200 200  200  200 403 403
GET    /r/{rollout}/v1/models/{model:path}             200 200 200 200  404 404 404 404  200  200 403 403
GET    /r/{rollout}/v1/responses/{response_id}         200 200 200 200  404 404 404 404  200  200 403 403
POST   /r/{rollout}/v1/chat/completions                200 200 200 200  404 404 404 404  200  200 403 403
POST   /r/{rollout}/v1/completions                     200 200 200 200  404 404 404 404  200  200 403 403
POST   /r/{rollout}/v1/responses                       200 200 200 200  404 404 404 404  200  200 403 403
POST   /r/{rollout}/v1/messages                        200 200 200 200  404 404 404 404  200  200 403 403
POST   /r/{rollout}/v1/messages/count_tokens           200 200 200 200  404 404 404 404  200  200 403 403
POST   /r/{rollout}/v1/{route:path}                    404 404 404 404  404 404 404 404  404  404 404 404
"""
EXPECTED = {
    f"{method} {path}": dict(zip(COLUMNS, map(int, statuses), strict=True))
    for method, path, *statuses in (line.split() for line in TABLE.strip().splitlines() if line)
}
OPEN = {"GET /", "GET /assets/{path:path}"}
"""The dashboard's own files, which hold no data: test_page.py."""
DEAD = (
    "no key",
    "an unknown key",
    "a wrong secret",
    "an expired key",
    "a revoked key",
    "a revoked key's rollout",
)


@dataclass
class Found:
    """Everything that was asked, and what was answered."""

    routes: set[str]
    table: dict[tuple[str, str], Answered] = field(default_factory=dict)
    dead: dict[tuple[str, str], Answered] = field(default_factory=dict)
    beyond: list[tuple[Answered, Answered]] = field(default_factory=list)
    """Answers about what is another project's, each with the one about what does not exist."""
    served: dict[str, Answered] = field(default_factory=dict)
    """What a key of all projects is told, by path: it must hold what others are not told."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Found:
    async def main() -> Found:
        async with world(tmp_path_factory.mktemp("authorisation"), tiny_model_dir) as made:
            return await explore(made)

    return asyncio.run(main())


async def explore(made: World) -> Found:
    # Who could see both projects once forked the one from the other.
    await made.register(OWN.project, OWN.model, f"forked from {OTHER.project}/{OTHER.model}@1", "a note")
    await made.register(OTHER.project, OTHER.model)
    own, sibling, other = [
        await made.side(side.project, side.model, side.rollout) for side in (OWN, SIBLING, OTHER)
    ]
    for target, known in ((OWN, own), (SIBLING, sibling), (OTHER, other)):
        vars(target).update(vars(known))
    await asyncio.sleep(1.2)  # the engine's next heartbeat names the versions that it holds
    found = Found(routes_of(made))
    keys = {role: await made.key(role, OWN.project) for role in ROLES}
    dead = await dead_keys(made)
    for route in EXPECTED:
        for name, key in dead.items():
            found.dead[route, name] = await made.ask(asked_of(own, route), key)
        for column in COLUMNS:
            who, _, whose = column.partition(" ")
            side = {"own": own, "sibling": sibling, "other": other, "of all": own}[whose]
            key = {**keys, "scoped": own.scoped_key}[who] if whose != "of all" else made.admin
            found.table[route, column] = await made.ask(asked_of(side, route), key)
    found.beyond = [
        (await made.ask(theirs, keys[role]), await made.ask(missing, keys[role]))
        for theirs, missing in beyond(other)
        for role in ("train", "admin")
    ]
    for path in (
        "/api/v1/health",
        "/api/v1/keys",
        "/api/v1/models",
        "/v1/models",
        "/api/v1/audit?limit=1000",
    ):
        found.served[path] = await made.ask(Asked("GET", path), made.admin)
    return found


def routes_of(made: World) -> set[str]:
    """Every route of the application. Starlette answers HEAD wherever it answers GET."""
    return {
        f"{method} {route.path}"
        for route in made.app.routes
        if isinstance(route, Route)
        for method in (route.methods or ())
        if method != "HEAD"
    }


async def dead_keys(made: World) -> dict[str, str | None]:
    good = await made.key("admin", None)
    revoked = await made.key("admin", None)
    opened = await made.must("POST", "/api/v1/rollouts", {"model": f"{OWN.project}/{OWN.model}"}, revoked)
    await made.must("DELETE", f"/api/v1/keys/{key_id(revoked)}")
    expired = await made.key("admin", None, expires_in_seconds=0.001)
    keys = [None, "art_0123456789ab_x", f"{good[:-1]}!", expired, revoked, opened["api_key"]]
    return dict(zip(DEAD, keys, strict=True))


def beyond(other: Side) -> list[tuple[Asked, Asked]]:
    """Requests that name another project's things where no path parameter of the table does, and their twins that
    name nothing that exists."""
    ours = f"{OWN.project}/{OWN.model}"
    said = [{"role": "user", "content": "hello"}]

    def chat(model: str, **headers: str) -> Asked:
        body = {"model": model, "messages": said, "max_tokens": 4}
        return Asked("POST", "/v1/chat/completions", body, headers)

    def train(rollout: str, call: str) -> Asked:
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "ok"},
            "art": {"call_id": call, "choice": 0, "version": f"{ours}@1"},
        }
        trajectory = {"messages_and_choices": [*said, choice], "reward": 1.0, "rollout_id": rollout}
        body = {"project": OWN.project, "name": OWN.model, "groups": [{"trajectories": [trajectory]}]}
        return Asked("POST", "/api/v1/jobs", body)

    def respond(previous: str) -> Asked:
        return Asked(
            "POST", "/v1/responses", {"model": ours, "input": "on", "previous_response_id": previous}
        )

    call, missing_call = other.response.removeprefix("resp_"), f"call-{'0' * 32}"
    return [
        (chat(f"{other.project}/{other.model}"), chat(f"{other.project}/{'x' * len(other.model)}")),
        (chat(other.model), chat("x" * len(other.model))),
        (chat(f"{OWN.project}/{other.model}"), chat(f"{OWN.project}/{'x' * len(other.model)}")),
        (respond(other.response), respond(f"resp_{missing_call}")),
        (train(other.rollout, call), train("roll-missing", missing_call)),
        (
            Asked("GET", f"/api/v1/models/{OWN.project}/{other.model}"),
            Asked("GET", f"/api/v1/models/{OWN.project}/{'x' * len(other.model)}"),
        ),
    ]


def test_the_table_has_every_route_and_no_other(found: Found) -> None:
    assert found.routes - set(EXPECTED) == OPEN, "routes without a rule"
    assert set(EXPECTED) - found.routes == set(), "rules without a route"


@pytest.mark.parametrize("route", EXPECTED)
def test_a_route_lets_in_whom_the_table_says(found: Found, route: str) -> None:
    statuses = {column: found.table[route, column].status for column in COLUMNS}
    assert statuses == EXPECTED[route], {
        column: found.table[route, column].text
        for column in COLUMNS
        if statuses[column] != EXPECTED[route][column]
    }
    assert {name: found.dead[route, name].status for name in DEAD} == dict.fromkeys(DEAD, 401)


def test_no_dead_key_is_told_why(found: Found) -> None:
    """Whether a key is unknown, wrong, expired or revoked is nobody's business who holds no living one."""
    told = {answer.text for (_, name), answer in found.dead.items() if name != "no key"}
    messages = {json.loads(text)["error"]["message"].partition("\n")[0] for text in told}
    assert messages == {"this key is not known here, or it has expired"}


def test_a_key_of_one_project_is_told_nothing_of_another(found: Found) -> None:
    """No name and no id that the request did not hold itself."""
    marks = OTHER.marks()
    answers = [answer for (_, column), answer in found.table.items() if column != "admin of all"]
    answers += [answer for pair in found.beyond for answer in pair]
    assert len(answers) > 500
    for answer in answers:
        asked = f"{answer.asked.path} {json.dumps(answer.asked.body)}"
        told = f"{answer.text} {json.dumps(answer.headers)}"
        leaked = [mark for mark in marks if mark in told and mark not in asked]
        assert not leaked, (answer.asked, leaked, told)


def test_what_is_anothers_is_answered_as_what_does_not_exist(found: Found) -> None:
    for theirs, missing in found.beyond:
        assert theirs.status == missing.status, (theirs, missing)
        assert without_names(theirs) == without_names(missing)
    # What is trained on calls that are not its own is left out of the job, and the job says so.
    assert {answer.status for answer, _ in found.beyond} <= {200, 400, 404}


def without_names(answer: Answered) -> str:
    """The text without what the request named."""
    named = re.findall(r"[\w.-]{5,}", f"{answer.asked.path} {json.dumps(answer.asked.body)}")
    text = answer.text
    for name in sorted(set(named), key=len, reverse=True):
        text = text.replace(name, "_")
    return re.sub(r"(?:resp_)?call-[0-9a-f_]+|job_[0-9a-f]+|[0-9]+\.[0-9]+", "_", text)  # times, too


def test_the_marks_are_there_to_be_told(found: Found) -> None:
    """To a key of all projects they are told: the search above looks for what these answers hold."""
    told = {path: answer.text for path, answer in found.served.items()}
    assert f'"{OTHER.project}/{OTHER.model}@1"' in told["/api/v1/health"]
    assert OTHER.key_id in told["/api/v1/keys"]
    assert f"{OTHER.project}/{OTHER.model}" in told["/api/v1/models"]
    assert f"{OTHER.project}/{OTHER.model}" in told["/v1/models"]
    assert OTHER.rollout in told["/api/v1/audit?limit=1000"]
    assert all(OTHER.marks())


def test_a_projects_lists_are_complete(found: Found) -> None:
    """What is hidden is hidden by its project, and by nothing else."""

    def listed(route: str) -> Any:
        return json.loads(found.table[route, "admin own"].text)

    models = [model["inference_name"] for model in listed("GET /api/v1/models")["models"]]
    assert "a note" in listed("GET /api/v1/models")["models"][0]["notes"]
    assert models == [f"{OWN.project}/{OWN.model}"]
    assert [model["id"] for model in listed("GET /v1/models")["data"]] == models
    keys = {key["key_id"]: key for key in listed("GET /api/v1/keys")["keys"]}
    assert {OWN.key_id, SIBLING.key_id} <= set(keys)
    assert {key["project"] for key in keys.values()} == {OWN.project}
    workers = listed("GET /api/v1/health")["workers"]
    assert [worker["stats"] for worker in workers] == [{}] * len(workers)  # sums over all projects
