"""A delta leaves when its token is sampled, in every dialect: they arrive one by one, and not in one piece at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import pytest
from chat_kit import Served, says

TOKEN_MS = 50
WORDS = "one two three four"
"""A token a character."""
LONG = "tick " * 160
"""40 seconds of them."""


@pytest.fixture(scope="module")
def paced(start_art_server: Any, tiny_model_dir: Path) -> Iterator[Served]:
    long = {"match": "at length", "replies": [LONG]}
    server = start_art_server(script={"rules": [long], "default": WORDS, "token_delay_ms": TOKEN_MS})
    served = Served(server, str(tiny_model_dir))
    served.register("tests", "alpha")
    yield served
    server.stop()


def chat_text(event: dict[str, Any]) -> str:
    return str(event["choices"][0]["delta"].get("content") or "")


def responses_text(event: dict[str, Any]) -> str:
    return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""


def anthropic_text(event: dict[str, Any]) -> str:
    return str(event.get("delta", {}).get("text") or "")


DIALECTS = {
    "chat/completions": ({"messages": says("hi")}, chat_text),
    "responses": ({"input": "hi"}, responses_text),
    "messages": ({"messages": says("hi"), "max_tokens": 100}, anthropic_text),
}


@pytest.mark.parametrize("route", DIALECTS)
def test_deltas_arrive_one_by_one(paced: Served, route: str) -> None:
    body, text_of = DIALECTS[route]
    headers = {"Authorization": f"Bearer {paced.server.admin_key}"}
    body = {"model": "tests/alpha", "stream": True, **body}
    arrivals: list[float] = []
    texts: list[list[str]] = []
    with httpx2.stream(
        "POST", f"{paced.server.url}/v1/{route}", json=body, headers=headers, timeout=60
    ) as answer:
        assert answer.status_code == 200
        for piece in answer.iter_raw():
            found = [
                text
                for line in piece.decode().splitlines()
                if line.startswith("data: {") and (text := text_of(json.loads(line[6:])))
            ]
            if found:
                arrivals.append(time.perf_counter())
                texts.append(found)
    assert "".join(text for found in texts for text in found) == WORDS
    # A busy machine may let two meet on their way.
    alone = sum(len(found) == 1 and len(found[0]) == 1 for found in texts)
    assert alone >= 0.8 * len(WORDS), texts
    gaps = [1000 * (later - earlier) for earlier, later in pairwise(arrivals)]
    print(f"{route}: median gap {median(gaps):.1f} ms at {TOKEN_MS} ms a token, {len(arrivals)} arrivals")


@pytest.mark.parametrize("route", DIALECTS)
def test_the_first_delta_is_there_long_before_the_last_token(paced: Served, route: str) -> None:
    """The call is recorded when its last token is sampled: while the first delta is read, it is not."""
    body, text_of = DIALECTS[route]
    content = "input" if "input" in body else "messages"
    asked = {**body, content: "at length" if content == "input" else says("at length")}
    rollout = f"pace-{route.replace('/', '-')}"
    headers = {"Authorization": f"Bearer {paced.server.admin_key}", "X-ART-Rollout": rollout}
    asked = {"model": "tests/alpha", "stream": True, **asked}
    if route == "messages":
        asked["max_tokens"] = len(LONG)
    with httpx2.stream(
        "POST", f"{paced.server.url}/v1/{route}", json=asked, headers=headers, timeout=60
    ) as answer:
        text = next(
            text
            for line in answer.iter_lines()
            if line.startswith("data: {") and (text := text_of(json.loads(line[6:])))
        )
        recorded = httpx2.get(f"{paced.server.url}/api/v1/rollouts/{rollout}", headers=headers).json()
    assert LONG.startswith(text)
    assert recorded["calls"] == []
