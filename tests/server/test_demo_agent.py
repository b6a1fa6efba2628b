"""The weather agent through a real server and the real OpenAI client; a scripted engine plays a trained model."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

import art
from art.demo import weather
from art.demo.live import Display
from art.demo.run import PROJECT, Runner
from art.testing.plugin import StartServer
from art.testing.tiny import tiny_model

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "\\1"}}</tool_call>'
SCRIPT = {
    "rules": [
        {
            "match": r"weather in (\w+)\?<\|im_end\|>\n<\|im_start\|>assistant\n$",
            "replies": [CALL],
            "expand": True,
        },
        {
            "match": r"<\|im_start\|>tool\n(\w+)<\|im_end\|>\n<\|im_start\|>assistant\n$",
            "replies": ["It is \\1."],
            "expand": True,
        },
    ],
    "default": "I do not know.",
}


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Byte tokens: the prompt with its examples is about 1,300 of them.
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny", warm=False, context_length=4096)


def test_a_model_that_knows_the_tool_earns_everything(
    start_art_server: StartServer, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weather, "TURN_TOKENS", 128)  # of bytes
    server = start_art_server(script=SCRIPT)

    async def main() -> tuple[float, list[dict[str, object]], list[art.TrajectoryGroup]]:
        backend = art.RemoteBackend(server.url, server.admin_key)
        model = art.TrainableModel(name="agent", project=PROJECT, base_model=str(base_model))
        await model.register(backend)
        training, held_out = weather.TASK.scenarios(0, 2, 8)
        with Display(Console(file=io.StringIO()), "test") as display:
            runner = Runner(weather.TASK, model, 0, display)
            mean, run = await runner.evaluate(held_out, "evaluation")
            groups = await runner.gather(training, step=1)
        await backend.close()
        return mean.value, run, groups

    reward, run, groups = asyncio.run(main())
    assert reward == 1.0, run
    assert [turn["role"] for turn in run[-4:]] == ["user", "assistant", "tool", "assistant"]
    assert [len(group) for group in groups] == [8, 8]
    assert all(trajectory.reward == 1.0 for group in groups for trajectory in group)
