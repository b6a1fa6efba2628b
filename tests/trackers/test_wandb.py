"""W&B: the files of an offline run, read back record by record."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import wandb
from report_kit import published, tell
from wandb_files import records

import art

OFFLINE = {"name": "wandb", "mode": "offline"}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in one.history.item}
        for one in records(folder)
        if one.WhichOneof("record_type") == "history"
    ]


def runs(folder: Path) -> list[Any]:
    return [one.run for one in records(folder) if one.WhichOneof("record_type") == "run"]


def test_figures_come_back_under_the_training_step(tmp_path: Path) -> None:
    tell(OFFLINE, tmp_path)
    logged = rows(tmp_path)
    assert [(one["training_step"], one.get("train/reward"), one.get("val/reward")) for one in logged] == [
        (1, 0.25, None),
        (2, 0.75, None),
        (2, None, 0.5),
    ]
    run = runs(tmp_path)[0]
    assert (run.project, run.run_id, run.display_name) == ("weather", "agent-001", "agent-001")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (config["base_model"], config["lora"]) == ("tiny", {"r": 8})
    axes = {
        one.metric.glob_name: one.metric.step_metric
        for one in records(tmp_path)
        if one.WhichOneof("record_type") == "metric" and one.metric.glob_name
    }
    assert axes == {f"{section}/*": "training_step" for section in ("train", "loss", "costs", "val")}


def test_neither_output_nor_system_figures_go_with_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tell(OFFLINE, tmp_path, after=lambda tracker: print("what the program prints"))
    kinds = {one.WhichOneof("record_type") for one in records(tmp_path)}
    assert not kinds & {"output", "output_raw", "stats"}, kinds
    assert b"what the program prints" not in b"".join(
        file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()
    )


def test_an_adapter_is_an_artifact_only_when_asked_for(tmp_path: Path) -> None:
    checkpoint = published(tmp_path)
    tell(OFFLINE, tmp_path / "plain", checkpoint=checkpoint)
    assert not [one for one in records(tmp_path / "plain") if _artifact(one)]
    tell({**OFFLINE, "checkpoints": True}, tmp_path / "kept", checkpoint=checkpoint)
    (artifact,) = [_artifact(one) for one in records(tmp_path / "kept") if _artifact(one)]
    assert (artifact.name, artifact.type) == ("agent-001", "lora")
    assert sorted(artifact.aliases) == ["latest", "step2"]
    names = sorted(item.path for item in artifact.manifest.contents)
    assert names == ["adapter_config.json", "adapter_model.safetensors", "manifest.json"]


def _artifact(record: Any) -> Any:
    if record.WhichOneof("record_type") == "artifact":
        return record.artifact
    request = record.request if record.WhichOneof("record_type") == "request" else None
    if request is not None and request.WhichOneof("request_type") == "log_artifact":
        return request.log_artifact.artifact
    return None


def test_a_program_for_openpipe_art_logs_as_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_MODE", "offline")

    async def program(**asked: Any) -> Any:
        model: art.Model[Any, Any] = art.Model(name="m", project="p", base_path=str(tmp_path), **asked)
        model.update_wandb_config({"learning_rate": 1e-5})
        run = model._get_wandb_run()
        model.update_wandb_config({"seed": 3})
        await model.log([art.Trajectory(reward=0.5, metrics={"turns": 2})], split="val", step=4)
        model.tracking.close()
        return run

    run = asyncio.run(program())
    assert isinstance(run, wandb.Run)
    assert (run.id, run.project) == ("m", "p")
    assert dict(run.config) == {"learning_rate": 1e-5, "seed": 3}
    folder = tmp_path / "p" / "models" / "m"
    (row,) = rows(folder)
    assert (row["training_step"], row["val/reward"], row["val/turns"]) == (4, 0.5, 2.0)
    # Whoever says what is reported to gets that and no more.
    assert asyncio.run(program(report_metrics=[])) is None
    assert len(rows(folder)) == 1


def test_a_run_without_a_key_is_refused_and_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from report_kit import run_info

    from art.errors import ConfigError
    from art.integrations.registry import make

    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="W&B has no key"):
        make("wandb").start(run_info(tmp_path))
