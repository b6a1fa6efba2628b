"""The torch engine against transformers and PEFT: the same greedy tokens and log-probabilities, in fp32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_kit import (
    CONFIGS,
    Runner,
    greedy,
    load,
    load_adapter,
    make_adapter,
    make_model,
    prompts,
    reference_logprobs,
    reference_tokens,
    run,
)
from safetensors.torch import load_file, save_file

from art.engine.protocol import AdapterRef, SampleRequest
from art.errors import ConfigError, Conflict, InvalidInput, NotFound, Overloaded

EXACT = 1e-4
"""Largest mean absolute difference of log-probabilities in fp32."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return make_model(folder)


@pytest.fixture(scope="module")
def adapters(folder: Path, model: Any, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Any]]:
    folders = [tmp_path_factory.mktemp(f"adapter{seed}") for seed in range(3)]
    return [(path, make_adapter(folder, path, seed=seed + 1)) for seed, path in enumerate(folders)]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_of_mixed_lengths_equals_generate(name: str, tmp_path: Path) -> None:
    model = make_model(tmp_path, name)
    asked = prompts(5, 40, 1, 130, 17, 300)
    sampled = run(load(tmp_path, max_batch=4), *[greedy(prompt) for prompt in asked])
    for prompt, choice in zip(asked, sampled, strict=True):
        assert choice.token_ids == reference_tokens(model, prompt)
        expected = reference_logprobs(model, prompt, choice.token_ids)
        assert (expected - torch.tensor(choice.logprobs)).abs().mean() <= EXACT
        assert choice.finish_reason == "length"


def test_greedy_survives_cache_hits_and_cancellation(folder: Path, model: Any) -> None:
    engine = load(folder, max_batch=3)
    runner = Runner(engine)
    shared, tail, other = prompts(200, 9, 50)
    gone = [runner.submit(greedy(prompt, 300)) for prompt in (shared, shared + tail, other)]
    for _ in range(12):
        runner.step()
    for key in gone:
        engine.cancel(key)
    after = [shared + tail, shared[:150] + other, other, shared, other + tail]
    keys = [runner.submit(greedy(prompt)) for prompt in after]
    runner.finish()
    assert [runner.result(key).finish_reason for key in gone] == ["cancelled"] * 3
    for prompt, key in zip(after, keys, strict=True):
        assert runner.result(key).token_ids == reference_tokens(model, prompt)
    assert runner.result(keys[0]).cached_tokens >= 200
    assert runner.result(keys[1]).cached_tokens == 150


def test_a_next_turn_continues_its_own_slot(folder: Path, model: Any) -> None:
    engine = load(folder)
    (prompt, tail) = prompts(60, 11)
    (first,) = run(engine, greedy(prompt))
    history = prompt + first.token_ids + tail
    computed = engine.stats["tokens_computed"]
    (second,) = run(engine, greedy(history))
    assert second.token_ids == reference_tokens(model, history)
    # All but the last sampled token are in the slot: only that and the tail are computed, then 23 decoded.
    assert second.cached_tokens == len(prompt) + len(first.token_ids) - 1
    assert engine.stats["tokens_computed"] - computed == 1 + len(tail) + 23


def test_an_adapter_equals_peft(folder: Path, adapters: list[tuple[Path, Any]]) -> None:
    engine = load(folder)
    path, peft_model = adapters[0]
    check = load_adapter(engine, "p/m@1", path)
    assert (check.matched, check.unmatched) == (2 * 7 * 3, [])
    expected = reference_logprobs(peft_model, [1], [2, 3, 4, 5])
    assert (expected - torch.tensor(check.probe_logprobs)).abs().max() <= EXACT
    assert engine.probe("p/m@1", [1, 2, 3, 4, 5]) == pytest.approx(check.probe_logprobs, abs=EXACT)
    assert engine.probe("", [1, 2, 3, 4, 5]) == pytest.approx(check.base_probe_logprobs, abs=EXACT)
    asked = prompts(5, 40, 130)
    for prompt, choice in zip(asked, run(engine, *[greedy(p, version="p/m@1") for p in asked]), strict=True):
        assert choice.token_ids == reference_tokens(peft_model, prompt)
        logprobs = reference_logprobs(peft_model, prompt, choice.token_ids)
        assert (logprobs - torch.tensor(choice.logprobs)).abs().mean() <= EXACT


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["q_proj", "down_proj"]},
        {"use_rslora": True},
        {"alpha_pattern": {"k_proj": 32}, "rank_pattern": {"q_proj": 2}},
        {"target_modules": ["q_proj", "lm_head"]},
    ],
    ids=["some", "rslora", "patterns", "head"],
)
def test_kinds_of_lora_equal_peft(folder: Path, model: Any, tmp_path: Path, changes: dict[str, Any]) -> None:
    peft_model = make_adapter(folder, tmp_path, seed=5, **changes)
    engine = load(folder)
    assert load_adapter(engine, "v", tmp_path).unmatched == []
    (prompt,) = prompts(30)
    (choice,) = run(engine, greedy(prompt, version="v"))
    assert choice.token_ids == reference_tokens(peft_model, prompt)


