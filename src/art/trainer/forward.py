"""The policy: base model and LoRA adapter, and its log-probabilities on recorded tokens.

Axis legend: S tokens of a trie, N trained tokens, E hidden size.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from art.algorithms.packing import pack
from art.base_model.files import read_json
from art.config.model import LoraConfig
from art.errors import ConfigError
from art.tokens.samples import SampledChoice, Trie, build_trie, common_prefix, depth_first
from art.trainer import attention
from art.trainer.body import Body, load_body
from art.trainer.head import chunked_logprobs, whole_logprobs
from art.trainer.memory import Known

log = logging.getLogger(__name__)

TREE_BOUND_FP32 = 1e-4
TREE_BOUND_BF16 = 0.06
"""Mean absolute difference of log-probabilities that is arithmetic and not a fault: the parity bounds."""

Dtype = Literal["auto", "fp32", "bf16"]

MAGNITUDE = "lora_magnitude_vector"
"""PEFT's name of DoRA's lengths; in files without `.weight`."""


def choose_dtype(asked: Dtype) -> tuple[torch.dtype, str]:
    """The base weights' type, and why. bfloat16 where the machine multiplies it in hardware."""
    if asked != "auto":
        return (torch.bfloat16 if asked == "bf16" else torch.float32), "as asked"
    if torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16, "the GPU computes bfloat16"
        return torch.float32, "the GPU does not compute bfloat16"
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return torch.bfloat16, "the CPU multiplies bfloat16 in hardware"
    return torch.float32, "the CPU has no bfloat16 arithmetic"


@dataclass(frozen=True, slots=True)
class Row:
    """What one forward pass reads: a trie as tensors, and the choices it was built from."""

    trie: Trie
    choices: list[SampledChoice]
    token_ids: Tensor
    depth: Tensor
    query: Tensor
    target: Tensor
    temperature: Tensor
    owner: Tensor
    """[N], on the CPU; index into `choices`."""
    blocks: attention.Plan


def sequences(choices: Sequence[SampledChoice]) -> list[list[int]]:
    """Indices of `choices` by the sequence they lie on: a path and its prefixes together."""
    rows: list[list[int]] = []
    before: SampledChoice | None = None
    for index in depth_first(choices):
        path = choices[index].path
        if before is not None and common_prefix(before.path, path) == len(before.path):
            rows[-1].append(index)
        else:
            rows.append([index])
        before = choices[index]
    return rows


