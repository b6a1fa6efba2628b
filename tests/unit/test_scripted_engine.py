"""The scripted engine in its worker process: what other tests rely on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from art.engine.protocol import SampleRequest
from art.errors import ConfigError, InvalidInput, NotFound, Overloaded, PromptTooLong, WorkerDied
from art.testing.engine_process import EngineProcess, join
from art.testing.tiny import byte_tokenizer

END = "<|im_end|>"


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripted")
    tokenizer = byte_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(
        json.dumps({"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 512})
    )
    return folder


@pytest.fixture(scope="module")
def tokenizer(base_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(base_model / "tokenizer.json"))


SCRIPT: dict[str, Any] = {
    "rules": [
        {"match": "capital of (\\w+)", "replies": ["trained answer"], "version": "p/m@3"},
        {"match": "capital of (\\w+)", "replies": ["Paris", "Lyon", "Nice"]},
        {"match": "say (\\w+)", "replies": ["\\1 \\1"], "expand": True},
        {"match": "boom", "error": {"code": "overloaded", "message": "as the script says"}},
    ],
    "default": "I do not know.",
}


def arguments(base_model: Path, script: dict[str, Any], tmp_path: Path, *more: str) -> list[str]:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    return ["--engine", "scripted", "--base-model", str(base_model), "--script", str(path), *more]


@pytest.fixture
def engine(base_model: Path, tmp_path: Path) -> Iterator[EngineProcess]:
    with EngineProcess(
        arguments(base_model, SCRIPT, tmp_path, "--log", str(tmp_path / "log.jsonl"))
    ) as process:
        yield process


def request(tokenizer: Tokenizer, text: str, **changes: Any) -> SampleRequest:
    stop = tokenizer.token_to_id(END)
    values = {"max_tokens": 64, "stop_token_ids": (stop,)} | changes
    return SampleRequest(prompt_token_ids=tokenizer.encode(text).ids, **values)


def test_rules_answer_with_real_token_ids(
    engine: EngineProcess, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    known, echoed, unknown = engine.generate(
        request(tokenizer, "the capital of France?"), request(tokenizer, "say hi"), request(tokenizer, "?")
    )
    assert tokenizer.decode(known.token_ids, skip_special_tokens=False) in {
        c + END for c in ("Paris", "Lyon", "Nice")
    }
    assert tokenizer.decode(echoed.token_ids) == "hi hi"
    assert tokenizer.decode(unknown.token_ids) == "I do not know."
    for sampled in (known, echoed, unknown):
        assert sampled.finish_reason == "stop"
        assert len(sampled.logprobs) == len(sampled.token_ids)
        assert all(logprob <= 0 for logprob in sampled.logprobs)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert sorted(record["token_ids"] for record in log) == sorted(
        s.token_ids for s in (known, echoed, unknown)
    )


def test_seed_decides_and_repeats(engine: EngineProcess, tokenizer: Tokenizer) -> None:
    requests = [request(tokenizer, "capital of France", seed=seed) for seed in range(20)]
    first, second = engine.generate(*requests), engine.generate(*requests)
    assert [(s.token_ids, s.logprobs) for s in first] == [(s.token_ids, s.logprobs) for s in second]
    assert len({tuple(s.token_ids) for s in first}) == 3


def test_max_tokens_context_and_top_logprobs(engine: EngineProcess, tokenizer: Tokenizer) -> None:
    (cut,) = engine.generate(request(tokenizer, "?", max_tokens=3, top_logprobs=2))
    assert (len(cut.token_ids), cut.finish_reason) == (3, "length")
    assert [len(row) for row in cut.top_logprobs] == [2, 2, 2]
    assert cut.top_logprobs[0][0] == (cut.token_ids[0], cut.logprobs[0])
    (full,) = engine.generate(request(tokenizer, "x" * 510))
    assert (len(full.token_ids), full.finish_reason) == (2, "length")
    with pytest.raises(PromptTooLong):
        engine.generate(request(tokenizer, "x" * 512))


def test_versions_answer_differently(engine: EngineProcess, tokenizer: Tokenizer, tmp_path: Path) -> None:
    header = json.dumps({"a.lora_A": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "adapter_model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(4)
    )
    with pytest.raises(NotFound):
        engine.generate(request(tokenizer, "capital of France", version="p/m@3"))
    ref = {"version": "p/m@3", "path": str(tmp_path), "probe_token_ids": [5, 6, 7]}
    check = engine.call("load_adapter", ref)
    assert (check["matched"], check["unmatched"]) == (1, [])
    assert check["probe_logprobs"] != check["base_probe_logprobs"]
    assert (
        engine.call("probe", {"version": "p/m@3", "token_ids": [5, 6, 7]})["logprobs"]
        == check["probe_logprobs"]
    )
    base, trained = engine.generate(
        request(tokenizer, "capital of France"), request(tokenizer, "capital of France", version="p/m@3")
    )
    assert tokenizer.decode(trained.token_ids) == "trained answer"
    assert base.token_ids != trained.token_ids
    engine.call("unload_adapter", {"version": "p/m@3"})
    with pytest.raises(NotFound):
        engine.generate(request(tokenizer, "capital of France", version="p/m@3"))
    with pytest.raises(NotFound):
        engine.call("load_adapter", {"version": "p/m@4", "path": str(tmp_path / "nowhere")})


def test_bad_requests_fail_alone(engine: EngineProcess, tokenizer: Tokenizer) -> None:
    bad: list[dict[str, Any]] = [
        {"prompt_token_ids": []},
        {"prompt_token_ids": [10**6]},
        {"prompt_token_ids": [True]},
        {"prompt_token_ids": [1], "temperature": -1},
        {"prompt_token_ids": [1], "top_p": 0},
        {"prompt_token_ids": [1], "max_tokens": 0},
        {"prompt_token_ids": [1], "top_logprobs": 21},
        {"prompt_token_ids": [1], "tempreture": 1},
        {},
    ]
    good = engine.submit(request(tokenizer, "?"))
    for params in bad:
        with pytest.raises(InvalidInput):
            engine.finish(engine.submit(params))
    with pytest.raises(InvalidInput, match="unknown method"):
        engine.call("dance", {})
    with pytest.raises(Overloaded, match="as the script says"):
        engine.generate(request(tokenizer, "boom"))
    assert join(engine.finish(good)).finish_reason == "stop"


def test_cancel_ends_a_request(base_model: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    script = {"default": "a" * 200, "token_delay_ms": 20}
    with EngineProcess(arguments(base_model, script, tmp_path, "--max-batch", "1")) as engine:
        first, second = (engine.submit(request(tokenizer, "?", max_tokens=300)) for _ in range(2))
        assert engine.next_event(first) is not None
        engine.cancel(first)
        engine.cancel(12345)
        assert join(engine.finish(first)).finish_reason == "cancelled"
        assert engine.next_event(second) is not None  # the place is free
        engine.cancel(second)
        assert join(engine.finish(second)).finish_reason == "cancelled"


def test_steps_are_frames(base_model: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with EngineProcess(arguments(base_model, {"default": "a" * 30, "token_delay_ms": 1}, tmp_path)) as engine:
        engine.generate(*[request(tokenizer, "?", seed=i) for i in range(8)])
        assert max(len(frame) for frame in engine.frames) >= 8


def test_failures_are_reported(base_model: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with EngineProcess(arguments(base_model, {"fail_after": 1}, tmp_path)) as engine:
        with pytest.raises(WorkerDied, match="the script asked for a failure"):
            engine.generate(request(tokenizer, "?"))
        assert engine.process.wait(timeout=30) == 1
    with (
        EngineProcess(arguments(base_model, {"die_after": 1}, tmp_path)) as engine,
        pytest.raises(WorkerDied, match="status 9"),
    ):
        engine.generate(request(tokenizer, "?"))


@pytest.mark.parametrize(
    "script", [{"rulez": []}, {"rules": [{"match": "("}]}, {"rules": [{"match": "x"}]}, {"default": 1}]
)
def test_bad_scripts_do_not_start(base_model: Path, tmp_path: Path, script: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EngineProcess(arguments(base_model, script, tmp_path))


def test_a_folder_without_a_model_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        EngineProcess(["--engine", "scripted", "--base-model", str(tmp_path)])


def test_the_worker_ends_with_its_channel(engine: EngineProcess) -> None:
    assert engine.close() == 0


def test_heartbeats_carry_stats(engine: EngineProcess, tokenizer: Tokenizer) -> None:
    engine.generate(request(tokenizer, "?"))
    while len(engine.heartbeats) < 3:
        engine.generate(request(tokenizer, "again"))
    assert {"running", "waiting", "tokens_sampled", "cache_hits", "versions"} <= set(
        engine.heartbeats[-1]["stats"]
    )
    assert engine.heartbeats[-1]["stats"]["tokens_sampled"] > 0
