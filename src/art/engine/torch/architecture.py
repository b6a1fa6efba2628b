"""What the engine needs to know of a model architecture, and which ones there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor

from art.base_model.files import Read, read_json
from art.engine.torch.attention import AttentionPlan
from art.engine.torch.delta import Delta
from art.engine.torch.weights import Placement
from art.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that cache, sampler and scheduler need."""

    vocab_size: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    context_length: int


class Architecture(Protocol):
    """One kind of decoder. Its functions know names and formulas; they hold no state of a request."""

    shape: ModelShape
    adaptable: frozenset[str]
    """Names of the matrices that a LoRA may change."""
    aliases: dict[str, str]
    """Parameters that are another's values under a name of their own (tied embeddings)."""

    def build(
        self,
        read: Read,
        placement: Placement,
        *,
        base: Any = None,
        deltas: Mapping[str, Delta] = MappingProxyType({}),
    ) -> Any:
        """Weights from parameters. With `base`, which was built from them, its weights with `deltas` by the matrices' names;
        what none of them changes is shared with it."""
        ...

    def forward(self, weights: Any, token_T: Tensor, plan: AttentionPlan) -> Tensor:
        """Hidden states [T, E] before the final norm; stores the tokens' keys and values."""
        ...

    def logits(self, weights: Any, hidden_B_E: Tensor) -> Tensor:
        """Logits [B, V] of some rows of `forward`'s result."""
        ...


def load_architecture(folder: Path) -> Architecture:
    """The architecture that a model folder's config.json names. ConfigError lists the known ones."""
    config = read_json(folder / "config.json")
    known = _registry()
    for name in config.get("architectures") or ():
        if name in known:
            return known[name](config)
    raise ConfigError(
        f"the torch engine cannot run {', '.join(config.get('architectures') or ['a model without a named architecture'])}",
        cause=f"{folder / 'config.json'} names an architecture it does not know",
        hint=f"supported: {', '.join(sorted(known))}",
    )


def _registry() -> dict[str, Callable[[dict[str, Any]], Architecture]]:
    from art.engine.torch.llama import Llama

    return dict.fromkeys(Llama.names, Llama)
