"""Grammars in the real engine: answers that always parse, exactly the model's own distribution within them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from engine_kit import Runner, load, run
from test_engine_sampling import chi_square_z

from art.engine.protocol import Sampled, SampleRequest
from art.engine.requests import parse_sample, parse_sampled, sampled_message
from art.engine.torch.engine import TorchEngine
from art.engine.torch.sampler import sample
from art.errors import ArtError, InvalidInput, UnsupportedOption
from art.testing.engine_process import EngineProcess
from art.tokens.formats import Formats, choose_formats
from art.tokens.grammar import Form, grammar_for
from art.tokens.renderer import Renderer
from art.types.messages import ToolCall, parse_tools

SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"enum": ["yes", "no", "maybe"]},
        "sure": {"type": "boolean"},
        "why": {"type": "string", "maxLength": 6},
        "marks": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
    },
    "required": ["answer", "sure", "marks"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
PROMPT = "<|im_start|>user\nis it red?<|im_end|>\n<|im_start|>assistant\n"
DRAWS = 6000
TOOLS = parse_tools(
    [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            },
        }
        for name in ("get_weather", "get_time")
    ]
)


class Tiny:
    """The tiny model with its engine and formats."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine: TorchEngine = load(folder, max_batch=32)
        self.formats: Formats = choose_formats(Renderer.load(folder))
        self.prompt = self.formats.tokenizer.encode(PROMPT)
        self.stop = max(self.formats.tokenizer.stop_token_ids)

    def request(self, form: Form | None, seed: int = 0, **settings: Any) -> SampleRequest:
        grammar = grammar_for(form, self.formats, self.prompt) if form is not None else ""
        values: dict[str, Any] = {"max_tokens": 200, "seed": seed, "stop_token_ids": (self.stop,)}
        return SampleRequest(self.prompt, grammar=grammar, **(values | settings))

    def text(self, sampled: Sampled) -> str:
        return self.formats.tokenizer.decode(sampled.token_ids)


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: Path) -> Tiny:
    return Tiny(tiny_model_dir)


def test_answers_always_follow_their_schema(tiny: Tiny) -> None:
    requests = [
        tiny.request(Form(schema=SCHEMA), seed, temperature=temperature, top_k=top_k, top_p=top_p)
        for seed in range(12)
        for temperature, top_k, top_p in ((1.0, 0, 1.0), (0.0, 0, 1.0), (1.5, 7, 1.0), (0.7, 0, 0.8))
    ]
    answers = run(tiny.engine, *requests)
    for request, sampled in zip(requests, answers, strict=True):
        jsonschema.validate(json.loads(tiny.text(sampled)), SCHEMA)
        assert sampled.finish_reason == "stop"
        assert len(sampled.forced) == len(sampled.token_ids) == len(sampled.logprobs)
        assert len(sampled.token_ids) < request.max_tokens
    assert len({tiny.text(sampled) for sampled in answers}) > 12
    assert any(
        all(sampled.forced) != any(sampled.forced) for sampled in answers
    )  # some tokens are the model's own


def test_a_forced_call_is_read_as_one(tiny: Tiny) -> None:
    one = Form(tools=TOOLS, must_call=True, parallel=False)
    for sampled in run(tiny.engine, *[tiny.request(one, seed, max_tokens=400) for seed in range(6)]):
        parser = tiny.formats.parser(TOOLS, prompt_token_ids=tiny.prompt)
        (call,) = [*parser.feed(tiny.text(sampled)), *parser.finish()]
        assert isinstance(call, ToolCall)
        assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
        assert sampled.finish_reason == "stop"


def test_tokens_are_forced_exactly_where_the_models_own_draw_was_refused(tiny: Tiny) -> None:
    """The free choice of the same seed gives the draws; the first one that the grammar refuses is forced."""
    letters = "%llguidance {}\nstart: /[a-m]{1,40}/"
    for seed in range(20):
        (free,) = run(tiny.engine, tiny.request(None, seed))
        (held,) = run(tiny.engine, replace(tiny.request(None, seed), grammar=letters))
        free_text, held_text = tiny.text(free), tiny.text(held)
        same = next(
            (at for at, (a, b) in enumerate(zip(free_text, held_text, strict=False)) if a != b),
            min(len(free_text), len(held_text)),
        )
        assert not any(held.forced[:same])
        if same < len(held.forced) and same < len(free_text):
            assert held.forced[same]
            assert not "a" <= free_text[same] <= "m"
        assert set(held_text) <= set("abcdefghijklm")


