"""W&B Weave: a call for each rollout, inside it one for each call to the model and each tool.

`weave.init` patches the SDKs that a program uses, and would send what they say. So this speaks to the trace server by
Weave's own binding of it, which sends nothing but what it is given and leaves a program's own `weave.init` alone.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from art.config.outside import host_of, is_loopback
from art.config.trackers import WeaveOptions
from art.errors import ConfigError
from art.integrations.genai import SpanSeen, span_of
from art.integrations.tracker import About, PublishedStep, Row, RunInfo

if TYPE_CHECKING:
    from art.integrations.seen import RolloutBatch

CLOUD = "https://trace.wandb.ai"
QUIET = "WANDB_ERROR_REPORTING"
"""Weave reports its own errors to its makers unless this is false."""
AT_ONCE = 500
"""Calls of one request: some megabytes at most, where texts are sent."""
CONTENT = {
    "gen_ai.input.messages": "input",
    "gen_ai.tool.call.arguments": "input",
    "gen_ai.output.messages": "output",
    "gen_ai.tool.call.result": "output",
}
"""Attributes that are a call's inputs and output."""


class WeaveTracker:
    """Sends rollouts. Figures of rows belong into W&B."""

    def __init__(self, options: WeaveOptions) -> None:
        self._options = options
        self._run: RunInfo | None = None
        self._server: Any = None
        self._project = ""
        """`entity/project`."""

    @property
    def about(self) -> About:
        """Weave's trace server."""
        place = host_of(os.environ.get("WF_TRACE_SERVER_URL") or CLOUD)
        away = not is_loopback(place)
        return About(
            name="weave",
            place=place,
            leaves=away,
            figures=False,
            rollouts=True,
            content=self._options.content,
        )

    def start(self, run: RunInfo) -> None:
        """Make the client, and the project where it does not exist. ConfigError without a key."""
        os.environ.setdefault(QUIET, "false")
        from weave.trace.weave_init import get_entity_project_from_project_name
        from weave.trace_server_bindings.remote_http_trace_server import RemoteHTTPTraceServer
        from weave.wandb_interface.context import get_wandb_auth_context

        credentials = get_wandb_auth_context()
        if credentials is None:
            raise ConfigError(
                "Weave has no key",
                cause="neither WANDB_API_KEY is set nor was `wandb login` run",
                hint="set WANDB_API_KEY",
            )
        name = self._options.project or run.project
        if run.entity is not None and "/" not in name:
            name = f"{run.entity}/{name}"
        entity, project = get_entity_project_from_project_name(name)
        self._server = RemoteHTTPTraceServer.from_env()
        self._server.set_auth(credentials)
        made = self._server.ensure_project_exists(entity, project)
        self._project = f"{entity}/{made.project_name}"
        self._run = run

    def log(self, row: Row) -> None:
        """Never called: `about.figures` is False."""
        raise AssertionError("it takes no figures")

    def rollouts(self, batch: RolloutBatch) -> None:
        """A tree of calls for each rollout; the reward is in the rollout's output. Weave's error when they are not taken."""
        assert self._run is not None, "rollouts follow a start"
        calls: list[dict[str, Any]] = []
        for rollout in batch.rollouts:
            calls += self._calls(span_of(rollout, batch, self._run), trace=str(uuid.uuid4()), parent=None)
        for start in range(0, len(calls), AT_ONCE):
            self._server.calls_complete({"batch": calls[start : start + AT_ONCE]})

    def _calls(self, span: SpanSeen, *, trace: str, parent: str | None) -> Iterator[dict[str, Any]]:
        said = {of: span.attributes[name] for name, of in CONTENT.items() if name in span.attributes}
        known = {name: value for name, value in span.attributes.items() if name not in CONTENT}
        output: dict[str, Any] = {"output": said["output"]} if "output" in said else {}
        if span.score is not None:
            output["reward"] = span.score
        call = {
            "id": trace if parent is None else str(uuid.uuid4()),  # a trace has its root's id
            "trace_id": trace,
            "parent_id": parent,
            "project_id": self._project,
            "op_name": known.get("gen_ai.operation.name", "rollout"),
            "display_name": span.name,
            "started_at": _time(span.started),
            "ended_at": _time(max(span.started, span.ended)),
            "attributes": {"art": known},
            "inputs": {"input": said["input"]} if "input" in said else {},
            "output": output or None,
            "exception": str(known["art.status"]) if span.failed else None,
            "summary": _summary(span),
        }
        yield call
        for child in span.children:
            yield from self._calls(child, trace=trace, parent=str(call["id"]))

    def artifact(self, checkpoint: PublishedStep) -> None:
        """Never called: `about.checkpoints` is False."""
        raise AssertionError("Weave takes no checkpoints")

    def close(self, seconds: float) -> None:
        """Nothing is queued."""


def _summary(span: SpanSeen) -> dict[str, Any]:
    """Tokens by model, which Weave adds up over a trace."""
    counts = {of: span.attributes.get(f"gen_ai.usage.{of}_tokens") for of in ("input", "output")}
    if counts["input"] is None and counts["output"] is None:
        return {}
    usage = {f"{of}_tokens": count or 0 for of, count in counts.items()}
    return {"usage": {str(span.attributes.get("gen_ai.request.model", "")): {**usage, "requests": 1}}}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
