"""Lists are read in turns: a project that asks for heavy ones all the time keeps no other from its own, nor itself from being told."""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from art.server.looks import MOST_WAITING, PLACES
from art.testing.seeded import Plan, seed
from art.testing.server import ArtServer

ROLLOUTS = 5_000
"""So many that looking through them takes the readers longer than the rest of a request does."""
FLOOD = 24
"""Requests at once, fewer than are refused."""
HEAVY = '/api/v1/views/runs/shop/desk-01/rollouts?limit=1&filter=reason ~ "no such word"'
LIGHT = "/api/v1/views/runs/other/desk-01/rollouts"


def fill(folder: Path) -> None:
    """A second project with one run, and many more rollouts in the first one's."""
    with contextlib.closing(sqlite3.connect(folder / "server" / "art.db", isolation_level=None)) as conn:
        conn.row_factory = sqlite3.Row
        for table in ("models", "rollouts"):
            row = dict(conn.execute(f"SELECT * FROM {table} LIMIT 1").fetchone())
            marks = ", ".join("?" for _ in row)
            if table == "models":
                values = [tuple({**row, "project": "other"}.values())]
            else:
                values = [tuple({**row, "rollout_id": f"more-{n}"}.values()) for n in range(ROLLOUTS)]
            conn.execute("BEGIN")
            conn.executemany(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", values)
            conn.execute("COMMIT")


@pytest.fixture(scope="module")
def server(start_art_server: Any, tmp_path_factory: pytest.TempPathFactory) -> ArtServer:
    folder = seed(tmp_path_factory.mktemp("many") / "run", Plan(runs=1, steps=1, groups=1))
    fill(folder)
    made: ArtServer = start_art_server(folder)
    return made


def client(server: ArtServer) -> httpx2.Client:
    headers = {"Authorization": f"Bearer {server.admin_key}"}
    return httpx2.Client(
        base_url=server.url, headers=headers, timeout=60, trust_env=False, limits=httpx2.Limits()
    )


class Flood:
    """Programs of one project that ask for a heavy list again and again."""

    def __init__(self, server: ArtServer) -> None:
        self.answers: list[int] = []
        self._server = server
        self._over = threading.Event()
        self._flows = threading.Event()

    def _ask(self) -> None:
        with client(self._server) as asking:
            while not self._over.is_set():
                self.answers.append(asking.get(HEAVY).status_code)
                if len(self.answers) >= FLOOD:
                    self._flows.set()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(FLOOD) as threads:
            asking = [threads.submit(self._ask) for _ in range(FLOOD)]
            try:
                assert self._flows.wait(120)
                yield
            finally:
                self._over.set()
        for one in asking:
            one.result()


def test_another_project_is_answered_while_one_asks_all_the_time(server: ArtServer) -> None:
    flood, before = Flood(server), []
    with client(server) as other, flood.running():
        for _ in range(9):
            seen = len(flood.answers)
            assert other.get(LIGHT).status_code == 200
            before.append(len(flood.answers) - seen)
    assert set(flood.answers) == {200}
    # In one line, all that wait would come first; in turns only those that are being read do.
    assert statistics.median(before) <= FLOOD // 2, before


def test_too_many_of_one_project_are_told_when_to_come_back(server: ArtServer) -> None:
    many = MOST_WAITING + PLACES + 24

    with client(server) as asking, ThreadPoolExecutor(many) as threads:
        answers = list(threads.map(lambda _: asking.get(HEAVY), range(2 * many)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert 200 in {answer.status_code for answer in answers}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert refused[0].json()["error"]["code"] == "overloaded"
    assert "the project shop" in refused[0].json()["error"]["cause"]
