"""A model that starts from another one's step, and a model whose latest step is an earlier one again."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from train_kit import Trained

import art

SOURCE = "forkable"


@pytest.fixture(scope="module")
def source(taught: Trained) -> str:
    """A model at step 2."""
    taught.register(SOURCE)
    for step in (1, 2):
        assert train(taught, SOURCE)["step"] == step
    return SOURCE


def train(taught: Trained, name: str) -> dict[str, Any]:
    groups = [taught.group([0.0, 1.0], model=f"p/{name}")]
    return taught.train(groups, name=name, config={"learning_rate": 1e-3})


def folder(taught: Trained, name: str, step: int) -> Path:
    return taught.server.path / "p" / "models" / name / "checkpoints" / f"{step:04d}"


def manifest(taught: Trained, name: str, step: int) -> dict[str, Any]:
    return dict(json.loads((folder(taught, name, step) / "manifest.json").read_text()))


def steps(taught: Trained, name: str) -> list[int]:
    return [one["step"] for one in taught.api("GET", f"models/p/{name}/checkpoints")["checkpoints"]]


def fork(taught: Trained, name: str, *, base_model: str | None = None, **more: Any) -> Any:
    config = {"base_model": base_model or taught.base_model, **more.pop("config", {})}
    body = {"project": "p", "name": name, "config": config, **more}
    return taught.raw("POST", f"/api/v1/models/p/{SOURCE}/fork", body)


def digests(place: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in place.iterdir()
        if path.name != "manifest.json"
    }


def test_a_fork_is_the_same_step_and_goes_its_own_way(taught: Trained, source: str) -> None:
    answer = fork(taught, "fork-of-1", not_after_step=1)
    assert answer.status_code == 200, answer.text
    assert answer.json()["step"] == 1
    assert fork(taught, "fork-of-1", not_after_step=1).json() == answer.json(), "asked again it is the same"
    assert taught.register("fork-of-1") == answer.json()
    assert steps(taught, "fork-of-1") == [1]
    # Adapter, optimizer and random state are the bytes of the source.
    copy = digests(folder(taught, "fork-of-1", 1))
    assert copy == digests(folder(taught, source, 1))
    assert {"adapter_model.safetensors", "optimizer.safetensors", "trainer_state.json"} <= set(copy)
    told = manifest(taught, "fork-of-1", 1)
    assert (told["name"], told["forked_from"]) == ("fork-of-1", f"p/{source}@1")

    assert train(taught, "fork-of-1")["step"] == 2
    assert steps(taught, "fork-of-1") == [1, 2]
    assert digests(folder(taught, "fork-of-1", 2)) != digests(folder(taught, source, 2))
    assert steps(taught, source)[:3] == [0, 1, 2]


def test_what_cannot_be_forked_is_said(taught: Trained, source: str) -> None:
    taken = fork(taught, "m")
    assert taken.status_code == 409, taken.text
    other = fork(taught, "fork-r4", config={"lora": {"r": 4}})
    assert other.status_code == 400, other.text
    assert "lora" in other.json()["error"]["cause"]
    body = {"project": "p", "name": "fork-x", "config": {"base_model": taught.base_model}}
    assert taught.raw("POST", "/api/v1/models/p/nobody/fork", body).status_code == 404
    names = [one["name"] for one in taught.api("GET", "models")["models"]]
    assert not {"fork-r4", "fork-x"} & set(names)


def test_rolling_back_deletes_nothing_and_the_next_step_comes_after_all(taught: Trained, source: str) -> None:
    name = "rolled"
    assert fork(taught, name).json()["step"] == 2
    assert train(taught, name)["step"] == 3

    async def roll_back() -> None:
        backend = art.RemoteBackend(taught.server.url, taught.server.admin_key)
        model: art.TrainableModel[Any, Any] = art.TrainableModel(
            name=name, project="p", base_model=taught.base_model
        )
        await model.register(backend)
        assert model.get_inference_name() == f"{name}@3"
        assert await backend.rollback(model, 2) == 2
        assert model.get_inference_name() == f"{name}@2"
        assert await model.get_step() == 2
        with pytest.raises(art.errors.NotFound, match="has no step 9"):
            await backend.rollback(model, 9)
        await backend.close()

    asyncio.run(roll_back())
    assert steps(taught, name) == [2, 3]
    assert taught.chat(model=f"p/{name}")["art"]["version"] == f"p/{name}@2"
    assert train(taught, name)["step"] == 4
    assert manifest(taught, name, 4)["parent_step"] == 2
    assert steps(taught, name) == [2, 3, 4]
    assert not (taught.server.path / "p" / "models" / name / "set_aside").exists()
