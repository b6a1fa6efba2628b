"""What a user may set about trackers: where the figures of a run go besides the server's own store.

[run]
trackers = ["wandb", "otel"]

[run.tracker.otel]
endpoint = "http://127.0.0.1:4318"
content = true
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from art.errors import ConfigError

USES = "trackers.json"
"""Beside a model's other files: the trackers that its runs were sent to."""


class TrackerOptions(BaseModel):
    """Options of one tracker. Keys are never among them: each library finds its own where it always does."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ContentOptions(TrackerOptions):
    """Of a tracker that gets rollouts."""

    content: bool = False
    """Send what was said (messages, tool arguments and results, metadata), as the server keeps it after redaction. Off,
    because it leaves the store: without it go names, counts, times and rewards."""


class WandbOptions(TrackerOptions):
    """Weights & Biases. Its key: WANDB_API_KEY, or `wandb login`."""

    project: str | None = None
    """None is the model's project."""
    entity: str | None = None
    """None is the model's `entity`, else the key's default."""
    mode: Literal["online", "offline"] | None = None
    """`offline` writes files for `wandb sync`. None is what WANDB_MODE says, else online."""
    base_url: str | None = None
    """Of a server of your own. None is what WANDB_BASE_URL says, else W&B's."""
    dir: Path | None = None
    """Folder of its files. None is what WANDB_DIR says, else the model's folder."""
    tags: tuple[str, ...] = ()
    system: bool = False
    """Also send what wandb sees of this machine: load, host, command line, installed packages. Off, because the run is
    the server's, which may be another machine."""
    checkpoints: bool = False
    """Upload each published adapter as an artifact `name:step<N>`. Off, because it sends weights."""


class WeaveOptions(ContentOptions):
    """W&B Weave. Its key: WANDB_API_KEY, or `wandb login`."""

    project: str | None = None
    """`project` or `entity/project`. None is the model's project."""


class LangfuseOptions(ContentOptions):
    """Langfuse. Its keys: LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY."""

    base_url: str | None = None
    """None is what LANGFUSE_BASE_URL or LANGFUSE_HOST says, else Langfuse's cloud."""
    environment: str | None = None
    """Langfuse's own word for production, staging and the like."""


class OpenPipeOptions(ContentOptions):
    """A file of request logs in OpenPipe's format; nothing is sent."""

    file: Path | None = None
    """None is `openpipe.jsonl` in the model's folder."""


class MlflowOptions(TrackerOptions):
    """MLflow."""

    tracking_uri: str | None = None
    """None is what MLFLOW_TRACKING_URI says, else MLflow's default."""
    experiment: str | None = None
    """None is the model's project."""
    checkpoints: bool = False
    """Upload each published adapter as an artifact. Off, because it sends weights."""


class TrackioOptions(TrackerOptions):
    """Trackio, which keeps runs on this machine (TRACKIO_DIR)."""

    project: str | None = None
    """None is the model's project."""
    space_id: str | None = None
    """A Hugging Face Space to send to. None sends nothing."""


class TensorboardOptions(TrackerOptions):
    """TensorBoard event files."""

    dir: Path | None = None
    """None is `tensorboard` in the model's folder."""


class OtelOptions(ContentOptions):
    """OpenTelemetry over OTLP/HTTP. Headers: OTEL_EXPORTER_OTLP_HEADERS."""

    endpoint: str | None = None
    """Of the collector, without `/v1/traces`. None is what OTEL_EXPORTER_OTLP_ENDPOINT says, else
    http://127.0.0.1:4318."""
    service_name: str = "art"
    timeout: float = Field(10.0, gt=0, le=600.0)
    """Seconds that one export may take: OpenTelemetry's own default."""


OPTIONS: dict[str, type[TrackerOptions]] = {
    "wandb": WandbOptions,
    "weave": WeaveOptions,
    "langfuse": LangfuseOptions,
    "openpipe": OpenPipeOptions,
    "mlflow": MlflowOptions,
    "trackio": TrackioOptions,
    "tensorboard": TensorboardOptions,
    "otel": OtelOptions,
}
"""The trackers that ART brings, with their options."""


def chosen(names: Sequence[str], tables: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What `art.fit(trackers=...)` takes, from the names of a run's settings and their tables.

    ConfigError for a table that nobody would read.
    """
    idle = sorted(tables.keys() - set(names))
    if idle:
        raise ConfigError(
            f"the tracker {idle[0]} has options and is not asked for",
            cause=f"asked for are {', '.join(names)}" if names else "none is asked for",
            hint=f"add {idle[0]!r} to the names",
        )
    return [{**tables.get(name, {}), "name": name} for name in dict.fromkeys(names)]


# -- what was sent where, for `art doctor --data-flow`


class TrackerUse(BaseModel):
    """A tracker that the runs of a model were sent to."""

    name: str
    place: str
    """A host or a folder."""
    what: str
    leaves: bool
    last: float
    """When it was last opened, seconds since 1970."""


class TrackerUses(BaseModel):
    """The file `trackers.json`."""

    trackers: list[TrackerUse] = Field(default_factory=list)


def uses_in(root: Path) -> Iterator[tuple[str, TrackerUse]]:
    """`project/name` and a tracker, for every model of a server's folder. Files that are no such list are skipped."""
    for file in sorted(root.glob(f"*/models/*/{USES}")):
        try:
            found = TrackerUses.model_validate_json(file.read_text())
        except (OSError, UnicodeDecodeError, ValidationError):
            continue
        model = f"{file.parent.parent.parent.name}/{file.parent.name}"
        yield from ((model, use) for use in found.trackers)
