"""A body of any causal language model that transformers has, with PEFT's LoRA."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import peft
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from art.config.model import LoraConfig
from art.errors import ConfigError, boundary
from art.trainer.attention import Plan, tree_attention
from art.trainer.memory import Taken

TREE = "art_tree"
"""The name under which transformers knows our attention; the plan travels as the keyword `art_plan`."""


class Switch:
    """Whether layers are computed again in the backward pass."""

    on = False


def _switched(layer: torch.nn.Module, switch: Switch) -> Callable[..., Any]:
    """The layer's forward pass, computed again in the backward pass where the switch is on.

    transformers' own checkpointing wants layers in training mode, where those of some models drop features out. The
    layer is held weakly: one that holds itself would keep its weights until a garbage collection.
    """
    forward, held = type(layer).forward, weakref.ref(layer)

    def compute(*args: Any, **kwargs: Any) -> Any:
        function = partial(forward, held())
        if switch.on and torch.is_grad_enabled():
            return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
        return function(*args, **kwargs)

    return compute


class PeftBody:
    """A Body (see trainer/body.py)."""

    def __init__(self, model: Any) -> None:
        self.peft = model
        self.device = next(model.parameters()).device
        self.parameters: dict[str, torch.nn.Parameter] = {
            name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        self._switch = Switch()
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        for layer in layers:
            layer.forward = _switched(layer, self._switch)
        self.layers = len(layers)
        self._dtype = self.head.dtype

    @classmethod
    def load(cls, base: Path, *, lora: LoraConfig, dtype: torch.dtype) -> PeftBody:
        """Load the base model in `dtype` and attach a fresh adapter (B = 0) in float32.

        ConfigError when transformers cannot load it, PEFT cannot attach the adapter, or its layers are local.
        """
        AttentionInterface.register(TREE, tree_interface)
        with boundary(f"loading {base}", ConfigError):
            model = AutoModelForCausalLM.from_pretrained(
                base,
                dtype=dtype,
                attn_implementation=TREE,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
            )
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        model.eval()
        head = model.get_output_embeddings()
        shape = peft.LoraConfig(
            r=lora.r,
            lora_alpha=lora.alpha,
            target_modules=list(lora.target_modules),
            lora_dropout=0.0,
            use_rslora=lora.rslora,
            use_dora=lora.dora,
            bias="none",
            task_type="CAUSAL_LM",
            base_model_name_or_path=str(base),
        )
        with torch.random.fork_rng():
            torch.manual_seed(lora.seed)
            with boundary("attaching the adapter", ConfigError, hint="check lora.target_modules"):
                wrapped = peft.get_peft_model(model, shape, autocast_adapter_dtype=True)
        if wrapped.get_base_model().get_output_embeddings() is not head:
            raise ConfigError(
                "an adapter on the LM head cannot be trained",
                cause="the trainer computes log-probabilities in chunks with the head's own weights",
                hint="leave the head out of lora.target_modules",
            )
        return cls(wrapped)

    @property
    def _causal_lm(self) -> Any:
        return self.peft.get_base_model()

    @property
    def head(self) -> Tensor:
        head: Tensor = self._causal_lm.get_output_embeddings().weight
        return head

    @property
    def vocab_size(self) -> int:
        return int(self._causal_lm.get_input_embeddings().weight.shape[0])

    @property
    def local_attention(self) -> str | None:
        """Why the model's attention does not see all ancestors, or None. Short sequences would not show it."""
        kinds = set(getattr(self._causal_lm.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            return f"the model has layers of the kinds {', '.join(sorted(kinds))}"
        return None

    @property
    def checkpointing(self) -> bool:
        return self._switch.on

    @checkpointing.setter
    def checkpointing(self, on: bool) -> None:
        self._switch.on = on

    @property
    def taken(self) -> Taken:
        """What the machine holds with this model, before any row."""
        model = self._causal_lm
        outer = {id(one.weight) for one in (model.get_input_embeddings(), model.get_output_embeddings())}
        frozen = [one for one in model.parameters() if not one.requires_grad]
        weights = sum(one.nbytes for one in frozen)
        return Taken.of(
            weights=weights,
            layers=sum(one.nbytes for one in frozen if id(one) not in outer),
            merged=False,
            trainable=sum(one.numel() for one in self.parameters.values()),
        )

    def hidden(self, token_S: Tensor, depth_S: Tensor, blocks: Plan | None) -> Tensor:
        """[S, E]."""
        plan = {} if blocks is None else {"art_plan": blocks}
        model = self._causal_lm
        wanted = "sdpa" if blocks is None else TREE
        if model.config._attn_implementation != wanted:
            model.set_attn_implementation(wanted)
        # PEFT would compute the adapter in float32, the type it is kept in.
        with torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32):
            out = model.model(input_ids=token_S[None], position_ids=depth_S[None], use_cache=False, **plan)
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    @contextmanager
    def adapter_off(self) -> Iterator[None]:
        """The base model itself."""
        with self.peft.disable_adapter():
            yield


def tree_interface(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    art_plan: Plan,
    **unused: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: [1, H, S, D] in, [1, S, H, D] out."""
    # Under autocast the positions leave queries and keys in float32.
    q, k = query[0].to(value.dtype), key[0].to(value.dtype)
    out = tree_attention(q, k, value[0], art_plan, scale=scaling)
    return out.transpose(0, 1).unsqueeze(0), None
