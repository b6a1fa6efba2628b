"""The demonstration's tasks: nothing leaks from training to evaluation, and no constant answer pays."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice

from art.demo import tictactoe, weather
from art.demo.task import Scenario, cut_off, spread

WEATHER = Scenario("Oslo/0", "Oslo", "snowy")
BOARD = Scenario("b", "X | 2 | 3", "23")


def said(
    text: str | None = None,
    *,
    call: dict[str, Any] | None = None,
    name: str = "get_weather",
    finish: str = "stop",
) -> Choice:
    """A model's turn: text, or a call with these arguments."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if call is not None:
        function = {"name": name, "arguments": json.dumps(call)}
        message["tool_calls"] = [{"id": "c", "type": "function", "function": function}]
        finish = "tool_calls"
    return Choice.model_validate({"index": 0, "finish_reason": finish, "message": message})


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_held_out_scenarios_share_nothing_with_training(seed: int) -> None:
    train, held_out = weather.scenarios(seed, 96, 128)
    assert len(train), len(held_out) == (96, 128)
    assert not {s.question for s in train} & {s.question for s in held_out}
    assert not {s.hidden for s in train} & {s.hidden for s in held_out}
    train, held_out = tictactoe.scenarios(seed, 112, 128)
    assert (len(train), len(held_out)) == (112, 128)
    assert not {s.question for s in train} & {s.question for s in held_out}


def test_the_seed_decides_the_scenarios() -> None:
    for task in (weather.TASK, tictactoe.TASK):
        assert task.scenarios(0, 8, 16) == task.scenarios(0, 8, 16) != task.scenarios(1, 8, 16)


def test_no_example_in_the_prompt_is_a_scenario() -> None:
    cities = {*weather.TRAIN_CITIES, *weather.EVAL_CITIES}
    words = {*weather.TRAIN_WEATHER, *weather.EVAL_WEATHER}
    assert not cities & {city for city, _, _ in weather.EXAMPLES}
    assert not words & {word for _, word, _ in weather.EXAMPLES}
    assert tictactoe.board(tictactoe.EXAMPLE) not in {text for text, _ in tictactoe.positions()}


def test_the_weather_is_not_in_the_prompt() -> None:
    prompt = json.dumps(weather.opening("Oslo"))
    assert "Oslo" in prompt
    assert not {word for word in (*weather.TRAIN_WEATHER, *weather.EVAL_WEATHER) if word in prompt}


@pytest.mark.parametrize(
    ("turns", "reward"),
    [
        ([said(call={"city": "Oslo"}), said("It is snowy in Oslo.")], 1.0),
        ([said(call={"city": "Oslo"}), said("It is windy.")], 0.5),
        ([said(call={"city": "Oslo"}), said("It is snowy or windy.")], 0.5),
        ([said(call={"city": "oslo", "day": 1}), said("Snowy!")], 0.9),
        ([said(call={"city": "Paris"}), said("unknown")], 0.1),
        ([said(call={"city": "Oslo"}, name="get_time"), said("It is snowy")], 0.5),
        ([said("It is snowy.")], 0.5),
        ([said("I do not know.")], 0.0),
        ([said(call={"city": "Oslo"}), said("It is snowy and", finish="length")], 0.5),
        ([said(call={}), said("")], 0.1),
        ([said(call={"city": "Oslo"}), said(call={"city": "Oslo"})], 0.5),
    ],
)
def test_weather_reward(turns: list[Any], reward: float) -> None:
    assert weather.reward(WEATHER, turns) == pytest.approx(reward)


def test_the_tool_knows_the_scenarios_city_alone() -> None:
    (call,) = said(call={"city": "Oslo"}).message.tool_calls or ()
    (other,) = said(call={"city": "Paris"}).message.tool_calls or ()
    assert weather.get_weather(WEATHER, call) == "snowy"
    assert weather.get_weather(WEATHER, other) == "unknown"


def test_the_best_constant_is_the_best_of_all_fixed_answers() -> None:
    _, held_out = weather.scenarios(0, 8, 64)
    best = max(
        sum(
            weather.reward(scenario, [said(call={"city": city}), said(f"It is {word}.")])
            for scenario in held_out
        )
        / len(held_out)
        for city in weather.EVAL_CITIES
        for word in weather.EVAL_WEATHER
    )
    assert weather.best_constant(held_out) == pytest.approx(best)
    assert best < 0.2
    _, boards = tictactoe.scenarios(0, 8, 64)
    best = max(
        sum(tictactoe.reward(board, [said(cell)]) for board in boards) / 64 for cell in tictactoe.CELLS
    )
    assert tictactoe.best_constant(boards) == best
    assert best < 0.45


@pytest.mark.parametrize(
    ("answer", "reward"), [("2", 1), (" 3.\n", 1), ("1", 0), ("2 3", 0), ("23", 0), ("", 0), ("two", 0)]
)
def test_tictactoe_reward(answer: str, reward: float) -> None:
    assert tictactoe.reward(BOARD, [{"role": "user", "content": ""}, said(answer)]) == reward


def test_boards_show_what_is_free() -> None:
    for text, free in tictactoe.positions():
        shown = Counter(text.replace("\n", "").replace(" ", "").replace("|", ""))
        assert (shown["X"], shown["O"]) == (4, 3)
        assert {cell for cell in tictactoe.CELLS if shown[cell]} == set(free)


def test_spread_is_even() -> None:
    counts = Counter(spread("abc", 10, random.Random(0)))
    assert sorted(counts.values()) == [3, 3, 4]


def test_a_turn_at_its_token_limit_is_seen() -> None:
    assert cut_off([{"role": "user", "content": ""}, said("x", finish="length")])
    assert not cut_off([said("x")])
