"""The clients of load_test: every dialect, streams and not, in rollouts and without, and some that behave badly."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx2

SECONDS = 120.0
"""Deadline of one call of a client that behaves."""
TOKENS = 24
LARGE_BYTES = 100_000
DIALECTS = ("chat/completions", "responses", "messages", "completions")
QUESTIONS = (
    "Is snow cold?",
    "Do fish fly?",
    "Can a bird sing?",
    "Will it rain?",
    "Is the sea warm tomorrow?",
)


@dataclass
class Tally:
    """What all clients saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    """Of answers: by dialect and status, "stream" where a stream came whole."""
    behaviours: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    """What no client should see: any status but 200 and 429, an error in a stream, a broken connection."""
    without_retry_after: int = 0
    steps: int = 0
    """Training jobs that published one."""

    @property
    def answered(self) -> int:
        """Calls answered whole."""
        return sum(count for name, count in self.statuses.items() if name.endswith((" 200", " stream")))

    @property
    def turned_away(self) -> int:
        """429s."""
        return sum(count for name, count in self.statuses.items() if name.endswith(" 429"))

    def note(self, what: str, response: httpx2.Response, text: str = "") -> bool:
        """Count an answer; whether it is a 200."""
        self.statuses[f"{what} {response.status_code}"] += 1
        if response.status_code == 429:
            self.without_retry_after += "retry-after" not in response.headers
        elif response.status_code != 200:
            self.strange(f"{what}: {response.status_code} {text or response.text[:300]}")
        return response.status_code == 200

    def strange(self, text: str) -> None:
        """Keep what should not be; past a hundred nobody reads on."""
        if len(self.unexpected) < 100:
            self.unexpected.append(text)


def body_of(dialect: str, model: str, rng: random.Random, *, stream: bool) -> dict[str, Any]:
    """A request in a dialect."""
    question = rng.choice(QUESTIONS)
    said = [{"role": "user", "content": question}]
    if dialect == "responses":
        return {"model": model, "input": question, "max_output_tokens": TOKENS, "stream": stream}
    if dialect == "completions":
        return {"model": model, "prompt": question, "max_tokens": TOKENS, "stream": stream}
    return {"model": model, "messages": said, "max_tokens": TOKENS, "stream": stream}