def make_row(choices: Sequence[SampledChoice], device: torch.device) -> Row:
    """The trie of `choices` on `device`."""
    trie = build_trie(choices)
    temperatures = torch.tensor([choice.temperature for choice in choices], dtype=torch.float32)
    return Row(
        trie=trie,
        choices=list(choices),
        token_ids=torch.from_numpy(trie.token_ids).to(device),
        depth=torch.from_numpy(trie.depth).to(device),
        query=torch.from_numpy(trie.query).to(device),
        target=torch.from_numpy(trie.target).to(device),
        temperature=temperatures[torch.from_numpy(trie.choice)].to(device),
        owner=torch.from_numpy(trie.choice),
        blocks=attention.plan_attention(trie, device=device),
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that are made when they are reached: of a large batch's tensors and attention plans those of one are held."""

    _choices: list[list[SampledChoice]]
    _device: torch.device

    def __len__(self) -> int:
        return len(self._choices)

    def __iter__(self) -> Iterator[Row]:
        for choices in self._choices:
            yield make_row(choices, self._device)


class Policy:
    """A base model with one LoRA adapter attached, or all of whose weights are trained (`lora` None)."""

    def __init__(self, body: Body, *, lora: LoraConfig | None, dtype: torch.dtype, note: str) -> None:
        self.body = body
        self.tree = True
        """False: sequences are computed one by one, by a plain attention."""
        self.verified = False
        self.lora = lora
        self.dtype = dtype
        self.note = note
        """Whose forward pass this is."""
        self.known = Known()
        """Of its memory."""
        self.last_row = (0, 1)
        """(tokens, sequences) of the row that was computed last."""
        self.fresh_adapter = self.adapter_state()
        """As initialised from `lora.seed`, or the base model's weights: what a new model starts from."""

    @classmethod
    def load(cls, base: Path, *, lora: LoraConfig | None, dtype: torch.dtype) -> Policy:
        """Load the base model in `dtype`, and attach a fresh adapter (B = 0) in float32 where there is one."""
        body, note = load_body(base, lora=lora, dtype=dtype)
        policy = cls(body, lora=lora, dtype=dtype, note=note)
        if body.local_attention is not None:
            log.warning("sequences are trained one by one: %s", body.local_attention)
            policy.tree = False
        return policy

    @property
    def device(self) -> torch.device:
        return self.body.device

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """What is trained: the adapter's matrices by PEFT's names, or all weights by transformers'."""
        return self.body.parameters

    @property
    def vocab_size(self) -> int:
        return self.body.vocab_size

    def rows(self, choices: Sequence[SampledChoice], *, budget: int) -> Rows:
        """`choices` cut into rows of at most `budget` tokens; without tries, a row for each sequence."""
        packed = pack(choices, budget=budget) if self.tree else sequences(choices)
        return Rows([[choices[index] for index in row] for row in packed], self.device)

    def hidden(self, row: Row) -> Tensor:
        """[S, E], the last hidden states of a trie. Without `tree` the row is one sequence."""
        return self.body.hidden(row.token_ids, row.depth, row.blocks if self.tree else None)

    @torch.no_grad()
    def verify(self, choices: Sequence[SampledChoice], *, chunk: int) -> str | None:
        """Compare the trie's log-probabilities with those by a plain attention, once per loaded model.

        The first and the last of `choices` in depth-first order are the two that share least, so both the
        shared prefix and the fork are seen. Returns why tries are given up from now on, or None.
        """
        if self.verified or not self.tree:
            return None
        order = depth_first(choices)
        pair = [choices[index] for index in dict.fromkeys((order[0], order[-1]))]
        row = make_row(pair, self.device)
        found = [self.logprobs(row, chunk=chunk)[0][row.owner.to(self.device) == i] for i in range(len(pair))]
        self.tree = False
        try:
            expected = [self.logprobs(make_row([choice], self.device), chunk=chunk)[0] for choice in pair]
        finally:
            self.tree = True  # also where memory runs out: nothing is known then
        self.verified = True
        difference = float((torch.cat(found) - torch.cat(expected)).abs().mean())
        bound = TREE_BOUND_FP32 if self.dtype == torch.float32 else TREE_BOUND_BF16
        if difference <= bound:
            return None
        self.tree = False
        reason = (
            f"sequences are trained one by one: shared prefixes gave other log-probabilities than a plain "
            f"attention (mean difference {difference:.2g}, bound {bound:g})"
        )
        log.warning(reason)
        return reason

    def logprobs(self, row: Row, *, chunk: int, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the row's targets, [N] each, float32.

        The first have a gradient; the second have one with `entropy_gradient`.
        """
        self.last_row = (row.trie.size, len(row.trie.paths))
        hidden_NE = self.hidden(row)[row.query]
        compute = whole_logprobs if self.lora is None else chunked_logprobs
        return compute(
            hidden_NE,
            self.body.head,
            row.target,
            row.temperature,
            chunk=chunk,
            entropy_gradient=entropy_gradient,
        )

    @contextmanager
    def adapter_off(self) -> Iterator[None]:
        """The base model itself."""
        with self.body.adapter_off():
            yield

    def adapter_state(self) -> dict[str, Tensor]:
        """The adapter's tensors under PEFT's file names."""
        return {
            file_name(name): parameter.detach().to("cpu", torch.float32, copy=True).contiguous()
            for name, parameter in self.parameters.items()
        }

    @torch.no_grad()
    def load_adapter_state(self, tensors: dict[str, Tensor]) -> None:
        """Replace the adapter's tensors. Raises ConfigError when names or shapes do not fit this model."""
        expected = {file_name(name): parameter for name, parameter in self.parameters.items()}
        wrong = sorted(set(expected) ^ set(tensors)) or sorted(
            name for name, tensor in tensors.items() if tensor.shape != expected[name].shape
        )
        if wrong:
            raise ConfigError(
                "The adapter does not fit the model",
                cause=f"{len(wrong)} tensors are missing, unknown or of another shape, such as {wrong[0]}",
                hint="an adapter belongs to one base model, rank and list of target modules",
            )
        for name, tensor in tensors.items():
            expected[name].copy_(tensor)

    @torch.no_grad()
    def probe(self, token_ids: list[int]) -> list[float]:
        """log p(token_ids[i] | token_ids[:i]) at temperature 1, for i >= 1."""
        ids = torch.tensor(token_ids)
        choice = SampledChoice(
            call_id="probe",
            choice=0,
            rollout=0,
            prompt=ids[:1].numpy(),
            completion=ids[1:].numpy(),
            logprobs=torch.zeros(len(ids) - 1).numpy(),
            trainable=torch.ones(len(ids) - 1, dtype=torch.bool).numpy(),
            temperature=1.0,
        )
        logprobs, _ = self.logprobs(make_row([choice], self.device), chunk=len(ids))
        return [float(value) for value in logprobs]


def file_name(parameter: str) -> str:
    """The name that PEFT saves a parameter under: without the adapter's own name."""
    if parameter.endswith(f"{MAGNITUDE}.default.weight"):
        return parameter.removesuffix(".default.weight")
    return parameter.replace(".default.", ".").removesuffix(".default")


def adapter_config(lora: LoraConfig | None, base: str) -> dict[str, Any]:
    """The content of adapter_config.json; what is not named there has PEFT's default. Of all weights: of config.json."""
    if lora is None:
        config = read_json(Path(base) / "config.json")
        return {name: value for name, value in config.items() if name != "torch_dtype"} | {"dtype": "float32"}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": lora.r,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(lora.target_modules),
        "bias": "none",
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "fan_in_fan_out": False,
        "use_dora": lora.dora,
        "use_rslora": lora.rslora,
    }
