"""`art doctor --data-flow`: every place that data can go from this machine, now."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.backends.remote import RemoteBackend
from art.cli._served import address_on, run_to_the_end, runs_on
from art.config import outside
from art.config.load import load_config
from art.config.trackers import chosen
from art.integrations.registry import require
from art.integrations.uses import what_goes
from art.types.data_flow import DataFlow, Flow
from art.version import DISTRIBUTION

if TYPE_CHECKING:
    from art.store.records import KeyRow
    from art.types.wire_retention import ProjectRetention

ROUTE = "/api/v1/data/flow"
WIDTH = 12
"""Of the column with the kinds."""


def report(path: Path, config: Path | None) -> DataFlow:
    """From the server that runs on the folder, or from the settings that one would start with; then of this environment."""
    found = _told(path) if runs_on(path) else _from_settings(path, config)
    found.flows += configured_flows(config)
    found.flows += environment_flows()
    return found


def configured_flows(config: Path | None) -> Iterator[Flow]:
    """The trackers that a run of this file would be sent to. ConfigError for one that cannot be had."""
    if config is None:
        return
    run = load_config(file=config).run
    for tracker in require(chosen(run.trackers, run.tracker)):
        about = tracker.about
        what = f"{about.name} gets of runs of {config.name}: {what_goes(about)}"
        yield Flow(kind="tracker", place=about.place, what=what, leaves=about.leaves)


def environment_flows(environment: Mapping[str, str] | None = None) -> Iterator[Flow]:
    """What programs that are started here would do, agents and judges among them."""
    for variable, host in outside.models(environment).items():
        what = f"what an agent or a judge with {variable} asks outside of ART's sessions"
        yield Flow(kind="judge", place=host, what=what, leaves=True)
    for variable, tracker in outside.trackers(environment).items():
        what = (
            f"{variable} is set: libraries of your agent may send there; ART only when asked for that tracker"
        )
        yield Flow(kind="environment", place=tracker, what=what, leaves=True)
    for variable, host in outside.proxies(environment).items():
        what = f"{variable} is set: requests that leave this machine pass there"
        yield Flow(kind="environment", place=host, what=what, leaves=True)


def lines(told: DataFlow) -> list[str]:
    """For a person: what leaves the machine, or could be read by others, is marked."""
    head = "of the server that runs" if told.running else "no server runs; as one would start"
    shown = [
        f"{'!' if flow.leaves else ' '} {flow.kind:{WIDTH}}{flow.place}: {flow.what}" for flow in told.flows
    ]
    return [
        f"Where data can go ({head}):",
        *shown,
        f"{len(told.leaving)} of these leave this machine, or can be read by others on it (!).",
    ]


def _told(path: Path) -> DataFlow:
    """What the server of the folder says."""
    url, key = address_on(path)

    async def ask() -> Any:
        async with RemoteBackend(url, key) as backend:
            return await backend.connection.request("GET", ROUTE)

    return DataFlow.model_validate(run_to_the_end(ask()))


def _from_settings(path: Path, config: Path | None) -> DataFlow:
    try:
        from art.server.data_flow import flows_of
    except ModuleNotFoundError:  # a machine for agents alone
        what = f"{DISTRIBUTION}[server] is not installed: this machine runs agents, and no server"
        return DataFlow(running=False, flows=[Flow(kind="listens", place="nowhere", what=what)])
    settings = load_config(flags={"server": {"path": path}}, file=config).server
    keys, retentions = _kept(path / "server" / "art.db")
    return flows_of(settings, path.absolute(), url=None, keys=keys, retentions=retentions)


def _kept(database: Path) -> tuple[list[KeyRow], list[ProjectRetention]]:
    """Keys and retentions of a folder whose server is stopped; none where there is no store, or an older release's."""
    from art.store.keeping import list_retentions
    from art.store.key_rows import list_keys

    try:
        with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as conn:
            conn.row_factory = sqlite3.Row
            return list_keys(conn), list_retentions(conn)
    except sqlite3.Error:
        return [], []
