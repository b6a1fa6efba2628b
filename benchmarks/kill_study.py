"""`make test-kills`: 200 steps of the tiny model, undisturbed and with 20 SIGKILLs (ARGS="--kills 100"), under `--deterministic`.

The program that trains is an ordinary one (`art.fit`) in a process of its own. This one watches the server from
outside, ends all its processes in the part of a run that is due, and starts it again on the same folder and port. The
program must go on, and both runs must end in the same weights, to the last bit; no rollout and no step may be lost or doubled.

With `--plain` the server is an ordinary one: one run, with kills, whose books must be whole.

Writes benchmarks/results/test-kills.json (test-kills-plain.json) and exits with status 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from kill_books import TOLD, problems
from kill_watch import Watch
from killer import PHASES, Kill, Killer

from art.testing.server import ArtServer

RESULTS = Path(__file__).parent / "results"
PROJECT, NAME = "kills", "study"
GROUPS, MEMBERS, CALLS = 2, 4, 2
SETTINGS = {
    # More threads only wait for one another on a model this small.
    "ART_ENGINE__THREADS": "1",
    "ART_TRAINER__THREADS": "1",
    "ART_SERVER__TRAINER_START_SECONDS": "600",
}
IDLE_SECONDS = 0.05
"""Between two looks while no kill is due."""
STEP_SECONDS = 600.0
"""A run without a new step for this long hangs; a restart takes about ten, and minutes on a machine that others use."""
MISSES = 4
"""Looks in a row that find the server in another part of the run; then the next part is due first."""
WITHIN = 0.9
"""Of the steps, what the kills are spread over: the last ones may need some looks more."""
FILES = ("adapter_model.safetensors", "optimizer.safetensors", "trainer_state.json")
"""Of the last checkpoint, what must be equal; the manifest holds ids and times."""


@dataclass
class Run:
    """One run from its first step to its last."""

    steps: int
    batch: int = 0
    step: int = 0
    sha256: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    kills: list[Kill] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What was lost or doubled."""
    rollouts_run_again: int = 0
    jobs_run_again: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Kills by phase."""
        found = Counter(kill.phase for kill in self.kills)
        return {phase: found[phase] for phase in PHASES}


# -- the program


async def train(url: str, key: str, *, base_model: str, steps: int, seed: int, told: Path) -> None:
    """What a user would write. Every answered train call becomes a line of `told`."""
    import art

    async def agent(task: str, client: Any, model_name: str) -> str:
        messages: list[Any] = [{"role": "user", "content": task}]
        said = []
        for _ in range(CALLS):
            answer = await client.chat.completions.create(model=model_name, messages=messages, max_tokens=8)
            said.append(answer.choices[0].message.content or "")
            messages += [
                {"role": "assistant", "content": said[-1]},
                {"role": "user", "content": "sure?"},
            ]
        return f"{task} {said}"

    def reward(result: str) -> float:
        """As good as random, and the same in every run: hardly a group is without a difference."""
        return zlib.crc32(result.encode()) / 2**32

    def on_step(step: Any) -> None:
        names = [item.rollout_id for item in step.trajectories]
        line = {"batch": step.batch, "step": step.step, "published": step.published, "rollouts": names}
        with told.open("a") as file:
            file.write(json.dumps(line) + "\n")

    tasks = [f"is the sky {colour}?" for colour in ("red", "green", "blue", "warm", "old")]
    async with art.RemoteBackend(url, key) as backend:
        model = art.TrainableModel(name=NAME, project=PROJECT, base_model=base_model)
        await model.register(backend)
        await art.fit(
            model,
            agent,
            tasks,
            reward=reward,
            steps=steps,
            groups_per_step=GROUPS,
            rollouts_per_group=MEMBERS,
            config=art.TrainConfig(learning_rate=1e-4),
            max_exceptions=0,
            seed=seed,
            on_step=on_step,
            verbose=False,
        )


# -- runs


def run(
    folder: Path,
    *,
    base_model: Path,
    steps: int,
    phases: Sequence[str] = (),
    seed: int = 0,
    deterministic: bool = True,
) -> Run:
    """Train on a fresh folder, ending the server once in each of `phases`, in their order, evenly over the steps."""
    began, result = time.monotonic(), Run(steps=steps)
    arguments = ["--deterministic"] if deterministic else []
    server = ArtServer(folder, engine="torch", arguments=arguments, environment=SETTINGS).start()
    log = (folder / "program.out").open("wb")
    command = [sys.executable, __file__, "--program", server.url, "--key", server.admin_key]
    command += ["--base-model", str(base_model), "--steps", str(steps), "--seed", str(seed)]
    command += ["--told", str(folder / TOLD)]
    program = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    watch = Watch(folder, PROJECT, NAME)
    try:
        result.kills = strike(program, Killer(server, watch, seed=seed), watch, folder, phases, steps)
    finally:
        program.kill()
        program.wait()
        server.stop()
        log.close()
    if program.returncode:
        raise RuntimeError(
            f"the program ended with {program.returncode}:\n{(folder / 'program.out').read_text()}"
        )
    result.batch, result.step = watch.batch, watch.step
    last_folder = watch.checkpoints / f"{result.step:04d}"
    result.sha256 = {name: sha256((last_folder / name).read_bytes()).hexdigest() for name in FILES}
    result.rollouts_run_again = int(watch.one("SELECT COUNT(*) FROM rollouts WHERE status = 'infra_error'"))
    result.jobs_run_again = int(watch.one("SELECT COUNT(*) FROM jobs WHERE attempts > 1"))
    result.problems = problems(watch, folder / TOLD, steps=steps, per_step=GROUPS * MEMBERS, calls=CALLS)
    result.seconds = round(time.monotonic() - began, 1)
    return result


def strike(
    program: subprocess.Popen[bytes],
    killer: Killer,
    watch: Watch,
    folder: Path,
    phases: Sequence[str],
    steps: int,
) -> list[Kill]:
    """Kill the server once in each of the phases while the program runs; TimeoutError when that does not get on."""
    kills: list[Kill] = []
    due, last, since, misses = list(phases), -1, time.monotonic(), 0
    while program.poll() is None:
        if watch.batch != last:
            last, since = watch.batch, time.monotonic()
        if time.monotonic() - since > STEP_SECONDS:
            raise TimeoutError(f"no step for {STEP_SECONDS:.0f} s; {where(watch, folder)}")
        number = len(phases) - len(due)
        if not due or last < 1 or last < (number + 0.5) * WITHIN * steps / len(phases) - 1:
            time.sleep(IDLE_SECONDS)
            continue
        kill = killer.attempt(due[0])
        if kill is None and (misses := misses + 1) % MISSES == 0:
            due.insert(1, due.pop(0))
        elif kill is not None:
            due.pop(0)
            misses = 0
            kills.append(kill)
            print(
                f"batch {kill.batch:4d}  {kill.phase:14} {kill.seen} (looked {kill.attempts} times)",
                flush=True,
            )
            since = time.monotonic()
    return kills


def where(watch: Watch, folder: Path) -> str:
    """Where a run stands, for a person."""
    statuses = watch.query("SELECT status, COUNT(*) FROM rollouts GROUP BY 1")
    jobs = watch.query("SELECT status, attempts FROM jobs ORDER BY created_at DESC LIMIT 1")
    last = (folder / "serve.out").read_text(errors="replace").splitlines()[-10:]
    return "\n".join([f"batch {watch.batch}, step {watch.step}, rollouts {statuses}, last job {jobs}", *last])


def spread(kills: int) -> list[str]:
    """`kills` phases, each as often as any other or once more, in turn."""
    return [PHASES[number % len(PHASES)] for number in range(kills)]


def report(runs: dict[str, Run], *, kills: int) -> dict[str, Any]:
    """The result file. Without an undisturbed run there is nothing that the weights must be equal to."""
    killed, undisturbed = runs["killed"], runs.get("undisturbed")
    bars: list[dict[str, Any]] = [
        {"name": "kills", "value": len(killed.kills), "target": kills},
        {
            "name": "kills of the rarest phase",
            "value": min(killed.counts.values()),
            "target": kills // len(PHASES),
        },
        *({"name": f"steps, {name}", "value": one.batch, "target": one.steps} for name, one in runs.items()),
    ]
    if undisturbed is not None:
        equal = {name: int(undisturbed.sha256[name] == killed.sha256[name]) for name in FILES}
        bars += [{"name": f"{name} is equal", "value": same, "target": 1} for name, same in equal.items()]
    bars = [{**line, "ok": line["value"] >= line["target"]} for line in bars]
    for name, one in runs.items():
        count = len(one.problems)
        bars.append({"name": f"lost or doubled, {name}", "value": count, "target": 0, "ok": count == 0})
    return {
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": {"counts": killed.counts, **{name: asdict(one) for name, one in runs.items()}},
        "bars": bars,
    }


def main() -> int:
    """Both runs, the table, the file; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="an ordinary server, without --deterministic")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--told", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    parser.add_argument("--base-model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        asyncio.run(
            train(
                options.program,
                options.key,
                base_model=options.base_model,
                steps=options.steps,
                seed=options.seed,
                told=options.told,
            )
        )
        return 0
    return study(options)


