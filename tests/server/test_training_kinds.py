"""What is trained, in every kind, through a live server: sampled, trained, checked, served, and sampled again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from train_kit import Trained

KINDS: dict[str, dict[str, Any]] = {
    "dora": {"lora": {"r": 4, "dora": True, "rslora": True}},
    "full": {"training": "full"},
    "nf4": {"quantization": "nf4"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_two_steps_are_trained_and_served(taught: Trained, kind: str) -> None:
    name = f"kind-{kind}"
    taught.register(name, **KINDS[kind])
    schedule = {"learning_rate_schedule": "linear", "schedule_updates": 4, "warmup_updates": 1}
    rates = []
    for step in (1, 2):
        groups = [taught.group([0.0, 1.0, 0.0, 1.0], model=f"p/{name}")]
        result = taught.train(groups, name=name, config={"learning_rate": 1e-3, **schedule})
        assert (result["step"], result["published"]) == (step, True)
        # Step 2 learns from what step 1 said: the engine serves what the trainer made.
        assert result["metrics"]["parity/tokens"] > 0
        rates.append(result["metrics"]["loss/learning_rate"])
    assert rates == pytest.approx([0.5e-3, 1e-3])
    folder = Path(taught.server.path) / "p" / "models" / name / "checkpoints" / "0002"
    assert (folder / "model.safetensors").is_file() is (kind == "full")
    assert (folder / "adapter_model.safetensors").is_file() is (kind != "full")


def test_a_rate_that_is_not_set_is_a_tenth_for_all_weights(taught: Trained) -> None:
    taught.register("kind-rate", training="full")
    groups = [taught.group([0.0, 1.0], model="p/kind-rate")]
    result = taught.train(groups, name="kind-rate")
    assert result["metrics"]["loss/learning_rate"] == pytest.approx(1e-4)
    assert any("learning_rate 0.0001" in note for note in result["notes"])
    assert any("all weights are trained" in note and "MB on disk" in note for note in result["notes"])


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"training": "full", "lora": {"r": 4}}, "lora="),
        ({"training": "full", "initial_adapter": "x"}, "initial_adapter='x'"),
        ({"training": "full", "quantization": "nf4"}, "quantization='nf4'"),
    ],
)
def test_what_would_be_ignored_at_registration_is_refused(
    taught: Trained, config: dict[str, Any], named: str
) -> None:
    body = {"project": "p", "name": "refused", "config": {"base_model": taught.base_model, **config}}
    answer = taught.raw("POST", "/api/v1/models", body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
