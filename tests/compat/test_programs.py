"""Programs written for openpipe-art 0.5 run here, unchanged, by installing this package instead.

Each program runs once, in a process of its own, and each check looks at what its main returned. What is
not there yet is in EXPECTED_TO_FAIL: a check listed there must fail, and for want of a part, not otherwise.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from art.config.train import LOSSES
from fake_services import COUNT, FakeServices

import pytest

HERE = Path(__file__).parent
DEADLINE_SECONDS = 170.0
Outcome = dict[str, Any]
RunProgram = Callable[[str], Outcome]

EXPECTED_TO_FAIL = {
    "prog_01_training_loop/logged_files": "model.log's trajectories/{split}/{step:04d}.parquet",
    "prog_02_ruler": "art.rewards.ruler and ruler_score_group",
    "prog_03_langgraph": "art.langgraph",
    "prog_04_mcp_scenarios": "art.mcp",
    "prog_06_pipeline_trainer/logged_files": "model.log's trajectories/{split}/{step:04d}.parquet",
    "prog_10_serverless": "art.ServerlessBackend and ServerlessTrainResult",
}
"""Check -> the part that is missing."""

if "cispo" not in LOSSES:
    EXPECTED_TO_FAIL["prog_06_pipeline_trainer"] = "loss_fn='cispo'"

DIFFERENT = {
    "prog_08_auto_trajectory/own_client": "no HTTP library is patched, so a client that the agent made itself is not "
    "seen in this process; `art.rollout` gives it a base URL, and session.trajectory has its calls",
}
"""Check -> why the program is served otherwise, and stays so."""


class MissingPart(Exception):
    """A program reached for a name that the package does not have, or for a file that it does not write."""


def check_training_loop(got: Outcome) -> None:
    assert (got["start"], got["steps"], got["final_step"]) == (0, [1, 2], 2)
    assert all(0 < reward <= 1.1 for reward in got["rewards"])
    assert {"loss/train", "loss/grad_norm", "loss/entropy", "loss/learning_rate"} <= set(got["train_metrics"])
    assert Path(got["checkpoint_path"]).name == "0002"
    assert (Path(got["checkpoint_path"]) / "adapter_config.json").is_file()
    expected = {"training_step", "step", "recorded_at", "loss/train", "train/reward", "train/reward_std_dev"}
    expected |= {"train/exception_rate", "train/correct", "val/reward", "val/correct", "val/llm_duration"}
    assert expected <= set(got["history_keys"])
    assert sorted(set(got["history_steps"])) == [1, 2]
    assert all(seconds > 0 for seconds in got["durations"])
    assert got["last_message"]["role"] == "assistant"


def check_logged_files(got: Outcome) -> None:
    names = [*(f"trajectories/train/{step:04d}.parquet" for step in (1, 2)), "trajectories/val/0002.parquet"]
    missing = sorted(set(names) - set(got["logged_files"]))
    if missing:
        raise MissingPart(", ".join(missing))


def check_ruler(got: Outcome) -> None:
    assert got["scores"] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert len(set(got["ids"])) == COUNT
    assert all(got["explanations"])
    assert got["dropped"]
    assert got["groups"] == 2
    for rewards in got["rewards"]:
        assert sorted(rewards) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert got["step"] == 1


def check_langgraph(got: Outcome) -> None:
    assert got["step"] == 1
    assert len(got["rewards"]) == 8
    assert all(0 < reward <= 1.1 for reward in got["rewards"])
    # The ReAct agent's conversation is the first one; the reviewer's has another prompt.
    assert got["roles"][:3] == ["system", "user", "assistant"]
    assert got["choices"] >= 1
    assert got["histories"] == [2] * 8
    assert got["tool_names"] == ["look_up"]


def check_mcp(got: Outcome) -> None:
    assert sorted(got["tasks"]) == [f"What is the balance of a-{i}?" for i in range(COUNT)]
    assert sorted(got["difficulties"]) == [1, 2, 3, 4]
    assert sum(got["distribution"].values()) == COUNT
    assert got["easy"] == 2
    assert got["split"] == [2, 2]
    for rewards in (got["rewards"][:4], got["rewards"][4:]):
        assert sorted(rewards) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert all(got["completed"])
    assert len(got["completed"]) == 8
    assert got["roles"] == ["system", "user", "assistant", "tool", "assistant"]
    assert got["tool_names"] == ["get_balance", "list_accounts", "complete_task"]


def check_sft(got: Outcome) -> None:
    assert got["rows"] == 6
    assert len(got["schedule"]) == 4
    assert max(got["schedule"]) <= 1e-3
    questions = ["do fish fly?", "is snow cold?", "will it rain?"]
    assert sorted(got["seen"]) == sorted(questions * 4)
    before, after_file, after_made = got["steps"]
    assert before == 0
    assert after_file >= 1
    assert after_made == after_file + 1
    assert got["losses"]
    assert all(math.isfinite(loss) for loss in got["losses"])
    assert got["answer"]
    assert got["auto_config"] == "auto"


def check_pipeline(got: Outcome) -> None:
    assert got["steps"] == [0, 2]
    assert got["evaluated"][0] == 0, "evaluated at the start"
    assert len(got["evaluated"]) >= 2
    assert {1, 2} <= set(got["checkpoints"])
    assert "val/reward" in got["history"]
    assert "loss/train" in got["history"]


def check_pipeline_files(got: Outcome) -> None:
    missing = sorted({"train", "val"} - set(got["splits"]))
    if missing:
        raise MissingPart(", ".join(f"trajectories/{split}" for split in missing))


def check_benchmark(got: Outcome) -> None:
    assert got["rows"] == 2 * 2 * 2 * 4  # models, steps, questions, attempts
    columns = {"reward", "metric_correct", "metric_length", "metadata_question", "group_metadata_question"}
    assert columns <= set(got["columns"])
    assert got["models"] == ["large", "small"]
    assert got["steps"] == [0, 1]
    assert 0 <= got["mean_reward"] <= 1
    for chart in got["charts"]:
        assert Path(chart).read_bytes().startswith(b"\x89PNG")


def check_auto_trajectory(got: Outcome) -> None:
    assert got["outside"]
    assert got["rewards"] == [1.0] * 4
    questions = ["is it warm?", "is it cold?"]
    assert got["questions"] == [[question] * 2 for question in questions]
    assert got["first_messages"] == [[{"role": "user", "content": question}] for question in questions]
    assert got["roles"] == ["user", "assistant", "user", "assistant"]
    assert got["choices"] >= 1
    assert got["histories"] == 1
    assert got["summary_roles"] == ["system", "user", "assistant"]
    assert len(got["logs"]) == 1
    assert (got["yielded_reward"], got["yielded_roles"]) == (0.5, ["user", "assistant"])


def check_own_client(got: Outcome) -> None:
    assert got["own_client_roles"] == ["user", "assistant", "user", "assistant"]


def check_fork_and_delete(got: Outcome) -> None:
    assert {1, 2} <= set(got["before"])
    assert got["after"] == [1, 2], "the best and the latest stay"
    assert (got["forked_at"], got["second_step"]) == (1, 2)
    assert {1, 2} <= set(got["second_checkpoints"])
    assert got["still_serves"]
    assert got["names"] == ["first@2", "first@1"]


def check_serverless(got: Outcome) -> None:
    assert (got["start"], got["steps"], got["final"]) == (0, [1, 2], 2)
    prefix = "wandb-artifact:///acme/serverless/hosted-001"
    assert got["inference_names"] == [f"{prefix}:step1", f"{prefix}:step2"]
    assert got["artifact_name"] == "acme/serverless/hosted-001:step2"
    assert got["base_url"].startswith("http://127.0.0.1:")
    assert got["metrics"]
    assert got["is_serverless_result"]


CHECKS: dict[str, Callable[[Outcome], None]] = {
    "prog_01_training_loop": check_training_loop,
    "prog_01_training_loop/logged_files": check_logged_files,
    "prog_02_ruler": check_ruler,
    "prog_03_langgraph": check_langgraph,
    "prog_04_mcp_scenarios": check_mcp,
    "prog_05_sft_from_file": check_sft,
    "prog_06_pipeline_trainer": check_pipeline,
    "prog_06_pipeline_trainer/logged_files": check_pipeline_files,
    "prog_07_benchmark_charts": check_benchmark,
    "prog_08_auto_trajectory": check_auto_trajectory,
    "prog_08_auto_trajectory/own_client": check_own_client,
    "prog_09_fork_and_delete": check_fork_and_delete,
    "prog_10_serverless": check_serverless,
}


@pytest.fixture(scope="module")
def services() -> Iterator[FakeServices]:
    with FakeServices() as running:
        yield running


@pytest.fixture(scope="module")
def run_program(
    services: FakeServices, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> RunProgram:
    """Runs a program, once; what its main returned. MissingPart, or an assertion with its last words."""
    finished: dict[str, subprocess.CompletedProcess[str]] = {}
    folders: dict[str, Path] = {}

    def run(program: str) -> Outcome:
        if program not in finished:
            folder = folders[program] = tmp_path_factory.mktemp(program)
            arguments = [
                HERE / f"{program}.py",
                tiny_model_dir.absolute(),
                folder / "art",
                folder / "result.json",
            ]
            finished[program] = subprocess.run(
                [sys.executable, str(HERE / "run_program.py"), *map(str, arguments)],
                cwd=folder,
                env={**os.environ, "FAKE_OPENAI_BASE_URL": services.url},
                capture_output=True,
                text=True,
                timeout=DEADLINE_SECONDS,
                check=False,
            )
        process = finished[program]
        if process.returncode:
            if (name := missing_name(process.stderr)) is not None:
                raise MissingPart(name)
            pytest.fail(f"{program} ended with status {process.returncode}:\n{process.stderr[-4000:]}")
        return dict(json.loads((folders[program] / "result.json").read_text()))

    return run


def missing_name(stderr: str) -> str | None:
    """What a traceback tells of a name, or a loss, of ours that does not exist."""
    if loss := re.search(r"UnsupportedOption: .* does not support loss_fn=.*", stderr):
        return loss[0]
    words = stderr.strip().splitlines()[-1:] or [""]
    lacks = re.match(
        r"ModuleNotFoundError: No module named 'art\.|ImportError: cannot import name '\w+' from 'art"
        r"|AttributeError: .*(is not in this release|has no attribute)",
        words[0],
    )
    return words[0] if lacks else None


def programs() -> list[Any]:
    def marks(check: str) -> list[pytest.MarkDecorator]:
        if (why := DIFFERENT.get(check)) is not None:
            return [pytest.mark.xfail(strict=True, raises=AssertionError, reason=why)]
        if (part := EXPECTED_TO_FAIL.get(check)) is None:
            return []
        return [pytest.mark.xfail(strict=True, raises=MissingPart, reason=f"missing: {part}")]

    return [pytest.param(check, marks=marks(check), id=check) for check in CHECKS]


@pytest.mark.parametrize("check", programs())
def test_program(check: str, run_program: RunProgram) -> None:
    CHECKS[check](run_program(check.partition("/")[0]))


def test_every_program_is_checked() -> None:
    assert {path.stem for path in HERE.glob("prog_*.py")} == {check.partition("/")[0] for check in CHECKS}
    assert {*EXPECTED_TO_FAIL, *DIFFERENT} <= set(CHECKS)
