"""The agent of a seeded store: an order desk that looks orders up with tools and then answers. Pure functions of a `Random`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

SYSTEM = (
    "You are the order desk of a shop. Look the order up with the tools, then answer in one or two sentences."
)
SUMMARISE = "Summarise the conversation so far in one sentence."
TITLE = "Give this conversation a title of at most four words."
CITIES = ("Paris", "Osaka", "Lima", "Oslo", "Accra", "Quito", "Perth", "Turin", "Hanoi", "Tunis")
STATES = ("delivered", "on its way", "delayed", "lost", "returned")
GOODS = ("kettle", "lamp", "tent", "violin", "blender", "globe", "jacket", "telescope", "puzzle", "rug")
QUESTIONS = (
    "My order {order}, a {thing}, was to arrive in {city} last week. Where is it?",
    "Can you tell me what became of the {thing} I ordered? The number is {order}, it goes to {city}.",
    "Order {order} to {city}: the {thing} has not come yet. What is its state?",
)
THOUGHTS = (
    "The customer asks for the state of {order}. I should look the order up before I say anything.",
    "I need the record of {order} first; the state is not in the question.",
    "Let me check {order} with the tool instead of guessing.",
)
ANSWERS = (
    "Your {thing} from order {order} is {state}.",
    "I looked order {order} up: the {thing} for {city} is {state}.",
    "The {thing} you ordered is {state}, as the record of {order} says.",
)
MORE = (
    "The parcel was last seen at the depot near {city}.",
    "You do not have to do anything for now.",
    "If it has not arrived by Friday, write to us again and we will refund it.",
    "The carrier updates its records once a day.",
    "Thank you for waiting so long.",
)
PADDING = (
    "I would also like to add that your satisfaction matters a great deal to every one of us.",
    "Please allow me to explain once more how much care goes into each and every order.",
    "It is worth mentioning that there are many interesting aspects to consider here.",
    "As a matter of course we always strive to do our very best in every respect.",
    "In addition, and to be as thorough as possible, let me say it again in other words.",
    "All in all, taking everything into account, it can be said that this is important.",
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {"order": {"type": "string"}},
                "required": ["order"],
            },
        },
    }
    for name, description in (
        ("find_order", "The record of an order: what it is, where it goes, its state."),
        ("track_parcel", "Where the parcel of an order was last seen."),
    )
]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One customer's question."""

    id: str
    order: str
    thing: str
    city: str
    state: str
    difficulty: float
    """Added to the chance of a wrong answer, -0.2 to 0.3."""
    question: str

    def fill(self, text: str, *, state: str = "") -> str:
        """`text` with this order's names in it."""
        return text.format(order=self.order, thing=self.thing, city=self.city, state=state or self.state)


@dataclass(slots=True)
class Turn:
    """One call: what was new in its prompt, and what was sampled."""

    tail: list[dict[str, Any]]
    pieces: list[tuple[str, str]]
    """(`thought`, `text` or `call`, the text as the model wrote it)."""
    message: dict[str, Any]


@dataclass(slots=True)
class Play:
    """One run of the agent."""

    turns: list[Turn] = field(default_factory=list)
    right: bool = False
    tool_errors: int = 0
    answer: str = ""


def scenarios(count: int, rng: Random) -> list[Scenario]:
    """`count` questions, all about different orders."""
    found = []
    for number in range(count):
        order, thing = f"A-{1000 + 7 * number}", rng.choice(GOODS)
        city, state = rng.choice(CITIES), rng.choice(STATES)
        found.append(
            Scenario(
                id=f"order-{number:03d}",
                order=order,
                thing=thing,
                city=city,
                state=state,
                difficulty=rng.uniform(-0.2, 0.3),
                question=rng.choice(QUESTIONS).format(order=order, thing=thing, city=city),
            )
        )
    return found


def play(
    scenario: Scenario, rng: Random, *, skill: float, turns: int, answer_tokens: int, padding: int
) -> Play:
    """The agent at `skill` (0 to 1): `turns` calls, the last of which answers with about `answer_tokens` tokens and
    `padding` sentences that say nothing."""
    said = Play(right=rng.random() < min(0.98, max(0.02, skill - scenario.difficulty)))
    tail: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": scenario.question},
    ]
    for number in range(turns - 1):
        failing = rng.random() < 0.35 * (1 - skill)
        turn = _tool_turn(scenario, rng, tail, number=number, failing=failing)
        said.turns.append(turn)
        said.tool_errors += failing
        tail = [_result(scenario, turn.message["tool_calls"][0], failing=failing)]
    wrong = rng.choice([state for state in STATES if state != scenario.state])
    sentences = [scenario.fill(rng.choice(ANSWERS), state=scenario.state if said.right else wrong)]
    while len(" ".join(sentences).split()) < 0.7 * answer_tokens:  # a word is about 1.4 tokens
        sentences.append(scenario.fill(rng.choice(MORE)))
    sentences += [rng.choice(PADDING) for _ in range(padding)]
    said.answer = " ".join(sentences)
    said.turns.append(Turn(tail, [("text", said.answer)], {"role": "assistant", "content": said.answer}))
    return said


def aside(prompt: str, said: str, history: str) -> Turn:
    """A call on the side: a title, a summary."""
    tail = [{"role": "system", "content": prompt}, {"role": "user", "content": history}]
    return Turn(tail, [("text", said)], {"role": "assistant", "content": said})


def compacted(scenario: Scenario, said: Play) -> Turn:
    """The last turn again, after the history before it was replaced by its summary: a branch of its own."""
    last = said.turns[-1]
    summary = f"So far: the customer asked about {scenario.order}, and its record was looked up."
    tail = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": summary}]
    return Turn(tail, last.pieces, last.message)


def _tool_turn(
    scenario: Scenario, rng: Random, tail: list[dict[str, Any]], *, number: int, failing: bool
) -> Turn:
    name = "find_order" if number % 2 == 0 else "track_parcel"
    asked = scenario.order.replace("A-", "A") if failing else scenario.order
    arguments = json.dumps({"order": asked})
    pieces: list[tuple[str, str]] = []
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if number == 0 or rng.random() < 0.3:
        thought = scenario.fill(rng.choice(THOUGHTS))
        pieces.append(("thought", thought))
        message["reasoning_content"] = thought
    pieces.append(("call", f'{{"name": "{name}", "arguments": {arguments}}}'))
    call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
    message["tool_calls"] = [call]
    return Turn(tail, pieces, message)


def _result(scenario: Scenario, call: dict[str, Any], *, failing: bool) -> dict[str, Any]:
    found: dict[str, str] = {"order": scenario.order, "what": scenario.thing, "state": scenario.state}
    if call["function"]["name"] == "track_parcel":
        found = {"order": scenario.order, "seen": f"depot near {scenario.city}"}
    if failing:
        found = {"error": f"there is no order {scenario.order.replace('A-', 'A')}"}
    return {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(found)}


def corpus() -> list[str]:
    """Everything that is ever said, for a tokenizer to learn its words from."""
    fill: Callable[[str], str] = scenarios(1, Random(0))[0].fill
    lists = (QUESTIONS, THOUGHTS, ANSWERS, MORE, PADDING, CITIES, STATES, GOODS)
    texts = [fill(text) for group in lists for text in group]
    return [
        *texts,
        SYSTEM,
        SUMMARISE,
        TITLE,
        json.dumps(TOOLS),
        json.dumps({"error": "there is no order A1000"}),
    ]