class Client:
    """One client, which behaves in one way after the other until it is told to end."""

    def __init__(self, url: str, key: str, models: list[str], tally: Tally, *, seed: int) -> None:
        self._rng = random.Random(seed)
        self._models = models
        self._tally = tally
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=2)
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=SECONDS,
            limits=limits,
            trust_env=False,
        )

    async def run(self, over: asyncio.Event) -> None:
        """Behave, with a short pause between, until `over`."""
        ways = {
            self._whole: 40, self._stream: 30, self._rollout: 10, self._leave_a_stream: 8,
            self._leave_before: 6, self._large: 4, self._read_slowly: 2,
        }  # fmt: skip
        async with self._http:
            while not over.is_set():
                (way,) = self._rng.choices(list(ways), list(ways.values()))
                self._tally.behaviours[way.__name__.strip("_")] += 1
                try:
                    await way()
                except (httpx2.HTTPError, OSError, ValueError) as error:
                    self._tally.strange(f"{way.__name__}: {type(error).__name__}: {error}")
                await asyncio.sleep(self._rng.uniform(0.0, 0.2))

    async def burst(self, count: int) -> None:
        """Many calls at once."""
        for ended in await asyncio.gather(*(self._whole() for _ in range(count)), return_exceptions=True):
            if isinstance(ended, httpx2.HTTPError | OSError | ValueError):
                self._tally.strange(f"burst: {type(ended).__name__}: {ended}")
            elif ended is not None:
                raise ended

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    def _ask(self, *, stream: bool) -> tuple[str, dict[str, Any]]:
        dialect = self._rng.choice(DIALECTS)
        return dialect, body_of(dialect, self._rng.choice(self._models), self._rng, stream=stream)

    async def _whole(self) -> None:
        dialect, body = self._ask(stream=False)
        self._tally.note(dialect, await self._http.post(f"/v1/{dialect}", json=body))

    async def _stream(self, *, pause: float = 0.0) -> None:
        dialect, body = self._ask(stream=True)
        async with self._http.stream("POST", f"/v1/{dialect}", json=body) as response:
            lines = []
            async for line in response.aiter_lines():
                lines.append(line)
                await asyncio.sleep(pause)
        text = "\n".join(lines)
        if response.status_code != 200:
            self._tally.note(dialect, response, text[:300])
            return
        self._tally.statuses[f"{dialect} stream"] += 1
        if '"error":{' in text:
            self._tally.strange(f"{dialect}: an error in a stream: {text[-300:]}")

    async def _read_slowly(self) -> None:
        await self._stream(pause=0.05)

    async def _large(self) -> None:
        body = body_of("chat/completions", self._rng.choice(self._models), self._rng, stream=False)
        padded = {**body, "metadata": {"note": "x" * LARGE_BYTES}}
        self._tally.note("large", await self._http.post("/v1/chat/completions", json=padded))

    async def _leave_a_stream(self) -> None:
        dialect, body = self._ask(stream=True)
        async with self._http.stream("POST", f"/v1/{dialect}", json=body) as response:
            async for _ in response.aiter_lines():
                break

    async def _leave_before(self) -> None:
        dialect, body = self._ask(stream=False)
        try:
            async with asyncio.timeout(self._rng.uniform(0.0, 0.05)):
                await self._http.post(f"/v1/{dialect}", json=body)
        except TimeoutError:
            return

    async def _rollout(self) -> None:
        """Two turns and a reward, as an agent's program has them."""
        opened = await self._control("rollouts", {"model": self._rng.choice(self._models)})
        if opened is None:
            return
        messages: list[dict[str, Any]] = []
        for _ in range(2):
            messages.append({"role": "user", "content": self._rng.choice(QUESTIONS)})
            body = {"model": opened["model"], "messages": messages, "max_tokens": TOKENS}
            headers = {"Authorization": f"Bearer {opened['api_key']}"}
            response = await self._http.post(
                f"/r/{opened['rollout_id']}/v1/chat/completions", json=body, headers=headers
            )
            if not self._tally.note("rollout", response):
                break
            messages.append(
                {"role": "assistant", "content": response.json()["choices"][0]["message"]["content"]}
            )
        path = f"rollouts/{opened['rollout_id']}"
        await self._control(f"{path}/reward", {"reward": self._rng.random()})
        await self._control(f"{path}/finish", {})

    async def _control(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        response = await self._http.post(f"/api/v1/{path}", json=body)
        return dict(response.json()) if self._tally.note("control", response) else None


class Trainer:
    """A program that trains all the time: groups of rollouts, random rewards, a job, and again."""

    def __init__(self, url: str, key: str, model: str, tally: Tally, *, seed: int) -> None:
        self._rng = random.Random(seed)
        self._project, self._name = model.split("/")
        self._model = model
        self._tally = tally
        self._http = httpx2.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=SECONDS, trust_env=False
        )

    async def run(self, over: asyncio.Event) -> None:
        """Train until `over`."""
        number = 0
        async with self._http:
            while not over.is_set():
                number += 1
                try:
                    await self._step(number, over)
                except (httpx2.HTTPError, OSError, ValueError, KeyError) as error:
                    self._tally.strange(f"training: {type(error).__name__}: {error}")
                    await asyncio.sleep(1)

    async def _step(self, number: int, over: asyncio.Event) -> None:
        groups = [
            {"trajectories": await asyncio.gather(*(self._trajectory(number, g, m) for m in range(4)))}
            for g in range(2)
        ]
        job = await self._patiently(
            "/api/v1/jobs", {"project": self._project, "name": self._name, "groups": groups}
        )
        while job["status"] not in ("succeeded", "failed", "cancelled") and not over.is_set():
            await asyncio.sleep(0.2)
            response = await self._http.get(f"/api/v1/jobs/{job['job_id']}")
            job = response.json() if response.status_code == 200 else job
        if job["status"] == "succeeded":
            self._tally.steps += bool(job["result"]["published"])
        elif not over.is_set():
            self._tally.strange(f"training: {json.dumps(job['error'])[:300]}")

    async def _trajectory(self, number: int, group: int, member: int) -> dict[str, Any]:
        rollout = f"load-{number}-{group}-{member}"
        question = [{"role": "user", "content": QUESTIONS[group]}]
        body = {"model": self._model, "messages": question, "max_tokens": TOKENS}
        answer = await self._patiently("/v1/chat/completions", body, **{"X-ART-Rollout": rollout})
        choice = answer["choices"][0]
        reward = float(choice["message"]["content"] == "yes") + 0.1 * self._rng.random()
        return {"messages_and_choices": [*question, choice], "reward": reward, "rollout_id": rollout}

    async def _patiently(self, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        """The answer, asked for again as long as the server says to come again."""
        while True:
            response = await self._http.post(path, json=body, headers=headers)
            if self._tally.note("training", response):
                return dict(response.json())
            if response.status_code != 429:
                raise ValueError(f"{path}: {response.status_code}")
            await asyncio.sleep(float(response.headers["Retry-After"]) * self._rng.uniform(0.5, 1.5))