def study(options: argparse.Namespace) -> int:
    """The whole study as the command line asks for it."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from art.testing.tiny import tiny_model

    torch.set_num_threads(1)  # more would only wait for one another
    console = Console()
    title = "test-kills-plain" if options.plain else "test-kills"
    out = options.out or RESULTS / f"{title}.json"
    wanted = {} if options.plain else {"undisturbed": []}
    with tempfile.TemporaryDirectory(prefix="kill-study-", ignore_cleanup_errors=True) as scratch:
        base = tiny_model(Path(scratch) / "tiny")
        runs: dict[str, Run] = {}
        for name, phases in {**wanted, "killed": spread(options.kills)}.items():
            console.print(f"{name}: {options.steps} steps")
            runs[name] = run(
                Path(scratch) / name,
                base_model=base,
                steps=options.steps,
                phases=phases,
                seed=options.seed,
                deterministic=not options.plain,
            )
            console.print(f"{name}: {runs[name].seconds:.0f} s, {runs[name].step} of them published")
            console.print(*runs[name].problems, sep="\n")
    told = report(runs, kills=options.kills)
    out.write_text(json.dumps(told, indent=2) + "\n")
    table = Table("bar", "value", "target", "", title=title)
    for line in told["bars"]:
        table.add_row(
            line["name"],
            str(line["value"]),
            str(line["target"]),
            "ok" if line["ok"] else "[red]missed[/red]",
        )
    console.print(table)
    console.print(f"kills by phase: {told['figures']['counts']}; written to {out}")
    return 0 if all(line["ok"] for line in told["bars"]) else 1


if __name__ == "__main__":
    sys.exit(main())
