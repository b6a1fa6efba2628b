"""The weather task: a small model learns to use a tool and to say what the tool answered.

The agent may call `get_weather(city)`, reads the result and answers. The weather of a city is drawn anew for
every scenario, so the right answer can only be had through the tool. No city and no weather word of the
held-out scenarios occurs in training.

Reward: 0.5 for the call, 0.5 for an answer that holds the weather word and no other one. A call whose city
is right but for case, or that has arguments too many, is worth 0.4; any other call of the tool 0.1. All of
it is halved when a turn was cut off at its token limit.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from art.demo.task import Scenario, Task, Turns, cut_off, sampled, spread

if TYPE_CHECKING:
    from openai import AsyncOpenAI

TURN_TOKENS = 32
"""Tokens of one turn at most; a call or an answer needs about 20."""
MAX_TURNS = 2
"""A call and an answer."""
EXACT_CALL, NEAR_CALL, ANY_CALL, RIGHT_ANSWER = 0.5, 0.4, 0.1, 0.5
"""See the reward in the docstring above."""


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


# Names of one or two tokens: copying a rare name at temperature 1 is a task of its own.
TRAIN_CITIES = words(
    "Tokyo Berlin Madrid Vienna Athens Nairobi Mumbai Delhi Manila Lima Denver Seattle Dallas Toronto Lyon Hamburg "
    "Stockholm Budapest Geneva Naples Istanbul Singapore Auckland Detroit Glasgow Cologne York Venice Edinburgh Kiev "
    "Damascus Beijing Wellington Calgary Cleveland Orlando Memphis Charlotte Philadelphia Salem Kingston Leiden "
    "Frankfurt Basel Malta Helena Dover Cardiff"
)
EVAL_CITIES = words(
    "Oslo Cairo Seoul Miami Montreal Milan Brussels Melbourne Vancouver Leeds Cork Moscow Jerusalem Victoria Quebec "
    "Portland Austin Columbus Richmond Omaha Louisville Amsterdam Bonn Leipzig Bologna Copenhagen Honolulu Chester "
    "Norfolk Exeter Nottingham Sheffield"
)
TRAIN_WEATHER = words("sunny cloudy rainy windy snowy dark stormy warm cold dry icy mild chilly clear")
EVAL_WEATHER = words("humid hot freezing misty calm hazy overcast frosty cool wet gloomy dusty")

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SYSTEM = "Call get_weather for every question about the weather, then say what it answered."
EXAMPLES = (
    ("Atlantis", "windless", "How is it in Atlantis?"),
    ("Avalon", "rosy", "Do I need a coat in Avalon?"),
)
"""Worked examples in the prompt: city, weather, question. Without one the base model never calls the tool."""


def scenarios(seed: int, train: int, held_out: int) -> tuple[list[Scenario], list[Scenario]]:
    """Training and held-out scenarios; they share no city and no weather word."""
    rng = random.Random(f"weather-{seed}")

    def draw(cities: Sequence[str], words: Sequence[str], count: int) -> list[Scenario]:
        # Every city and every word equally often: no constant answer does better than its share.
        pairs = zip(spread(cities, count, rng), spread(words, count, rng), strict=True)
        return [Scenario(f"{city}/{number}", city, word) for number, (city, word) in enumerate(pairs)]

    return draw(TRAIN_CITIES, TRAIN_WEATHER, train), draw(EVAL_CITIES, EVAL_WEATHER, held_out)


def opening(city: str, examples: Sequence[tuple[str, str, str]] = EXAMPLES) -> list[dict[str, Any]]:
    """The agent's prompt: its role, the worked examples, the question."""
    turns: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for number, (example, weather, question) in enumerate(examples):
        function = {"name": "get_weather", "arguments": json.dumps({"city": example})}
        call = {"id": f"example_{number}", "type": "function", "function": function}
        turns += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": weather},
            {"role": "assistant", "content": f"It is {weather}."},
        ]
    return [*turns, {"role": "user", "content": f"What is the weather in {city}?"}]


async def agent(client: AsyncOpenAI, model: str, scenario: Scenario) -> Turns:
    """The agent whose prompt has the worked examples."""
    return await converse(client, model, scenario, opening(scenario.question))


async def converse(
    client: AsyncOpenAI, model: str, scenario: Scenario, prompt: Sequence[dict[str, Any]]
) -> Turns:
    """Ask; when the model calls the tool, give it the result and ask again."""
    tools: list[Any] = [TOOL]
    turns: list[Any] = list(prompt)
    messages: list[Any] = list(turns)
    for _ in range(MAX_TURNS):
        completion = await client.chat.completions.create(
            model=model, messages=messages, tools=tools, temperature=1.0, max_tokens=TURN_TOKENS
        )
        choice = completion.choices[0]
        turns.append(choice)
        calls = choice.message.tool_calls or []
        if not calls:
            break
        messages.append(choice.message.model_dump(exclude_none=True))
        for call in calls:
            result = {"role": "tool", "tool_call_id": call.id, "content": get_weather(scenario, call)}
            turns.append(result)
            messages.append(result)
    return turns


def get_weather(scenario: Scenario, call: Any) -> str:
    """What the tool answers: the weather of the scenario's city, and of no other."""
    return scenario.hidden if call_score(scenario, call.function) >= NEAR_CALL else "unknown"


def reward(scenario: Scenario, turns: Turns) -> float:
    """See the module's docstring."""
    first, *later = sampled(turns)
    calls: list[Any] = [*(first.message.tool_calls or ())]
    score = call_score(scenario, calls[0].function) if len(calls) == 1 else 0.0
    score += answer_score(scenario, (later or [first])[-1].message.content or "")
    return score / 2 if cut_off(turns) else score


def call_score(scenario: Scenario, function: Any) -> float:
    """The first half of the reward."""
    if function.name != "get_weather":
        return 0.0
    arguments = json.loads(function.arguments)
    if arguments == {"city": scenario.question}:
        return EXACT_CALL
    same_city = str(arguments.get("city", "")).strip().casefold() == scenario.question.casefold()
    return NEAR_CALL if same_city else ANY_CALL


def answer_score(scenario: Scenario, text: str) -> float:
    """The second half: the scenario's word, and none of the other weather words."""
    named = set(re.findall(r"[a-z]+", text.lower())) & {*TRAIN_WEATHER, *EVAL_WEATHER}
    return RIGHT_ANSWER if named == {scenario.hidden} else 0.0


def best_constant(held_out: Sequence[Scenario]) -> float:
    """The best fixed behaviour: one call for all (right for its city alone) and one weather word for all."""
    cities = Counter(scenario.question for scenario in held_out)
    words = Counter(scenario.hidden for scenario in held_out)
    most_city, most_word = max(cities.values()), max(words.values())
    calls = EXACT_CALL * most_city + ANY_CALL * (len(held_out) - most_city)
    return (calls + RIGHT_ANSWER * most_word) / len(held_out)


TASK = Task(
    name="weather",
    title="use a tool, then say what it answered",
    scenarios=scenarios,
    agent=agent,
    reward=reward,
    best_constant=best_constant,
    groups_per_step=4,
    rollouts_per_group=8,
    # More steps learn the training cities by heart: held-out reward was 0.85 after 11 and 0.64 after 22 (seed 0).
    steps=12,
    budget_seconds=330.0,
    enough=0.985,
)
