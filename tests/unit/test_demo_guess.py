"""The guessing game and the cold start as tasks: what is held out, what pays, what is demonstrated."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice

from art.backends.results import LocalTrainResult, TrainResult
from art.demo import cold, guess, weather
from art.demo.step_record import StepRecord, has_signal
from art.demo.task import Scenario
from art.demo.tasks import TASKS
from art.trajectories import Trajectory, TrajectoryGroup


def said(text: str | None, **message: Any) -> Choice:
    """A model's turn."""
    data = {"role": "assistant", "content": text, **message}
    return Choice.model_validate({"index": 0, "finish_reason": "stop", "message": data})


def game(number: str, *answers: str) -> list[Any]:
    """A game as the agent plays it."""
    turns: list[Any] = guess.opening("Helen")
    for answer in answers:
        turns += [said(answer), guess.hint(number, answer)]
    return turns[:-1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_player_is_in_both_and_every_step_has_every_number(seed: int) -> None:
    task = guess.TASK
    train, held_out = task.scenarios(seed, 4 * task.groups_per_step, task.held_out)
    assert (len(train), len(held_out)) == (28, 140)
    assert not {s.question for s in train} & {s.question for s in held_out}
    for step in range(4):
        assert sorted(s.hidden for s in train[step * 7 : step * 7 + 7]) == list(guess.NUMBERS)
    assert len({s.id for s in (*train, *held_out)}) == 168
    assert task.scenarios(seed, 28, 140) == (train, held_out) != task.scenarios(seed + 1, 28, 140)


def test_a_prompt_holds_no_hint_of_its_number_and_no_held_out_player() -> None:
    prompts = {number: json.dumps(guess.opening("Helen")) for number in guess.NUMBERS}
    assert len(set(prompts.values())) == 1
    shown = {name for name, *_ in guess.EXAMPLES}
    assert not shown & {*guess.TRAIN_PLAYERS, *guess.EVAL_PLAYERS}


def test_the_worked_games_follow_their_own_hints() -> None:
    turns = guess.opening("Helen")
    hints = [place for place, turn in enumerate(turns) if " than " in turn["content"]]
    assert len(hints) == 4
    for place in hints:
        before, told, after = (turn["content"] for turn in turns[place - 1 : place + 2])
        assert told == f"{'higher' if after > before else 'lower'} than {before}"
    assert all(guesses[0] != "4" for _, *guesses in guess.EXAMPLES), "the best opening is not given away"


@pytest.mark.parametrize(
    ("answers", "found", "reward"),
    [
        (["4"], 1, 1),
        (["6", "2", "4."], 1, 1),
        (["3", " 4\n"], 1, 1),
        (["1", "2", "3"], 0, 0.4),
        (["2", "1", "6"], 0, 0.25),
        (["2", "2", "2"], 0, 0.1),
        (["2", "7", "8"], 0, 0.25),
        (["5", "6"], 0, 0.1),
        (["four"], 0, 0),
        (["4 or 5"], 0, 0),
        (["8"], 0, 0),
        ([""], 0, 0),
    ],
)
def test_guess_reward(answers: list[str], found: float, reward: float) -> None:
    scenario, turns = Scenario("Helen/0", "Helen", "4"), game("4", *answers)
    assert guess.found(scenario, turns) == found
    assert guess.reward(scenario, turns) == pytest.approx(reward)


def test_the_best_that_heeds_no_hint_finds_three_of_seven() -> None:
    _, held_out = guess.scenarios(0, 7, 140)
    best = max(
        sum(scenario.hidden in guesses for scenario in held_out) / len(held_out)
        for guesses in product(guess.NUMBERS, repeat=guess.MAX_GUESSES)
    )
    assert guess.best_constant(held_out) == pytest.approx(best) == pytest.approx(3 / 7)


def test_the_demonstrated_run_earns_everything_and_an_answer_without_the_tool_nothing() -> None:
    scenario = Scenario("Tokyo/0", "Tokyo", "sunny")
    shown = cold.demonstration(scenario)
    call, answer = (turn for turn in shown.messages_and_choices if turn["role"] == "assistant")
    turns = [said(None, tool_calls=call["tool_calls"]), said(answer["content"])]
    assert cold.reward(scenario, turns) == 1.0
    assert (
        cold.reward(scenario, [said("It is sunny.")])
        == 0.0
        < weather.reward(scenario, [said("It is sunny.")])
    )
    assert cold.TASK.name not in TASKS, "the cold start is more than its task: it begins with demonstrations"


def test_nothing_demonstrated_is_held_out() -> None:
    training, held_out = cold.TASK.scenarios(0, cold.DEMONSTRATIONS, 64)
    lessons = json.dumps([cold.demonstration(scenario).messages() for scenario in training])
    assert not [s for s in held_out if s.question in lessons or f'"{s.hidden}"' in lessons]


def group(*rewards: float) -> TrajectoryGroup:
    return TrajectoryGroup([Trajectory(reward=reward) for reward in rewards])


def test_a_step_is_recorded_with_its_spread() -> None:
    metrics = {"data/step_num_groups_trainable": 1.0, "loss/train": 0.5}
    result = LocalTrainResult(step=3, metrics=metrics, checkpoint_path="/c/0003")
    record = StepRecord.of([group(0, 1), group(1, 1)], result, gather_seconds=2.0, train_seconds=1.0)
    assert (record.reward, record.group_spread, record.groups_with_signal, record.groups) == (
        0.75,
        0.25,
        1,
        2,
    )
    assert record.spread == pytest.approx(3**0.5 / 4)
    assert (record.seconds, record.checkpoint, record.metrics) == (3.0, "/c/0003", metrics)
    nothing = TrainResult(step=3, metrics={**metrics, "data/step_num_groups_trainable": 0.0}, published=False)
    assert StepRecord.of([group(0, 0)], nothing, gather_seconds=1, train_seconds=1).checkpoint is None


def test_equal_rewards_are_no_signal_whatever_their_residue() -> None:
    assert has_signal(group(0.0, 0.1))
    assert not has_signal(group(0.1 + 0.2, 0.3))
    assert not has_signal(group(1.0, 1.0))
