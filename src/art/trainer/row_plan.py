"""How the sequences of one job are cut into rows, and what is given up when memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from art.base_model.memory import limit_private_memory, memory_bytes, return_freed_memory
from art.config.optimizer import OptimizerConfig
from art.errors import TrainingFailed
from art.tokens.samples import SampledChoice
from art.trainer.footprint import footprint
from art.trainer.forward import Policy
from art.trainer.memory import choose_cut, gigabytes, megabytes, row_share

log = logging.getLogger(__name__)

ALLOCATORS = (
    "can't allocate memory",  # torch's allocator on a CPU, Linux
    "not enough memory",  # the same, Windows
    "out of memory",  # CUDA's and oneDNN's own
    "CUBLAS_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
)
"""Parts of the messages of errors that torch raises as a plain RuntimeError."""
MAX_TOLD = 240  # characters of an allocator's message in a note
LEAST_ROW_TOKENS = 16
"""Under this rows are not halved: it is the least that `packed_sequence_length` may be."""

T = TypeVar("T")


class RowPlan:
    """Chosen from measured memory; gives way step by step when that was too much.

    What it gave up stays given up for as long as the policy is loaded, so that later jobs need not run out again.
    """

    def __init__(self, policy: Policy, config: OptimizerConfig, choices: Iterable[SampledChoice]) -> None:
        """UnsupportedOption for an option that this policy cannot apply."""
        self._policy = policy
        self._may_checkpoint = config.gradient_checkpointing is None and policy.body.layers > 0
        self._memory, self._taken = memory_bytes(policy.device), policy.body.taken
        cut = choose_cut(
            config,
            footprint=footprint(policy),
            longest=max(choice.length for choice in choices),
            share=row_share(self._memory, self._taken),
            known=policy.known,
        )
        self.tokens = cut.tokens
        """Of a row at most."""
        policy.body.checkpointing = cut.checkpointing
        self.notes = [*cut.notes, adapter_note(policy.dtype)]
        """Choices with their reasons, and what happened to them."""

    def attempt(self, compute: Callable[[], T]) -> T | None:
        """`compute()`; None when memory ran out, and the plan has given way: begin again then, from the same state.

        So the result is that of a run which had the smaller rows from the start. TrainingFailed when there is nothing
        left to give up.
        """
        try:
            return compute()
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            told = (str(error).strip() or type(error).__name__).splitlines()[0][:MAX_TOLD]
        # Not within `except`: there the traceback holds the row that failed.
        self._release()
        self._give_way(told)
        return None

    def _release(self) -> None:
        """Free what the failed attempt left behind, its gradients too."""
        for parameter in self._policy.parameters.values():
            parameter.grad = None
        gc.collect()
        return_freed_memory()
        if (limit := self._policy.known.limit) is not None:
            limit_private_memory(limit)  # anew: much of what is mapped is in no use now
        if self._policy.device.type == "cuda":
            torch.cuda.empty_cache()

    def _give_way(self, told: str) -> None:
        """Halve the row that failed; where it is a single sequence, compute its layers twice instead."""
        policy, body = self._policy, self._policy.body
        size, paths = policy.last_row
        happened = f"memory ran out on a row of {size} tokens ({told}): begun again"
        smaller = max(LEAST_ROW_TOKENS, min(self.tokens, size) // 2)
        if paths > 1 and smaller < self.tokens:
            self.tokens = policy.known.row_limit = smaller
            note = f"{happened} with rows of {self.tokens} tokens"
        elif self._may_checkpoint and not body.checkpointing:
            body.checkpointing = policy.known.checkpointing = True
            note = f"{happened} with gradient checkpointing: a single sequence cannot be cut"
        else:
            raise self._failed(size, told)
        log.warning(note)
        self.notes.append(note)

    def _failed(self, size: int, told: str) -> TrainingFailed:
        body = self._policy.body
        each = footprint(self._policy).each(checkpointing=body.checkpointing)
        state = "with" if body.checkpointing else "without"
        allow = "leave gradient_checkpointing out" if not body.checkpointing and body.layers else ""
        ways = [
            allow,
            f"set max_sequence_length below {size}",
            "stop what else runs on this machine",
            "bound the engine with ART_ENGINE__MAX_BATCH and ART_ENGINE__CONTEXT",
            "take a smaller base model",
        ]
        return TrainingFailed(
            f"Memory ran out on a row of {size} tokens, which cannot be cut, {state} gradient checkpointing",
            cause=f"its tokens keep {megabytes(each)} each, {gigabytes(size * each)} in all, on a machine with "
            f"{gigabytes(self._memory)}, of which programs and weights take {gigabytes(self._taken.all)} ({told})",
            hint=f"{', or '.join(filter(None, ways))}; nothing was published",
        )


def ran_out(error: BaseException) -> bool:
    """Whether it says that memory could not be had."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in ALLOCATORS)


def adapter_note(dtype: torch.dtype) -> str:
    """In which type the adapter is kept, and why."""
    why = "a sum in bfloat16 would lose the small steps of an optimizer"
    if dtype == torch.float32:
        return f"adapter in float32, as the base model: {why}"
    return f"adapter in float32: {why}; its products are computed in {str(dtype).removeprefix('torch.')}"
