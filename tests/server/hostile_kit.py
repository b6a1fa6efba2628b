"""An agent that treats its history badly, and what the engine and the trainer saw of it."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from chat_kit import Served
from hostile_dialects import DIALECTS, Dialect, Said, SendsReasoning, habits_of

from art.config.model import LoraConfig
from art.config.train import ResolvedTrainConfig, TrainConfig
from art.server.batch import Batch
from art.store.records import JobSpec
from art.store.store import Store
from art.tokens.samples import SampledChoice, build_trie
from art.trainer.batch import load_batch
from art.trainer.protocol import TrainJob
from art.types.jobs import ResolvedBaseModel
from art.types.wire import GroupIn, TrajectoryIn

TICKS = 150
CONTEXT = 65_536
"""Tokens, which are bytes here: a conversation of all that a walk does."""
TURN = r"[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$"
CALLS = [
    '<tool_call>{{"name":  "look", "arguments": {{"n": {i}.0, "deep": {{"b": [1,  2.50], "a": "é"}}, "c": null}}}}</tool_call>',
    '<tool_call>{{"name": "look", "arguments": {{}}}}</tool_call>',
    '<tool_call>{{"name": "look", "arguments": {{"n": {i}}}}}</tool_call>\n'
    '<tool_call>{{"name": "look", "arguments": {{"id": 123456789012345678{i}, "far": 1e400}}}}</tool_call>',
]
STEPS = [
    f"{thought}{text}{calls.format(i=i)}"
    for i in range(4)
    for thought in (f"<think>\nThought {i}.\n</think>\n\n", "")
    for text in (f"Step {i}. ", "")
    for calls in CALLS
    if thought or text or "deep" in calls
]
"""Answers with and without a thought, with and without text, with one call or two."""
SCRIPT: dict[str, Any] = {
    "token_delay_ms": 0.3,
    "rules": [
        {"match": rf"task{TURN}", "replies": [step for step in STEPS if "Thought" in step]},
        {"match": rf"(result|go on){TURN}", "replies": STEPS},
        {"match": rf"finish{TURN}", "replies": [f"Done, {i}." for i in range(8)]},
        {"match": rf"say nothing{TURN}", "replies": [""]},
        {"match": rf"slowly{TURN}", "replies": [f"{i} " + "tick " * TICKS for i in range(8)]},
        {"match": rf"a fruit{TURN}", "replies": ["apple", "banana", "cherry", "date", "fig", "kiwi"]},
    ],
    "default": "I do not know.",
}

Habit = Callable[[list[Said], random.Random], None]


def careless(*habits: Habit) -> Habit:
    """All of the habits, one after the other."""

    def spoil(history: list[Said], rng: random.Random) -> None:
        for habit in habits:
            habit(history, rng)

    return spoil


def everything(name: str) -> Habit:
    """All that a client of the dialect may do to its history, its reasoning sent now and then."""
    habits = habits_of(DIALECTS[name])
    others = [habit for habit in habits.values() if not isinstance(habit, SendsReasoning)]
    return careless(*others, habits["sends reasoning now and then"])


class Agent:
    """An agent inside one rollout. `habit` is what it does to its history before every call."""

    def __init__(self, opened: dict[str, Any], dialect: Dialect, habit: Habit, *, seed: int = 0) -> None:
        self.opened = opened
        self.dialect = dialect
        self.habit = habit
        self.rng = random.Random(seed)
        self._headers = {"Authorization": f"Bearer {opened['api_key']}"}

    @property
    def url(self) -> str:
        return str(self.opened["base_url"] + self.dialect.path)

    def body(self, history: list[Said], *, tools: bool = True) -> dict[str, Any]:
        """A request with the history as the agent writes it this time."""
        self.habit(history, self.rng)
        joined = self.rng.random() < 0.5
        return {"model": "gpt-4o", **self.dialect.body(history, tools=tools, joined=joined)}

    def send(self, body: dict[str, Any], **headers: str) -> Said:
        response = httpx2.post(self.url, json=body, headers=self._headers | headers, timeout=120)
        assert response.status_code == 200, response.text
        return self.dialect.said(response.json())

    def events(self, body: dict[str, Any], *, at_most: int | None = None) -> list[dict[str, Any]]:
        """The events of a streamed answer; the client goes away when it has read `at_most` characters."""
        out: list[dict[str, Any]] = []
        length = 0
        body = body | {"stream": True}
        with httpx2.stream("POST", self.url, json=body, headers=self._headers, timeout=120) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    out.append(json.loads(line[6:]))
                    length += len(self.dialect.part(out[-1]))
                if at_most is not None and length >= at_most:
                    break
        return out

    def stream(self, body: dict[str, Any], *, at_most: int | None = None) -> str:
        """A streamed answer's text."""
        return "".join(self.dialect.part(event) for event in self.events(body, at_most=at_most))

    def ask(self, history: list[Said], *, tools: bool = True, streamed: bool = False, **headers: str) -> Said:
        """A call with the history, whose answer is added to it."""
        body = self.body(history, tools=tools)
        if streamed:
            answer = self.dialect.said(self.dialect.whole(self.events(body)))
        else:
            answer = self.send(body, **headers)
        history.append(answer)
        return answer

    def work(self, history: list[Said], turns: int, **headers: str) -> None:
        """Calls with a tool's result behind each."""
        for _ in range(turns):
            history += follow(self.ask(history, **headers))


