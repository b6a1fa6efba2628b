"""Options of a training step: what they resolve to, and which would be ignored and are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from art.config.model import LoraConfig
from art.config.train import ResolvedTrainConfig, TrainConfig, chosen_by_size
from art.errors import ConfigError, UnsupportedOption


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"loss_fn": "importance_sampling", "epsilon": 0.2}, "epsilon=0.2"),
        ({"loss_fn": "importance_sampling", "epsilon_high": 0.2}, "epsilon_high=0.2"),
        ({"loss_fn": "importance_sampling", "mask_prob_ratio": True}, "mask_prob_ratio"),
        ({"loss_fn": "gspo", "importance_sampling_level": "token"}, "importance_sampling_level='token'"),
        ({"advantages": "dr_grpo", "normalize_advantages": True}, "normalize_advantages=True"),
        ({"advantages": "rank", "normalize_advantages": True}, "normalize_advantages=True"),
        ({"advantages": "reinforce++", "normalize_advantages": False}, "normalize_advantages=False"),
        ({"kl_penalty_reference_step": 0}, "kl_penalty_reference_step=0"),
        ({"kl_ref_adapter_path": "adapter"}, "kl_ref_adapter_path='adapter'"),
        ({"kl_estimator": "k3"}, "kl_estimator='k3'"),
        ({"kl_penalty": "loss"}, "kl_penalty='loss'"),
        ({"kl_penalty_coef": 0.1, "kl_penalty": "loss", "kl_estimator": "k1"}, "kl_estimator='k1'"),
        (
            {"kl_penalty_coef": 0.1, "kl_penalty_reference_step": 0, "kl_ref_adapter_path": "a"},
            "kl_ref_adapter_path='a'",
        ),
        ({"truncated_importance_sampling": None, "importance_correction": "mask"}, "importance_correction"),
        (
            {"truncated_importance_sampling": None, "importance_correction_level": "sequence"},
            "importance_correction_level",
        ),
        ({"overlong_buffer": 8}, "overlong_buffer=8"),
        ({"overlong_penalty": 0.5}, "overlong_penalty=0.5"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused_by_name(options: dict[str, Any], refused: str) -> None:
    with pytest.raises(UnsupportedOption) as caught:
        TrainConfig(**options)
    assert refused in caught.value.message
    assert caught.value.cause
    with pytest.raises(UnsupportedOption):
        ResolvedTrainConfig(learning_rate=1e-3, **options)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (
            {"truncated_importance_sampling": 1.0, "importance_correction": "mask"},
            "truncated_importance_sampling=1.0",
        ),
        ({"overlong_max_length": 8}, "overlong_max_length=8"),
        ({"overlong_max_length": 8, "overlong_buffer": 9}, "overlong_buffer=9"),
        ({"group_mean_range": (0.8, 0.2)}, "group_mean_range"),
    ],
)
def test_values_that_contradict_each_other_are_refused(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**options)
    assert wrong in caught.value.message


@pytest.mark.parametrize(
    ("options", "clip", "level"),
    [
        ({}, (1.0, 4.0), "token"),
        ({"loss_fn": "ppo"}, (0.2, 0.28), "token"),
        ({"loss_fn": "cispo", "importance_sampling_level": "average"}, (1.0, 4.0), "average"),
        ({"loss_fn": "gspo"}, (3e-4, 4e-4), "sequence"),
        ({"loss_fn": "gspo", "importance_sampling_level": "sequence"}, (3e-4, 4e-4), "sequence"),
        ({"epsilon": 0.1}, (0.1, 4.0), "token"),
        ({"loss_fn": "my.losses:smooth", "epsilon_high": 0.5}, (0.2, 0.5), "token"),
    ],
)
def test_what_is_not_set_is_the_losss_own(
    options: dict[str, Any], clip: tuple[float, float], level: str
) -> None:
    config = TrainConfig(**options)
    assert (config.clip, config.level) == (clip, level)


@pytest.mark.parametrize(
    ("parameters", "rate", "entropy"),
    [(10**6, 1e-3, 0.0), (135 * 10**6, 5e-4, 0.05), (800 * 10**6, 1.5e-4, 0.0)],
)
def test_what_is_not_set_resolves_by_the_models_size(parameters: int, rate: float, entropy: float) -> None:
    chosen = chosen_by_size(TrainConfig(), parameters, whole=False)
    assert chosen == pytest.approx({"learning_rate": rate, "entropy_coef": entropy})
    whole = chosen_by_size(TrainConfig(), parameters, whole=True)
    assert whole == pytest.approx({"learning_rate": rate / 10, "entropy_coef": entropy})
    said = TrainConfig(learning_rate=2e-4, entropy_coef=0.0)
    assert chosen_by_size(said, parameters, whole=False) == {}
    assert chosen_by_size(TrainConfig(entropy_coef=0.0), parameters, whole=False) == pytest.approx(
        {"learning_rate": rate}
    )


@pytest.mark.parametrize(
    ("options", "entropy"),
    [
        ({"advantages": "dr_grpo"}, 0.0),
        ({"normalize_advantages": False}, 0.0),
        ({"advantages": "rloo"}, 0.0),
        ({"advantages": "rloo", "normalize_advantages": True}, 0.05),
        ({"advantages": "reinforce++"}, 0.05),
        ({"advantages": "rank"}, 0.05),
    ],
)
def test_no_entropy_bonus_is_chosen_that_could_outweigh_the_advantages(
    options: dict[str, Any], entropy: float
) -> None:
    assert chosen_by_size(TrainConfig(**options), 135 * 10**6, whole=False)["entropy_coef"] == entropy


def test_advantages_are_normalised_by_grpo_unless_told_otherwise() -> None:
    assert TrainConfig().normalizes
    assert not TrainConfig(normalize_advantages=False).normalizes
    assert not TrainConfig(advantages="rloo").normalizes
    assert TrainConfig(advantages="rloo", normalize_advantages=True).normalizes


def test_the_estimator_follows_where_the_penalty_goes() -> None:
    assert TrainConfig(kl_penalty_coef=0.1).estimator == "k1"
    assert TrainConfig(kl_penalty_coef=0.1, kl_penalty="loss").estimator == "k3"


def test_openpipe_arts_option_ppo_names_a_loss() -> None:
    assert TrainConfig(ppo=True).loss_fn == "ppo"  # type: ignore[call-arg]
    assert TrainConfig(ppo=False).loss_fn == "cispo"  # type: ignore[call-arg]
    assert TrainConfig(ppo=False, loss_fn="cispo").loss_fn == "cispo"  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="ppo names the loss ppo"):
        TrainConfig(ppo=True, loss_fn="cispo")  # type: ignore[call-arg]


def test_a_configuration_survives_its_json() -> None:
    config = ResolvedTrainConfig(
        learning_rate=1e-3,
        loss_fn="gspo",
        kl_penalty_coef=0.1,
        group_mean_range=(0.2, 0.8),
        advantages="rank",
    )
    assert ResolvedTrainConfig.model_validate_json(config.model_dump_json()) == config
    assert ResolvedTrainConfig(**config.model_dump()) == config


def test_an_adapters_options_by_other_words() -> None:
    for name, meant in (("rank", "r"), ("lora_alpha", "alpha"), ("aplha", "alpha")):
        with pytest.raises(ValueError, match=f"no option '{name}'; did you mean {meant}"):
            LoraConfig(**{name: 4})
