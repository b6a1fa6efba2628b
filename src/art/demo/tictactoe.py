"""The one-minute task: make a legal move in tic-tac-toe.

The board shows each free cell's number and the players' marks. Reward: 1 for an answer that names one free
cell and nothing else, 0 otherwise. No held-out board occurs in training. Seven of nine cells are taken, so an
answer that ignores the board is legal two times in nine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from art.demo.task import Scenario, Task, Turns, sampled

if TYPE_CHECKING:
    from openai import AsyncOpenAI

TURN_TOKENS = 8
"""A move is one digit and the end of the turn."""
CELLS = "123456789"
LINES = ("123", "456", "789", "147", "258", "369", "159", "357")
SYSTEM = "You play tic-tac-toe. Free cells show their number. Answer with the number of a free cell."
EXAMPLE = {"X": "2567", "O": "139"}


def board(marks: dict[str, str]) -> str:
    """Three rows; a cell holds X, O, or its number."""
    cells = [next((mark for mark, taken in marks.items() if cell in taken), cell) for cell in CELLS]
    return "\n".join(" | ".join(cells[row : row + 3]) for row in (0, 3, 6))


def positions() -> list[tuple[str, str]]:
    """(board, free cells) of every position of four X and three O that nobody has won."""
    found = []
    for x in combinations(CELLS, 4):
        for o in combinations([cell for cell in CELLS if cell not in x], 3):
            marks = {"X": "".join(x), "O": "".join(o)}
            won = any(set(line) <= set(taken) for line in LINES for taken in marks.values())
            if won or marks == EXAMPLE:
                continue
            found.append((board(marks), "".join(cell for cell in CELLS if cell not in x + o)))
    return found


def scenarios(seed: int, train: int, held_out: int) -> tuple[list[Scenario], list[Scenario]]:
    """Training and held-out boards; no board is in both."""
    chosen = random.Random(f"tictactoe-{seed}").sample(positions(), train + held_out)
    all_of_them = [Scenario(text.replace("\n", "/").replace(" ", ""), text, free) for text, free in chosen]
    return all_of_them[held_out:], all_of_them[:held_out]


async def agent(client: AsyncOpenAI, model: str, scenario: Scenario) -> Turns:
    """Show the board, take the answer."""
    turns: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": board(EXAMPLE)},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": scenario.question},
    ]
    completion = await client.chat.completions.create(
        model=model, messages=turns, temperature=1.0, max_tokens=TURN_TOKENS
    )
    return [*turns, completion.choices[0]]


def reward(scenario: Scenario, turns: Turns) -> float:
    """1 for a legal move."""
    (choice,) = sampled(turns)
    return move_reward(scenario, choice.message.content or "")


def move_reward(scenario: Scenario, answer: str) -> float:
    """1 when the answer is one free cell's number."""
    move = answer.strip().rstrip(".")
    return float(len(move) == 1 and move in scenario.hidden)


def best_constant(held_out: Sequence[Scenario]) -> float:
    """The share of boards on which the most often free cell is free."""
    return max(sum(move_reward(scenario, cell) for scenario in held_out) for cell in CELLS) / len(held_out)


TASK = Task(
    name="tictactoe",
    title="make a legal move in tic-tac-toe",
    scenarios=scenarios,
    agent=agent,
    reward=reward,
    best_constant=best_constant,
    groups_per_step=8,
    rollouts_per_group=8,
    steps=14,
    budget_seconds=80.0,
    enough=0.985,
)
