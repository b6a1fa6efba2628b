"""`art.evaluate(model, rollout, scenarios)`: how good an agent is with a model, and how sure that is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art.errors import Conflict, InvalidInput
from art.evals.plain import PlainSession
from art.evals.result import EvalResult, EvalRun, Prices, ScenarioRuns
from art.rollouts.failure import is_infrastructure
from art.rollouts.fit import RETRY_SECONDS, scenario_id
from art.rollouts.gather import gather_trajectories
from art.rollouts.wrap import RewardFunction, WrappedAgent, as_agent
from art.trajectories import Trajectory, TrajectoryGroup
from art.types.policy import Purpose

if TYPE_CHECKING:
    from art.model import Model

VAL = "val"


async def evaluate(
    model: Model[Any, Any],
    rollout: Any,
    scenarios: Sequence[Any],
    *,
    reward: RewardFunction | None = None,
    repeats: int = 1,
    step: int | None = None,
    success_at: float = 1.0,
    prices: Prices | Mapping[str, float] | None = None,
    split: str | None = VAL,
    max_concurrency: int | None = 64,
    max_exceptions: int | float = 0.25,
    infra_retries: int = 3,
    seed: int = 0,
) -> EvalResult:
    """Run the agent `repeats` times on each scenario and judge what it does.

    `rollout` and `reward` are as for `art.fit`. `model` is a TrainableModel on a backend, at its latest step or at
    `step`, or an `art.Model` with the base URL of any OpenAI-compatible service. Sessions have the purpose
    `evaluate`: the agent's own sampling parameters hold, and nothing of them is trained.

    A run passes (pass@k) with a reward of at least `success_at`. `prices` are those of a million prompt and
    completion tokens. The runs are logged under `split`; None logs nothing. Exceptions of the agent leave a run
    without a reward, up to `max_exceptions` (a count, or a share below 1), beyond which the last one is raised;
    failures of infrastructure are retried `infra_retries` times and are never a reward.
    """
    _check(scenarios, repeats=repeats, infra_retries=infra_retries)
    agent = as_agent(rollout, reward)
    at = await _step(model, step)
    runner = _Runner(model=model, agent=agent, step=at, seed=seed, retries=infra_retries)
    began = time.monotonic()
    found = [[EvalRun() for _ in range(repeats)] for _ in scenarios]
    with model.counting("eval"):
        results = await gather_trajectories(
            [
                runner.run(scenario, member, found[number])
                for number, scenario in enumerate(scenarios)
                for member in range(repeats)
            ],
            pbar_desc="evaluation",
            max_exceptions=max_exceptions,
            max_concurrency=1 if agent.exclusive else max_concurrency,
        )
    if split is not None:
        groups = [TrajectoryGroup(results[n * repeats : (n + 1) * repeats]) for n in range(len(scenarios))]
        metrics = {"time/step_eval_s": time.monotonic() - began}
        await model.log(groups, split=split, metrics=metrics, step=at)
    name = model.get_inference_name() if at is None else f"{model.project}/{model.name}@{at}"
    return EvalResult(
        model=name,
        scenarios=[
            ScenarioRuns(id=label, runs=runs) for label, runs in zip(_labels(scenarios), found, strict=True)
        ],
        repeats=repeats,
        seed=seed,
        success_at=success_at,
        prices=None if prices is None else Prices.model_validate(prices),
    )


def _check(scenarios: object, **counts: int) -> None:
    if isinstance(scenarios, str | bytes) or not isinstance(scenarios, Sequence):
        raise InvalidInput(
            f"evaluate was given a {type(scenarios).__name__} as its scenarios",
            hint="pass a list of them: evaluate(model, agent, [first, second, ...])",
        )
    if not scenarios:
        raise InvalidInput("evaluate needs at least one scenario", hint="pass a non-empty list of scenarios")
    for name, value in counts.items():
        if value < (least := 0 if name == "infra_retries" else 1):
            raise InvalidInput(f"{name} is {value}", hint=f"give at least {least}")


async def _step(model: Any, step: int | None) -> int | None:
    """The step that is evaluated, once the model is set up on its server; None for one that ART does not serve."""
    if model.server_config() is None:
        if step is not None:
            raise InvalidInput(
                f"{model.name} has no steps", hint="leave `step` out; ART does not serve this model"
            )
        return None
    latest: int = await model.get_step()
    return latest if step is None else step


def _labels(scenarios: Sequence[Any]) -> list[str]:
    """The scenarios' ids, told apart where two are the same."""
    seen: dict[str, int] = {}
    labels = []
    for scenario in scenarios:
        name = scenario_id(scenario)
        seen[name] = seen.get(name, 0) + 1
        labels.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return labels


@dataclass(kw_only=True)
class _Runner:
    """Runs the agent, one scenario at a time, with retries."""

    model: Any
    agent: WrappedAgent
    step: int | None
    """None for a model that ART does not serve."""
    seed: int
    retries: int
    _pause: float = field(default=RETRY_SECONDS)

    async def run(self, scenario: Any, member: int, runs: list[EvalRun]) -> Trajectory:
        """One run; `runs[member]` says what came of it, also where the exception is raised."""
        for attempt in range(self.retries + 1):
            started = time.monotonic()
            try:
                trajectory, run = await self._once(scenario, member)
            except Exception as error:
                infra = is_infrastructure(error)
                runs[member] = EvalRun(
                    error=f"{type(error).__name__}: {error}",
                    infrastructure=infra,
                    seconds=time.monotonic() - started,
                )
                if attempt == self.retries or not infra:
                    raise
            else:
                runs[member] = run
                return trajectory
            await asyncio.sleep(self._pause * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, scenario: Any, member: int) -> tuple[Trajectory, EvalRun]:
        started = time.monotonic()
        if self.step is None:
            return await self._plain(scenario, started)
        trajectory = await self.agent.rollout(
            self.model,
            scenario,
            purpose=Purpose.EVALUATE,
            scenario_id=scenario_id(scenario),
            member=member,
            run_seed=self.seed,
            step=self.step,
        )
        seconds = time.monotonic() - started
        api = self.model.backend().connection.api
        info = await api.rollout(str(trajectory.rollout_id))
        self._require_step({call.version for call in info.calls})
        return trajectory, EvalRun(
            reward=trajectory.reward,
            seconds=seconds,
            calls=len(info.calls),
            prompt_tokens=sum(call.prompt_token_count for call in info.calls),
            completion_tokens=sum(choice.token_count for call in info.calls for choice in call.choices),
            rollout_id=trajectory.rollout_id,
        )

    def _require_step(self, versions: set[str]) -> None:
        """Conflict when the agent asked for another step than the one that is evaluated."""
        wanted = f"{self.model.project}/{self.model.name}@{self.step}"
        if others := sorted(versions - {wanted}):
            raise Conflict(
                f"the agent was to be evaluated with {wanted} and called {', '.join(others)}",
                hint="let it ask for the model_name that it is given (session.model_name), or for any other name",
            )

    async def _plain(self, scenario: Any, started: float) -> tuple[Trajectory, EvalRun]:
        session = PlainSession(self.model)
        with session.open():
            result, reward = await self.agent.run_with(session, scenario)
        seconds = time.monotonic() - started
        recording = session.recording
        trajectory = result if isinstance(result, Trajectory) else recording.trajectory
        trajectory.reward = reward
        return trajectory, EvalRun(
            reward=reward,
            seconds=seconds,
            calls=recording.calls,
            prompt_tokens=recording.prompt_tokens,
            completion_tokens=recording.completion_tokens,
        )
