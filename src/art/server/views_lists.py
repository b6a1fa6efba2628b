"""The lists of the read API: runs, their figures and steps, groups, rollouts, scenarios, extremes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar, get_args

from art.server.endpoint import ApiCall, ApiRoute
from art.server.query import Query
from art.server.registration import FORKED
from art.store import extremes, group_lists, reward_check, rollout_lists, run_lists, series, step_lists
from art.store.records import Role
from art.store.sql import Conn
from art.types import wire_views as views
from art.types.metrics import METRICS, SECTIONS
from art.types.policy import Purpose, RolloutStatus

T = TypeVar("T")
MAX_POINTS = 10_000
"""Of one series."""
MAX_METRICS = 200
PURPOSES = {"train": Purpose.TRAIN, "evaluate": Purpose.EVALUATE}


async def list_metrics(call: ApiCall) -> views.MetricList:
    _query(call)
    return views.MetricList(metrics=list(METRICS), sections=dict(SECTIONS))


async def list_runs(call: ApiCall) -> views.RunList:
    """`?project=&limit=&cursor=`; a key of one project sees that one alone."""
    query = _query(call, "project", "limit", "cursor")
    project = query.text("project")
    if project is not None:
        call.principal.require_project(project)
    return await call.gateway.store.view(
        partial(
            run_lists.runs,
            project=project or call.principal.project,
            limit=query.limit(),
            cursor=query.text("cursor"),
        )
    )


async def get_run(call: ApiCall) -> views.RunDetail:
    """The name of another project's model that it was forked from is for those who see that one too."""
    _query(call)
    found = await call.gateway.store.view(lambda conn: run_lists.run(conn, *_run(call)))
    seen = call.principal.project
    own = FORKED if seen is None else f"{FORKED}{seen}/"
    found.notes = [note for note in found.notes if not note.startswith(FORKED) or note.startswith(own)]
    return found


async def get_series(call: ApiCall) -> views.SeriesSet:
    """`?metric=a&metric=b&max_points=500`; without a metric none."""
    query = _query(call, "metric", "max_points")
    metrics = query.texts("metric")[:MAX_METRICS]
    points = query.number("max_points", 500, least=10, most=MAX_POINTS) or 500
    return await _of_run(
        call, lambda conn, project, name: series.series_set(conn, project, name, metrics, max_points=points)
    )


async def list_steps(call: ApiCall) -> views.StepList:
    """`?batch=&limit=&cursor=`, newest first."""
    query = _query(call, "batch", "limit", "cursor")
    batch, limit, cursor = query.number("batch"), query.limit(), query.text("cursor")
    return await _of_run(
        call,
        lambda conn, project, name: step_lists.steps(
            conn, project, name, batch=batch, limit=limit, cursor=cursor
        ),
    )


async def list_groups(call: ApiCall) -> views.GroupList:
    """`?step=&batch=&scenario=&limit=&cursor=`, newest first."""
    query = _query(call, "step", "batch", "scenario", "limit", "cursor")
    step, batch, scenario = query.number("step"), query.number("batch"), query.text("scenario")
    limit, cursor = query.limit(), query.text("cursor")
    return await _of_run(
        call,
        lambda conn, project, name: group_lists.groups(
            conn, project, name, step=step, batch=batch, scenario=scenario, limit=limit, cursor=cursor
        ),
    )


async def list_rollouts(call: ApiCall) -> views.RolloutList:
    """`?filter=&search=&step=&batch=&group=&scenario=&status=&sort=&order=asc|desc&limit=&cursor=`."""
    names = (
        "filter",
        "search",
        "step",
        "batch",
        "group",
        "scenario",
        "status",
        "sort",
        "order",
        "limit",
        "cursor",
    )
    query = _query(call, *names)
    status = query.one_of("status", ("", *(status.value for status in RolloutStatus)), "")
    asked = rollout_lists.Asked(
        filter=query.text("filter") or "",
        search=query.text("search") or "",
        step=query.number("step"),
        batch=query.number("batch"),
        group=query.text("group"),
        scenario=query.text("scenario"),
        status=status or None,
        sort=query.one_of("sort", get_args(rollout_lists.Sort), "created_at"),
        descending=query.one_of("order", ("asc", "desc"), "desc") == "desc",
        limit=query.limit(),
        cursor=query.text("cursor"),
    )
    return await _of_run(call, lambda conn, project, name: rollout_lists.page(conn, project, name, asked))


