"""Log-probabilities of chosen tokens, without ever holding the logits of all positions.

Axis legend: N trained positions, C of one chunk, R of those handled at once, E hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CACHED_ROWS = 64
"""Of a chunk's logits on a CPU: several passes over a few rows are made from its cache, where all of them would come from
memory each time. On CPU a step's head takes 40 % less time than with the whole chunk at once."""


class ChunkedLogprobs(torch.autograd.Function):
    """log softmax(h W^T / t)[target] per position, and the entropy, in chunks of positions.

    The head is frozen, and each position's log-probability depends on its own hidden state alone, so
    d logprob / d h = (W[target] - p W) / t is one row per position. It is computed while the logits
    are there; the backward pass is then a product and needs neither logits nor the head again. The entropy H has
    the row d H / d h = -(p * (log p + H)) W / t, which is computed only where `entropy_gradient` asks for it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NE: Tensor,
        head_VE: Tensor,
        target_N: Tensor,
        temperature_N: Tensor,
        chunk: int,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(target_N), dtype=torch.float32, device=hidden_NE.device)
        entropy = torch.empty_like(logprobs)
        rows = CACHED_ROWS if hidden_NE.device.type == "cpu" else chunk
        slopes = torch.empty_like(hidden_NE) if ctx.needs_input_grad[0] else None
        entropy_slopes = torch.empty_like(hidden_NE) if slopes is not None and entropy_gradient else None
        for start in range(0, len(target_N), chunk):
            part = slice(start, start + chunk)
            temperature_C1 = temperature_N[part, None]
            scaled_CV = (hidden_NE[part] @ head_VE.T).float()
            slope_CV = torch.empty_like(scaled_CV) if entropy_slopes is not None else None
            for at in range(0, len(scaled_CV), rows):
                some, all_at = slice(at, at + rows), slice(start + at, min(start + at + rows, start + chunk))
                scaled_RV = scaled_CV[some].div_(temperature_C1[some])
                logprobs_RV = torch.log_softmax(scaled_RV, dim=-1)
                logprobs[all_at] = logprobs_RV.gather(1, target_N[all_at, None])[:, 0]
                p_RV = torch.exp(logprobs_RV, out=scaled_RV)
                entropy[all_at] = -torch.linalg.vecdot(p_RV, logprobs_RV)
                if slope_CV is not None:
                    torch.mul(p_RV, logprobs_RV.add_(entropy[all_at, None]), out=slope_CV[some])
            if slopes is not None:
                mean_CE = scaled_CV.to(head_VE.dtype) @ head_VE
                slopes[part] = ((head_VE[target_N[part]] - mean_CE) / temperature_C1).to(slopes.dtype)
            if entropy_slopes is not None and slope_CV is not None:
                entropy_slopes[part] = -((slope_CV.to(head_VE.dtype) @ head_VE) / temperature_C1).to(
                    hidden_NE.dtype
                )
        if slopes is not None:
            ctx.save_for_backward(slopes, entropy_slopes)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slopes_NE, entropy_slopes_NE = ctx.saved_tensors
        gradient_NE = slopes_NE * grads[0][:, None].to(slopes_NE.dtype)
        if entropy_slopes_NE is not None:
            gradient_NE.addcmul_(entropy_slopes_NE, grads[1][:, None].to(slopes_NE.dtype))
        return gradient_NE, None, None, None, None, None


def chunked_logprobs(
    hidden_NE: Tensor,
    head_VE: Tensor,
    target_N: Tensor,
    temperature_N: Tensor,
    *,
    chunk: int,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """(log-probabilities [N], entropies [N]), both float32, in nats.

    The first have a gradient; the second have one with `entropy_gradient`.
    """
    logprobs, entropy = ChunkedLogprobs.apply(
        hidden_NE, head_VE, target_N, temperature_N, chunk, entropy_gradient
    )
    return logprobs, entropy


def whole_logprobs(
    hidden_NE: Tensor,
    head_VE: Tensor,
    target_N: Tensor,
    temperature_N: Tensor,
    *,
    chunk: int,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """`chunked_logprobs` of a head that is trained too.

    Each chunk's logits are computed again in the backward pass instead of being kept. The entropies have a gradient
    with `entropy_gradient` alone.
    """

    def part(
        hidden_CE: Tensor, head_VE: Tensor, target_C: Tensor, temperature_C: Tensor
    ) -> tuple[Tensor, Tensor]:
        logprobs_CV = ((hidden_CE @ head_VE.T).float() / temperature_C[:, None]).log_softmax(dim=-1)
        chosen_C = logprobs_CV.gather(1, target_C[:, None])[:, 0]
        measured_CV = logprobs_CV if entropy_gradient else logprobs_CV.detach()
        return chosen_C, -(measured_CV.exp() * measured_CV).sum(-1)

    found = [
        checkpoint(
            part,
            hidden_NE[start : start + chunk],
            head_VE,
            target_N[start : start + chunk],
            temperature_N[start : start + chunk],
            use_reentrant=False,
        )
        for start in range(0, len(target_N), chunk)
    ]
    logprobs, entropies = zip(*found, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)
