"""Langfuse: a trace for each rollout over its OTLP endpoint, and the reward as a score.

The client object of its SDK is one for each key and process: the first one made decides what is masked and sampled for
all. So that a program's own stays its own, this sends spans itself, and asks the SDK for its API alone.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from art.config.outside import host_of, is_loopback
from art.config.trackers import LangfuseOptions
from art.errors import ConfigError, InfraError
from art.integrations.genai import REWARD, SpanSeen, Value, span_of
from art.integrations.spans import SpanSender
from art.integrations.tracker import About, PublishedStep, Row, RunInfo
from art.version import package_version

if TYPE_CHECKING:
    from art.integrations.seen import RolloutBatch

CLOUD = "https://cloud.langfuse.com"
INGESTION = "4"
"""Version of Langfuse's ingestion that the spans are made for."""
TIMEOUT = 30.0
"""Seconds of one request."""
KINDS = {"invoke_agent": "agent", "chat": "generation", "execute_tool": "tool"}
"""Langfuse's words for the conventions' operations."""


class LangfuseTracker:
    """Sends rollouts. Figures of rows have no place there."""

    def __init__(self, options: LangfuseOptions) -> None:
        self._options = options
        self._run: RunInfo | None = None
        self._api: Any = None

    @property
    def _base_url(self) -> str:
        known = os.environ.get("LANGFUSE_BASE_URL") or os.environ.get("LANGFUSE_HOST")
        return (self._options.base_url or known or CLOUD).rstrip("/")

    @property
    def about(self) -> About:
        """Langfuse's server."""
        place = host_of(self._base_url)
        away = not is_loopback(place)
        return About(
            name="langfuse",
            place=place,
            leaves=away,
            lacks=self._lacks,
            figures=False,
            rollouts=True,
            content=self._options.content,
        )

    @property
    def _lacks(self) -> ConfigError | None:
        if all(_keys()):
            return None
        return ConfigError(
            "Langfuse has no keys",
            cause="LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY are not both set",
            hint="they are in the project's settings there",
        )

    def start(self, run: RunInfo) -> None:
        """Make the clients; nothing is sent yet. ConfigError without keys."""
        from langfuse.api import LangfuseAPI

        public, secret = _keys()
        if (lacking := self._lacks) is not None:
            raise lacking
        self._run = run
        self._api = LangfuseAPI(
            base_url=self._base_url,
            username=public,
            password=secret,
            x_langfuse_public_key=public,
            x_langfuse_sdk_name="python",
            timeout=TIMEOUT,
        )
        token = base64.b64encode(f"{public}:{secret}".encode()).decode()
        self._spans = SpanSender(
            f"{self._base_url}/api/public/otel/v1/traces",
            resource={"service.name": "art", "service.version": package_version()},
            timeout=TIMEOUT,
            headers={
                "Authorization": f"Basic {token}",
                "x-langfuse-public-key": public,
                "x-langfuse-ingestion-version": INGESTION,
            },
            relabel=self._labels,
        )

    def _labels(self, span: SpanSeen) -> Mapping[str, Value]:
        """The conventions' attributes, and Langfuse's beside them: it wants those of the trace on every span."""
        assert self._run is not None, "spans follow a start"
        said = span.attributes
        operation = str(said.get("gen_ai.operation.name"))
        labels: dict[str, Value] = {
            **said,
            "langfuse.observation.type": KINDS.get(operation, "span"),
            "langfuse.trace.name": f"{self._run.project}/{self._run.name}",
            "session.id": str(said.get("gen_ai.conversation.id", "")),
        }
        if self._options.environment is not None:
            labels["langfuse.environment"] = self._options.environment
        for of, name in (
            ("input", "gen_ai.input.messages"),
            ("output", "gen_ai.output.messages"),
            ("input", "gen_ai.tool.call.arguments"),
            ("output", "gen_ai.tool.call.result"),
        ):
            if name in said:
                labels[f"langfuse.observation.{of}"] = said[name]
        if operation == "chat":
            usage = {of: said.get(f"gen_ai.usage.{of}_tokens", 0) for of in ("input", "output")}
            labels["langfuse.observation.usage_details"] = json.dumps(usage)
            labels["langfuse.observation.model.name"] = said.get("gen_ai.request.model", "")
        return labels

    def log(self, row: Row) -> None:
        """Never called: `about.figures` is False."""
        raise AssertionError("it takes no figures")

    def rollouts(self, batch: RolloutBatch) -> None:
        """Traces, then their scores. InfraError when Langfuse does not take them."""
        from langfuse.api.scores import CreateScoreRequest

        assert self._run is not None, "rollouts follow a start"
        ids = self._spans.send([span_of(rollout, batch, self._run) for rollout in batch.rollouts])
        scores = [
            CreateScoreRequest(
                name=REWARD,
                value=rollout.reward,
                trace_id=trace,
                observation_id=span,
                data_type="NUMERIC",
                environment=self._options.environment,
            )
            for rollout, (trace, span) in zip(batch.rollouts, ids, strict=True)
        ]
        if scores:
            answer = self._api.scores.create(request=scores)
            if rejected := getattr(answer, "rejected", 0):
                raise InfraError(f"Langfuse rejected {rejected} of {len(scores)} scores")

    def artifact(self, checkpoint: PublishedStep) -> None:
        """Never called: `about.checkpoints` is False."""
        raise AssertionError("Langfuse takes no checkpoints")

    def close(self, seconds: float) -> None:
        """Nothing is queued."""
        self._spans.close()


def _keys() -> tuple[str, str]:
    """Public and secret key; empty where there is none."""
    return os.environ.get("LANGFUSE_PUBLIC_KEY", ""), os.environ.get("LANGFUSE_SECRET_KEY", "")
