"""A conversation of random steps, with what must come of it: how many branches, and which calls nothing could be known of."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier

from hostile_dialects import Said
from hostile_kit import Agent, Watched, follow, from_memory, tokens_of


@dataclass
class Seen:
    """What a walk was, for its line of print."""

    calls: int = 0
    later: int = 0
    """Calls that go on from another."""
    known: int = 0
    """Those of them whose prompts begin with the exact tokens of another."""

    def __add__(self, other: Seen) -> Seen:
        return Seen(self.calls + other.calls, self.later + other.later, self.known + other.known)


class Walk:
    """One rollout. Every step is a method without arguments; `rng` decides the rest."""

    STEPS = (
        *("turn", "streamed_turn", "repeat", "burst", "silence", "come_back"),
        *("go_away", "go_on_with_a_part", "reword", "compact", "delegate"),
    )

    def __init__(self, watched: Watched, agent: Agent) -> None:
        self._watched = watched
        self._agent = agent
        self._rng: random.Random = agent.rng
        self._since = watched.mark()
        self._history = [Said("system", "You work."), Said("user", "task")]
        self._number = 0
        self._taken = False
        """A request has gone on from here already: another one is a branch."""
        self._forks = 0
        self._beginnings = 0
        """Calls before which no answer stands that the server gave."""
        self._given_up: list[str] = []
        """The last words of requests whose answers nobody waited for."""

    def run(self, steps: list[str]) -> Seen:
        """All steps and a last word; then everything is compared."""
        for step in steps:
            getattr(self, step)()
        self._history.append(Said("user", "finish"))
        self._going_on()
        self._agent.ask(self._history)
        self._watched.finish(self._agent)
        return self._compare()

    # -- steps

    def turn(self) -> None:
        self._going_on()
        self._answered(self._agent.send(self._agent.body(self._history)))

    def streamed_turn(self) -> None:
        self._going_on()
        events = self._agent.events(self._agent.body(self._history))
        self._answered(self._agent.dialect.said(self._agent.dialect.whole(events)))

    def repeat(self) -> None:
        """The same request twice, the second time perhaps in other words."""
        self._going_on(2)
        body = self._agent.body(self._history)
        self._agent.send(body)
        again = body if self._rng.random() < 0.5 else self._agent.body(self._history)
        self._answered(self._agent.send(again))

    def burst(self) -> None:
        """Several at once; the conversation goes on from one of them."""
        count = self._rng.randint(2, 5)
        self._going_on(count)
        bodies = [self._agent.body(self._history) for _ in range(count)]
        with ThreadPoolExecutor(len(bodies)) as pool:
            answers = list(pool.map(self._agent.send, bodies))
        self._answered(self._rng.choice(answers))

    def silence(self) -> None:
        """An answer without a word."""
        self._history.append(Said("user", "say nothing"))
        self.turn()

    def come_back(self) -> None:
        """Gone in mid-stream, once or twice, and then the same request again."""
        self._ask_for_a_long_one()
        self._going_on()
        body = self._agent.body(self._history)
        for _ in range(self._rng.randint(1, 2)):
            self._agent.stream(body, at_most=self._rng.randint(1, 60))
        events = self._agent.events(body)
        self._answered(self._agent.dialect.said(self._agent.dialect.whole(events)))

    def go_away(self) -> None:
        """Gone in mid-stream, and the question is asked no more."""
        self._leave()
        self._history.pop()

    def go_on_with_a_part(self) -> None:
        """Gone in mid-stream, and what was read until then stands as the answer."""
        part = self._leave()
        self._history += [Said("assistant", part, own=True), Said("user", "go on")]

    def reword(self) -> None:
        """The last answer becomes another one, which was never said."""
        given = [item for item in self._history if item.role == "assistant" and not item.own]
        if given:
            last = given[-1]
            self._number += 1
            last.text, last.own, last.thought, last.seal = f"Another answer {self._number}.", True, None, None
            last.items.clear()
            for call in last.calls:
                call.item = None
            self._taken = True

    def compact(self) -> None:
        """A summary takes the place of the history."""
        self._number += 1
        self._history = [Said("system", "You work."), Said("user", f"Summary {self._number}. go on")]
        self._taken = self._beginnings > 0

    def delegate(self) -> None:
        """Two agents with system prompts of their own, whose calls are mixed."""
        turns = self._rng.randint(1, 2)
        together = Barrier(2, timeout=60)
        self._number += 1

        def work(name: str) -> None:
            agent = Agent(
                self._agent.opened, self._agent.dialect, self._agent.habit, seed=self._number + len(name)
            )
            history = [Said("system", f"You are {name} {self._number}."), Said("user", "task")]
            for _ in range(turns):
                together.wait()
                agent.work(history, 1)

        self._forks += 2 if self._beginnings else 1  # the first beginning of all is no branch
        self._beginnings += 2
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, ("red", "green")))
        if not self._known():
            self._taken = True

    # -- bookkeeping

    def _known(self) -> bool:
        """Whether an answer stands in the history that the server gave as it stands."""
        return any(item.role == "assistant" and not item.own for item in self._history)

    def _going_on(self, calls: int = 1) -> None:
        """A request that was not made before is about to go on from where the conversation is, `calls` times."""
        self._forks += self._taken
        self._beginnings += 0 if self._known() else calls
        self._taken = True

    def _answered(self, answer: Said) -> None:
        self._history += [answer, *follow(answer)]
        self._taken = False

    def _ask_for_a_long_one(self) -> str:
        self._number += 1
        words = f"slowly {self._number}"
        self._history.append(Said("user", words))
        return words

    def _leave(self) -> str:
        """Ask, go away in mid-stream, and say what was read."""
        self._given_up.append(self._ask_for_a_long_one())
        self._going_on()
        body = self._agent.body(self._history)
        return self._agent.stream(body, at_most=self._rng.randint(1, 60))

    def _compare(self) -> Seen:
        rollout_id = self._agent.opened["rollout_id"]
        calls = self._watched.calls(self._agent)
        rows = [tokens_of(row) for row in self._watched.wait_for_lines(self._since, len(calls))]
        assert len(rows) == len(calls)
        seen, trained = self._watched.engine_saw(self._since), self._watched.trainer_gets(rollout_id)
        assert not trained - seen, "the trainer gets what was never sampled"
        # What reached nobody is not trained. An answer may have been on its way as a whole when its client left.
        left = list((seen - trained).elements())
        ends = [choice["finish_reason"] for call in calls for choice in call["choices"]]
        assert len(left) == ends.count("cancelled") <= len(self._given_up)
        for prompt, _ in left:
            last = self._watched.decode(list(prompt)).rpartition("<|im_start|>user\n")[2]
            assert last.partition("<|im_end|>")[0] in self._given_up
        assert {call["branch"] for call in calls} == set(range(1 + self._forks))
        assert sum(call["parent_call_id"] is None for call in calls) == self._beginnings
        assert not any(call["auxiliary"] for call in calls)
        known = from_memory(rows)
        assert known == len(calls) - self._beginnings
        return Seen(len(calls), len(calls) - self._beginnings, known)
