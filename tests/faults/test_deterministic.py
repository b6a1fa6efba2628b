"""Ten SIGKILLs over the parts of a run: nothing is lost or doubled, and under `--deterministic` the end is the same.

`make test-kills` does this with 200 steps and 20 kills, or as many as it is told (`--kills 100`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from kill_study import FILES, NAME, PROJECT, Run, run, spread
from kill_watch import Watch
from killer import PHASES

from art.backends.child import ChildServer
from art.errors import ConfigError
from art.testing.server import ArtServer

STEPS = 4
KILLS = ["sampling", "publish"]
"""Parts that are long enough to be met at one of so few steps."""
PLAIN_STEPS, PLAIN_KILLS = 14, 8


def whole(killed: Run, *, steps: int) -> None:
    """The program got to its end, and the books say what it was told."""
    assert killed.batch == steps
    assert killed.problems == []


@pytest.mark.slow
def test_a_killed_run_ends_as_an_undisturbed_one_on_another_folder(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    undisturbed = run(tmp_path / "undisturbed", base_model=tiny_model_dir, steps=STEPS)
    killed = run(tmp_path / "killed", base_model=tiny_model_dir, steps=STEPS, phases=KILLS)
    struck = [kill.phase for kill in killed.kills]
    assert struck[:1] == ["sampling"], "no kill struck"
    whole(undisturbed, steps=STEPS)
    whole(killed, steps=STEPS)
    assert undisturbed.step == killed.step == STEPS
    assert set(killed.sha256) == set(FILES)
    assert killed.sha256 == undisturbed.sha256
    # What a kill was meant to cut off may have ended between the look and the blow.
    assert killed.jobs_run_again <= struck.count("publish")
    (result,) = Watch(tmp_path / "killed", PROJECT, NAME).query("SELECT result FROM jobs LIMIT 1")[0]
    assert "deterministic: threads of the engine 1, of the trainer 1" in json.loads(result)["notes"]
    record = json.loads((tmp_path / "killed" / "server" / "deterministic.json").read_text())
    assert (record["engine_threads"], record["trainer_threads"]) == (1, 1)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_kills_in_every_part_of_a_run_lose_and_double_nothing(
    tmp_path: Path, tiny_model_dir: Path, case: Any
) -> None:
    killed = run(
        tmp_path,
        base_model=tiny_model_dir,
        steps=PLAIN_STEPS,
        phases=spread(PLAIN_KILLS),
        deterministic=False,
    )
    whole(killed, steps=PLAIN_STEPS)
    counts = {phase: count for phase, count in killed.counts.items() if count}
    # Some parts last milliseconds in a run this small, and are not always met.
    assert len(counts) >= len(PHASES) - 2, f"kills that struck: {counts}"
    cut = f"{killed.rollouts_run_again} rollouts in flight were run again, {killed.jobs_run_again} jobs"
    case(
        f"{len(killed.kills)} kills over a run: {', '.join(counts)}",
        None,
        seen="(the program waits)",
        lost=cut,
    )


def test_a_server_that_is_not_deterministic_is_no_server_for_a_deterministic_program(
    art_server: ArtServer,
) -> None:
    child = ChildServer(art_server.path, deterministic=True)
    try:
        with pytest.raises(ConfigError, match="not deterministic"):
            child.endpoint()
    finally:
        child.release()
