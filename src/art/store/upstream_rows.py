"""Calls to upstreams in SQL: captured, never trained."""

from __future__ import annotations

from typing import Any

from art.store.sql import Conn, dumps, insert, loads, rows
from art.types.upstreams import UpstreamCall, UpstreamCallText


def add(conn: Conn, call: UpstreamCall, *, project: str | None, key_id: str, text: dict[str, Any]) -> None:
    """Insert a call. `text` holds `request` and `answer`, where they are kept."""
    values = call.model_dump(mode="json")
    values["usage"] = dumps(values["usage"])
    values |= {"project": project, "key_id": key_id}
    values |= {name: dumps(text.get(name)) for name in ("request", "answer")}
    insert(conn, "upstream_calls", values)


_COLUMNS = ", ".join(UpstreamCall.model_fields)
# A rollout's id is chosen by its client: what another project's key sent under the same id is not this rollout's.
_OF_ROLLOUT = "FROM upstream_calls WHERE rollout_id = ? AND (project IS NULL OR project = ?) ORDER BY rowid"


def of_rollout(conn: Conn, rollout_id: str, project: str) -> list[UpstreamCall]:
    """A rollout's calls to upstreams in the order they ended."""
    found = rows(conn, f"SELECT {_COLUMNS} {_OF_ROLLOUT}", rollout_id, project)
    return [UpstreamCall.model_validate({**dict(row), "usage": loads(row["usage"])}) for row in found]


def text_of_rollout(conn: Conn, rollout_id: str, project: str) -> list[UpstreamCallText]:
    """The same calls with what was asked and answered."""
    found = rows(conn, f"SELECT {_COLUMNS}, request, answer {_OF_ROLLOUT}", rollout_id, project)
    decoded = (
        {**dict(row), **{name: loads(row[name]) for name in ("usage", "request", "answer")}} for row in found
    )
    return [UpstreamCallText.model_validate(row) for row in decoded]
