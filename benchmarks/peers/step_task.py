"""What both sides of the comparison of GRPO steps are given: prompts, rewards and settings. Standard library only, since
each side runs in an environment of its own.

Completions have exactly `TOKENS` tokens. Neither side is asked to suppress an end: the model's folder names as its end
token one that the model does not write, so that every draw comes from the model's own distribution.
"""

from __future__ import annotations

import hashlib

GROUP = 8
"""Completions of one prompt; there are as many prompts."""
TOKENS = 32
"""Of every completion."""
SYSTEM = (
    "You work at the desk of a small public library. Answer the visitor in one or two friendly sentences. Say where to "
    "look, name a shelf from A to H, and offer to order what is not there. Do not make up titles."
)
PROMPTS = (
    "Where do I find books about the history of sailing ships?",
    "My daughter is six and loves dinosaurs. What should we read?",
    "Do you have cookbooks for people who cannot eat any gluten?",
    "I want to learn how to repair an old bicycle by myself.",
    "Which shelf has novels that take place in the far north?",
    "Can you recommend something short about the night sky?",
    "I need a book on starting a vegetable garden in spring.",
    "Is there anything here about how bridges are designed?",
)
SETTINGS = {
    "rank": 8,
    "alpha": 16,
    "learning_rate": 1e-4,
    "adam_beta2": 0.99,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "epsilon": 0.2,
    "epsilon_high": 0.28,
}
"""Of both sides: LoRA on every linear layer of a block, AdamW at a constant step size, the clip of the ratio."""

ALL = GROUP * len(PROMPTS)
"""Completions of a step."""


def in_passes_of(rows: int) -> dict[str, object]:
    """A step in backward passes over so many completions."""
    return {"per_device_train_batch_size": rows, "gradient_accumulation_steps": ALL // rows}


TRL_SETTINGS: dict[str, dict[str, object]] = {
    "passes of 8": in_passes_of(8),
    "passes of 16": in_passes_of(16),
    "passes of 16, continuous batching": {
        **in_passes_of(16),
        "use_transformers_continuous_batching": True,
        # Else it takes half of the machine's memory; these hold the step's tokens with room to spare.
        "transformers_continuous_batching_config": {
            "page_size": 32,
            "num_blocks": 320,
            "max_batch_tokens": 2048,
        },
    },
    "passes of 32": in_passes_of(32),
}
"""Ways to run TRL's step. Each samples the 64 completions of a step together, as TRL does where nothing else is said. One
pass over all 64 is left out: it would hold the activations and logits of some 7,000 tokens at once.
In the order of what they need, since the fastest so far stays in memory."""


def messages(prompt: str) -> list[dict[str, str]]:
    """A prompt as chat messages."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]


def reward(text: str) -> float:
    """A number in [0, 1) that only the text decides: no two completions of a group are likely to share it, so that
    neither side has a group to leave out, and nothing can be learned that would change the completions."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32
