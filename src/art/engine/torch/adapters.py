"""LoRA adapters in PEFT's format, merged into copies of the weights they touch.

Axes: O output features, I input features, R rank.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from art.base_model.files import Read, TensorFile, read_json
from art.engine.protocol import BASE_VERSION, AdapterCheck, AdapterRef
from art.engine.torch.architecture import Architecture
from art.engine.torch.delta import Delta
from art.engine.torch.weights import Placement
from art.engine.torch.whole import WholeModel, is_whole
from art.errors import ConfigError, Conflict, InvalidInput, NotFound, Overloaded

PREFIX = "base_model.model."
"""What PEFT puts before every parameter's name."""

MAGNITUDE = "lora_magnitude_vector"
"""PEFT's name of DoRA's lengths of rows."""
PART = rf"(lora_A|lora_B|{MAGNITUDE})"

REFUSED = (
    "fan_in_fan_out",
    "modules_to_save",
    "layer_replication",
    "trainable_token_indices",
    "lora_bias",
)
"""Settings of adapter_config.json that change what an adapter computes and are not implemented."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA on disk, read and sorted by the matrices it belongs to."""

    deltas: dict[str, Delta]
    matched: int
    unmatched: list[str]


def read_adapter(folder: Path, adaptable: frozenset[str]) -> Adapter:
    """Read adapter_config.json and adapter_model.safetensors.

    Tensors of matrices that are not `adaptable` are named in `unmatched`. NotFound, InvalidInput or ConfigError when
    a file is missing, damaged or of another kind than LoRA, rsLoRA and DoRA.
    """
    config = read_json(folder / "adapter_config.json")
    _refuse(config)
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        raise NotFound(f"{weights} does not exist", hint="give the folder of a published checkpoint")
    parts = {"lora_A", "lora_B"} | ({MAGNITUDE} if config.get("use_dora") else set())
    halves: dict[str, dict[str, Tensor]] = {}
    unmatched: list[str] = []
    with TensorFile([weights]) as file:
        for name in file.names():
            found = re.fullmatch(rf"(?:{re.escape(PREFIX)})?(.+)\.{PART}(?:\.default)?(?:\.weight)?", name)
            if found is None or f"{found[1]}.weight" not in adaptable or found[2] not in parts:
                unmatched.append(name)
                continue
            # Cloned: the file may be deleted by retention while the mapped pages are still wanted.
            halves.setdefault(found[1], {})[found[2]] = file.read(name).clone()
    deltas: dict[str, Delta] = {}
    for stem, half in halves.items():
        if missing := parts - half.keys():
            raise InvalidInput(f"{weights} has no {' and no '.join(sorted(missing))} of {stem}")
        a_R_I, b_O_R = half["lora_A"], half["lora_B"]
        scale = _scale(config, stem, rank=a_R_I.shape[0])
        deltas[f"{stem}.weight"] = Delta(a_R_I, b_O_R, scale, half.get(MAGNITUDE))
    return Adapter(deltas, matched=len(parts) * len(deltas), unmatched=sorted(unmatched))


def _scale(config: dict[str, Any], stem: str, *, rank: int) -> float:
    """alpha / r, or alpha / sqrt(r) with rank-stabilised LoRA (arXiv:2312.03732)."""
    alpha = float(config["lora_alpha"])
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", stem):
            alpha = float(value)
            break
    return alpha / rank**0.5 if config.get("use_rslora") else alpha / rank


