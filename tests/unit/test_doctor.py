"""art doctor: what it tells of a machine and a model, and that its checks can fail."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from art.cli._diagnosis import Steps, checks, one_token, zero_rate
from art.cli._memory_plan import Plan, adapter_numbers, plan_memory
from art.cli._usage import WrongUsage
from art.cli.doctor import CHECK_FAILED, lines, name_clash, served, wanted
from art.config.model import LoraConfig, ModelConfig
from art.testing.tiny import tiny_model
from art.trainer.base_models import describe
from art.trainer.llama import LlamaBody
from art.trainer.protocol import ResolvedBaseModel, TrainOutcome
from art.types.doctor import Check

CHECKS = ["arithmetic", "base model", "chat template", "memory", "one token", "zero learning rate"]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ResolvedBaseModel:
    folder = tiny_model(tmp_path_factory.mktemp("tiny") / "model", warm=False)
    return describe(folder, name="tiny", source="folder")


def test_another_package_named_art_is_named_with_the_way_out() -> None:
    assert name_clash({"art": ["agent-reinforcement-trainer"], "torch": ["torch"]}).status == "ok"
    assert name_clash({}).status == "ok"
    clash = name_clash({"art": ["agent-reinforcement-trainer", "openpipe-art"]})
    assert clash.status == "failed"
    assert "openpipe-art" in clash.detail
    assert "pip uninstall openpipe-art" in clash.hint


def test_a_check_is_a_line_and_what_to_do() -> None:
    assert lines(Check(name="a", status="ok", detail="fine")) == ["ok      a: fine"]
    assert lines(Check(name="a", status="failed", detail="bad", hint="mend it")) == [
        "failed  a: bad",
        "        what to do: mend it",
    ]


@pytest.mark.parametrize(("memory", "status"), [(10e9, "ok"), (5e9, "note"), (2e9, "failed")])
def test_a_plan_is_held_against_the_memory(memory: float, status: str) -> None:
    plan = Plan(memory=memory, least={"weights": 2e9, "a row": 1e9}, more={"keys and values": 4e9})
    check = plan.check()
    assert check.status == status
    assert "at least 3 and at most 7" in check.detail
    assert "keys and values 4" in check.detail
    assert bool(check.hint) is (status != "ok")


def test_the_plan_counts_what_is_loaded(base: ResolvedBaseModel) -> None:
    body = LlamaBody.load(Path(base.path), lora=LoraConfig(), dtype=torch.float32)
    trainable = sum(parameter.numel() for parameter in body.parameters.values())
    assert adapter_numbers(body.config, LoraConfig()) == trainable
    plan = plan_memory(base, ModelConfig(base_model=base.path))
    assert plan.least["adapter and optimizer"] == 16 * trainable
    assert plan.least["engine weights"] in (2 * base.parameters, 4 * base.parameters)
    assert plan.check().status == "ok"


def test_all_is_well_with_the_tiny_model(base: ResolvedBaseModel, tmp_path: Path) -> None:
    for number, asked in enumerate(
        ({}, {"training": "full"}, {"quantization": "nf4", "lora": {"r": 4, "dora": True}})
    ):
        config = ModelConfig.model_validate({"base_model": base.path, **asked})
        found = list(checks(config, tmp_path / str(number), tmp_path / "cache"))
        assert [check.name for check in found] == CHECKS
        assert {check.status for check in found} <= {"ok", "note"}, found


class Wrong(Steps):
    """A trainer that pushes the other way, and moves when it is told to stay."""

    def train(self, rewarded: list[tuple[list[int], float]], rate: float) -> TrainOutcome:
        return super().train([(tokens, -reward) for tokens, reward in rewarded], rate or 1e-3)


def test_a_trainer_that_is_wrong_is_seen(base: ResolvedBaseModel, tmp_path: Path) -> None:
    steps = Wrong(base, ModelConfig(base_model=base.path), tmp_path)
    one, zero = one_token(steps), zero_rate(steps)
    assert (one.status, zero.status) == ("failed", "failed")
    assert one.figures["gained_nats"] < 0
    assert zero.figures["tensors_changed"] > 0
    assert zero.figures["logprobs_moved"] > 0


def test_what_no_model_can_be_is_a_wrong_command_line() -> None:
    assert wanted(None, "lora", 8, None) == ModelConfig(base_model="")
    for training, rank, quantization in (
        ("half", 8, None),
        ("lora", 0, None),
        ("lora", 8, "int3"),
        ("full", 8, "nf4"),
    ):
        with pytest.raises(WrongUsage, match=r"training|lora|quantization"):
            wanted(None, training, rank, quantization)


def test_a_model_that_is_not_there_ends_the_checks(tmp_path: Path) -> None:
    config = ModelConfig(base_model="/no/such/folder")
    found = list(checks(config, tmp_path, tmp_path / "cache"))
    assert [(check.name, check.status) for check in found][1:] == [("base model", "failed")]
    assert found[1].hint
    assert served(config, found, tmp_path / "served").status == "skipped"


def test_a_template_that_forgets_fails_the_command(base: ResolvedBaseModel, tmp_path: Path) -> None:
    """As a user calls it: the other checks are made all the same, and the exit status tells."""
    folder = tmp_path / "model"
    shutil.copytree(base.path, folder)
    (folder / "chat_template.jinja").write_text(
        "{%- for message in messages[-1:] %}{{ '<|im_start|>' + message.role + '\\n' + message.content"
        " + '<|im_end|>\\n' }}{%- endfor %}{{ '<|im_start|>assistant\\n' }}"
    )
    command = [sys.executable, "-m", "art.cli.main", "doctor", "--base-model", str(folder), "--json"]
    done = subprocess.run([*command, "--path", str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == CHECK_FAILED, done.stderr
    told = json.loads(done.stdout)
    assert not told["ok"]
    statuses = {check["name"]: check["status"] for check in told["checks"]}
    assert statuses.pop("chat template") == "failed"
    assert statuses.pop("served") == "skipped"
    assert statuses.pop("name clash") in ("ok", "failed")  # the machine's own affair
    assert statuses.keys() == {"environment", *CHECKS} - {"chat template"}
    assert set(statuses.values()) <= {"ok", "note"}, told
    assert not (tmp_path / "server").exists()