def test_versions_in_one_batch_do_not_mix(folder: Path, model: Any, adapters: list[tuple[Path, Any]]) -> None:
    engine = load(folder)
    served = {"": model}
    for number, (path, peft_model) in enumerate(adapters[:2]):
        load_adapter(engine, f"v{number}", path)
        served[f"v{number}"] = peft_model
    (prompt,) = prompts(50)
    for _ in range(2):  # the second time every version has the prompt in its cache
        choices = run(engine, *[greedy(prompt, version=version) for version in served])
        for peft_model, choice in zip(served.values(), choices, strict=True):
            assert choice.token_ids == reference_tokens(peft_model, prompt)
    assert len({tuple(choice.token_ids) for choice in choices}) == 3


def test_adapters_come_and_go(folder: Path, model: Any, adapters: list[tuple[Path, Any]]) -> None:
    engine = load(folder, max_adapters=2)
    (prompt,) = prompts(20)
    load_adapter(engine, "v0", adapters[0][0])
    load_adapter(engine, "v1", adapters[1][0])
    runner = Runner(engine)
    key = runner.submit(greedy(prompt, version="v0"))
    runner.step()
    load_adapter(engine, "v2", adapters[2][0])  # v0 is older but busy: v1 goes
    assert set(engine.stats["versions"]) == {"v0", "v2"}
    runner.finish()
    assert runner.result(key).token_ids == reference_tokens(adapters[0][1], prompt)
    with pytest.raises(NotFound, match="v1"):
        runner.submit(greedy(prompt, version="v1"))
    # Under a version that was dropped and came back with other weights, nothing stale is served.
    engine.unload_adapter("v0")
    load_adapter(engine, "v0", adapters[1][0])
    (again,) = run(engine, greedy(prompt, version="v0"))
    assert again.token_ids == reference_tokens(adapters[1][1], prompt)
    assert again.cached_tokens == 0


def test_busy_adapters_are_kept(folder: Path, model: Any, adapters: list[tuple[Path, Any]]) -> None:
    engine = load(folder, max_adapters=1)
    load_adapter(engine, "v0", adapters[0][0])
    runner = Runner(engine)
    key = runner.submit(greedy(prompts(5)[0], version="v0"))
    with pytest.raises(Overloaded):
        load_adapter(engine, "v1", adapters[1][0])
    with pytest.raises(Conflict):
        engine.unload_adapter("v0")
    with pytest.raises(Conflict):
        load_adapter(engine, "v0", adapters[1][0])
    assert load_adapter(engine, "v0", adapters[0][0]).matched == 42  # repeating is harmless
    runner.finish()
    assert runner.result(key).finish_reason == "length"


def test_a_version_whose_content_changed_is_loaded_anew_but_not_under_its_requests(
    folder: Path, model: Any, adapters: list[tuple[Path, Any]], tmp_path: Path
) -> None:
    engine = load(folder)
    (prompt,) = prompts(20)
    path = Path(shutil.copytree(adapters[0][0], tmp_path / "step"))
    engine.load_adapter(AdapterRef("v", str(path), [1, 2, 3], sha256="first"))
    runner = Runner(engine)
    key = runner.submit(greedy(prompt, version="v"))
    runner.step()
    shutil.copytree(adapters[1][0], path, dirs_exist_ok=True)
    changed = AdapterRef("v", str(path), [1, 2, 3], sha256="second")
    with pytest.raises(Conflict, match="running requests"):
        engine.load_adapter(changed)
    runner.finish()
    assert runner.result(key).token_ids == reference_tokens(adapters[0][1], prompt)
    engine.load_adapter(changed)
    (again,) = run(engine, greedy(prompt, version="v"))
    assert again.token_ids == reference_tokens(adapters[1][1], prompt)
    assert again.cached_tokens == 0


def test_an_adapter_is_free_as_soon_as_its_last_request_is_cancelled(
    folder: Path, model: Any, adapters: list[tuple[Path, Any]]
) -> None:
    """The gateway sends the one right behind the other, and both arrive before the next step."""
    engine = load(folder, max_adapters=1)
    load_adapter(engine, "v0", adapters[0][0])
    runner = Runner(engine)
    running, waiting = (runner.submit(greedy(prompts(5)[0], 500, version="v0")) for _ in range(2))
    runner.step()
    engine.cancel(running)
    engine.cancel(waiting)
    engine.unload_adapter("v0")
    load_adapter(engine, "v1", adapters[1][0])
    runner.finish()
    assert [runner.result(key).finish_reason for key in (running, waiting)] == ["cancelled"] * 2