def test_a_stop_token_is_the_models_own_where_the_grammar_may_end(tiny: Tiny) -> None:
    words = '%llguidance {}\nstart: ("yes" | "no" | "maybe") /[ a-z]{0,20}/'
    ended = [
        sampled
        for sampled in run(
            tiny.engine, *[replace(tiny.request(None, seed), grammar=words) for seed in range(12)]
        )
        if sampled.token_ids[-1] == tiny.stop
    ]
    assert ended
    assert not any(flag for sampled in ended for flag in sampled.forced)
    assert all(sampled.finish_reason == "stop" for sampled in ended)
    # Where it may not end, the stop token is refused like any other.
    longer = "%llguidance {}\nstart: /[a-z]{12}/"
    for sampled in run(tiny.engine, *[replace(tiny.request(None, s), grammar=longer) for s in range(6)]):
        assert (len(sampled.token_ids), sampled.finish_reason) == (12, "stop")
        assert any(sampled.forced)


def test_max_tokens_cuts_as_ever(tiny: Tiny) -> None:
    (cut,) = run(tiny.engine, tiny.request(Form(schema=SCHEMA), max_tokens=5))
    assert (len(cut.token_ids), cut.finish_reason) == (5, "length")
    assert json.dumps({"answer": ""}, separators=(",", ":")).startswith(tiny.text(cut))


class Only:
    """Allows a fixed set of tokens."""

    def __init__(self, allowed_V: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        self.allowed_V = allowed_V
        self.taken: list[int] = []
        self.masks = 0

    def take(self, token: int) -> bool:
        if not self.allowed_V[token]:
            return False
        self.taken.append(token)
        return True

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        self.masks += 1
        return self.allowed_V


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_result_is_the_models_distribution_restricted_to_what_is_allowed(temperature: float) -> None:
    generator = torch.Generator().manual_seed(3)
    vocab = 700
    logits = torch.randn(vocab, generator=generator) * 2
    allowed = torch.rand(vocab, generator=generator).numpy() < 0.3
    p = (logits.double() / temperature).softmax(-1).numpy()
    counts = np.zeros((2, vocab), dtype=np.int64)
    masks = 0
    for start in range(0, DRAWS, 500):
        requests = [SampleRequest([0], seed=start + row, temperature=temperature) for row in range(500)]
        rules = [Only(allowed) for _ in requests]
        draws = sample(logits.repeat(500, 1), requests, [5] * 500, rules)
        masks += sum(rule.masks for rule in rules)
        assert all(rule.taken == [draw.token] for rule, draw in zip(rules, draws, strict=True))
        for draw in draws:
            counts[int(draw.forced), draw.token] += 1
            assert draw.logprob == pytest.approx(math.log(p[draw.token]), abs=1e-5)  # before the grammar
    restricted = np.where(allowed, p, 0.0)
    assert abs(chi_square_z(counts.sum(axis=0), restricted / restricted.sum())) < 5
    # Both kinds are distributed so: the honest ones and the forced ones.
    for kind in counts:
        assert abs(chi_square_z(kind, restricted / restricted.sum())) < 5
    share = counts[1].sum() / DRAWS
    refused = 1 - restricted.sum()
    assert abs(share - refused) < 5 * math.sqrt(refused * (1 - refused) / DRAWS)
    assert masks == counts[1].sum()  # computed after a refusal only


def test_truncation_holds_in_the_second_draw() -> None:
    logits = torch.arange(50, 0, -1).float() / 4
    allowed = np.zeros(50, dtype=np.bool_)
    allowed[[20, 21, 22, 30, 49]] = True
    for settings, expected in (
        ({"top_k": 2}, {20, 21}),
        ({"top_p": 0.6}, {20, 21}),
        ({"temperature": 0.0}, {20}),
        ({"top_k": 1}, {20}),
    ):
        requests = [SampleRequest([0], seed=seed, **settings) for seed in range(300)]
        draws = sample(logits.repeat(300, 1), requests, [0] * 300, [Only(allowed) for _ in requests])
        assert {draw.token for draw in draws if draw.forced} == expected, settings
        assert all(draw.forced for draw in draws if draw.token not in range(2))


def test_rows_without_a_grammar_draw_what_they_draw_alone() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(4))
    requests = [SampleRequest([0], seed=seed) for seed in range(6)]
    alone = sample(logits, requests, [2] * 6)
    allowed = np.zeros(300, dtype=np.bool_)
    allowed[7] = True
    rules: list[Only | None] = [Only(allowed) if row % 2 else None for row in range(6)]
    mixed = sample(logits, requests, [2] * 6, rules)
    assert [draw.token for draw in mixed[::2]] == [draw.token for draw in alone[::2]]
    assert [draw.token for draw in mixed[1::2]] == [7, 7, 7]
    assert [draw.logprob for draw in mixed[::2]] == [draw.logprob for draw in alone[::2]]


def test_recorded_logprobs_are_those_of_a_plain_forward_pass(tiny: Tiny) -> None:
    requests = [tiny.request(Form(schema=SCHEMA), seed) for seed in range(4)]
    for sampled in run(tiny.engine, *requests):
        probed = tiny.engine.probe("", [*tiny.prompt, *sampled.token_ids])[len(tiny.prompt) - 1 :]
        assert sampled.logprobs == pytest.approx(probed, abs=1e-3)


