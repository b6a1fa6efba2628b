"""Checkpoints: immutable folders that appear whole or not at all.

    checkpoints/0012/
      adapter_config.json  adapter_model.safetensors    the adapter, as PEFT reads it
      config.json  model.safetensors  tokenizer.json    or all weights, as transformers reads them
      optimizer.safetensors                             the optimizer's state; no tensors at step 0
      trainer_state.json                                random state, batch counter, optimizer updates
      manifest.json                                     where it comes from, and the files' sha256

Everything is written into a temporary folder beside the target, forced to the disk, and renamed. A process
killed on the way leaves a `.tmp-` folder, which the next start removes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from art.config.model import LoraConfig
from art.config.sft import ResolvedSFTConfig
from art.config.train import ResolvedTrainConfig
from art.errors import Conflict, InvalidInput, NotFound, TrainingFailed
from art.trainer.packaged import fsync_folder, fsync_path
from art.trainer.protocol import SET_ASIDE, CheckpointInfo, ResolvedBaseModel, TrainOutcome

ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
MODEL = "model.safetensors"
MODEL_CONFIG = "config.json"
BESIDE_A_MODEL = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""Files of a base model that are copied, where there are any, so that a step of all weights is a base model itself."""
OPTIMIZER = "optimizer.safetensors"
STATE = "trainer_state.json"
MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"

log = logging.getLogger(__name__)


class TrainerState(BaseModel):
    """What resuming needs beside adapter and optimizer."""

    schema_version: int = 1
    batch: int = 0
    updates: int = 0
    """Optimizer updates since step 0."""
    sft_updates: int = 0
    """Those of them that were of supervised fine-tuning."""
    optimizers: dict[str, str] = Field(default_factory=dict)
    """The optimizer whose state is saved, by kind of job: "rl", "sft". AdamW where a kind is missing."""
    torch_rng: str = ""
    """torch.get_rng_state(), base64."""

    @classmethod
    def capture(
        cls, *, batch: int, updates: int, sft_updates: int = 0, optimizers: Mapping[str, str] | None = None
    ) -> TrainerState:
        """The state of this process's generator, with the given counters."""
        state = base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode()
        return cls(
            batch=batch,
            updates=updates,
            sft_updates=sft_updates,
            optimizers=dict(optimizers or {}),
            torch_rng=state,
        )

    def restore_rng(self) -> None:
        """Continue the generator where the checkpoint left it."""
        data = bytearray(base64.b64decode(self.torch_rng))
        torch.set_rng_state(torch.frombuffer(data, dtype=torch.uint8).clone())


class Manifest(BaseModel):
    """Where a checkpoint comes from, and how to know that it is whole."""

    schema_version: int = 1
    project: str
    name: str
    step: int
    parent_step: int | None
    batch: int
    job_id: str | None
    base: ResolvedBaseModel
    lora: LoraConfig | None
    """None: all weights were trained, and the step is a whole model."""
    config: ResolvedTrainConfig | None
    sft: ResolvedSFTConfig | None = None
    """Of a step of supervised fine-tuning, whose `config` is None."""
    history: str
    code_version: str
    sample_digest: str
    is_base: bool
    probe_token_ids: list[int]
    probe_logprobs: list[float]
    created_at: float
    forked_from: str = ""
    """`project/name@step` of the checkpoint that this one is a copy of."""
    metrics: dict[str, float] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    """sha256 of each file."""
    outcome: TrainOutcome | None = None
    """Of the job that wrote it, without the checkpoint itself."""

    @property
    def weights_file(self) -> str:
        """Which file holds what is trained."""
        return MODEL if self.lora is None else ADAPTER

    @property
    def version(self) -> str:
        """`project/name@step`."""
        return f"{self.project}/{self.name}@{self.step}"

    def to_json(self) -> str:
        """The file's content. TrainingFailed for numbers that are not finite: they would be read back as null."""
        try:
            return json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False)
        except ValueError as error:
            raise TrainingFailed(
                f"Step {self.step} holds numbers that are not finite; nothing was published",
                cause=str(error),
                hint="lower learning_rate, or scale the rewards down",
            ) from error

    def info(self, folder: Path) -> CheckpointInfo:
        """What the gateway is told; the path is where the folder lies now."""
        return CheckpointInfo(
            project=self.project,
            name=self.name,
            step=self.step,
            path=str(folder),
            is_base=self.is_base,
            probe_token_ids=self.probe_token_ids,
            probe_logprobs=self.probe_logprobs,
            sha256=self.files.get(self.weights_file, ""),
            created_at=self.created_at,
        )

    def recorded_outcome(self, folder: Path) -> TrainOutcome | None:
        """What the job that wrote this checkpoint returned."""
        return self.outcome and self.outcome.model_copy(update={"checkpoint": self.info(folder)})


