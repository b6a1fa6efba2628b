"""`art.rollout(model)`: one open rollout, with a base URL and a key for any agent.

async with art.rollout(model, scenario_id="paris") as session:
    await my_agent(base_url=session.base_url, api_key=session.api_key)
    session.reward = 1.0
groups.append(session.trajectory)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import httpx2

from art.errors import ArtError, Conflict, InvalidInput
from art.rollouts.collect import report
from art.rollouts.failure import is_infrastructure
from art.rollouts.overrides import overrides
from art.rollouts.scope import RolloutScope, new_rollout_id, rollout_scope
from art.trajectories import MetadataValue, Trajectory, check_reward
from art.types import wire
from art.types.policy import Limits, Purpose, Sampling
from art.utils.background import run_blocking

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from openai import AsyncOpenAI, OpenAI

    from art.backends.api import ControlApi, FinishStatus
    from art.backends.clients import SessionClients
    from art.model import Model

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""How long a failed rollout spends on telling the server before its own error goes on."""


def rollout(
    model: Model[Any, Any],
    *,
    purpose: Purpose | str = Purpose.TRAIN,
    sampling: Sampling | None = None,
    scenario_id: str | None = None,
    group_id: str | None = None,
    member: int = 0,
    run_seed: int = 0,
    seed_key: str = "",
    limits: Limits | Mapping[str, Any] | None = None,
    metadata: Mapping[str, MetadataValue] | None = None,
    step: int | None = None,
    auxiliary: Literal["detect", "train"] = "detect",
) -> RolloutSession:
    """Open a rollout of `model` for the time of a `with` or `async with` block.

    `purpose`: "train" samples as training wants it (temperature 1, no truncation) whatever the agent asks, and
    an unknown model name means this model; "evaluate" leaves the agent's values. `sampling` ("training",
    "caller") decides that alone. `step` pins an earlier step. `limits` bounds calls, tokens and seconds.
    What is drawn follows from `run_seed`, `scenario_id`, `member`, the step and `seed_key`, which says where in the run
    this is if the others do not (a scenario that comes twice in a batch).
    `auxiliary`: "detect" leaves calls on the side (titles, summaries) out of training, "train" leaves none out.
    """
    if model.server_config() is None:
        raise InvalidInput(
            f"{model.name} is not served by ART",
            hint="open rollouts of an art.TrainableModel registered with a backend",
        )
    name = f"{model.project}/{model.name}" + ("" if step is None else f"@{step}")
    request = wire.OpenRollout(
        model=name,
        rollout_id=new_rollout_id(),
        purpose=Purpose(purpose),
        sampling=sampling,
        scenario_id=scenario_id,
        group_id=group_id,
        member=member,
        run_seed=run_seed,
        seed_key=seed_key,
        limits=Limits.model_validate(limits or {}),
        metadata=dict(metadata or {}),
        auxiliary=auxiliary,
    )
    return RolloutSession(model, request)


