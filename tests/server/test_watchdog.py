"""The watchdog: work that does not get on leaves stacks behind, of the worker and of the gateway; what gets on does not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from pathlib import Path

import pytest
from test_supervise import pid_of, run, spec, until
from test_trainer_waits import train_job

from art.config.server import ServerConfig
from art.errors import DeadlineExceeded, ServerStartFailed, WorkerDied
from art.server import watchdog, worker_process
from art.server.engines import WorkerEngine
from art.server.supervise import Supervised
from art.server.trainers import WorkerTrainer
from art.server.watchdog import Counted, Watchdog, Work, await_chain, task_stacks
from art.testing.server import ArtServer


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks often."""
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.05)


async def wait_for_ever(named: asyncio.Future[None]) -> None:
    await named


@pytest.mark.usefixtures("hasty")
def test_a_worker_that_does_nothing_is_told_with_all_stacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        channel = await worker.channel()
        assert worker.in_hand() == Work(0, 0)
        call = asyncio.create_task(channel.call("never", {}, silence=50), name="the call that waits")
        await until(lambda: channel.pending == 1)
        log = tmp_path / "logs" / "gateway.log"
        dog = Watchdog(lambda: {"worker": worker}, stall_seconds=0.3, log=log)
        running = asyncio.create_task(dog.run())
        await until(lambda: "worker has 1 requests and has done none of them" in caplog.text)
        await until(lambda: "the call that waits" in caplog.text)
        assert "channel.py" in caplog.text, "where in the gateway it waits"
        await until(lambda: "Thread 0x" in log.read_text())
        await until(lambda: "receive" in (tmp_path / "worker.log").read_text())  # where the worker is
        assert worker.alive, "it ends nothing"
        running.cancel()
        call.cancel()
        await worker.stop()

    with caplog.at_level(logging.WARNING):
        run(main)


def test_what_gets_on_is_not_told_and_what_does_not_is_told_ever_less_often(tmp_path: Path) -> None:
    amounts = {"busy": (3, 0), "stuck": (1, 7), "idle": (0, 7)}
    parts = {name: Counted(lambda name=name: amounts[name]) for name in amounts}  # type: ignore[misc]
    dog = Watchdog(lambda: parts, stall_seconds=10, log=tmp_path / "log")
    told = []
    for second in range(100):
        dog._clock = float(second)
        amounts["busy"] = (3, second)
        told += [(second, name) for name in dog.look()]
    assert told == [(10, "stuck"), (20, "stuck"), (40, "stuck"), (80, "stuck")]


@pytest.mark.usefixtures("hasty")
def test_an_event_loop_that_is_held_up_leaves_its_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watchdog, "BLOCKED_SECONDS", 0.2)

    def hold_everybody_up() -> None:
        time.sleep(1.0)

    async def main() -> None:
        log = tmp_path / "gateway.log"
        running = asyncio.create_task(Watchdog(dict, stall_seconds=60, log=log).run())
        await asyncio.sleep(0.1)
        hold_everybody_up()
        await until(lambda: "the event loop was held up" in caplog.text)
        assert "hold_everybody_up" in log.read_text()
        running.cancel()

    with caplog.at_level(logging.WARNING):
        run(main)


def test_equal_stacks_are_written_once() -> None:
    async def main() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tasks = [asyncio.create_task(wait_for_ever(future), name=f"task {n}") for n in range(300)]
        await asyncio.sleep(0)
        text = task_stacks()
        assert "300 x task" in text
        assert text.count("wait_for_ever") == 1
        chain = await_chain(tasks[0].get_coro())
        assert "in wait_for_ever" in chain[0]
        future.cancel()
        await asyncio.wait(tasks)

    run(main)


def test_a_worker_that_lives_without_its_channel_is_ended(tmp_path: Path) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        channel = await worker.channel()
        with pytest.raises(WorkerDied) as died:
            await channel.call("close", {}, silence=50)
        assert "closed its channel" in died.value.cause
        await worker.stop()

    run(main)


