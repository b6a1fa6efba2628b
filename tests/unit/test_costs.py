"""Costs of paid models: what an answer says, what a price makes of it, and what nobody knows."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.completion_usage import CompletionUsage, PromptTokensDetails

import art
from art.costs import MODEL_PRICING, ModelPricing, cost_of, get_model_pricing, usage_of
from art.errors import InvalidInput
from art.metrics import UNPRICED, MetricsBuilder, track_api_cost

PRICE = ModelPricing(prefill=2.0, sample=8.0, cached_prefill=0.5, cache_creation=3.0)


def openai_answer(prompt: int, completion: int, cached: int = 0) -> Any:
    details = PromptTokensDetails(cached_tokens=cached)
    usage = CompletionUsage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion, prompt_tokens_details=details
    )  # fmt: skip
    return SimpleNamespace(usage=usage)


@pytest.fixture
def no_notices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    shown: list[str] = []
    monkeypatch.setattr("art.metrics._notices.show", lambda notes, prefix="": shown.extend(notes))
    return shown


def test_prices_have_a_date_and_a_source() -> None:
    assert len(MODEL_PRICING) > 20
    for name, price in MODEL_PRICING.items():
        assert price.source.startswith("https://"), name
        assert price.as_of.startswith("20"), name
        assert 0 < price.prefill <= price.sample, name
        assert price.cached_prefill is None or price.cached_prefill < price.prefill, name


@pytest.mark.parametrize(
    "name", ["gpt-4.1", "openai/gpt-4.1", "gpt-4.1-2025-04-14", "openai/gpt-4.1-2025-04-14", " gpt-4.1 "]
)
def test_a_model_is_found_by_the_names_that_it_goes_by(name: str) -> None:
    assert get_model_pricing(name) == MODEL_PRICING["gpt-4.1"]


def test_a_model_that_nobody_knows_has_no_price() -> None:
    assert get_model_pricing("gpt-4.1-superfast") is None
    assert get_model_pricing("") is None


def test_a_program_adds_a_price_for_itself() -> None:
    MODEL_PRICING["acme/one"] = PRICE
    try:
        assert get_model_pricing("acme/one") == PRICE
    finally:
        del MODEL_PRICING["acme/one"]
    assert get_model_pricing("acme/one") is None


def test_cached_tokens_are_among_openais_prompt_tokens_and_beside_anthropics() -> None:
    assert cost_of(openai_answer(1000, 100, cached=400), PRICE) == pytest.approx(
        (600 * 2 + 400 * 0.5 + 100 * 8) / 1e6
    )
    responses = {
        "usage": {"input_tokens": 1000, "output_tokens": 100, "input_tokens_details": {"cached_tokens": 400}}
    }
    assert cost_of(responses, PRICE) == pytest.approx((600 * 2 + 400 * 0.5 + 100 * 8) / 1e6)
    anthropic = {
        "usage": {"input_tokens": 600, "output_tokens": 100, "cache_read_input_tokens": 400, "cache_creation_input_tokens": 50}
    }  # fmt: skip
    assert cost_of(anthropic, PRICE) == pytest.approx((600 * 2 + 400 * 0.5 + 50 * 3 + 100 * 8) / 1e6)
    dear = ModelPricing(prefill=2.0, sample=8.0)
    assert cost_of(openai_answer(1000, 0, cached=400), dear) == pytest.approx(1000 * 2 / 1e6)


@pytest.mark.parametrize(
    "answer",
    [None, {}, {"usage": None}, {"usage": {}}, {"usage": {"prompt_tokens": "many"}}, {"usage": {"prompt_tokens": True}},
     {"usage": {"prompt_tokens": float("nan")}}, {"usage": {"prompt_tokens": -1}}, "text", 7],
)  # fmt: skip
def test_an_answer_that_says_nothing_has_no_usage(answer: Any) -> None:
    assert usage_of(answer) is None
    assert cost_of(answer, PRICE) is None


def test_what_the_answer_says_it_cost_is_taken() -> None:
    assert cost_of({"usage": {"cost": 0.25, "prompt_tokens": 10}}, PRICE) == 0.25
    assert cost_of({"usage": {"cost": {"total_cost": 0.5}}}, None) == 0.5


class TestBuilder:
    def test_costs_come_under_their_context_and_are_summed(self) -> None:
        builder = MetricsBuilder("train")
        builder.add_response_cost(
            "judge/ruler", openai_answer(1000, 100), provider="openai", model_name="gpt-4.1"
        )
        builder.add_cost("gpu", 1.0)
        first = asyncio.run(builder.flush())
        assert first["costs/train/judge/ruler"] == pytest.approx(0.0028)
        assert first["costs/train"] == first["costs/train/judge"] == first["costs/train/judge/ruler"]
        assert first["costs/all"] == pytest.approx(1.0028)
        builder.add_cost("gpu", 2.0)
        second = asyncio.run(builder.flush())
        assert (second["costs/gpu"], second["costs/all"]) == (2.0, 2.0)
        assert (second["costs/cum/gpu"], second["costs/cum/all"]) == (3.0, pytest.approx(3.0028))
        assert asyncio.run(builder.flush()) == {}

    def test_state_goes_on_in_another_program(self) -> None:
        builder = MetricsBuilder("train")
        builder.add_data(step_actor_tokens=10, scenario_ids=["a", "b"])
        asyncio.run(builder.flush())
        other = MetricsBuilder("train")
        other.load_state_dict(builder.state_dict())
        other.add_data(step_actor_tokens=5, scenario_ids=["b", "c"])
        row = asyncio.run(other.flush())
        assert (row["data/cum/actor_tokens"], row["data/cum/num_unique_scenarios"]) == (15.0, 3.0)

    def test_contexts_are_flushed_by_themselves_and_share_their_sums(self) -> None:
        builder = MetricsBuilder("train")
        evaluation = builder.for_cost_context("eval")
        assert builder.for_cost_context("train") is builder
        builder.add_cost("train/llm", 1.0)
        evaluation.add_cost("eval/llm", 2.0)
        assert asyncio.run(evaluation.flush())["costs/all"] == 2.0
        assert asyncio.run(builder.flush())["costs/cum/all"] == 3.0

    def test_a_price_of_the_programs_own_wins(self) -> None:
        builder = MetricsBuilder("train")
        builder.register_model_pricing("gpt-4.1", prompt_per_million=100.0, completion_per_million=0.0)
        cost = builder.for_cost_context("eval").add_response_cost(
            "judge", openai_answer(10_000, 1), provider="openai", model_name="gpt-4.1"
        )
        assert cost == pytest.approx(1.0)
        here = builder.add_response_cost(
            "judge", openai_answer(10_000, 1), provider="openai", model_name="gpt-4.1", prompt_price_per_million=200.0
        )  # fmt: skip
        assert here == pytest.approx(2.0)

    def test_a_providers_own_extractor_is_asked(self) -> None:
        builder = MetricsBuilder("train")
        builder.register_cost_extractor("Acme", lambda answer: answer["bill"])
        assert builder.add_response_cost("x", {"bill": 3.0}, provider="acme", model_name="m") == 3.0

    def test_a_model_without_a_price_is_counted_and_said_and_never_free(self, no_notices: list[str]) -> None:
        builder = MetricsBuilder("train")
        assert (
            builder.add_response_cost("judge", openai_answer(9, 9), provider="p", model_name="nobody/knows")
            is None
        )
        row = asyncio.run(builder.flush())
        assert row[UNPRICED] == 1.0
        assert not [name for name in row if name.startswith("costs/")]
        assert "nobody/knows" in no_notices[0]

    @pytest.mark.parametrize(
        ("key", "value"),
        [("reward", 1.0), ("data/cum/x", 1.0), ("data/step_x", float("nan")), ("costs/a", float("inf"))],
    )
    def test_what_cannot_be_counted_is_refused(self, key: str, value: float) -> None:
        with pytest.raises(InvalidInput):
            MetricsBuilder("train").add_metric(key, value)

    def test_a_sum_and_its_part_cannot_both_be_counted(self) -> None:
        builder = MetricsBuilder("train")
        builder.add_cost("train/judge", 1.0)
        for path in ("train", "train/judge/ruler"):
            with pytest.raises(InvalidInput, match="cannot both be counted"):
                builder.add_cost(path, 1.0)

    def test_nothing_is_lost_between_threads(self) -> None:
        builder = MetricsBuilder("train")
        flushed: list[dict[str, float]] = []

        def count() -> None:
            for _ in range(500):
                builder.add_cost("train/llm", 1.0)

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            flushed.append(asyncio.run(builder.flush()))
        flushed.append(asyncio.run(builder.flush()))
        assert sum(row.get("costs/train/llm", 0.0) for row in flushed) == 2000.0
        assert builder.state_dict()["cum_state"]["costs/cum/all"] == 2000.0

    def test_seconds_are_measured(self) -> None:
        builder = MetricsBuilder("train")
        with builder.measure("time/step_eval_s"):
            pass
        builder.add_user_timing(step_actor_s=2.0)
        builder.add_idle_times(step_trainer_idle_s=1.0)
        row = asyncio.run(builder.flush())
        assert row["time/step_eval_s"] >= 0
        assert (row["time/cum/actor_s"], row["throughput/cum/trainer_idle_s"]) == (2.0, 1.0)


class TestTracking:
    def test_calls_are_counted_where_the_task_says(self) -> None:
        @track_api_cost(source="llm_judge", provider="openai", model_name="openai/gpt-4.1")
        async def judge(tokens: int) -> Any:
            await asyncio.sleep(0)
            return openai_answer(tokens, 0)

        async def main() -> tuple[dict[str, float], dict[str, float]]:
            train, evaluation = MetricsBuilder("train"), MetricsBuilder("eval")

            async def within(builder: MetricsBuilder, tokens: int) -> None:
                with builder.activate_context():
                    await asyncio.gather(judge(tokens), judge(tokens))

            await judge(1_000_000)  # nobody counts it
            await asyncio.gather(within(train, 500_000), within(evaluation, 1_000_000))
            with pytest.raises(LookupError):
                MetricsBuilder.get_active()
            return await train.flush(), await evaluation.flush()

        train, evaluation = asyncio.run(main())
        assert train["costs/train/llm_judge"] == pytest.approx(2.0)
        assert evaluation["costs/eval/llm_judge"] == pytest.approx(4.0)

    def test_the_answer_may_be_a_part_of_the_result(self) -> None:
        @track_api_cost(
            source="judge", provider="openai", model_name="m", response_getter=lambda result: result[1],
            prompt_price_per_million=1.0, completion_price_per_million=1.0,
        )  # fmt: skip
        def judge() -> tuple[float, Any]:
            return 0.5, openai_answer(1_000_000, 0)

        builder = MetricsBuilder("train")
        with builder.activate_context():
            assert judge()[0] == 0.5
        assert asyncio.run(builder.flush())["costs/train/judge"] == pytest.approx(1.0)

    def test_a_decorator_without_names_is_refused_at_once(self) -> None:
        with pytest.raises(InvalidInput, match="source is empty"):
            track_api_cost(source="/", provider="openai", model_name="m")


def test_what_is_counted_for_a_model_comes_into_its_next_row(tmp_path: Any) -> None:
    def made() -> art.Model[Any, Any]:
        return art.Model(name="m", project="p", base_path=str(tmp_path))

    async def main() -> None:
        model = made()
        model.activate_metrics_context("eval")
        MetricsBuilder.get_active().add_response_cost(
            "judge", {"usage": {"cost": 1.5}}, provider="x", model_name="y"
        )
        row = await model.log([art.Trajectory(reward=1.0), art.Trajectory(reward=0.0)], split="val", step=1)
        assert (row["costs/eval/judge"], row["costs/all"], row["costs/cum/all"]) == (1.5, 1.5, 1.5)
        assert row["val/reward_ci_low"] < 0.5 < row["val/reward_ci_high"]
        again = made()  # another program
        again.metrics_builder("eval").add_cost("eval/judge", 1.0)
        assert (await again.log(split="val", step=2))["costs/cum/eval/judge"] == 2.5
        assert again.metrics_builder().state_dict()["cum_state"]["costs/cum/all"] == 2.5

    asyncio.run(main())


def test_costs_of_a_row_that_could_not_be_logged_are_in_the_next(tmp_path: Any) -> None:
    async def main() -> None:
        model: art.Model[Any, Any] = art.Model(name="m", project="p", base_path=str(tmp_path))
        model.metrics_builder().add_cost("train/judge", 1.0)
        with pytest.raises(InvalidInput, match="must be a number"):
            await model.log(split="train", metrics={"x": "y"}, step=1)  # type: ignore[dict-item]
        assert (await model.log(split="train", step=1))["costs/train/judge"] == 1.0
        assert "costs/train/judge" not in await model.log(split="train", step=2)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["costs_judge", "train/costs_judge"])
def test_old_names_of_costs_are_refused(name: str, tmp_path: Any) -> None:
    model: art.Model[Any, Any] = art.Model(name="m", project="p", base_path=str(tmp_path))
    with pytest.raises(InvalidInput, match="costs/train/judge"):
        asyncio.run(model.log(split="train", metrics={name: 1.0}, step=1))
