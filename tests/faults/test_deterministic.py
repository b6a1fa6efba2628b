"""A seeded run under `--deterministic`: run again, and killed on the way, it ends in the same files.

`make test-kills` does this with 200 steps and 20 kills.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from kill_study import FILES, NAME, PROJECT, Run, run

from art.backends.child import ChildServer
from art.errors import ConfigError
from art.testing.server import ArtServer

pytestmark = pytest.mark.slow
STEPS = 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Run:
    return run(tmp_path_factory.mktemp("undisturbed") / "art", base_model=tiny_model_dir, steps=STEPS)


def test_a_killed_run_ends_as_the_undisturbed_one(
    undisturbed: Run, tmp_path: Path, tiny_model_dir: Path
) -> None:
    killed = run(
        tmp_path / "art",
        base_model=tiny_model_dir,
        steps=STEPS,
        phases=["capture write", "optimizer"],
    )
    assert [kill.phase for kill in killed.kills] == ["capture write", "optimizer"]
    assert (killed.batch, killed.step) == (undisturbed.batch, undisturbed.step) == (STEPS, STEPS)
    assert set(killed.sha256) == set(FILES)
    assert killed.sha256 == undisturbed.sha256
    assert killed.rollouts_run_again > 0
    assert killed.jobs_run_again == 1


def test_the_seed_decides(undisturbed: Run, tmp_path: Path, tiny_model_dir: Path) -> None:
    """The same one gives the same files on a fresh folder, another one others; the run says how it was computed."""
    folder = tmp_path / "art"
    again = run(folder, base_model=tiny_model_dir, steps=STEPS)
    assert again.sha256 == undisturbed.sha256
    manifest = folder / PROJECT / "models" / NAME / "checkpoints" / f"{STEPS:04d}" / "manifest.json"
    assert json.loads(manifest.read_text())["step"] == STEPS
    assert json.loads((folder / "server" / "deterministic.json").read_text())["engine_threads"] == 1
    other = run(tmp_path / "other", base_model=tiny_model_dir, steps=STEPS, seed=1)
    assert other.sha256[FILES[0]] != undisturbed.sha256[FILES[0]]


def test_a_server_that_is_not_deterministic_is_no_server_for_a_deterministic_program(
    art_server: ArtServer,
) -> None:
    child = ChildServer(art_server.path, deterministic=True)
    try:
        with pytest.raises(ConfigError, match="not deterministic"):
            child.endpoint()
    finally:
        child.release()
