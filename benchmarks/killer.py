"""Ends a server's processes in a given part of a run, and starts it again on the same folder and port."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from kill_watch import (
    DRAINED_SECONDS,
    ENGINE,
    GATEWAY,
    IN_CREATE,
    IN_MODIFY,
    IN_MOVED_TO,
    POLL_SECONDS,
    TRAINER,
    Watch,
    processes,
    send,
    wait_ended,
    watching,
)

from art.testing.server import ArtServer

PHASES = ("sampling", "capture write", "forward", "optimizer", "publish", "flip")
ATTEMPT_SECONDS = 3.0
"""How long one look at a server waits for the phase to begin."""
END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL of everything, and where it struck."""

    phase: str
    batch: int
    """Train calls that had ended."""
    attempts: int
    """How often the server was held still until it was in the phase."""
    seen: str


class Killer:
    """Ends the server in a given phase and starts it again."""

    def __init__(self, server: ArtServer, watch: Watch, *, seed: int) -> None:
        self._server = server
        self._watch = watch
        self._random = random.Random(seed)
        self._attempts = 0
        self._hit: dict[str, Callable[[], str | None]] = {
            "sampling": self._sampling,
            "capture write": self._capture,
            "forward": lambda: self._training(done=False),
            "optimizer": lambda: self._training(done=True),
            "publish": self._publish,
            "flip": self._flip,
        }

    def attempt(self, phase: str) -> Kill | None:
        """Look for the phase once; when the server was in it, it was ended and started again."""
        self._attempts += 1
        batch = self._watch.batch
        seen = self._hit[phase]()
        if seen is None:
            return None
        kill = Kill(phase=phase, batch=batch, attempts=self._attempts, seen=seen)
        self._attempts = 0
        self._server.start()
        return kill

    def _pids(self, *names: str) -> list[int]:
        assert self._server.process is not None
        found = processes(self._server.process.pid)
        return [found[name] for name in names if name in found]

    def _held(self, names: tuple[str, ...], look: Callable[[], str | None]) -> str | None:
        """Hold processes still, look; end all of the server's when it is in the phase, else let them go on."""
        pids = self._pids(*names)
        send(pids, signal.SIGSTOP)
        seen = look()
        if seen is None:
            send(pids, signal.SIGCONT)
            return None
        everything = self._pids(GATEWAY, ENGINE, TRAINER)
        send(everything, signal.SIGKILL)
        assert self._server.process is not None
        self._server.process.wait(END_SECONDS)
        wait_ended(everything, END_SECONDS)
        return seen

    def _wait(self, condition: Callable[[], object]) -> bool:
        deadline = time.monotonic() + ATTEMPT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _sampling(self) -> str | None:
        watch = self._watch
        if not self._wait(lambda: watch.running):
            return None
        time.sleep(self._random.uniform(0, 0.2))

        def look() -> str | None:
            open_, calls = watch.running, watch.one("SELECT COUNT(*) FROM calls")
            return f"{open_} rollouts open, {calls} calls recorded" if open_ and not watch.job else None

        return self._held((GATEWAY, ENGINE), look)

    def _capture(self) -> str | None:
        watch = self._watch
        skip = self._random.randrange(16)  # not always the first call of a batch
        with watching(watch.blobs, IN_MODIFY) as folder:
            for _ in range(skip + 1):
                names = folder.names(ATTEMPT_SECONDS)
                if not names:
                    return None

            def look() -> str | None:
                left = {name: watch.unnamed_bytes(name) for name in names}
                found = {name: count for name, count in left.items() if count > 0}
                return f"{sum(found.values())} bytes written that no call names" if found else None

            return self._held((GATEWAY,), look)

    def _training(self, *, done: bool) -> str | None:
        """`done`: every row's gradient is there, and the step is not being written yet."""
        watch = self._watch
        job: list[str] = []

        def running() -> bool:
            job[:] = [found] if (found := watch.job) is not None else []
            return bool(job) and bool(watch.progress(job[0])[0])

        if not self._wait(running):
            return None
        time.sleep(self._random.uniform(0, 0.1))

        def look() -> str | None:
            # The gateway goes on, so that it writes down what the trainer said before it was held.
            said, since = watch.progress(job[0]), time.monotonic()
            while time.monotonic() - since < DRAINED_SECONDS:
                if (now := watch.progress(job[0])) != said:
                    said, since = now, time.monotonic()
                time.sleep(POLL_SECONDS)
            phase, count, total = said
            if watch.job != job[0] or watch.writing() or watch.unrecorded():
                return None
            forward = (phase in ("lookback", "forward") and count < total) or (
                phase == "samples" and count == total
            )
            optimizer = (phase == "forward" and count == total) or phase == "update"
            return f"{phase} {count}/{total}" if (optimizer if done else forward) else None

        return self._held((TRAINER,), look)

    def _publish(self) -> str | None:
        watch = self._watch
        with watching(watch.checkpoints, IN_CREATE) as folder:
            if not any(name.startswith(".tmp-0") for name in folder.names(ATTEMPT_SECONDS)):
                return None

            def look() -> str | None:
                left = watch.writing()
                return f"{left[0].rpartition('-')[0]} half written" if left else None

            return self._held((TRAINER,), look)

    def _flip(self) -> str | None:
        watch = self._watch
        with watching(watch.checkpoints, IN_MOVED_TO) as folder:
            if not any(name.isdecimal() for name in folder.names(ATTEMPT_SECONDS)):
                return None
            time.sleep(self._random.uniform(0, 0.02))

            def look() -> str | None:
                if watch.job is None:
                    return None
                waiting = watch.unrecorded()
                if waiting:
                    return f"step {waiting[0]} published, {watch.step} is the latest"
                return f"step {watch.step} is the latest, its job is not ended"

            return self._held((GATEWAY, ENGINE), look)
