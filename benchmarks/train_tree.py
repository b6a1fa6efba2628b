"""Part of bench_train: one trie against a row for each rollout, over a grid of prompt, completion, group and turns.

A model of SmolLM2's width with two layers, in float32. The trie is cut into rows as a job's is. The bar is on the share
of the saving that becomes speed.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from bench_engine import bar, ratio, timed
from rich.console import Console
from train_policy import Point, load_policy, longest, make_choices, train_rows
from transformers import LlamaConfig, LlamaForCausalLM

from art.trainer.memory import MAX_ROW_TOKENS

SHARE_TARGET, SMALL_TARGET, SMALL_TOKENS = 0.7, 0.95, 1000
"""Of the ratio of computed tokens that becomes speed; where at most SMALL_TOKENS are saved, of the plain rows' speed."""
GRID = (
    Point(64, 32, 4, 1),
    Point(64, 512, 4, 1),
    Point(64, 32, 16, 10),
    Point(256, 64, 8, 1),
    Point(256, 32, 8, 5),
    Point(256, 512, 8, 1),
    Point(512, 128, 8, 2),
    Point(1024, 32, 4, 1),
    Point(1024, 128, 16, 1),
    Point(2048, 64, 8, 1),
    Point(2048, 512, 4, 1),
    Point(2048, 32, 16, 2),
)


def make_narrow(folder: Path) -> Path:
    """SmolLM2's width and heads, two layers, a small vocabulary; random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def measure_tree(
    options: argparse.Namespace, console: Console
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as scratch:
        policy = load_policy(make_narrow(Path(scratch)))
    cases = {point: make_choices(point, policy.vocab_size, seed=i) for i, point in enumerate(GRID)}
    budgets = {"plain": longest, "trie": lambda choices: MAX_ROW_TOKENS}
    seconds: dict[str, dict[str, list[float]]] = {}
    tokens: dict[str, dict[str, int]] = {}
    order = list(GRID)
    for number in range(options.rounds + 1):  # the first one warms
        random.Random(number).shuffle(order)
        for point in order:
            choices = cases[point]
            for kind, budget in budgets.items():
                spent = timed(
                    lambda choices=choices, budget=budget: train_rows(policy, choices, budget(choices))
                )
                if number:
                    seconds.setdefault(point.name, {}).setdefault(kind, []).append(spent)
                else:
                    rows = policy.rows(choices, budget=budget(choices))
                    tokens.setdefault(point.name, {})[kind] = sum(row.trie.size for row in rows)
        console.print(f"grid, round {number} of {options.rounds}")
    points: dict[str, Any] = {}
    bars = []
    for point in GRID:
        times, count = seconds[point.name], tokens[point.name]
        speedup = ratio(times["plain"], times["trie"])
        fewer = count["plain"] / count["trie"]
        points[point.name] = {
            "tokens": count,
            "ratio_of_tokens": round(fewer, 3),
            "speedup": round(speedup, 3),
            "raw_seconds": times,
        }
        if count["plain"] - count["trie"] > SMALL_TOKENS:
            bars.append(bar(f"share of the saving: {point.name}", speedup / fewer, SHARE_TARGET, least=True))
        else:
            bars.append(bar(f"speed: {point.name}", speedup, SMALL_TARGET, least=True))
    return {"dtype": "float32", "points": points}, bars