async def list_scenarios(call: ApiCall) -> views.ScenarioList:
    """`?sort=change|reward_last|rollouts&limit=&cursor=`."""
    query = _query(call, "sort", "limit", "cursor")
    sort = query.one_of("sort", get_args(group_lists.ScenarioSort), "change")
    limit, cursor = query.limit(), query.text("cursor")
    return await _of_run(
        call,
        lambda conn, project, name: group_lists.scenarios(
            conn, project, name, sort=sort, limit=limit, cursor=cursor
        ),
    )


async def get_scenario(call: ApiCall) -> views.ScenarioDetail:
    _query(call)
    scenario = call.param("scenario_id")
    return await _of_run(
        call, lambda conn, project, name: group_lists.scenario(conn, project, name, scenario)
    )


async def get_extremes(call: ApiCall) -> views.Extremes:
    """`?limit=20&split=train|evaluate`."""
    query = _query(call, "limit", "split")
    purpose = PURPOSES[query.one_of("split", tuple(PURPOSES), "train")]
    limit = query.limit(20)
    return await _of_run(
        call, lambda conn, project, name: extremes.extremes(conn, project, name, purpose=purpose, limit=limit)
    )


async def get_reward_check(call: ApiCall) -> views.RewardCheck:
    _query(call)
    return await _of_run(call, reward_check.reward_check)


def _query(call: ApiCall, *names: str) -> Query:
    return Query(call.request.query_params, names)


def _run(call: ApiCall) -> tuple[str, str]:
    return call.param("project"), call.param("name")


async def _of_run(call: ApiCall, query: Callable[[Conn, str, str], T]) -> T:
    """What a query finds of the path's run; NotFound when there is no such run."""
    project, name = _run(call)

    def run(conn: Conn) -> T:
        run_lists.require_run(conn, project, name)
        return query(conn, project, name)

    return await call.gateway.store.view(run)


_RUNS = "/api/v1/views/runs"
_RUN = f"{_RUNS}/{{project}}/{{name}}"

ROUTES = [
    ApiRoute(
        "GET", "/api/v1/views/metrics", Role.INFER, list_metrics, "What figures are called, and what they mean",
        response=views.MetricList,
    ),
    ApiRoute("GET", _RUNS, Role.INFER, list_runs, "Runs, the newest change first", response=views.RunList),
    ApiRoute("GET", _RUN, Role.INFER, get_run, "One run: figures, statuses, fates", response=views.RunDetail),
    ApiRoute(
        "GET", f"{_RUN}/series", Role.INFER, get_series, "Figures over the steps of a run",
        response=views.SeriesSet,
    ),
    ApiRoute("GET", f"{_RUN}/steps", Role.INFER, list_steps, "Train calls of a run", response=views.StepList),
    ApiRoute("GET", f"{_RUN}/groups", Role.ROLLOUT, list_groups, "Groups of a run", response=views.GroupList),
    ApiRoute(
        "GET", f"{_RUN}/rollouts", Role.ROLLOUT, list_rollouts,
        "Rollouts of a run, filtered, searched, sorted", response=views.RolloutList,
    ),
    ApiRoute(
        "GET", f"{_RUN}/scenarios", Role.ROLLOUT, list_scenarios, "Scenarios of a run",
        response=views.ScenarioList,
    ),
    ApiRoute(
        "GET", f"{_RUN}/scenarios/{{scenario_id:path}}", Role.ROLLOUT, get_scenario,
        "One scenario across the steps", response=views.ScenarioDetail,
    ),
    ApiRoute(
        "GET", f"{_RUN}/extremes", Role.ROLLOUT, get_extremes,
        "The best and the worst of the newest rollouts, and what rewards go with", response=views.Extremes,
    ),
    ApiRoute(
        "GET", f"{_RUN}/reward-check", Role.INFER, get_reward_check,
        "What rewards go with, and what is suspicious about that", response=views.RewardCheck,
    ),
]  # fmt: skip