def test_many_grammars_and_none_in_one_batch(tiny: Tiny, tiny_model_dir: Path) -> None:
    forms = [
        Form(schema=SCHEMA),
        None,
        Form(tools=TOOLS, must_call=True, parallel=False),
        Form(schema={"enum": ["left", "right"]}),
        Form(schema={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}),
    ]
    requests = [tiny.request(form, seed, max_tokens=120) for seed in range(3) for form in forms]
    together = run(tiny.engine, *requests)
    fresh = load(tiny_model_dir, prefix_cache=False, max_batch=1)
    for request, sampled in zip(requests, together, strict=True):
        (alone,) = run(fresh, request)
        assert alone.token_ids == sampled.token_ids
        assert alone.forced == sampled.forced
        assert alone.logprobs == pytest.approx(sampled.logprobs, abs=1e-3)


def test_the_prefix_cache_serves_a_grammared_choice(tiny: Tiny) -> None:
    salt = {"cache_salt": "grammar-cache"}
    request = tiny.request(Form(schema=SCHEMA), 3, **salt)
    (first,) = run(tiny.engine, request)
    longer = replace(request, prompt_token_ids=[*tiny.prompt, *first.token_ids, tiny.stop, *tiny.prompt])
    (second,) = run(tiny.engine, longer)
    assert second.cached_tokens >= len(tiny.prompt) + len(first.token_ids) - 1
    (plain,) = run(load(tiny.folder, prefix_cache=False), longer)
    assert plain.token_ids == second.token_ids


def test_a_cancelled_choice_leaves_the_others(tiny: Tiny) -> None:
    runner = Runner(tiny.engine)
    keys = [runner.submit(tiny.request(Form(schema=SCHEMA), seed)) for seed in range(3)]
    for _ in range(4):
        runner.step()
    tiny.engine.cancel(keys[1])
    runner.finish()
    assert [runner.result(key).finish_reason for key in keys] == ["stop", "cancelled", "stop"]
    for key in (keys[0], keys[2]):
        jsonschema.validate(json.loads(tiny.text(runner.result(key))), SCHEMA)


def test_a_text_that_is_no_grammar_is_refused(tiny: Tiny) -> None:
    beyond = 2 * tiny.engine.capabilities.vocab_size
    for text in (f'%llguidance {{}}\nstart: "y" <[{beyond}]>', "start: nothing"):
        with pytest.raises(InvalidInput, match="cannot be compiled"):
            tiny.engine.submit(90, replace(tiny.request(None), grammar=text))


def test_a_dead_end_ends_its_choice_with_an_error_and_no_other(tiny: Tiny) -> None:
    """So ambiguous that the parser's row is full after some tokens."""
    ways = " | ".join(" ".join(["e"] * count) for count in range(2, 40))
    ambiguous = f'%llguidance {{}}\nstart: e\ne: "a" | {ways}'
    tiny.engine.submit(91, replace(tiny.request(None), grammar=ambiguous, max_tokens=400, stop_token_ids=()))
    tiny.engine.submit(92, tiny.request(Form(schema=SCHEMA)))
    events: dict[int, list[Any]] = {91: [], 92: []}
    while (step := tiny.engine.step()) is not None:
        for key, event in step:
            events[key].append(event)
    *said, error = events[91]
    assert said
    assert isinstance(error, ArtError)
    assert "dead end" in str(error)
    assert events[92][-1].finish_reason == "stop"


def test_the_wire_carries_grammars_and_forced_tokens(tiny: Tiny) -> None:
    event = Sampled([1, 2], [-0.5, -1.0], forced=[False, True])
    assert parse_sampled(sampled_message(3, event)["event"]) == event
    assert "forced" not in sampled_message(3, Sampled([1], [-0.5]))["event"]
    plain = replace(tiny.engine.capabilities, grammar=False)
    params = {"prompt_token_ids": [1], "grammar": "start: x"}
    with pytest.raises(UnsupportedOption, match="grammar"):
        parse_sample(params, plain)
    with pytest.raises(InvalidInput, match="grammar"):
        parse_sample({**params, "grammar": 3}, tiny.engine.capabilities)
    assert parse_sample(params, tiny.engine.capabilities).grammar == "start: x"


def test_the_scripted_engine_honours_a_grammar(tiny: Tiny, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"default": '{"answer":"no","sure":true,"marks":[1]}'}))
    arguments = ["--engine", "scripted", "--base-model", str(tiny.folder), "--script", str(script)]
    with EngineProcess(arguments) as engine:
        assert engine.capabilities.grammar
        (said,) = engine.generate(tiny.request(Form(schema=SCHEMA)))
        assert tiny.text(said) == '{"answer":"no","sure":true,"marks":[1]}'
        assert said.finish_reason == "stop"
        assert not any(said.forced)
        (cut,) = engine.generate(tiny.request(Form(schema=SCHEMA), max_tokens=4))
        assert cut.finish_reason == "length"
        with pytest.raises(InvalidInput, match="does not follow the request's grammar"):
            engine.generate(tiny.request(Form(schema={"type": "integer"})))
