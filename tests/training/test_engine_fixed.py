"""The deterministic engine: the same request gives the same bits, whatever came before it and beside it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_kit import Runner, greedy, load_adapter, make_adapter, make_model, prompts, reference_tokens, run

from art.engine.protocol import Sampled, SampleRequest
from art.engine.torch.attention import IDLE_SLOT, Segment
from art.engine.torch.fixed import CHUNK_TOKENS, DECODE_ROWS, FixedEngine, rows_alike, rows_pass
from art.errors import ConfigError

Bits = tuple[list[int], list[float], list[list[tuple[int, float]]], str | None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return make_model(folder)


@pytest.fixture(scope="module")
def adapter(folder: Path, model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("adapter")
    make_adapter(folder, place, seed=1)
    return place


def load(folder: Path, **options: Any) -> FixedEngine:
    return FixedEngine.load(str(folder), **({"dtype": "fp32", "max_batch": 20, "threads": 1} | options))


def bits(choice: Sampled) -> Bits:
    """What must be equal; where the prompt came from (`cached_tokens`) may differ."""
    return choice.token_ids, choice.logprobs, choice.top_logprobs, choice.finish_reason


def requests_of(seed: int) -> list[SampleRequest]:
    """Groups of one prompt, prompts that share their beginnings, short and long ones, of every way of sampling."""
    rng = random.Random(seed)
    shared, *others = prompts(200, 1, 2, 40, 127, 128, 129, 300, seed=seed)
    found = [SampleRequest(shared, max_tokens=12, seed=member) for member in range(5)]
    found += [SampleRequest(shared[:cut] + others[2], max_tokens=9, seed=cut) for cut in (1, 60, 128, 199)]
    ways: list[dict[str, Any]] = [
        {"temperature": 0.7},
        {"temperature": 0.0},
        {"top_p": 0.8},
        {"top_k": 20, "top_logprobs": 3},
        {"stop_token_ids": tuple(range(0, 300, 9))},
        {"version": "v1"},
        {"version": "v1", "temperature": 1.3},
    ]
    for number, prompt in enumerate(others):
        found.append(
            SampleRequest(prompt, max_tokens=rng.randint(1, 30), seed=rng.getrandbits(60), **ways[number])
        )
    # Next turns: what the first ones sample is not known here, so any tokens stand for it.
    found += [SampleRequest(shared + others[3][:cut], max_tokens=8, seed=cut) for cut in (3, 30)]
    return found


def alone(engine: FixedEngine, requests: list[SampleRequest]) -> list[Bits]:
    """Each by itself, on an engine that remembers nothing."""
    return [bits(run(engine, request)[0]) for request in requests]


def arriving(engine: FixedEngine, requests: list[SampleRequest], seed: int) -> list[Bits]:
    """All of them in a random order at random moments, between others that come, go and are cancelled."""
    rng, runner = random.Random(seed), Runner(engine)
    keys: dict[int, int] = {}
    waiting = rng.sample(range(len(requests)), len(requests))
    noise: list[int] = []
    while waiting:
        for _ in range(rng.choice([0, 1, 1, 2, 6])):
            if waiting:
                number = waiting.pop()
                keys[number] = runner.submit(requests[number])
        if rng.random() < 0.3:
            other = rng.choice(requests)
            (tail,) = prompts(rng.randint(1, 260), seed=rng.getrandbits(20))
            noise.append(runner.submit(SampleRequest(other.prompt_token_ids[:50] + tail, max_tokens=40)))
        if noise and rng.random() < 0.1:
            engine.cancel(noise.pop())
        runner.step()
    runner.finish()
    return [bits(runner.result(keys[number])) for number in range(len(requests))]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("rows", [DECODE_ROWS, 1])
def test_arrivals_change_no_bit(folder: Path, adapter: Path, dtype: str, rows: int) -> None:
    requests = requests_of(seed=3)
    lonely, busy = load(folder, dtype=dtype, prefix_cache=False), load(folder, dtype=dtype, max_batch=9)
    for engine in (lonely, busy):
        load_adapter(engine, "v1", adapter)
        assert rows == 1 or engine.rows == rows, "this machine's products depend on a row's place"
        engine.rows = rows
    expected = alone(lonely, requests)
    assert len({str(result) for result in expected}) == len(expected), "the requests differ"
    for seed in range(2 if rows == 1 else 4):
        assert arriving(busy, requests, seed) == expected
    assert busy.stats["cache_hits"] > 10


def test_two_threads_change_no_bit_either(folder: Path, adapter: Path) -> None:
    """Whatever their number: it is the same for both."""
    before = torch.get_num_threads()
    try:
        lonely = load(folder, threads=2, prefix_cache=False)
        busy = load(folder, threads=2)
        requests = [request for request in requests_of(seed=8) if not request.version]
        expected = alone(lonely, requests)
        assert [arriving(busy, requests, seed) for seed in range(2)] == [expected] * 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_group_computes_its_prompt_once(folder: Path, model: Any) -> None:
    engine = load(folder)
    (prompt,) = prompts(200)
    choices = run(engine, *[greedy(prompt, 5) for _ in range(8)])
    assert {tuple(choice.token_ids) for choice in choices} == {tuple(reference_tokens(model, prompt, 5))}
    assert [choice.cached_tokens for choice in choices] == [0] + [200] * 7
    # Two chunks once. The leader is a token ahead: five passes with the others' four among them.
    assert engine.stats["tokens_computed"] == 2 * CHUNK_TOKENS + 5 * DECODE_ROWS


@pytest.mark.usefixtures("one_thread")
def test_sampled_tokens_are_computed_again_as_a_part_of_the_next_prompt(folder: Path, model: Any) -> None:
    engine = load(folder)
    prompt, tail = prompts(150, 7)
    (first,) = run(engine, greedy(prompt, 20))
    turn = prompt + first.token_ids + tail
    (second,) = run(engine, greedy(turn, 6))
    assert second.cached_tokens == 150
    assert second.token_ids == reference_tokens(model, turn, 6)
    assert bits(second) == bits(run(load(folder, prefix_cache=False), greedy(turn, 6))[0])


@pytest.mark.usefixtures("one_thread")
def test_a_context_is_used_to_its_end(folder: Path, model: Any) -> None:
    engine = load(folder, context=200)
    (prompt,) = prompts(190)
    (choice,) = run(engine, greedy(prompt, 100))
    assert choice.finish_reason == "length"
    assert choice.token_ids == reference_tokens(model, prompt, 10)


@pytest.mark.usefixtures("one_thread")
def test_it_says_what_it_found_out_about_this_machine(folder: Path, model: Any, monkeypatch: Any) -> None:
    engine = load(folder)
    assert engine.capabilities.deterministic
    assert f"deterministic: fixed shapes ({DECODE_ROWS} rows, 1 threads)" in engine.capabilities.notes
    monkeypatch.setattr("art.engine.torch.fixed.rows_alike", lambda *_, **__: False)
    other = load(folder)
    assert other.rows == 1
    assert any("one sequence at a time" in note for note in other.capabilities.notes)


@pytest.mark.usefixtures("one_thread")
@torch.inference_mode()
def test_a_product_that_depends_on_the_rows_place_is_noticed(folder: Path, model: Any) -> None:
    engine = load(folder)
    architecture, weights = engine._architecture, engine._adapters.weights("")
    assert rows_alike(architecture, weights, engine._cache, rows=DECODE_ROWS)

    class Uneven:
        """The architecture with the last bit of one feature of one row changed."""

        shape = architecture.shape

        def logits(self, *given: Any) -> Any:
            return architecture.logits(*given)

        def forward(self, *given: Any) -> Any:
            hidden_T_E = architecture.forward(*given)
            if len(hidden_T_E) == DECODE_ROWS:
                hidden_T_E[DECODE_ROWS - 1, 5] = torch.nextafter(
                    hidden_T_E[DECODE_ROWS - 1, 5], torch.tensor(1e9)
                )
            return hidden_T_E

    assert not rows_alike(Uneven(), weights, engine._cache, rows=DECODE_ROWS)  # type: ignore[arg-type]


@pytest.mark.usefixtures("one_thread")
@torch.inference_mode()
def test_idle_rows_see_nothing_and_change_nothing(folder: Path, model: Any) -> None:
    engine = load(folder)
    (prompt,) = prompts(5)
    run(engine, greedy(prompt, 1))
    slot = next(slot for slot in engine._slots.slots if slot.tokens)
    weights = engine._adapters.weights("")
    found = []
    for idle_content in (0.0, 3.0):
        for layer in range(engine._architecture.shape.layers):
            engine._cache.sequence(layer, IDLE_SLOT).fill_(idle_content)
        found.append(
            rows_pass(
                engine._architecture,
                weights,
                engine._cache,
                segments=[Segment(slot.index, len(slot.tokens), 1)],
                tokens=[7],
                rows=DECODE_ROWS,
            )
        )
    assert torch.equal(found[0], found[1])


def test_a_gpu_is_refused(folder: Path, model: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES"):
        load(folder)