def test_a_worker_whose_reader_fails_ends_with_its_traceback(tmp_path: Path) -> None:
    """The thread that carries the channel is gone: the process must not live on, beating."""

    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        channel = await worker.channel()
        with pytest.raises(WorkerDied) as died:
            await channel.call("lose-reader", {}, silence=50)
        assert "the reader has failed" in died.value.cause
        assert "status 1" in died.value.cause
        await worker.stop()

    run(main)


def test_callers_are_told_though_the_kernel_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it waits for a disk that is gone: SIGKILL is sent, and nothing happens."""

    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        channel = await worker.channel()
        pid = pid_of(worker)
        call = asyncio.create_task(channel.call("never", {}, silence=50))
        await until(lambda: channel.pending == 1)
        with monkeypatch.context() as patched:
            patched.setattr(worker_process.os, "killpg", lambda pid, number: None)
            worker.kill("it is not wanted")
            with pytest.raises(WorkerDied) as died:
                await call
        assert died.value.cause.startswith("it is not wanted; the kernel has not ended it yet")
        os.kill(pid, signal.SIGKILL)
        await worker.stop()

    run(main)


def test_nothing_outlives_a_worker_of_what_it_started(tmp_path: Path) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        channel = await worker.channel()
        child = (await channel.call("fork", {}, silence=50))["pid"]
        os.kill(pid_of(worker), signal.SIGKILL)  # the leader alone
        await until(lambda: _gone(child))
        await worker.stop()

    run(main)


def test_an_engine_that_answers_nobody_is_started_anew(tmp_path: Path) -> None:
    """It beats, so it is not dead; but every further call would run into the same deadline."""

    async def main() -> None:
        engine = WorkerEngine(Supervised(spec(tmp_path, "ok")), silence=0.5)
        await engine.worker.channel()
        with pytest.raises(DeadlineExceeded):
            await engine.probe("", [1, 2])
        await until(lambda: engine.generation == 2 and engine.worker.alive)
        channel = await engine.worker.channel()
        assert await channel.call("echo", {"x": 1}, silence=20) == {"x": 1}
        await engine.worker.stop()

    run(main)


def test_a_call_that_waits_while_others_are_answered_ends_alone(tmp_path: Path) -> None:
    async def main() -> None:
        engine = WorkerEngine(Supervised(spec(tmp_path, "ok")), silence=1.0)
        channel = await engine.worker.channel()
        waiting = asyncio.create_task(engine.probe("", [1, 2]))
        while not waiting.done():
            await channel.call("echo", {"x": 1}, silence=20)
            await asyncio.sleep(0.05)
        with pytest.raises(DeadlineExceeded):
            await waiting
        assert (engine.generation, engine.worker.alive) == (1, True)
        await engine.worker.stop()

    run(main)


def test_a_trainer_that_says_nothing_about_its_job_is_started_anew(tmp_path: Path) -> None:
    async def main() -> None:
        trainer = WorkerTrainer(ServerConfig(path=tmp_path, train_seconds=0.5), tmp_path)
        trainer.worker = Supervised(spec(tmp_path, "ok"))
        with pytest.raises(DeadlineExceeded):
            await trainer.train(train_job(), lambda progress: None)
        await until(lambda: trainer.worker.starts == 2 and trainer.worker.alive)
        await trainer.stop()

    run(main)


def test_a_server_whose_queue_of_jobs_has_failed_ends_and_says_so(tmp_path: Path) -> None:
    """Going on, it would take jobs that nobody runs."""
    (tmp_path / "sitecustomize.py").write_text(
        "import art.server.jobs\n"
        "async def broken(self):\n"
        "    raise RuntimeError('a bug in the queue')\n"
        "art.server.jobs.Jobs._run_queue = broken\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    server = ArtServer(tmp_path / "server", environment={"PYTHONPATH": paths})
    with contextlib.suppress(ServerStartFailed):  # it may answer once, before it ends
        server.start()
    assert server.process is not None
    assert server.process.wait(30) == 1
    told = server.output.read_text()
    assert "the queue of training jobs ended by itself" in told
    assert "a bug in the queue" in told


def _gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
