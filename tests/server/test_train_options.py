"""Options of a train call through a live server: they arrive in the trainer, or are refused before anything runs."""

from __future__ import annotations

import pytest
from train_kit import MODEL, Trained


def test_a_loss_and_a_penalty_arrive_in_the_trainer(taught: Trained) -> None:
    before = taught.api("GET", f"models/{MODEL}")["step"]
    config = {
        "loss_fn": "cispo",
        "advantages": "rloo",
        "kl_penalty_coef": 0.1,
        "kl_penalty": "loss",
        "kl_penalty_reference_step": before,
        "precalculate_logprobs": True,
        "entropy_coef": 0.01,
    }
    result = taught.train([taught.group([0.0, 1.0])], config=config)
    assert (result["step"], result["published"]) == (before + 1, True)
    assert result["metrics"]["loss/kl_policy_ref"] == pytest.approx(0, abs=1e-4)  # its own parent
    assert result["metrics"]["loss/clip_fraction"] == 0


def test_a_loss_that_the_trainer_cannot_import_fails_its_job_with_the_reason(taught: Trained) -> None:
    before = taught.api("GET", f"models/{MODEL}")["step"]
    answer = taught.submit([taught.group([0.0, 1.0])], config={"loss_fn": "no_such_module:loss"})
    job = taught.finished(answer.json()["job_id"])
    assert (job["status"], job["error"]["code"]) == ("failed", "config")
    assert "no_such_module" in job["error"]["message"]
    assert taught.api("GET", f"models/{MODEL}")["step"] == before


def test_a_key_of_a_project_runs_no_code_of_its_choice(taught: Trained) -> None:
    for role in ("train", "admin"):
        made = taught.api("POST", "keys", {"role": role, "project": "p"})
        bearer = {"Authorization": f"Bearer {made['key']}"}
        body = {"project": "p", "name": "m", "groups": [], "config": {"loss_fn": "no_such_module:loss"}}
        refused = taught.raw("POST", "/api/v1/jobs", body, **bearer)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        assert "import_losses" in refused.json()["error"]["hint"]


@pytest.mark.parametrize(
    ("config", "named"),
    [({"loss_fn": "dro"}, "loss_fn='dro'"), ({"kl_estimator": "k2"}, "kl_estimator='k2'")],
)
def test_what_would_be_ignored_is_refused_at_once(
    taught: Trained, config: dict[str, object], named: str
) -> None:
    answer = taught.submit([], config=config)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unsupported_option"
    assert named in answer.json()["error"]["message"]
