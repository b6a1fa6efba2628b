"""The testing kit: what our users' tests get from it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from art.errors import ServerStartFailed
from art.testing.server import ArtServer
from art.testing.tiny import ANSWERS, CHAT_TEMPLATE, tiny_model


def test_tiny_model_answers_evenly_and_ends_its_turn(tiny_model_dir: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Is this sentence a new one?"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = model.generate(
            prompt.repeat(128, 1),
            attention_mask=torch.ones(128, prompt.shape[1]),
            do_sample=True,
            top_k=0,
            max_new_tokens=8,
        )
    texts = [tokenizer.decode(row[prompt.shape[1] :]) for row in out]
    counts = {answer: sum(text.startswith(f"{answer}<|im_end|>") for text in texts) for answer in ANSWERS}
    assert sum(counts.values()) > 100, texts
    assert min(counts.values()) > 16, counts


def test_tiny_model_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    first = tiny_model(tmp_path / "a", warm_steps=2)
    second = tiny_model(tmp_path / "b", warm_steps=2)
    other = tiny_model(tmp_path / "c", warm_steps=2, seed=1)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, second, other)]
    assert weights[0] == weights[1] != weights[2]
    assert json.loads((first / "generation_config.json").read_text())["eos_token_id"] == 257
    assert (first / "chat_template.jinja").read_text() == CHAT_TEMPLATE


def test_the_plugin_is_light() -> None:
    code = "import sys, art.testing.plugin; print([m for m in ('torch', 'openai', 'transformers', 'starlette') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerStartFailed) as raised:
        ArtServer(tmp_path, arguments=["--no-such-flag"]).start()
    assert "status" in raised.value.message
    assert raised.value.cause
