"""A seeded run under `--deterministic`: run again on a fresh folder, and killed on the way, it ends in the same files.

`make test-kills` does this with 200 steps and 20 kills, in all parts of a run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from kill_study import FILES, NAME, PROJECT, run
from kill_watch import Watch

from art.backends.child import ChildServer
from art.errors import ConfigError
from art.testing.server import ArtServer

STEPS = 4
KILLS = ["sampling", "publish"]
"""Parts that are long enough to be met at one of so few steps."""


@pytest.mark.slow
def test_a_killed_run_ends_as_an_undisturbed_one_on_another_folder(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    undisturbed = run(tmp_path / "undisturbed", base_model=tiny_model_dir, steps=STEPS)
    killed = run(tmp_path / "killed", base_model=tiny_model_dir, steps=STEPS, phases=KILLS)
    struck = [kill.phase for kill in killed.kills]
    assert struck[:1] == ["sampling"], "no kill struck"
    assert (killed.batch, killed.step) == (undisturbed.batch, undisturbed.step) == (STEPS, STEPS)
    assert set(killed.sha256) == set(FILES)
    assert killed.sha256 == undisturbed.sha256
    assert killed.rollouts_run_again > 0
    assert killed.jobs_run_again == struck.count("publish")
    (result,) = Watch(tmp_path / "killed", PROJECT, NAME).query("SELECT result FROM jobs LIMIT 1")[0]
    assert "deterministic: threads of the engine 1, of the trainer 1" in json.loads(result)["notes"]
    record = json.loads((tmp_path / "killed" / "server" / "deterministic.json").read_text())
    assert (record["engine_threads"], record["trainer_threads"]) == (1, 1)


def test_a_server_that_is_not_deterministic_is_no_server_for_a_deterministic_program(
    art_server: ArtServer,
) -> None:
    child = ChildServer(art_server.path, deterministic=True)
    try:
        with pytest.raises(ConfigError, match="not deterministic"):
            child.endpoint()
    finally:
        child.release()
