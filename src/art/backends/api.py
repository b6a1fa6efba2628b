"""The control API as typed methods; `art.types.wire` holds what goes over the wire."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from art.types import wire
from art.types.wire_sft import SubmitSft

if TYPE_CHECKING:
    from art.backends.http import Connection

REGISTER_SECONDS = 900.0
"""Registration may download and convert a base model, and loads it into the engine."""
FinishStatus = Literal["finished", "evaluated", "agent_error", "infra_error"]


class ControlApi:
    """One method per route. Each raises the art error that the server answered."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def health(self) -> wire.Health:
        return wire.Health.model_validate(await self._connection.request("GET", "/api/v1/health"))

    # -- models

    async def register(self, request: wire.RegisterModel) -> wire.ModelInfo:
        answer = await self._connection.request(
            "POST", "/api/v1/models", body=request, read_seconds=REGISTER_SECONDS
        )
        return wire.ModelInfo.model_validate(answer)

    async def model(self, project: str, name: str) -> wire.ModelInfo:
        return wire.ModelInfo.model_validate(await self._connection.request("GET", _model(project, name)))

    async def checkpoints(self, project: str, name: str) -> list[wire.Checkpoint]:
        answer = await self._connection.request("GET", f"{_model(project, name)}/checkpoints")
        return wire.CheckpointList.model_validate(answer).checkpoints

    async def delete_checkpoints(self, project: str, name: str, steps: list[int]) -> wire.DeletedCheckpoints:
        answer = await self._connection.request(
            "DELETE", f"{_model(project, name)}/checkpoints", body=wire.DeleteCheckpoints(steps=steps)
        )
        return wire.DeletedCheckpoints.model_validate(answer)

    async def fork(self, project: str, name: str, request: wire.ForkModel) -> wire.ModelInfo:
        """Register `request`'s model as a copy of a step of `project/name`."""
        answer = await self._connection.request(
            "POST", f"{_model(project, name)}/fork", body=request, read_seconds=REGISTER_SECONDS
        )
        return wire.ModelInfo.model_validate(answer)

    async def roll_back(self, project: str, name: str, step: int) -> wire.ModelInfo:
        answer = await self._connection.request(
            "POST",
            f"{_model(project, name)}/rollback",
            body=wire.RollBack(step=step),
            read_seconds=REGISTER_SECONDS,
        )
        return wire.ModelInfo.model_validate(answer)

    async def log(self, project: str, name: str, request: wire.LogRequest) -> wire.Logged:
        answer = await self._connection.request(
            "POST", f"{_model(project, name)}/log", body=request, idempotency_key=uuid.uuid4().hex
        )
        return wire.Logged.model_validate(answer)

    async def history(self, project: str, name: str) -> list[dict[str, object]]:
        answer = await self._connection.request("GET", f"{_model(project, name)}/history")
        return wire.HistoryRows.model_validate(answer).rows

    # -- rollouts

    async def open_rollout(self, request: wire.OpenRollout) -> wire.RolloutOpened:
        answer = await self._connection.request("POST", "/api/v1/rollouts", body=request)
        return wire.RolloutOpened.model_validate(answer)

    async def rollout(self, rollout_id: str) -> wire.RolloutInfo:
        return wire.RolloutInfo.model_validate(await self._connection.request("GET", _rollout(rollout_id)))

    async def set_reward(
        self,
        rollout_id: str,
        reward: float,
        *,
        metrics: dict[str, float | int | bool] | None = None,
        metadata: dict[str, float | int | str | bool | None] | None = None,
    ) -> wire.RolloutInfo:
        body = wire.SetReward(reward=reward, metrics=metrics or {}, metadata=metadata or {})
        return await self.set_rewards(rollout_id, body)

    async def set_rewards(self, rollout_id: str, body: wire.SetReward) -> wire.RolloutInfo:
        """Rewards of the rollout, of its agents and of its calls."""
        answer = await self._connection.request("POST", f"{_rollout(rollout_id)}/reward", body=body)
        return wire.RolloutInfo.model_validate(answer)

    async def finish_rollout(
        self, rollout_id: str, status: FinishStatus, reason: str = ""
    ) -> wire.RolloutInfo:
        body = wire.FinishRollout(status=status, reason=reason)
        answer = await self._connection.request("POST", f"{_rollout(rollout_id)}/finish", body=body)
        return wire.RolloutInfo.model_validate(answer)

    # -- jobs

    async def submit(self, request: wire.SubmitTrain | SubmitSft, *, key: str) -> wire.JobInfo:
        path = "/api/v1/jobs/sft" if isinstance(request, SubmitSft) else "/api/v1/jobs"
        answer = await self._connection.request("POST", path, body=request, idempotency_key=key)
        return wire.JobInfo.model_validate(answer)

    async def job(self, job_id: str) -> wire.JobInfo:
        return wire.JobInfo.model_validate(await self._connection.request("GET", f"/api/v1/jobs/{job_id}"))

    async def cancel_job(self, job_id: str) -> wire.JobInfo:
        answer = await self._connection.request("POST", f"/api/v1/jobs/{job_id}/cancel")
        return wire.JobInfo.model_validate(answer)


def _model(project: str, name: str) -> str:
    return f"/api/v1/models/{quote(project, safe='')}/{quote(name, safe='')}"


def _rollout(rollout_id: str) -> str:
    return f"/api/v1/rollouts/{quote(rollout_id, safe='')}"
