"""What `art run` counts and shows: the panel's figures, the time left, the lines that stay; and what runs agree on."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import signal
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from art.errors import AgentFailed, InfraError
from art.rollouts.agent import RolloutAgent
from art.run.display import Display, figures, span, sparkline
from art.run.progress import SIDE_BY_SIDE, Progress, WatchedAgent
from art.run.signals import Stopping
from art.trajectories import Trajectory
from art.types.policy import Limits, Purpose


def progress(**fields: Any) -> Progress:
    return Progress(name="p/m", steps=10, groups=2, group_size=2, **fields)


def ended(told: Progress, group: str, reward: float, tokens: int = 5) -> None:
    told.ended(Purpose.TRAIN, group, Trajectory(reward=reward, sampled_tokens=tokens))


def test_the_panel_says_where_the_run_is() -> None:
    told = progress(batch=3, step=2)
    told.enter("rollouts")
    assert figures(told)["at"].startswith("batch 4 of 10, step 2: rollouts, 0 s")
    assert {"ready", "reward", "speed", "left", "rewards"} & figures(told).keys() == set()
    ended(told, "a", 1.0)
    ended(told, "a", 0.5)
    ended(told, "b", 0.0)
    shown = figures(told)
    assert shown["ready"] == "1/2 groups, 3 rollouts"
    assert shown["reward"] == "0.500 in this batch"
    assert shown["speed"].endswith(" tokens/s sampled")
    assert told.sampled == 15
    told.stepped(batch=4, step=3, reward=0.5, seconds=90.0)
    assert figures(told)["left"] == "about 9 min 0 s"
    assert figures(told)["rewards"] == "▁ 0.500"
    assert told.groups_ready == 0


def test_an_evaluation_is_no_part_of_the_batch() -> None:
    told = progress()
    told.enter("evaluation")
    told.ended(Purpose.EVALUATE, "", Trajectory(reward=1.0, sampled_tokens=7))
    assert (told.runs_ended, told.reward, told.sampled) == (0, None, 7)


def test_the_panel_is_drawn() -> None:
    told = progress(batch=1)
    told.enter("rollouts")
    ended(told, "a", 1.0)
    written = io.StringIO()
    Console(file=written, width=80, force_terminal=False).print(Display(told).panel())
    text = written.getvalue()
    assert "art run p/m" in text
    assert "0/2 groups, 1 rollouts" in text
    assert max(map(len, text.splitlines())) <= 80


def test_lines_and_events_go_to_their_places(capsys: pytest.CaptureFixture[str]) -> None:
    events = io.StringIO()
    with Display(progress(), events=events) as display:
        display.say("a line", event="note", text="x")
        display.say("", event="step", batch=1)
        display.say("for a person alone")
    said = capsys.readouterr()
    assert said.err == "a line\nfor a person alone\n"
    assert said.out == ""
    assert [json.loads(line)["event"] for line in events.getvalue().splitlines()] == ["note", "step"]


BELOW = """
import time
from art.rollouts.progress import GatherProgress
from art.run.display import Display
from art.run.progress import Progress
from art.types.wire import JobEvent
from art.utils.console import TrainLine, say

def spin(job):
    with TrainLine("p/m", verbose=False) as line, GatherProgress(f"bar of {job}") as bar:
        bar.expect(1)
        line.show(JobEvent(id=1, time=0.0, type="progress", data={"phase": f"phase of {job}", "done": 1, "total": 2}))
        time.sleep(0.7)  # several drawings

with Display(Progress(name="p/m", steps=2, groups=1, group_size=1)):
    say("a line above the panel")
    spin("the run")
spin("a program")
"""


def test_below_a_panel_nobody_else_draws() -> None:
    outer, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen([sys.executable, "-c", BELOW], stderr=inner, env=environment) as process:
        os.close(inner)
        written = b""
        while part := read_of(outer):
            written += part
        assert process.wait(60) == 0
    os.close(outer)
    said = written.decode()
    assert "art run p/m" in said
    assert "a line above the panel" in said
    assert "of the run" not in said
    assert "bar of a program" in said or "phase of a program" in said  # the panel has let go of the terminal


def read_of(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # its other end is closed
        return b""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599.7, "1 h 0 min"), (7500, "2 h 5 min")],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_row_of_bars_goes_from_the_smallest_to_the_largest() -> None:
    assert sparkline([-3.0, 0.5, 4.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▁▁"


class Agent(RolloutAgent):
    """Returns a reward, or raises what it is given."""

    exclusive = False

    async def rollout(self, model: Any, scenario: Any, **session_options: Any) -> Trajectory:
        assert session_options["limits"] == Limits(max_calls=3)
        if isinstance(scenario, Exception):
            raise scenario
        return Trajectory(reward=scenario, sampled_tokens=2)


def test_rollouts_are_bounded_and_counted_and_failures_of_art_are_not() -> None:
    told = progress()
    watched = WatchedAgent(Agent(), told, Limits(max_calls=3))

    async def run(scenario: Any, group: str) -> None:
        await watched.rollout(None, scenario, purpose=Purpose.TRAIN, group_id=group)  # type: ignore[arg-type]

    asyncio.run(run(1.0, "a"))
    assert told.phase == "rollouts"
    with pytest.raises(InfraError):
        asyncio.run(run(InfraError("the engine died"), "a"))
    assert told.runs_ended == 1
    with pytest.raises(AgentFailed):
        asyncio.run(run(AgentFailed("it raised"), "a"))
    assert (told.runs_ended, told.groups_ready, told.reward) == (2, 1, 1.0)
    asyncio.run(run(0.0, "b"))
    asyncio.run(run(0.0, "b"))
    assert told.phase == "training"


def test_side_by_side_there_is_one_phase() -> None:
    told = progress(side_by_side=True)
    told.enter("rollouts")
    told.enter("training")
    assert told.phase == SIDE_BY_SIDE


# -- signals


def test_the_first_signal_asks_what_is_in_hand_and_the_second_cancels() -> None:
    said: list[str] = []
    heard = asyncio.Event()
    stopping = Stopping(said.append)

    async def run() -> None:
        with stopping.handled(), stopping.in_hand(heard.set):
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.wait_for(heard.wait(), 60)
            assert stopping.asked
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert stopping.signal is signal.SIGINT
    assert said == ["stopping behind the batch in hand; Ctrl-C again stops at once"]


def test_with_nothing_in_hand_the_first_signal_cancels() -> None:
    stopping = Stopping(print)

    async def run() -> None:
        with stopping.handled():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert stopping.signal is signal.SIGTERM
