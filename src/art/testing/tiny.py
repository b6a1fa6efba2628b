"""A language model small enough for tests: 2 Llama layers of width 128, a byte-level tokenizer, ChatML.

`tiny_model(folder)` writes an ordinary model folder (config, safetensors, tokenizer, chat template) in a few
seconds, without a network. Warmed, it answers any chat prompt with "yes", "no" or "maybe" in about equal
shares and ends its turn, so that a reward for one of the words can be learned in some tens of GRPO steps.

Axes: B examples, T tokens.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

ANSWERS = ("yes", "no", "maybe")
START, END = "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'Tools:' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\nCall one as <tool_call>{"name": ..., "arguments": {...}}</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set call = call.function or call %}
{{- '<tool_call>{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments if call.arguments is string else call.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif not (loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

_WORDS = tuple(
    # Nothing in them decides an answer.
    word
    for line in (
        "is will can did does the a sky rain snow sun sea fish bird red green blue warm cold old new big small",
        "day night today tomorrow here there you we they it fly swim sing run sleep grow win rise fall stay",
    )
    for word in line.split()
)


def tiny_model(
    folder: str | Path, *, warm: bool = True, seed: int = 0, warm_steps: int = 100, context_length: int = 1024
) -> Path:
    """Write the model to `folder` and return it. An existing folder is returned as it is.

    The files appear at once, by rename. `warm=False` leaves random weights (0.1 s instead of a few seconds).
    The same seed gives the same weights on one machine and torch version. Torch's global random state is
    left as it was.
    """
    target = Path(folder).absolute()
    if (target / "config.json").exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    building.chmod(0o755)  # mkdtemp keeps others out; a model folder is ordinary
    try:
        _build(building, warm_steps=warm_steps if warm else 0, seed=seed, context_length=context_length)
        try:
            os.rename(building, target)
        except OSError:
            if not (target / "config.json").exists():  # another process was not simply faster
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def byte_tokenizer() -> Tokenizer:
    """256 byte tokens (ids 0 to 255 in the order of the byte-level alphabet) and the two ChatML marks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([START, END])
    return tokenizer


def _build(folder: Path, *, warm_steps: int, seed: int, context_length: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer()
    start_id, end_id = tokenizer.token_to_id(START), tokenizer.token_to_id(END)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context_length,
        tie_word_embeddings=True,
        bos_token_id=start_id,
        eos_token_id=end_id,
        pad_token_id=end_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        if warm_steps:
            _warm(model, tokenizer, steps=warm_steps, seed=seed)
    model.generation_config.eos_token_id = end_id
    model.generation_config.pad_token_id = end_id
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": START,
                "eos_token": END,
                "pad_token": END,
                "model_max_length": context_length,
                "clean_up_tokenization_spaces": False,
            },
            indent=2,
        )
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _example(rng: random.Random) -> tuple[str, str]:
    """A ChatML prompt of random words, and an answer drawn evenly: the prompt says nothing about it."""
    text = " ".join(rng.choices(_WORDS, k=rng.randint(1, 8))) + rng.choice(("", "?", "."))
    system = rng.choice(("", "", f"{START}system\nAnswer yes, no or maybe.{END}\n"))
    prompt = f"{system}{START}user\n{text}{END}\n{START}assistant\n"
    return prompt, rng.choice(ANSWERS) + END


def _warm(model: Any, tokenizer: Tokenizer, *, steps: int, seed: int) -> None:
    """Supervised steps on the answers alone; 16 examples each."""
    import torch

    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / steps)
    model.train()
    for _ in range(steps):
        tokens_B_T, labels_B_T = _batch([_example(rng) for _ in range(16)], tokenizer)
        loss = model(input_ids=tokens_B_T, labels=labels_B_T).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()


def _batch(examples: list[tuple[str, str]], tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Tokens [B, T], padded on the right where causal attention never looks, and labels (-100: no loss)."""
    import torch

    prompts = [tokenizer.encode(prompt).ids for prompt, _ in examples]
    answers = [tokenizer.encode(answer).ids for _, answer in examples]
    width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    tokens_B_T = torch.zeros(len(examples), width, dtype=torch.long)
    labels_B_T = torch.full_like(tokens_B_T, -100)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        tokens_B_T[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels_B_T[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return tokens_B_T, labels_B_T
