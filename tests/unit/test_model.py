"""Models: names, registration in every manner, state, logging without a server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from client_kit import KEY, FakeGateway
from pydantic import BaseModel

import art
from art.config.model import ModelConfig
from art.errors import ConfigError, InvalidInput, UnsupportedOption


def trainable(**fields: Any) -> art.TrainableModel[Any, Any]:
    return art.TrainableModel(**{"name": "m", "project": "p", "base_model": "base", **fields})


def test_un_awaited_registration_happens_at_first_use() -> None:
    with FakeGateway() as gateway:
        model = trainable()
        model.register(art.RemoteBackend(gateway.url, KEY))
        assert gateway.requests == []
        assert model.get_inference_name() == "m@0"  # synchronous use
        assert model.inference_base_url == f"{gateway.url}/v1"
        assert model.inference_api_key == KEY
        assert asyncio.run(model.get_step()) == 0
        assert len(gateway.bodies("/api/v1/models")) == 1


def test_synchronous_first_use_inside_a_running_loop() -> None:
    """As in a Jupyter cell."""

    async def cell(url: str) -> str:
        model = trainable()
        model.register(art.RemoteBackend(url, KEY))
        return model.get_inference_name()

    with FakeGateway() as gateway:
        assert asyncio.run(cell(gateway.url)) == "m@0"


def test_registration_can_be_awaited_run_and_made_a_task() -> None:
    async def awaited(model: art.TrainableModel[Any, Any], backend: art.RemoteBackend) -> None:
        await model.register(backend)
        await asyncio.create_task(model.register(backend))
        await asyncio.gather(model.ready(), model.ready())

    with FakeGateway() as gateway:
        model, backend = trainable(), art.RemoteBackend(gateway.url, KEY)
        asyncio.run(model.register(backend))
        asyncio.run(awaited(model, backend))
        assert len(gateway.bodies("/api/v1/models")) == 1
        assert model.get_inference_name() == "m@0"
        assert model.get_inference_name(step=3) == "m@3"
        assert model.inference_model_name == "m@0"
        assert model.litellm_completion_params() == {
            "model": "hosted_vllm/m@0",
            "base_url": f"{gateway.url}/v1",
            "api_key": KEY,
            "temperature": 1,
        }


def test_what_the_server_fixes_is_sent_with_the_registration() -> None:
    with FakeGateway() as gateway:
        model = trainable(
            lora={"r": 4}, initial_adapter="/adapter", history="template", chat_template="{{ x }}"
        )
        asyncio.run(model.register(art.RemoteBackend(gateway.url, KEY)))
        [sent] = gateway.bodies("/api/v1/models")
    assert sent["config"]["base_model"] == "base"
    assert sent["config"]["lora"]["r"] == 4
    assert sent["config"]["initial_adapter"] == "/adapter"
    assert (sent["config"]["history"], sent["config"]["chat_template"]) == ("template", "{{ x }}")


def test_run_name_is_another_word_for_name() -> None:
    model = trainable(name=None, run_name="r1")
    assert (model.name, model.run_name) == ("r1", "r1")
    for names in ({"name": None}, {"run_name": "again"}):
        with pytest.raises(ConfigError, match="one name"):
            trainable(**names)


def test_internal_config_is_applied_or_refused_by_name() -> None:
    model = trainable(_internal_config={"peft_args": {"r": 16, "lora_alpha": 32}, "chat_template": "t"})
    assert (model.lora.r, model.lora.alpha, model.chat_template) == (16, 32, "t")
    with pytest.raises(UnsupportedOption, match=r"engine_args, peft_args\.lora_dropout"):
        trainable(_internal_config={"engine_args": {"max_loras": 2}, "peft_args": {"lora_dropout": 0.1}})


def test_peft_args_of_every_kind_of_adapter_are_applied() -> None:
    args = {"r": 4, "use_dora": True, "use_rslora": True, "lora_dropout": 0.0, "bias": "none"}
    lora = trainable(_internal_config={"peft_args": args}).lora
    assert (lora.r, lora.dora, lora.rslora) == (4, True, True)
    with pytest.raises(UnsupportedOption, match=r"peft_args\.bias"):
        trainable(_internal_config={"peft_args": {"bias": "all"}})


def test_trainer_args_are_options_of_a_train_call() -> None:
    args = {"optim": "sgd", "warmup_steps": 3, "save_only_model": True}
    with pytest.raises(UnsupportedOption, match=r"trainer_args\.optim, trainer_args\.warmup_steps") as caught:
        trainable(_internal_config={"trainer_args": args})
    assert "give optimizer, warmup_updates to each train call" in caught.value.hint


def test_quantised_weights_are_asked_for_under_both_names() -> None:
    for name, kind in (("load_in_4bit", "nf4"), ("load_in_8bit", "int8")):
        model = trainable(_internal_config={"init_args": {name: True}})
        assert model.server_config().quantization == kind
        assert trainable(_internal_config={"init_args": {name: False}}).server_config().quantization is None
    assert trainable(quantization="nf4").server_config() == ModelConfig(base_model="base", quantization="nf4")
    with pytest.raises(ConfigError, match="cannot be registered") as caught:
        trainable(quantization="gptq").server_config()
    assert "quantization" in caught.value.cause


def test_an_internal_config_assigned_later_is_applied_or_refused_the_same() -> None:
    with FakeGateway() as gateway:
        model = trainable()
        model._internal_config = {"peft_args": {"r": 4}, "chat_template": "t"}
        assert (model.lora.r, model.chat_template) == (4, "t")
        assert model._internal_config == {"peft_args": {"r": 4}, "chat_template": "t"}
        with pytest.raises(UnsupportedOption, match=r"init_args\.max_seq_length, engine_args"):
            model._internal_config = {"init_args": {"max_seq_length": 8192}, "engine_args": {}}
        with pytest.raises(ConfigError, match="r: Input should be greater"):
            model._internal_config = {"peft_args": {"r": -1}}
        assert (model.lora.r, model._internal_config["chat_template"]) == (4, "t")
        asyncio.run(model.register(art.RemoteBackend(gateway.url, KEY)))
        [sent] = gateway.bodies("/api/v1/models")
        model._internal_config = {"peft_args": {"r": 4}}  # a notebook's cell that is run again
        with pytest.raises(ConfigError, match="is registered"):
            model._internal_config = {"peft_args": {"r": 8}}
    assert (sent["config"]["lora"]["r"], sent["config"]["chat_template"]) == (4, "t")
    assert trainable(_internal_config={"chat_template": "u"})._internal_config == {"chat_template": "u"}


@pytest.mark.parametrize("name", ["cost_calculator", "set_cost_calculator"])
def test_what_this_release_lacks_is_said_by_name(name: str) -> None:
    model = trainable()
    assert not hasattr(model, name)
    with pytest.raises(AttributeError, match=f"model.{name} is not in this release; instead: "):
        getattr(model, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = model.nonsense  # type: ignore[attr-defined]


def test_what_the_backends_lack_is_said_by_name() -> None:
    backend = art.RemoteBackend("http://127.0.0.1:1", KEY)
    with pytest.raises(AttributeError, match=r"backend.fork\(model, from_model"):
        _ = backend._experimental_fork_checkpoint  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'RemoteBackend' object has no attribute 'nonsense'"):
        _ = backend.nonsense  # type: ignore[attr-defined]


def test_a_client_of_a_model_that_goes_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="register"):
        trainable().openai_client()
    with pytest.raises(ConfigError, match="inference_api_key"):
        art.Model(name="gpt", project="p").openai_client()
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert art.Model(name="gpt", project="p").openai_client().api_key == "k"


def test_a_misspelt_argument_is_an_error() -> None:
    with pytest.raises(ValueError, match="base_modl"):
        trainable(base_modl="x")
    with pytest.raises(ConfigError, match="history"):
        trainable(history="sometimes").server_config()


def test_without_a_backend_the_error_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="has no backend"):
        trainable().backend()
    assert trainable().get_inference_name() == "m"
    assert trainable().get_inference_name(step=2) == "m@2"


def test_openai_client_config_is_refused() -> None:
    with pytest.raises(UnsupportedOption, match="_openai_client_config"):
        trainable().register(art.RemoteBackend("http://127.0.0.1:1", KEY), {"engine_args": {}})


class Settings(BaseModel):
    turns: int = 3


def test_config_is_the_programs_own() -> None:
    model = art.TrainableModel[Settings, dict[str, Any]](
        name="m", project="p", base_model="b", config=Settings(turns=5)
    )
    assert model.config.turns == 5
    assert model.safe_model_dump()["config"] is None
    assert model.trainable
    with pytest.raises(ConfigError, match="cannot be stored"):
        trainable(config={"f": lambda: 0}).register(art.RemoteBackend("http://127.0.0.1:1", KEY))


def test_state_is_kept_merged_and_replaced_whole(tmp_path: Path) -> None:
    model = trainable(base_path=str(tmp_path))
    assert model.read_state() is None
    model.overwrite_state({"a": 1, "deep": {"x": 1}})
    assert model.merge_state({"b": 2, "deep": {"y": 2}}) == {"a": 1, "b": 2, "deep": {"x": 1, "y": 2}}
    assert trainable(base_path=str(tmp_path)).read_state() == model.read_state()
    with pytest.raises(TypeError):
        model.overwrite_state({"bad": object()})
    assert model.read_state() == {"a": 1, "b": 2, "deep": {"x": 1, "y": 2}}
    folder = tmp_path / "p" / "models" / "m"
    assert [file.name for file in folder.iterdir()] == ["state.json"]


def test_a_prompted_model_logs_beside_the_program(tmp_path: Path) -> None:
    model: art.Model[Any, Any] = art.Model(
        name="gpt",
        project="p",
        base_path=str(tmp_path),
        inference_base_url="http://x/v1",
        inference_api_key="k",
    )
    group = art.TrajectoryGroup([art.Trajectory(reward=1), art.Trajectory(reward=0)])
    asyncio.run(model.log([group], split="test", step=3))
    folder = tmp_path / "p" / "models" / "gpt"
    [row] = map(json.loads, (folder / "history.jsonl").read_text().splitlines())
    assert (row["step"], row["test/reward"]) == (3, 0.5)
    [line] = map(json.loads, (folder / "trajectories" / "test.jsonl").read_text().splitlines())
    assert [trajectory["reward"] for trajectory in line["trajectories"]] == [1, 0]
    assert asyncio.run(model.get_step()) == 0
    assert str(model.openai_client().base_url) == "http://x/v1/"


def test_logging_what_is_no_trajectory_is_refused(tmp_path: Path) -> None:
    model: art.Model[Any, Any] = art.Model(name="gpt", project="p", base_path=str(tmp_path))
    for wrong in ([1], [art.TrajectoryGroup(), art.Trajectory()]):
        with pytest.raises(InvalidInput, match=r"log was given a list of .*; expected are TrajectoryGroups"):
            asyncio.run(model.log(wrong))  # type: ignore[arg-type]


def test_a_metric_that_is_no_number_is_named(tmp_path: Path) -> None:
    model: art.Model[Any, Any] = art.Model(name="gpt", project="p", base_path=str(tmp_path))
    with pytest.raises(InvalidInput, match="metric 'speed' must be a number"):
        asyncio.run(model.log(metrics={"good": 1, "speed": "fast"}))  # type: ignore[dict-item]
    assert not list(tmp_path.rglob("history.jsonl"))


def test_the_backend_protocol_is_what_the_backends_are() -> None:
    assert isinstance(art.RemoteBackend("http://127.0.0.1:1", KEY), art.Backend)
    assert isinstance(art.LocalBackend(path="/nowhere"), art.Backend)  # nothing starts before first use


def test_many_rollouts_that_start_together_set_the_model_up_once() -> None:
    async def run(model: art.TrainableModel[Any, Any]) -> None:
        client = model.openai_client()
        first = asyncio.create_task(model.ready())
        asking = [
            asyncio.create_task(
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
            )
            for _ in range(20)
        ]
        await asyncio.sleep(0)
        first.cancel()  # the others go on
        await asyncio.gather(*asking)

    with FakeGateway() as gateway:
        model = trainable()
        model.register(art.RemoteBackend(gateway.url, KEY))
        asyncio.run(run(model))
        assert len(gateway.bodies("/api/v1/models")) == 1
