"""A loss of one's own: by import path, or as a plug-in of an installed package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from art.algorithms.losses import LossInputs
from art.algorithms.registry import BUILT_IN, find_loss
from art.config.train import LOSSES, TrainConfig
from art.errors import ConfigError, UnsupportedOption

OWN = """
from art.algorithms.losses import LossInputs

def smooth(inputs: LossInputs):
    return -inputs.advantages_N * inputs.ratio_N.tanh()

def one_number(inputs):
    return inputs.logprobs_N.sum()

def fixed(inputs):
    return inputs.logprobs_N.detach()

number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's, and a package that declares one of its functions as a plug-in."""
    (tmp_path / "own_losses_of_a_test.py").write_text(OWN)
    declared = tmp_path / "own_losses-1.0.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: own-losses\nVersion: 1.0\n")
    (declared / "entry_points.txt").write_text("[art.losses]\nacme.smooth = own_losses_of_a_test:smooth\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def inputs() -> LossInputs:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    old = torch.tensor([-1.1, -1.9])
    return LossInputs(
        logprobs_N=logprobs,
        ratio_N=torch.exp(logprobs - old),
        advantages_N=torch.tensor([1.0, -1.0]),
        owner_N=torch.tensor([0, 0]),
        epsilon=0.2,
        epsilon_high=0.28,
    )


@pytest.mark.parametrize("name", ["own_losses_of_a_test:smooth", "acme.smooth"])
def test_a_loss_of_ones_own_is_found(own: Path, name: str) -> None:
    assert TrainConfig(loss_fn=name).loss_fn == name
    given = inputs()
    loss = find_loss(name)
    torch.testing.assert_close(loss.per_token(given), -given.advantages_N * given.ratio_N.tanh())
    assert loss.weight(given) is given.ratio_N
    assert not loss.bounded(given).any()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_losses_of_a_test:nothing", "cannot be imported"),
        ("no_such_module:smooth", "cannot be imported"),
        ("own_losses_of_a_test:number", "is no function"),
        ("acme.rough", "acme.smooth"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(own: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_loss(name)
    assert said in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"), [("one_number", r"gave \[\] for 2 tokens"), ("fixed", "has no gradient")]
)
def test_an_answer_that_cannot_be_trained_on_is_refused(own: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match="own_losses_of_a_test") as caught:
        find_loss(f"own_losses_of_a_test:{name}").per_token(inputs())
    assert re.search(said, str(caught.value))


def test_the_built_in_ones_are_those_of_the_configuration() -> None:
    assert set(BUILT_IN) == set(LOSSES)
    for wrong in ("dro", "", "a b:c", 3):
        with pytest.raises(UnsupportedOption, match="does not support loss_fn"):
            TrainConfig(loss_fn=wrong)  # type: ignore[arg-type]