def _refuse(config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise ConfigError(
            f"an adapter of type {config.get('peft_type')!r} cannot be served", hint="supported: LORA"
        )
    if "lora_alpha" not in config:
        raise InvalidInput("adapter_config.json has no lora_alpha")
    for name in REFUSED:
        if config.get(name):
            raise ConfigError(
                f"an adapter with {name} cannot be served", hint="supported: LoRA, rsLoRA and DoRA"
            )
    if config.get("bias", "none") != "none":
        raise ConfigError("an adapter with trained biases cannot be served", hint='supported: bias="none"')


Probe = Callable[[Any, list[int]], list[float]]
"""(weights, token ids) -> log-probabilities."""


@dataclass(slots=True)
class _Loaded:
    ref: AdapterRef
    weights: Any
    check: AdapterCheck


class AdapterStore:
    """The base model and the versions merged from it; the least recently used idle one goes first."""

    def __init__(
        self, architecture: Architecture, read: Read, placement: Placement, *, max_adapters: int
    ) -> None:
        self._architecture = architecture
        self._read = read
        self._placement = placement
        self._max_adapters = max_adapters
        self._base = architecture.build(read, placement)
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()

    def versions(self) -> list[str]:
        """Loaded adapter versions, the least recently used first."""
        return list(self._loaded)

    def weights(self, version: str) -> Any:
        """A version's weights. NotFound when it is not loaded."""
        if version == BASE_VERSION:
            return self._base
        loaded = self._loaded.get(version)
        if loaded is None:
            raise NotFound(
                f"adapter {version!r} is not loaded",
                cause=f"loaded: {', '.join(self._loaded) or 'none'}",
                hint="load it first",
            )
        self._loaded.move_to_end(version)
        return loaded.weights

    def load(
        self, ref: AdapterRef, *, busy: Collection[str], probe: Probe
    ) -> tuple[AdapterCheck, str | None]:
        """Merge an adapter, or place a whole model; its check, and the version that is there no more, if there is one.

        Overloaded when every loaded version is `busy`; Conflict when the version is loaded from another folder: adapters
        are immutable. A version whose content changed is loaded anew, unless it is `busy`: no request changes its weights.
        """
        known = self._loaded.get(ref.version)
        if known is not None and known.ref == ref:
            return known.check, None
        if known is not None and known.ref.path != ref.path:
            raise Conflict(f"adapter {ref.version!r} is loaded already", cause=f"from {known.ref.path}")
        if known is not None and ref.version in busy:
            raise Conflict(f"adapter {ref.version!r} has running requests", cause="its files were changed")
        if is_whole(Path(ref.path)):
            evicted = self._make_room(busy) if known is None else ref.version
            whole = WholeModel.load(ref, self._architecture, self._read, self._placement)
            return self._keep(ref, whole.weights, whole, probe), evicted
        adapter = read_adapter(Path(ref.path), self._architecture.adaptable)
        self._check_shapes(adapter, ref)
        evicted = self._make_room(busy) if known is None else ref.version
        weights = self._architecture.build(
            self._read, self._placement, base=self._base, deltas=adapter.deltas
        )
        return self._keep(ref, weights, adapter, probe), evicted

    def _keep(self, ref: AdapterRef, weights: Any, found: Adapter | WholeModel, probe: Probe) -> AdapterCheck:
        check = AdapterCheck(
            version=ref.version,
            matched=found.matched,
            unmatched=found.unmatched,
            probe_logprobs=probe(weights, ref.probe_token_ids),
            base_probe_logprobs=probe(self._base, ref.probe_token_ids),
        )
        self._loaded[ref.version] = _Loaded(ref, weights, check)
        return check

    def unload(self, version: str, *, busy: Collection[str]) -> None:
        """Forget a version. Conflict while requests run on it; unknown ones are gone already."""
        if version in busy:
            raise Conflict(f"adapter {version!r} has running requests", hint="unload it when they have ended")
        self._loaded.pop(version, None)

    def _make_room(self, busy: Collection[str]) -> str | None:
        if len(self._loaded) < self._max_adapters:
            return None
        for version in self._loaded:
            if version not in busy:
                del self._loaded[version]
                return version
        raise Overloaded(
            f"all {self._max_adapters} loaded adapters have running requests",
            hint="try again when some have ended, or allow more with --max-adapters",
        )

    def _check_shapes(self, adapter: Adapter, ref: AdapterRef) -> None:
        for name, delta in adapter.deltas.items():
            wanted, given = tuple(self._read(name).shape), (delta.b_O_R.shape[0], delta.a_R_I.shape[1])
            lengths = delta.magnitude_O
            ranks_fit = delta.a_R_I.shape[0] == delta.b_O_R.shape[1]
            if wanted != given or not ranks_fit or (lengths is not None and lengths.shape != wanted[:1]):
                raise InvalidInput(
                    f"the adapter in {ref.path} does not fit the base model",
                    cause=f"{name} is {wanted}, the adapter's product {given}",
                    hint="it was trained on another base model",
                )
