"""The agents of the demonstrations through a real server and the real OpenAI client; a scripted engine plays a trained
model."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

import art
from art.demo import guess, weather
from art.demo.live import Display
from art.demo.run import PROJECT, Runner
from art.testing.plugin import StartServer
from art.testing.tiny import tiny_model
from art.trajectories import is_choice

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
            mean, runs = await runner.evaluate(held_out, "evaluation")
            groups = await runner.gather(training, step=1)
        await backend.close()
        return mean.value, runs[0].messages(), groups

    reward, run, groups = asyncio.run(main())
    assert reward == 1.0, run
    assert [turn["role"] for turn in run[-4:]] == ["user", "assistant", "tool", "assistant"]
    assert [len(group) for group in groups] == [8, 8]
    assert all(trajectory.reward == 1.0 for group in groups for trajectory in group)


HALVING = {"4": "", "6": "4 higher", "2": "4 lower", "7": "4 higher 6 higher", "5": "4 higher 6 lower"}
HALVING |= {"3": "4 lower 2 higher", "1": "4 lower 2 lower"}
"""Each guess of a player who halves what is left, and what was said before it."""


def guessing_script() -> dict[str, object]:
    """The engine of that player. The opening question ends every prompt's first part."""
    rules = []
    for number, before in HALVING.items():
        history = r"Which one is it\?<\|im_end\|>\n<\|im_start\|>assistant\n"
        for number_said, told in zip(before.split()[::2], before.split()[1::2], strict=True):
            history += rf"{number_said}<\|im_end\|>\n<\|im_start\|>user\n{told} than {number_said}<\|im_end\|>\n<\|im_start\|>assistant\n"
        rules.append({"match": history + "$", "replies": [number]})
    return {"rules": rules, "default": "I do not know."}


def test_a_model_that_halves_what_is_left_finds_every_number(
    start_art_server: StartServer, base_model: Path
) -> None:
    server = start_art_server(script=guessing_script())

    async def main() -> tuple[float, list[art.TrajectoryGroup]]:
        async with art.RemoteBackend(server.url, server.admin_key) as backend:
            model = art.TrainableModel(name="guesser", project=PROJECT, base_model=str(base_model))
            await model.register(backend)
            training, held_out = guess.TASK.scenarios(0, 7, 14)
            with Display(Console(file=io.StringIO()), "test") as display:
                runner = Runner(guess.TASK, model, 0, display)
                mean, _ = await runner.evaluate(held_out, "evaluation")
                groups = await runner.gather(training, step=1)
        return mean.value, groups

    reward, groups = asyncio.run(main())
    assert reward == 1.0
    calls = [sum(map(is_choice, run.messages_and_choices)) for run in map(first, groups)]
    assert sorted(calls) == [1, 2, 2, 3, 3, 3, 3]


def first(group: art.TrajectoryGroup) -> art.Trajectory:
    return group.trajectories[0]
