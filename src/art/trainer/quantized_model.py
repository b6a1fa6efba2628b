"""A base model's folder with its matrices rounded to 8 or 4 bits, made once beside the converted models."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any, get_args

from safetensors.torch import save_file

from art.base_model.files import TensorFile, read_json
from art.base_model.llama import NAMES, LlamaConfig
from art.config.model import Quantization
from art.errors import ConfigError
from art.trainer.packaged import fsync_folder, fsync_path, locked
from art.trainer.quantized import Packed

log = logging.getLogger(__name__)

MARKER = "quantization.json"
"""{"kind": "nf4"}: which grid the folder's matrices are on."""
COPIED = ("*.json", "*.jinja")


def kind_of(folder: Path) -> Quantization | None:
    """The grid that a folder's matrices are on; None for a model as it came."""
    if not (folder / MARKER).is_file():
        return None
    found: Any = read_json(folder / MARKER).get("kind")
    if found not in get_args(Quantization):
        raise ConfigError(f"{folder / MARKER} names the quantization {found!r}", hint="int8 or nf4")
    kind: Quantization = found
    return kind


def quantize_folder(folder: Path, kind: Quantization, *, cache_dir: Path) -> Path:
    """A copy of the base model in `folder` whose layers' matrices are on the grid of `kind`.

    Made once for the files as they are now, and whole or not there at all. ConfigError for a model whose matrices
    are not known.
    """
    if (present := kind_of(folder)) == kind:
        return folder
    if present is not None:
        raise ConfigError(
            f"quantization={kind!r} cannot be applied",
            cause=f"{folder} is rounded to {present} already",
            hint="give the model that it was made of",
        )
    config = read_json(folder / "config.json")
    if not any(name in NAMES for name in config.get("architectures") or ()):
        raise ConfigError(
            f"quantization={kind!r} cannot be applied to this base model",
            cause=f"its architecture is {', '.join(config.get('architectures') or ['not named'])}",
            hint=f"supported: {', '.join(NAMES)}",
        )
    target = cache_dir / f"{fingerprint(folder)}-{kind}"
    cache_dir.mkdir(parents=True, exist_ok=True)
    with locked(cache_dir / f"{target.name}.lock", f"{folder.name} in {kind}"):
        if target.is_dir():
            return target
        for leftover in cache_dir.glob(f".tmp-{target.name}-*"):
            shutil.rmtree(leftover)
        log.info("rounding %s to %s, once", folder, kind)
        temporary = cache_dir / f".tmp-{target.name}-{os.getpid()}"
        temporary.mkdir()
        _write(folder, kind, LlamaConfig.read(config), temporary)
        fsync_folder(temporary)
        temporary.rename(target)
        fsync_path(cache_dir)
    return target


def fingerprint(folder: Path) -> str:
    """Of a folder's place and its files' sizes and times: reading all weights would take minutes for a large model."""
    digest = hashlib.sha256(str(folder.resolve()).encode())
    for path in sorted(folder.iterdir()):
        if path.is_file():
            found = path.stat()
            digest.update(f"{path.name}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]


def _write(folder: Path, kind: Quantization, config: LlamaConfig, target: Path) -> None:
    matrices = {f"{name}.weight" for name in config.linears()}
    with TensorFile.of_model(folder) as file:
        tensors = {name: file.read(name).clone() for name in file.names()}
    for name in matrices & tensors.keys():
        tensors[name] = Packed.of(tensors[name], kind).dense()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    for pattern in COPIED:
        for path in folder.glob(pattern):
            if path.name != "model.safetensors.index.json":
                shutil.copyfile(path, target / path.name)
    (target / MARKER).write_text(json.dumps({"kind": kind}) + "\n")