class CheckpointStore:
    """The checkpoints of one model."""

    def __init__(self, model_dir: Path) -> None:
        self.root = model_dir / "checkpoints"

    def folder(self, step: int) -> Path:
        return self.root / f"{step:04d}"

    def steps(self) -> list[int]:
        """Published steps, ascending."""
        if not self.root.is_dir():
            return []
        return sorted(int(path.name) for path in self.root.iterdir() if path.name.isdecimal())

    def remove_leftovers(self) -> list[str]:
        """Delete what a killed process left; returns the names."""
        leftovers = sorted(self.root.glob(f"{TEMPORARY}*")) if self.root.is_dir() else []
        for path in leftovers:
            remove_folder(path)
        return [path.name for path in leftovers]

    def manifest(self, step: int) -> Manifest:
        """NotFound when the step is not published; InvalidInput when its manifest is damaged."""
        path = self.folder(step) / MANIFEST
        try:
            return Manifest.model_validate_json(path.read_text())
        except FileNotFoundError as error:
            raise NotFound(
                f"There is no checkpoint of step {step}",
                cause=f"{path} does not exist",
                hint=self._remedy(step),
            ) from error
        except (ValueError, OSError) as error:  # ValidationError and what is not UTF-8 are ValueErrors
            raise InvalidInput(
                f"The checkpoint of step {step} is damaged",
                cause=f"{path}: {error}",
                hint=self._remedy(step),
            ) from error

    def _remedy(self, step: int) -> str:
        """What to do about a step whose files are gone or damaged: which others there are, and how to use one."""
        others = [
            known
            for known in self.steps()
            if known != step and any((self.folder(known) / file).is_file() for file in (ADAPTER, MODEL))
        ]
        advice = f"restore {self.folder(step)} from a backup"
        if not others:
            return f"no other step is there; {advice}, or register the model under another name"
        listed = ", ".join(map(str, others))
        # <path>/<project>/models/<name>/checkpoints
        model = f"{self.root.parents[2].name}/{self.root.parent.name}"
        return (
            f"the steps {listed} are there; {advice}, or make one of them the latest: "
            f"art checkpoint rollback {others[-1]} --model {model}"
        )

    def find_job(self, job_id: str, *, after: int) -> TrainOutcome | None:
        """The outcome of the job `job_id` where it published a step after `after`. Damaged ones are not its."""
        for step in self.steps():
            if step <= after:
                continue
            try:
                manifest = self.manifest(step)
            except (NotFound, InvalidInput) as error:
                log.warning("%s", error)
                continue
            if manifest.job_id == job_id:
                return manifest.recorded_outcome(self.folder(step))
        return None

    def set_aside(self, *, after: int) -> list[Path]:
        """Move the steps after `after` out of the way; where they are now.

        `after` is the latest step that the server has recorded: what comes later was left by a process that
        ended before its work was recorded, and would keep the next job from publishing its step.
        """
        moved = []
        for step in self.steps():
            if step > after:
                target = self.root.parent / SET_ASIDE / f"{self.folder(step).name}-{time.time_ns()}"
                target.parent.mkdir(exist_ok=True)
                self.folder(step).rename(target)
                moved.append(target)
        return moved

    def load_adapter(self, step: int) -> dict[str, Tensor]:
        """The adapter's tensors, or all weights, checked against the manifest."""
        return self._load(step, self.manifest(step).weights_file)

    def load_optimizer(self, step: int) -> dict[str, Tensor]:
        """The optimizer's state by parameter name, checked against the manifest."""
        return self._load(step, OPTIMIZER)

    def load_state(self, step: int) -> TrainerState:
        path = self._checked(step, STATE)
        return TrainerState.model_validate_json(path.read_text())

    def _load(self, step: int, file: str) -> dict[str, Tensor]:
        path = self._checked(step, file)
        try:
            return dict(load_file(path))
        except SafetensorError as error:
            raise InvalidInput(f"{path} is damaged", cause=str(error), hint=self._remedy(step)) from error

    def _checked(self, step: int, file: str) -> Path:
        path = self.folder(step) / file
        expected = self.manifest(step).files.get(file)
        if not path.is_file() or file_sha256(path) != expected:
            raise InvalidInput(
                f"The checkpoint of step {step} is damaged",
                cause=f"{path} is not the file that was published",
                hint=self._remedy(step),
            )
        return path

    def write(
        self,
        manifest: Manifest,
        *,
        adapter: dict[str, Tensor],
        adapter_config: dict[str, Any],
        optimizer: dict[str, Tensor],
        state: TrainerState,
    ) -> CheckpointInfo:
        """Publish a step. Conflict when it is published already: checkpoints never change."""

        def fill(folder: Path) -> None:
            save_file(adapter, folder / manifest.weights_file, metadata={"format": "pt"})
            save_file(optimizer, folder / OPTIMIZER)
            config = MODEL_CONFIG if manifest.lora is None else ADAPTER_CONFIG
            (folder / config).write_text(json.dumps(adapter_config, indent=2, sort_keys=True))
            for name in BESIDE_A_MODEL if manifest.lora is None else ():
                if (source := Path(manifest.base.path) / name).is_file():
                    shutil.copyfile(source, folder / name)
            (folder / STATE).write_text(state.model_dump_json(indent=2))

        return self._publish(manifest, fill)

    def fork(self, source: Path, *, project: str, name: str, history: str) -> CheckpointInfo:
        """Publish another model's checkpoint (`source`: its folder) as a step of this one, under its number.

        Raises NotFound or InvalidInput where it is gone or damaged, Conflict when the step is published already.
        """
        origin, step = CheckpointStore(source.parent.parent), int(source.name)
        manifest = origin.manifest(step)
        ours = {"project": project, "name": name, "history": history, "forked_from": manifest.version}
        # It is no step of a job of ours: none must find its own outcome here.
        theirs = {"parent_step": None, "job_id": None, "outcome": None}

        def fill(folder: Path) -> None:
            for file in manifest.files:
                shutil.copyfile(origin._checked(step, file), folder / file)

        return self._publish(manifest.model_copy(update={**ours, **theirs}), fill)

    def _publish(self, manifest: Manifest, fill: Callable[[Path], None]) -> CheckpointInfo:
        """Make the step appear whole, with the files that `fill` puts into its folder."""
        self.require_unpublished(manifest.step)
        target = self.folder(manifest.step)
        self.root.mkdir(parents=True, exist_ok=True)
        temporary = self.root / f"{TEMPORARY}{manifest.step:04d}-{os.getpid()}"
        temporary.mkdir()
        try:
            fill(temporary)
            manifest.files = {path.name: file_sha256(path) for path in sorted(temporary.iterdir())}
            manifest.created_at = time.time()
            (temporary / MANIFEST).write_text(manifest.to_json())
            fsync_folder(temporary)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)  # a full disk must not keep the half
        fsync_path(self.root)
        return manifest.info(target)

    def require_unpublished(self, step: int) -> None:
        """Conflict when `step` exists: a job of another id must not train into it."""
        if self.folder(step).exists():
            raise Conflict(
                f"Step {step} is published already",
                cause=f"{self.folder(step)} exists and was not written by this job",
                hint="delete the later steps before training from an earlier one",
            )


def delete_checkpoint(path: Path) -> None:
    """Remove one published checkpoint; one that is gone already is fine.

    Renamed first, so that a crash half way leaves no damaged checkpoint. Raises InvalidInput for a folder that
    is no checkpoint.
    """
    if not path.exists():
        return
    if not path.name.isdigit() or not (path / MANIFEST).is_file():
        raise InvalidInput(
            f"{path} is no checkpoint", cause=f"it has no {MANIFEST}", hint="nothing was deleted"
        )
    doomed = path.with_name(f"{TEMPORARY}deleted-{path.name}-{os.getpid()}")
    path.rename(doomed)
    remove_folder(doomed)


def remove_folder(folder: Path) -> None:
    """Delete a folder; what is gone already is fine: a training step removes leftovers while a deletion runs."""

    def ignore_missing(
        function: Callable[..., Any], path: str, found: tuple[Any, BaseException, Any]
    ) -> None:
        if not isinstance(found[1], FileNotFoundError):
            raise found[1]

    shutil.rmtree(folder, onerror=ignore_missing)


def file_sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