def test_bad_adapters_are_refused(
    folder: Path, model: Any, adapters: list[tuple[Path, Any]], tmp_path: Path
) -> None:
    engine = load(folder)
    with pytest.raises(NotFound):
        load_adapter(engine, "v", tmp_path / "nowhere")
    good = adapters[0][0]
    config = json.loads((good / "adapter_config.json").read_text())
    weights = (good / "adapter_model.safetensors").read_bytes()

    def written(name: str, config: dict[str, Any], weights: bytes | None) -> Path:
        path = tmp_path / name
        path.mkdir()
        (path / "adapter_config.json").write_text(json.dumps(config))
        if weights is not None:
            (path / "adapter_model.safetensors").write_bytes(weights)
        return path

    with pytest.raises(NotFound, match="adapter_model"):
        load_adapter(engine, "v", written("missing", config, None))
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_adapter(engine, "v", written("cut", config, weights[: len(weights) // 2]))
    with pytest.raises(ConfigError, match="lora_bias"):
        load_adapter(engine, "v", written("biased", {**config, "lora_bias": True}, weights))
    with pytest.raises(InvalidInput, match="no lora_magnitude_vector"):
        load_adapter(engine, "v", written("dora", {**config, "use_dora": True}, weights))
    narrow = written("narrow", config, None)
    tensors = load_file(good / "adapter_model.safetensors")
    cut = {
        name: tensor[:, :-1].contiguous() if "lora_A" in name else tensor for name, tensor in tensors.items()
    }
    save_file(cut, narrow / "adapter_model.safetensors")
    with pytest.raises(InvalidInput, match="does not fit"):
        load_adapter(engine, "v", narrow)
    assert engine.stats["versions"] == []


def test_foreign_names_are_reported(
    folder: Path, model: Any, adapters: list[tuple[Path, Any]], tmp_path: Path
) -> None:
    good = adapters[0][0]
    (tmp_path / "adapter_config.json").write_text((good / "adapter_config.json").read_text())
    tensors = load_file(good / "adapter_model.safetensors")
    renamed = {name.replace("layers.1.", "layers.9."): tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "adapter_model.safetensors")
    check = load_adapter(load(folder), "v", tmp_path)
    assert check.matched == 28
    assert len(check.unmatched) == 14
    assert all("layers.9." in name for name in check.unmatched)


def test_unknown_models_are_refused(folder: Path, model: Any, tmp_path: Path) -> None:
    def with_config(**changes: Any) -> Path:
        config = json.loads((folder / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        return tmp_path

    with pytest.raises(ConfigError, match="GPT2LMHeadModel"):
        load(with_config(architectures=["GPT2LMHeadModel"]))
    with pytest.raises(ConfigError, match="yarn"):
        load(with_config(rope_parameters={"rope_type": "yarn", "factor": 2.0}))
    with pytest.raises(ConfigError, match="sliding"):
        load(with_config(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=64))
    with pytest.raises(NotFound, match=r"model\.safetensors"):
        load(with_config())
    with pytest.raises(NotFound, match=r"config\.json"):
        load(tmp_path / "nowhere")


def test_stop_tokens_and_lengths(folder: Path, model: Any) -> None:
    engine = load(folder, context=64)
    assert engine.capabilities.context_length == 64
    (prompt,) = prompts(40)
    tokens = reference_tokens(model, prompt)
    stop = next(token for i, token in enumerate(tokens) if i > 3 and token not in tokens[:i])
    at = tokens.index(stop)
    stopped, cut, full = run(
        engine, greedy(prompt, stop_token_ids=(stop,)), greedy(prompt, 5), greedy(prompt, 1000)
    )
    assert (stopped.token_ids, stopped.finish_reason) == (tokens[: at + 1], "stop")
    assert (cut.token_ids, cut.finish_reason) == (tokens[:5], "length")
    assert (len(full.token_ids), full.finish_reason) == (24, "length")


def test_top_logprobs(folder: Path, model: Any) -> None:
    (prompt,) = prompts(12)
    (choice,) = run(
        load(folder), SampleRequest(prompt, max_tokens=6, temperature=0.7, seed=3, top_logprobs=5)
    )
    with torch.no_grad():
        logits = model(torch.tensor([prompt + choice.token_ids])).logits[0, len(prompt) - 1 : -1]
    expected = (logits / 0.7).log_softmax(-1).topk(5)
    for row, (best, ids) in enumerate(zip(expected.values.tolist(), expected.indices.tolist(), strict=True)):
        assert [token for token, _ in choice.top_logprobs[row]] == ids
        assert [logprob for _, logprob in choice.top_logprobs[row]] == pytest.approx(best, abs=EXACT)
    assert choice.logprobs == pytest.approx(
        reference_logprobs(model, prompt, choice.token_ids, 0.7).tolist(), abs=EXACT
    )
