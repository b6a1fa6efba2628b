"""Slots, prefix cache and scheduling: what is shared, what is not, and what is computed twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_kit import Runner, greedy, load, make_model, prompts, reference_tokens, run
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from art.engine.protocol import Sampled, SampleRequest
from art.engine.torch.architecture import ModelShape
from art.engine.torch.attention import CALL_COST, Segment, split_runs
from art.engine.torch.engine import fit_memory, slot_count
from art.engine.torch.kv import CAPACITY_STEP, KVCache, SlotTable, common_prefix
from art.engine.torch.scheduler import CHUNK_TOKENS
from art.engine.torch.weights import Placement
from art.errors import InfraError

CPU = Placement(torch.device("cpu"), torch.float32, pack="none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return make_model(folder)


def test_a_group_computes_its_prompt_once(folder: Path, model: Any) -> None:
    engine = load(folder)
    (prompt,) = prompts(90)
    choices = run(engine, *[greedy(prompt, 5) for _ in range(8)])
    assert {tuple(choice.token_ids) for choice in choices} == {tuple(reference_tokens(model, prompt, 5))}
    assert [choice.cached_tokens for choice in choices] == [0] + [89] * 7
    # The prompt once, its last token for the seven others, and four decoded tokens each.
    assert engine.stats["tokens_computed"] == 90 + 7 + 8 * 4
    assert engine.stats["cache_hits"] == 7


def test_without_the_cache_nothing_is_shared(folder: Path, model: Any) -> None:
    (prompt, tail) = prompts(60, 10)
    results = {}
    for prefix_cache in (True, False):
        engine = load(folder, prefix_cache=prefix_cache)
        first = run(engine, *[SampleRequest(prompt, max_tokens=12, seed=seed) for seed in range(4)])
        turns = [prompt + choice.token_ids + tail for choice in first]
        second = run(
            engine, *[SampleRequest(turn, max_tokens=12, seed=seed) for seed, turn in enumerate(turns)]
        )
        results[prefix_cache] = [choice.token_ids for choice in first + second]
        assert any(choice.cached_tokens for choice in first + second) == prefix_cache
    assert results[True] == results[False]


def test_salts_share_nothing(folder: Path, model: Any) -> None:
    engine = load(folder)
    (prompt,) = prompts(50)
    a, b, again = (run(engine, greedy(prompt, 4, cache_salt=salt))[0] for salt in ("a", "b", "a"))
    assert (a.cached_tokens, b.cached_tokens, again.cached_tokens) == (0, 0, 49)
    assert a.token_ids == b.token_ids == again.token_ids


def test_a_branch_leaves_the_other_rollouts_slot_alone(folder: Path, model: Any) -> None:
    engine = load(folder)
    (prompt, tail) = prompts(80, 6)
    (first,) = run(engine, greedy(prompt, 40))
    (branch,) = run(engine, greedy(prompt + tail, 8))
    (turn,) = run(engine, greedy(prompt + first.token_ids + tail, 8))
    assert branch.cached_tokens == 80
    assert turn.cached_tokens == 80 + 39
    assert branch.token_ids == reference_tokens(model, prompt + tail, 8)


def test_old_sequences_give_way(folder: Path, model: Any) -> None:
    engine = load(folder, max_batch=1)
    assert slot_count(1) == 3
    asked = prompts(30, 31, 32, 33)
    for prompt in asked:
        run(engine, greedy(prompt, 2))
    newest, oldest = run(engine, greedy(asked[3], 2))[0], run(engine, greedy(asked[0], 2))[0]
    assert newest.cached_tokens == 32
    assert oldest.cached_tokens == 0
    assert oldest.token_ids == reference_tokens(model, asked[0], 2)


def test_more_requests_than_slots_all_finish(folder: Path, model: Any) -> None:
    engine = load(folder, max_batch=3)
    asked = prompts(*range(4, 40, 3))
    choices = run(engine, *[greedy(prompt, 7) for prompt in asked])
    assert [choice.token_ids for choice in choices] == [
        reference_tokens(model, prompt, 7) for prompt in asked
    ]


def test_the_cache_grows_with_its_sequences(folder: Path, model: Any) -> None:
    engine = load(folder, max_batch=2)
    (short, long) = prompts(20, CAPACITY_STEP + 200)
    runner = Runner(engine)
    keys = [runner.submit(greedy(short, 20))]
    runner.step()
    keys.append(runner.submit(greedy(long, 20)))
    runner.finish()
    for prompt, key in zip((short, long), keys, strict=True):
        assert runner.result(key).token_ids == reference_tokens(model, prompt, 20)


def test_a_long_prompt_does_not_stall_the_others(folder: Path, model: Any) -> None:
    engine = load(folder)
    runner = Runner(engine)
    (short, long) = prompts(8, 5 * CHUNK_TOKENS)
    decoding = runner.submit(greedy(short, 100))
    runner.step()
    filling = runner.submit(greedy(long, 3))
    while not runner.events[filling]:
        before = len(runner.events[decoding])
        runner.step()
        assert len(runner.events[decoding]) == before + 1
    assert len(runner.events[decoding]) == 1 + 5
    runner.finish()
    assert runner.result(filling).token_ids == reference_tokens(model, long, 3)


def test_a_waiting_member_survives_its_leaders_cancellation(folder: Path, model: Any) -> None:
    engine = load(folder)
    runner = Runner(engine)
    (decoding, long) = prompts(8, 3 * CHUNK_TOKENS)
    runner.submit(greedy(decoding, 60))
    runner.step()
    leader, member = runner.submit(greedy(long, 3)), runner.submit(greedy(long, 3))
    runner.step()
    assert engine.stats["waiting"] == 1
    engine.cancel(leader)
    runner.finish()
    assert runner.result(leader).finish_reason == "cancelled"
    assert runner.result(member).token_ids == reference_tokens(model, long, 3)
    # What the leader had computed is used.
    assert runner.result(member).cached_tokens >= CHUNK_TOKENS - 8


def test_cancelling_frees_the_slot_at_the_next_step(folder: Path, model: Any) -> None:
    engine = load(folder, max_batch=1)
    runner = Runner(engine)
    (prompt,) = prompts(10)
    running, waiting, third = (runner.submit(greedy(prompt, 500)) for _ in range(3))
    runner.step()
    engine.cancel(running)
    engine.cancel(third)
    runner.step()
    assert [runner.result(key).finish_reason for key in (running, third)] == ["cancelled", "cancelled"]
    assert len(runner.events[waiting]) == 1
    engine.cancel(waiting)
    engine.cancel(99)
    runner.finish()
    assert engine.stats["running"] == engine.stats["waiting"] == 0


def test_an_overflowing_request_fails_alone(folder: Path, model: Any, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "broken")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][7] = float("nan")
    save_file(tensors, tmp_path / "broken" / "model.safetensors", metadata={"format": "pt"})
    engine = load(tmp_path / "broken", max_batch=2)
    good = [[t if t != 7 else 8 for t in prompt] for prompt in prompts(40, 9, 12, 30)]
    (unbroken,) = run(load(folder), greedy(good[0], 60))
    clean = (
        unbroken.token_ids[: unbroken.token_ids.index(7)] if 7 in unbroken.token_ids else unbroken.token_ids
    )
    runner = Runner(engine)
    for truncation in ({}, {"top_p": 0.5}, {"top_logprobs": 3}, {"temperature": 0.0}):
        kept = runner.submit(greedy(good[0], len(clean)))
        engine.submit(1000, SampleRequest([1] * 200 + [7], max_tokens=5, **truncation))
        failures = []
        while (events := engine.step()) is not None:
            for key, event in events:
                if key == 1000:
                    failures.append(event)
                else:
                    assert isinstance(event, Sampled)
                    runner.events[key].append(event)
        assert [type(failure) for failure in failures] == [InfraError]
        assert runner.result(kept).token_ids == clean
    # The slot that overflowed serves others again, whose masked positions it must not poison.
    choices = run(engine, *[greedy(prompt, 1) for prompt in good])
    assert [c.token_ids for c in choices] == [reference_tokens(model, prompt, 1) for prompt in good]


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert common_prefix(a, b) == expected


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4000)), max_size=20, unique_by=lambda pair: pair[0])
)
def test_runs_cover_all_rows_with_neighbouring_slots(places: list[tuple[int, int]]) -> None:
    segments = [Segment(slot, end - 1, 1) for slot, end in sorted(places)]
    runs = split_runs(segments)
    assert [row for run in runs for row in range(run.start, run.stop)] == list(range(len(segments)))
    for part in runs:
        slots = [segment.slot for segment in segments[part]]
        assert slots == list(range(slots[0], slots[0] + len(slots)))

    def cost(parts: list[slice]) -> int:
        longest = [max(segment.end for segment in segments[part]) for part in parts]
        return sum(
            CALL_COST + length * (part.stop - part.start) for length, part in zip(longest, parts, strict=True)
        )

    assert cost(runs) <= cost([slice(i, i + 1) for i in range(len(segments))])


def test_the_slot_table_prefers_continuations_and_the_oldest() -> None:
    table = SlotTable(3, prefix_cache=True)
    space = ("v", "")
    slots = []
    for tokens in ([1] * 50, [1] * 30 + [2] * 40, [3] * 20):
        slot = table.take(space, table.match(space, tokens))
        slot.tokens = list(tokens)
        slots.append(slot)
    for slot in slots:
        table.release(slot)
    continued = table.match(space, [3] * 20 + [4])
    assert (continued.slot, continued.length) == (slots[2], 20)
    assert table.take(space, continued) is slots[2]
    shared = table.match(space, [1] * 30 + [9] * 9)
    assert shared.length == 30
    assert table.take(space, shared) is slots[0]  # the least recently used
    assert table.match(("w", ""), [3] * 20 + [4]).length == 0
    assert table.free == 1


def test_growing_keeps_what_is_stored() -> None:
    cache = KVCache(
        layers=1, slots=2, heads=2, head_dim=4, context=5000, dtype=torch.float32, device=torch.device("cpu")
    )
    kv = torch.randn(3, 4, 4)
    cache.write(0, cache.rows([1, 1, 1], [0, 1, 2]), kv)
    cache.reserve(2 * CAPACITY_STEP + 1)
    assert cache.capacity == 3 * CAPACITY_STEP
    keys, values = cache.layer(0)
    assert torch.equal(keys[1, :, :3].transpose(0, 1), kv[:, :2])
    assert torch.equal(values[1, :, :3].transpose(0, 1), kv[:, 2:])
    cache.reserve(5000)
    assert cache.capacity == 5000


def test_memory_bounds_context_and_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ModelShape(vocab_size=10, layers=10, query_heads=4, kv_heads=4, head_dim=32, context_length=8192)
    per_token = 2 * 10 * 4 * 32 * 4

    def fit(memory_tokens: int, **asked: int) -> tuple[int, int, int]:
        monkeypatch.setattr(
            "art.engine.torch.engine.memory_bytes", lambda _device: 3 * per_token * memory_tokens + 3
        )
        context, batch, notes = fit_memory(shape, CPU, **asked)
        assert context * slot_count(batch) <= memory_tokens or batch == 1
        return context, batch, len(notes)

    assert fit(10**7, max_batch=64, context=0) == (4096, 64, 0)
    assert fit(80 * 2048, max_batch=64, context=0) == (2048, 64, 1)
    assert fit(40 * 2048, max_batch=64, context=0) == (2048, 32, 2)
    assert fit(40 * 1024, max_batch=64, context=4096) == (4096, 8, 1)
    assert fit(10**7, max_batch=2, context=10_000) == (8192, 2, 1)
