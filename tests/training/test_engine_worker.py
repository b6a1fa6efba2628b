"""The torch engine in its own process, over the channel."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_kit import greedy, make_adapter, make_model, prompts, reference_tokens

from art.engine.worker import WAITING_PER_PLACE
from art.errors import ConfigError, InvalidInput, NotFound, Overloaded, PromptTooLong, WorkerDied
from art.testing.engine_process import EngineProcess, join


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return make_model(folder)


def arguments(folder: Path, *more: str) -> list[str]:
    return ["--base-model", str(folder), "--max-batch", "4", "--dtype", "fp32", "--threads", "1", *more]


@pytest.fixture(scope="module")
def engine(folder: Path, model: Any) -> Iterator[EngineProcess]:
    with EngineProcess(arguments(folder)) as process:
        yield process


def test_it_says_what_it_can(engine: EngineProcess, folder: Path) -> None:
    said = engine.capabilities
    assert (said.kind, said.base_model, said.vocab_size, said.max_batch) == ("torch", str(folder), 300, 4)
    assert (said.context_length, said.dtype, said.device) == (2048, "fp32", "cpu")
    assert any("fp32" in note for note in said.notes)


def test_choices_stream_a_step_a_frame(engine: EngineProcess, model: Any) -> None:
    asked = prompts(10, 20, 30, 40, 50, 60)
    before = len(engine.frames)
    choices = engine.generate(*[greedy(prompt) for prompt in asked])
    assert [choice.token_ids for choice in choices] == [reference_tokens(model, prompt) for prompt in asked]
    assert max(sum("event" in message for message in frame) for frame in engine.frames[before:]) == 4


def test_a_cancelled_choice_ends_and_the_others_go_on(engine: EngineProcess, model: Any) -> None:
    (prompt, other) = prompts(10, 20)
    gone, kept = engine.submit(greedy(prompt, 1900)), engine.submit(greedy(other, 60))
    assert engine.next_event(gone) is not None
    engine.cancel(gone)
    cancelled = join(engine.finish(gone))
    assert cancelled.finish_reason == "cancelled"
    assert cancelled.token_ids == reference_tokens(model, prompt, 60)[1 : 1 + len(cancelled.token_ids)]
    assert join(engine.finish(kept)).token_ids == reference_tokens(model, other, 60)


def test_an_adapter_over_the_channel(engine: EngineProcess, folder: Path, model: Any, tmp_path: Path) -> None:
    peft_model = make_adapter(folder, tmp_path, seed=3)
    (prompt,) = prompts(15)
    check = engine.call(
        "load_adapter", {"version": "p/m@1", "path": str(tmp_path), "probe_token_ids": [1, 2, 3]}
    )
    assert (check["matched"], check["unmatched"]) == (42, [])
    probed = engine.call("probe", {"version": "p/m@1", "token_ids": [1, 2, 3]})
    assert probed["logprobs"] == pytest.approx(check["probe_logprobs"])
    (choice,) = engine.generate(greedy(prompt, version="p/m@1"))
    assert choice.token_ids == reference_tokens(peft_model, prompt)
    engine.call("unload_adapter", {"version": "p/m@1"})
    with pytest.raises(NotFound):
        engine.generate(greedy(prompt, version="p/m@1"))
    with pytest.raises(NotFound):
        engine.call("load_adapter", {"version": "p/m@2", "path": str(tmp_path / "nowhere")})


def test_bad_requests_fail_alone(engine: EngineProcess, model: Any) -> None:
    (prompt,) = prompts(10)
    good = engine.submit(greedy(prompt))
    with pytest.raises(PromptTooLong, match="2048"):
        engine.generate(greedy([1] * 2048))
    with pytest.raises(InvalidInput, match="299"):
        engine.generate(greedy([300]))
    with pytest.raises(InvalidInput):
        engine.call("probe", {"version": "", "token_ids": []})
    assert join(engine.finish(good)).token_ids == reference_tokens(model, prompt)


def test_a_killed_worker_ends_its_calls(folder: Path, model: Any) -> None:
    with EngineProcess(arguments(folder)) as engine:
        key = engine.submit(greedy([1, 2, 3], 2000))
        assert engine.next_event(key) is not None
        os.kill(engine.process.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied):
            engine.finish(key)


def test_the_worker_goes_with_its_gateway_even_in_the_middle_of_a_choice(folder: Path, model: Any) -> None:
    with EngineProcess(arguments(folder)) as engine:
        key = engine.submit(greedy([1, 2, 3], 2000))
        assert engine.next_event(key) is not None
        assert engine.close() == 0


def test_a_folder_that_cannot_be_served_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"config\.json"):
        EngineProcess(arguments(tmp_path))
    (tmp_path / "config.json").write_text('{"architectures": ["T5ForConditionalGeneration"]}')
    with pytest.raises(ConfigError, match="LlamaForCausalLM"):
        EngineProcess(arguments(tmp_path))
    with pytest.raises(ConfigError, match="scripted"):
        EngineProcess(arguments(tmp_path, "--script", "x.json"))


def test_more_requests_than_may_wait_are_refused(engine: EngineProcess, model: Any) -> None:
    bound = (1 + WAITING_PER_PLACE) * engine.capabilities.max_batch
    keys = [engine.submit(greedy([1, 2, 3], 1900)) for _ in range(bound + 1)]
    with pytest.raises(Overloaded, match=f"{bound} requests"):
        engine.finish(keys.pop())
    for key in keys:
        engine.cancel(key)
    assert {engine.finish(key)[-1].finish_reason for key in keys} == {"cancelled"}