def follow(answer: Said) -> list[Said]:
    """What stands behind an answer: the results of its calls, or the user's word to go on."""
    results = [Said("tool", "result", answers=call.name) for call in answer.calls]
    return results or [Said("user", "go on")]


Tokens = tuple[tuple[int, ...], tuple[int, ...]]
"""What an engine was given, and what it sampled."""


def from_memory(rows: Sequence[Tokens]) -> int:
    """How many of the prompts begin with another one and what was sampled for it."""
    known = [(*prompt, *sampled) for prompt, sampled in rows]
    return sum(any(prompt[: len(begin)] == begin for begin in known) for prompt, _ in rows)


def each_token_once(choices: list[SampledChoice]) -> bool:
    """Whether the trie that the trainer computes has one target for every token that was sampled."""
    trie = build_trie(choices)
    targets = Counter(zip(trie.choice.tolist(), trie.offset.tolist(), strict=True))
    return targets == Counter((n, at) for n, one in enumerate(choices) for at in range(len(one.completion)))


@dataclass
class Watched(Served):
    """A server whose engine writes down what it was given and sampled."""

    log: Path = field(default_factory=Path)

    def mark(self) -> int:
        """Where the engine's log ends now."""
        return self.log.stat().st_size if self.log.exists() else 0

    def lines(self, since: int = 0) -> list[dict[str, Any]]:
        """The log from a mark on, in the order in which the requests ended."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as log:
            log.seek(since)
            whole = log.read().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def wait_for_lines(self, since: int, count: int) -> list[dict[str, Any]]:
        """The log once it has `count` lines: a call that was ended leaves the engine a moment later."""
        deadline = time.monotonic() + 60
        while len(rows := self.lines(since)) < count:
            assert time.monotonic() < deadline, f"{len(rows)} of {count} requests ended"
            time.sleep(0.02)
        return rows

    def engine_saw(self, since: int) -> Counter[Tokens]:
        return Counter(tokens_of(row) for row in self.lines(since))

    def calls(self, agent: Agent) -> list[dict[str, Any]]:
        """The recorded calls of the agent's rollout, in their order."""
        calls: list[dict[str, Any]] = self.rollout(agent.opened["rollout_id"])["calls"]
        return sorted(calls, key=lambda call: call["number"])

    def finish(self, agent: Agent) -> None:
        self.api("POST", f"rollouts/{agent.opened['rollout_id']}/finish", {})

    def spec(self, trajectories: list[dict[str, Any]], model: str) -> JobSpec:
        """What a train call of one group would hand to the trainer."""

        async def build() -> JobSpec:
            store = await Store.open(self.server.path / "server")
            try:
                batch = Batch(store, "tests", model, TrainConfig())
                await batch.add(0, GroupIn(trajectories=[TrajectoryIn(**item) for item in trajectories]))
                return await batch.finish()
            finally:
                await store.close()

        return asyncio.run(build())

    def trainer_gets(self, *rollout_ids: str, model: str = "alpha") -> Counter[Tokens]:
        """What the trainer reads for a train call with these whole rollouts."""
        whole = [{"rollout_id": name, "selects_rollout": True, "reward": 1.0} for name in rollout_ids]
        job = TrainJob(
            job_id="j", project="tests", name=model, batch=1, parent_step=0, step=1, lora=LoraConfig(),
            base=ResolvedBaseModel(
                name="b", path="b", sha256="", parameters=1, context_length=CONTEXT, source="folder"
            ),
            model_dir="m", blob_dir=str(self.server.path / "server" / "blobs"),
            config=ResolvedTrainConfig(learning_rate=1e-3), groups=self.spec(whole, model).groups,
        )  # fmt: skip
        choices = [
            choice for member in load_batch(job, max_length=CONTEXT).members for choice in member.choices
        ]
        assert all(choice.trainable.all() for choice in choices)
        assert not choices or each_token_once(choices)
        return Counter(
            (tuple(choice.prompt.tolist()), tuple(choice.completion.tolist())) for choice in choices
        )


def tokens_of(row: dict[str, Any]) -> Tokens:
    """A line of the engine's log."""
    return tuple(row["prompt_token_ids"]), tuple(row["token_ids"])
