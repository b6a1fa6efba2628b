"""What a step may take of the machine's memory, and what follows for its rows.

Everything here is arithmetic on sizes, so that a plan made before loading and the trainer's own choice are one. Nothing
depends on what is free at the moment: a resumed run cuts its batches as the uninterrupted one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from art.config.optimizer import OptimizerConfig
from art.errors import ConfigError, UnsupportedOption

MAX_ROW_TOKENS = 4096
"""Longer rows gain nothing: the products of a layer are as fast as they get long before."""
MIN_ROW_TOKENS = 256
ROW_MEMORY_SHARE = 4
"""One row may keep this fraction (1/4) of what programs and weights leave. The engine's keys and values may take a third
of all memory, and served adapters and the backward pass's own numbers need the rest."""
PROGRAMS = 1.5e9
"""Bytes that the three processes take with nothing loaded: torch's libraries, twice, and the gateway."""
STATE_BYTES = 16
"""Of one trained number: itself, its gradient and Adam's two moments, in float32."""
FULL_BYTES = 20
"""Of memory a weight takes where all are trained: STATE_BYTES, and the base model's value in float32."""
FULL_SHARE = 0.6
"""Of the machine's memory, what that may take; the rest is for the engine and for activations."""
GB = 1e9


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that one token keeps between its forward and its backward pass."""

    plain: float
    checkpointed: float | None
    """With gradient checkpointing; None where the layers cannot be computed again."""

    @classmethod
    def of(cls, *, plain: float, between: float, layers: int) -> Footprint:
        """`between` is what stays with checkpointing: the layers' inputs, and what lies outside of them. One of the
        `layers` at a time is computed again, and its gradients are as large as what it keeps."""
        return cls(plain, between + 2 * plain / layers if layers else None)

    def each(self, *, checkpointing: bool) -> float:
        """Of a token, computed so."""
        return self.checkpointed if checkpointing and self.checkpointed is not None else self.plain


@dataclass(slots=True)
class Known:
    """What was found out about a loaded policy; goes with it."""

    footprints: dict[bool, Footprint] = field(default_factory=dict)
    """With tries, and without."""
    row_limit: int | None = None
    """Rows of more tokens ran out of memory."""
    checkpointing: bool = False
    """Without gradient checkpointing memory ran out."""
    limit: float | None = None
    """Bytes that the process may take, where it has a limit of its own."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a job's sequences are computed."""

    tokens: int
    """Of a row at most; a longer sequence has a row of its own."""
    checkpointing: bool
    notes: tuple[str, ...]
    """The choices with their reasons."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes that the machine holds before the first row."""

    others: float
    """The gateway's and the engine's: programs, the base model, its layers' matrices once more for a served adapter."""
    own: float
    """The trainer's: its program, the base model, the layers once more where it merges, the trained numbers' state."""

    @classmethod
    def of(
        cls, *, weights: float, layers: float, merged: bool, trainable: int, packed: float | None = None
    ) -> Taken:
        """`weights`: bytes of the base model; `layers`: of its layers' matrices; `trainable`: how many numbers; `packed`:
        bytes of the layers' matrices as the trainer holds them, where it packs them."""
        state = STATE_BYTES * trainable
        held = weights if packed is None else weights - layers + packed
        own = PROGRAMS / 3 + held + (layers if merged else 0.0) + state
        return cls(others=PROGRAMS * 2 / 3 + weights + layers, own=own)

    @property
    def all(self) -> float:
        return self.others + self.own

    def left(self, memory: float) -> float | None:
        """What the trainer may take of a machine with `memory` bytes; None where not even the first row fits."""
        return memory - self.others if self.all < memory else None


def row_share(memory: float, taken: Taken) -> float:
    """Bytes that one row may keep on a device with `memory` bytes."""
    return max(0.0, memory - taken.all) / ROW_MEMORY_SHARE


def row_tokens(each: float, share: float) -> int:
    """Tokens of a row that may keep `share` bytes, `each` by a token."""
    return max(MIN_ROW_TOKENS, min(MAX_ROW_TOKENS, int(share / each)))


def choose_cut(
    config: OptimizerConfig, *, footprint: Footprint, longest: int, share: float, known: Known
) -> Cut:
    """Rows and checkpointing of a job whose longest sequence has `longest` tokens.

    UnsupportedOption when gradient checkpointing is asked for and the layers cannot be computed again.
    """
    checkpointing, why = _checkpointing(config, footprint, longest, share, known)
    each = footprint.each(checkpointing=checkpointing)
    if config.packed_sequence_length is not None:
        tokens, reason = config.packed_sequence_length, "as asked"
    else:
        tokens = row_tokens(each, share)
        reason = (
            f"each keeps {megabytes(each)} until its backward pass, and a row may keep {gigabytes(share)}, a "
            "quarter of what programs and weights leave"
        )
    if known.row_limit is not None and tokens > known.row_limit:
        tokens, reason = known.row_limit, "memory ran out with more in an earlier step"
    state = "on" if checkpointing else "off"
    return Cut(
        tokens,
        checkpointing,
        (f"rows of {tokens} tokens: {reason}", f"gradient checkpointing {state}: {why}"),
    )


def _checkpointing(
    config: OptimizerConfig, footprint: Footprint, longest: int, share: float, known: Known
) -> tuple[bool, str]:
    """Whether layers are computed again in the backward pass, and why."""
    asked = config.gradient_checkpointing
    if asked and footprint.checkpointed is None:
        raise UnsupportedOption(
            "gradient_checkpointing=True cannot be applied",
            cause="the layers of this base model cannot be computed again in the backward pass",
            hint="leave gradient_checkpointing out",
        )
    if asked is not None:
        return asked, "as asked"
    if footprint.checkpointed is None:
        return False, "the layers of this base model cannot be computed again in the backward pass"
    if known.checkpointing:
        return True, "memory ran out without it in an earlier step"
    whole = longest * footprint.plain
    sequence = f"the longest sequence has {longest} tokens, which keep {gigabytes(whole)}"
    if whole <= share:
        return False, f"{sequence} of the {gigabytes(share)} that a row may keep"
    less = longest * footprint.checkpointed
    return True, f"{sequence} where a row may keep {gigabytes(share)}; with it they keep {gigabytes(less)}"


def require_memory(name: str, *, numbers: int, memory: int) -> None:
    """ConfigError when training so many numbers takes more than FULL_SHARE of `memory` (bytes)."""
    needed, allowed = FULL_BYTES * numbers, FULL_SHARE * memory
    if needed > allowed:
        raise ConfigError(
            f"training all weights of {name} does not fit",
            cause=f"it takes {needed / 1e9:.3g} GB, and {FULL_SHARE:.0%} of the memory is {allowed / 1e9:.3g} GB",
            hint='leave training at "lora", or take a smaller base model',
        )


def gigabytes(size: float) -> str:
    """For people."""
    return f"{size / GB:.2g} GB"


def megabytes(size: float) -> str:
    """For people."""
    return f"{size / 1e6:.2g} MB"