class RolloutSession:
    """One open rollout. Set `reward` inside the block; read `trajectory` after it."""

    def __init__(self, model: Model[Any, Any], request: wire.OpenRollout) -> None:
        self.model = model
        self._request = request
        self.rollout_id = request.rollout_id or new_rollout_id()
        self.metrics: dict[str, float | int | bool] = {}
        self.metadata: dict[str, MetadataValue] = dict(request.metadata)
        self.agent_rewards: dict[str, float] = {}
        """By agent label (the header `X-ART-Agent` of its calls), for calls without a reward of their own."""
        self.call_rewards: dict[str, float] = {}
        """By call id (`choice.art["call_id"]`), or `<call id>/<choice>`."""
        self._opened: wire.RolloutOpened | None = None
        self._base_url = ""
        self._reward: float | None = None
        self._trajectory: Trajectory | None = None
        self._scope = RolloutScope(self.rollout_id, opened_by_header=False)
        self._inside: AbstractContextManager[RolloutScope] | None = None

    # -- what the agent needs

    @property
    def base_url(self) -> str:
        """Base URL for the agent's client; calls to it belong to this rollout."""
        self._require_open()
        return self._base_url

    @property
    def api_key(self) -> str:
        """A key that is good for this rollout only."""
        return self._require_open().api_key

    @property
    def model_name(self) -> str:
        """The pinned name of the model, `project/name@step`."""
        return self._require_open().model

    @property
    def step(self) -> int:
        """The step that serves this rollout."""
        return self._require_open().step

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for an agent, or a child process, that finds its model and key there.

        The Anthropic SDKs append `/v1/messages` to their base URL, OpenAI's only what comes behind `/v1`.
        """
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
            "ART_ROLLOUT_ID": self.rollout_id,
        }

    def openai_client(self) -> AsyncOpenAI:
        """An AsyncOpenAI bound to this rollout."""
        return self._clients().openai()

    def sync_openai_client(self) -> OpenAI:
        """An OpenAI (synchronous) bound to this rollout."""
        return self._clients().sync_openai()

    def anthropic_client(self) -> AsyncAnthropic:
        """An AsyncAnthropic bound to this rollout. ConfigError where anthropic is not installed."""
        return self._clients().anthropic()

    def sync_anthropic_client(self) -> Anthropic:
        """An Anthropic (synchronous) bound to this rollout. ConfigError where anthropic is not installed."""
        return self._clients().sync_anthropic()

    def _clients(self) -> SessionClients:
        from art.backends.clients import SessionClients

        return SessionClients(
            self.model.backend().connection,
            url=self.base_url.removesuffix("/v1"),
            key=self.api_key,
            model=(self.model.project, self.model.name),
            recording=self._scope.recording,
        )

    # -- what comes of it

    @property
    def reward(self) -> float | None:
        """The reward; None while unset. InvalidReward when set to what is no finite number."""
        return self._reward

    @reward.setter
    def reward(self, value: float) -> None:
        self._reward = check_reward(value)
        if self._trajectory is not None:
            self._trajectory.reward = self._reward

    async def set_reward(self, value: float) -> None:
        """Set the reward and have the server keep it now, agents' and calls' rewards with it; also after the block."""
        self.reward = value
        if self._trajectory is not None:
            self._trajectory.metrics.update(self.metrics)
        await self._keep_rewards()

    async def _keep_rewards(self) -> None:
        """Have the server keep the rewards that are set: the rollout's, its agents' and its calls'."""
        rewards = wire.SetReward(
            reward=self._reward,
            agents={label: check_reward(value) for label, value in self.agent_rewards.items()},
            calls={name: check_reward(value) for name, value in self.call_rewards.items()},
            metrics=self.metrics,
            metadata=self.metadata,
        )
        await self._api.set_rewards(self.rollout_id, rewards)

    @property
    def trajectory(self) -> Trajectory:
        """The rollout as data, once the block has ended: it selects all calls the server recorded."""
        if self._trajectory is None:
            raise Conflict(
                f"rollout {self.rollout_id} has no trajectory yet",
                hint="read session.trajectory after the `with art.rollout(...)` block",
            )
        return self._trajectory

    # -- life

    async def __aenter__(self) -> Self:
        await self._open()
        self._enter_scope()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_scope()
        await self._close(error)

    def __enter__(self) -> Self:
        run_blocking(self._open)
        self._enter_scope()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_scope()
        run_blocking(lambda: self._close(error))

    def _enter_scope(self) -> None:
        self._scope.owner = (self.model.backend().connection, self.model.project, self.model.name)
        self._inside = rollout_scope(self._scope)
        self._inside.__enter__()

    def _leave_scope(self) -> None:
        if self._inside is not None:
            self._inside.__exit__(None, None, None)
            self._inside = None

    @property
    def _api(self) -> ControlApi:
        return self.model.backend().connection.api

    async def _open(self) -> None:
        if self._opened is not None:
            raise Conflict(f"rollout {self.rollout_id} was opened before", hint="call art.rollout again")
        await self.model.ready()
        connection = self.model.backend().connection
        self._opened = await connection.api.open_rollout(self._request)
        # Built from the address this side uses: the server may be behind a tunnel.
        endpoint = await connection.endpoint()
        self._base_url = f"{endpoint.url}/r/{self.rollout_id}/v1"

    async def _close(self, error: BaseException | None) -> None:
        if error is not None:
            await self._close_failed(error)
            return
        await report(self._scope, None)
        self.metrics = {**self._scope.recording.counts, **self.metrics}
        if self._reward is not None or self.agent_rewards or self.call_rewards:
            await self._keep_rewards()
        done: FinishStatus = "evaluated" if self._request.purpose is Purpose.EVALUATE else "finished"
        await self._api.finish_rollout(self.rollout_id, done)
        info = await self._api.rollout(self.rollout_id)
        self.model.backend().connection.notices.show(
            overrides(info.calls, model=self.model.name), prefix=f"{self.model.name}: "
        )
        self._trajectory = self._as_trajectory(info)

    async def _close_failed(self, error: BaseException) -> None:
        # A cancelled run says nothing about the agent.
        ours = is_infrastructure(error) or not isinstance(error, Exception)
        status: FinishStatus = "infra_error" if ours else "agent_error"
        reason = f"{type(error).__name__}: {error}"[:2000]
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            reason = "it was stopped from outside before its agent had ended"
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await report(self._scope, error)
                await self._api.finish_rollout(self.rollout_id, status, reason)
        except (ArtError, TimeoutError, httpx2.TransportError) as failure:
            log.warning(
                "the end of rollout %s was not recorded: %s", self.rollout_id, str(failure) or "no answer"
            )

    def _as_trajectory(self, info: wire.RolloutInfo) -> Trajectory:
        fields: dict[str, Any] = {} if self._reward is None else {"reward": self._reward}
        return Trajectory(
            messages_and_choices=[message.get("choice") or message for message in info.messages],
            metrics={**info.metrics, **self.metrics},
            metadata={**info.metadata, **self.metadata},
            rollout_id=self.rollout_id,
            selects_rollout=True,
            initial_policy_version=info.step,
            final_policy_version=info.step,
            sampled_tokens=sum(choice.token_count for call in info.calls for choice in call.choices),
            **fields,
        )

    def _require_open(self) -> wire.RolloutOpened:
        if self._opened is None:
            raise Conflict(
                "the rollout is not open yet",
                hint="use it inside `async with art.rollout(model) as session:`",
            )
        return self._opened
