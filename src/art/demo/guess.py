"""The fifteen-minute task: find a number from 1 to 7 in three guesses.

After each wrong guess the agent is told whether the number is higher or lower; an answer that is no number from 1 to
7 ends the game. Who ignores the hints finds three numbers of seven (0.43), who follows them and guesses at random
otherwise 0.68, who halves what is left every time 1.00. That share is what is measured on held-out games.

Training has a reward of more steps: 1 for the number; a game that was lost earns 0.4 in three parts, one for each
guess that the hints so far allowed. Without them three guesses that differ and ignore the hints are what is learned
first, at 0.43, and by then nothing else is tried any more.

What is held out: the opening line names a player, and no player of the held-out games occurs in training. The
seven numbers are those of training (there are no others), each equally often, in an order of their own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from art.demo.task import Scenario, Task, Turns, sampled, spread

if TYPE_CHECKING:
    from openai import AsyncOpenAI

TURN_TOKENS = 4
"""A guess is one digit and the end of the turn."""
MAX_GUESSES = 3
NUMBERS = "1234567"
ALLOWED_GUESS = (0.1, 0.15, 0.15)
"""What the first, second and third guess of a lost game earn where the hints allowed them."""
SYSTEM = "Find the number. Answer with one number from 1 to 7."
EXAMPLES = (("Alex", "2", "5", "3"), ("Robin", "6", "1", "5"))
"""Worked games in the prompt: the player and the guesses, of which the last one is right. Without one the base model
talks instead of guessing. None of them begins with 4: how to guess well is for the model to find out."""


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


TRAIN_PLAYERS = words(
    "Anna Ben Clara David Emma Frank Grace Henry Iris Jack Kate Leo Maria Nick Olivia Paul Rosa Sam Tina Victor "
    "Wendy Adam Bella Carl Diana Eric Fiona George"
)
EVAL_PLAYERS = words(
    "Helen Ian Julia Kevin Laura Mark Nora Oscar Peter Rachel Simon Tom Vera Will Alice Bob Cathy Daniel Ella Fred"
)


def scenarios(seed: int, train: int, held_out: int) -> tuple[list[Scenario], list[Scenario]]:
    """Training and held-out games; no player is in both, and seven in a row have seven different numbers."""
    rng = random.Random(f"guess-{seed}")

    def draw(players: Sequence[str], count: int) -> list[Scenario]:
        # A step that has every number once favours no first guess by chance.
        numbers = [number for _ in range(0, count, len(NUMBERS)) for number in spread(NUMBERS, 7, rng)]
        pairs = zip(spread(players, count, rng), numbers[:count], strict=True)
        return [Scenario(f"{player}/{place}", player, number) for place, (player, number) in enumerate(pairs)]

    return draw(TRAIN_PLAYERS, train), draw(EVAL_PLAYERS, held_out)


def question(player: str) -> dict[str, Any]:
    """The line that opens a game."""
    return {"role": "user", "content": f"{player} thinks of a number from 1 to 7. Which one is it?"}


def hint(number: str, guess: str) -> dict[str, Any]:
    """What the agent is told after a wrong guess."""
    return {"role": "user", "content": f"{'higher' if number > guess else 'lower'} than {guess}"}


def opening(player: str) -> list[dict[str, Any]]:
    """The agent's prompt: its role, the worked games, the question."""
    turns: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for name, *guesses in EXAMPLES:
        turns.append(question(name))
        for guess in guesses:
            turns.append({"role": "assistant", "content": guess})
            if guess != guesses[-1]:
                turns.append(hint(guesses[-1], guess))
    return [*turns, question(player)]


async def agent(client: AsyncOpenAI, model: str, scenario: Scenario) -> Turns:
    """Guess until the number is found, three times at most."""
    turns: list[Any] = list(opening(scenario.question))
    messages: list[Any] = list(turns)
    for left in reversed(range(MAX_GUESSES)):
        completion = await client.chat.completions.create(
            model=model, messages=messages, temperature=1.0, max_tokens=TURN_TOKENS
        )
        choice = completion.choices[0]
        turns.append(choice)
        guess = number_of(choice.message.content or "")
        if guess in ("", scenario.hidden) or not left:
            break
        told = hint(scenario.hidden, guess)
        turns.append(told)
        messages += [choice.message.model_dump(exclude_none=True), told]
    return turns


def number_of(answer: str) -> str:
    """The guess; "" for an answer that is not one number from 1 to 7."""
    guess = answer.strip().rstrip(".")
    return guess if len(guess) == 1 and guess in NUMBERS else ""


def found(scenario: Scenario, turns: Turns) -> float:
    """1 when the last guess is the number: the agent stops there."""
    return float(guesses(turns)[-1] == scenario.hidden)


def reward(scenario: Scenario, turns: Turns) -> float:
    """See the module's docstring."""
    made = guesses(turns)
    if made[-1] == scenario.hidden:
        return 1.0
    left = NUMBERS
    earned = 0.0
    for guess, worth in zip(made, ALLOWED_GUESS, strict=False):
        earned += worth * (guess != "" and guess in left)
        left = "".join(n for n in left if guess and (n > guess) == (scenario.hidden > guess) and n != guess)
    return round(earned, 6)


def guesses(turns: Turns) -> list[str]:
    """What was guessed, in order; "" for an answer that is no guess."""
    return [number_of(choice.message.content or "") for choice in sampled(turns)]


def best_constant(held_out: Sequence[Scenario]) -> float:
    """The best three guesses that never heed a hint: the share of the three most frequent numbers."""
    counts = Counter(scenario.hidden for scenario in held_out)
    return sum(count for _, count in counts.most_common(MAX_GUESSES)) / len(held_out)


TASK = Task(
    name="guess",
    title="find a number from 1 to 7 in three guesses",
    scenarios=scenarios,
    agent=agent,
    reward=reward,
    score=found,
    best_constant=best_constant,
    # Every number once, see `scenarios`.
    groups_per_step=7,
    rollouts_per_group=8,
    steps=70,
    budget_seconds=870.0,
    # Every number equally often.
    held_out=140,
    # Of 56 runs; their mean has a standard error of 0.04 there.
    enough=0.92,
)
