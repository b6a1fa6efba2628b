"""The resolved settings kept with the run, so that it can be read and repeated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.config.resolved import to_toml
from art.errors import NotFound
from art.types.wire_views import RunConfig
from art.utils.files import write_text

if TYPE_CHECKING:
    from art.model import TrainableModel

FILE = "run.resolved.toml"


def file_of(model: TrainableModel[Any, Any]) -> Path:
    """Beside the model's other files."""
    return Path(model.base_path) / model.project / "models" / model.name / FILE


async def keep(
    model: TrainableModel[Any, Any], data: Mapping[str, Mapping[str, Any]], origin: Mapping[str, str]
) -> list[str]:
    """Write the file, and give the same to the server. What a person should know of it."""
    write_text(file_of(model), to_toml(data, origin))
    body = RunConfig(config=dict(data), origin=dict(origin))
    path = f"/api/v1/models/{model.project}/{model.name}/run-config"
    try:
        await model.backend().connection.request("PUT", path, body=body)
    except NotFound:
        return [
            "the server is of an earlier release, which keeps no settings of a run; they are in the file alone"
        ]
    return []
