"""The process of an isolated agent: `python -m art.rollouts.child FOLDER`. See `art.rollouts.isolated`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import traceback
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from art.errors import ArtError, ConfigError, InvalidInput
from art.rollouts.failure import is_infrastructure
from art.rollouts.isolated import REQUEST, RESULT, load
from art.rollouts.recording import Recording, recording_into
from art.rollouts.signature import SessionValues
from art.rollouts.wrap import WrappedAgent
from art.trajectories import Trajectory

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from openai import AsyncOpenAI, OpenAI


@dataclasses.dataclass(frozen=True)
class ChildSession:
    """The rollout as the child knows it: an address, a key, and clients made from them."""

    base_url: str
    api_key: str
    model_name: str
    rollout_id: str
    env: dict[str, str]

    def openai_client(self) -> AsyncOpenAI:
        """An AsyncOpenAI bound to the rollout."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=self.base_url, api_key=self.api_key)

    def sync_openai_client(self) -> OpenAI:
        """An OpenAI bound to the rollout."""
        from openai import OpenAI

        return OpenAI(base_url=self.base_url, api_key=self.api_key)

    def anthropic_client(self) -> AsyncAnthropic:
        """An AsyncAnthropic bound to the rollout."""
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(base_url=self.env["ANTHROPIC_BASE_URL"], api_key=self.api_key)

    def sync_anthropic_client(self) -> Anthropic:
        """An Anthropic bound to the rollout."""
        from anthropic import Anthropic

        return Anthropic(base_url=self.env["ANTHROPIC_BASE_URL"], api_key=self.api_key)

    @property
    def model(self) -> Any:
        """Not here: the model object belongs to the program that wrapped the agent."""
        raise ConfigError(
            "an agent in a process of its own cannot be given the model object",
            hint="let it take `client`, `base_url` and `api_key`, or `model_name`",
        )


class ChildAgent(WrappedAgent):
    """The agent in its process. The environment is its alone, and was set before the agent was imported."""

    async def run(self, task: Any, session: ChildSession | None) -> Any:
        """What the agent returns for the task."""
        return await self._run(task, session)

    async def _share(self, session: SessionValues, stack: AsyncExitStack) -> None:
        """Nothing to tell it: see the class."""


def main(folder: Path) -> None:
    """Run the request in `folder`, write the result beside it."""
    request = json.loads((folder / REQUEST).read_text())
    sys.path.extend(entry for entry in request["python_path"] if entry not in sys.path)
    said = asyncio.run(_answer(request))
    # By rename: the parent sees a whole result or none.
    draft = folder / f"{RESULT}.tmp"
    draft.write_text(json.dumps(said))
    os.replace(draft, folder / RESULT)


async def _answer(request: dict[str, Any]) -> dict[str, Any]:
    session = None if request["session"] is None else ChildSession(**request["session"])
    try:
        agent = ChildAgent(load(request["agent"]), None, entry=request["entry"])
        with recording_into(Recording()) as recording:
            value = await agent.run(request["task"], session)
        return {**_said(value, request["agent"]), "counts": recording.counts}
    except ArtError as error:
        return {"art_error": error.to_dict()}
    except Exception as error:  # noqa: BLE001 - the boundary: the agent's exception crosses as data
        return {
            "error": f"{type(error).__name__}: {error}",
            "traceback": "".join(traceback.format_exception(error)),
            "infrastructure": is_infrastructure(error),
        }


def _said(value: Any, agent: str) -> dict[str, Any]:
    if isinstance(value, Trajectory):
        unset = set() if "reward" in value.model_fields_set else {"reward"}
        return {"trajectory": value.model_dump(mode="json", exclude=unset)}
    try:
        return {"value": json.loads(json.dumps(value, default=_plain))}
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"what {agent} returned cannot leave its process",
            cause=str(error),
            hint="return plain values (text, numbers, lists, dicts), a pydantic model, a dataclass or an art.Trajectory",
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"a {type(value).__name__} is no plain data")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
