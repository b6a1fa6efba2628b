"""`art.wrap(agent, reward)`: an agent as it is, ready to be run, recorded and trained.

The agent may be
- a factory: a class, or a function without a task parameter, that makes a fresh agent for each rollout. It is
  called with the session's environment (OPENAI_BASE_URL, OPENAI_API_KEY) set, under a lock, so that a client it
  makes finds the server by itself; it may also ask for `client`, `base_url`, `api_key`, `model_name`, ...;
- a function of the task, that may ask for the same;
- an instance with `run(task)`, `invoke(task)` or `__call__(task)`. One that made its client earlier must
  already point at the server, and runs one at a time;
- an import path, "package.module:Agent", of any of these.
With isolate="process" each rollout runs in a process of its own; see `art.rollouts.isolated`.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypedDict, cast

from art.errors import ConfigError, Conflict, InvalidInput, UnsupportedOption
from art.rollouts.agent import RolloutAgent
from art.rollouts.environment import session_environment, session_environment_async
from art.rollouts.held_clients import held_clients, pointed_at, require_gateway
from art.rollouts.isolated import IsolatedAgent, load
from art.rollouts.session import RolloutSession
from art.rollouts.session import rollout as open_rollout
from art.rollouts.signature import GIVEN, CallPlan, SessionValues, plan_call
from art.trajectories import Trajectory, check_reward, is_choice
from art.utils.background import run_blocking
from art.utils.console import Notices
from art.utils.threads import in_thread

if TYPE_CHECKING:
    from art.model import TrainableModel

_ENTRIES = ("run", "invoke", "__call__")
"""Methods that take a task, in the order they are looked for."""

RewardFunction = Callable[..., Any]


class Collected(TypedDict):
    """What `collect_trajectory` returns."""

    task: Any
    trajectory: Any
    """What the agent returned; its messages when it returned nothing."""
    reward: float


def wrap(
    agent: Any,
    reward: RewardFunction | None = None,
    *,
    model: TrainableModel[Any, Any] | None = None,
    entry: str | None = None,
    isolate: str | None = None,
) -> WrappedAgent:
    """Wrap an agent without changing it. See the module's text for what an agent may be.

    `reward(result)` or `reward(result, task)`, plain or async, gives the run's reward from what the agent
    returned. `model` is used by `collect_trajectory`; without one the agent runs as it is. `entry` names the
    method that takes the task. `isolate="process"` runs each rollout in a process of its own: for agents that
    cannot share one; what it returns must be plain data.
    """
    if isolate == "process":
        agent = IsolatedAgent.of(agent, entry)
    elif isolate is not None:
        raise UnsupportedOption(
            f"wrap does not support isolate={isolate!r}",
            hint='"process" runs each rollout in a process of its own, None in this one',
        )
    elif isinstance(agent, str):
        agent = load(agent)
    return WrappedAgent(agent, reward, model=model, entry=entry)


class WrappedAgent(RolloutAgent):
    """A wrapped agent. `collect_trajectory(task)` runs it; `rollout(model, scenario)` is for gather and fit."""

    def __init__(
        self,
        agent: Any,
        reward: RewardFunction | None,
        *,
        model: TrainableModel[Any, Any] | None = None,
        entry: str | None = None,
    ) -> None:
        if reward is not None and not callable(reward):
            raise InvalidInput(
                f"the reward is a {type(reward).__name__}, not a function",
                hint="give a function of what the agent returned: art.wrap(agent, lambda answer: 1.0)",
            )
        self._reward = reward
        self._model = model
        self._entry = entry
        self._label = getattr(agent, "__name__", type(agent).__name__)
        self._notices = Notices()
        self._busy = False
        self._lock = threading.Lock()
        self._factory: CallPlan | None = None
        self._plan: CallPlan | None = None
        self._clients: list[Any] = []
        self._isolated: IsolatedAgent | None = None
        if isinstance(agent, IsolatedAgent):
            self._isolated, self._label = agent, agent.label
        elif inspect.isclass(agent):
            self._factory = self._factory_plan(plan_call(agent, label=self._label))
        elif _is_function(agent):
            plan = plan_call(agent, label=self._label)
            if plan.task is None:
                self._factory = plan
            else:
                self._plan = plan
                self._clients = held_clients(agent)
        else:
            self._plan = self._entry_plan(agent)
            self._clients = held_clients(agent)

    def __repr__(self) -> str:
        kind = "factory" if self._factory is not None else "agent"
        kind = "process" if self._isolated is not None else kind
        reward = "" if self._reward is None else f", reward={getattr(self._reward, '__name__', self._reward)}"
        model = "" if self._model is None else f", model={self._model.name}"
        return f"WrappedAgent({kind} {self._label}{reward}{model})"

    @property
    def exclusive(self) -> bool:
        """True when only one rollout may run at a time: the agent is told where the model is by means that
        all its runs share (its own client, or the environment)."""
        return self._factory is None and self._plan is not None and not self._plan.takes_connection

    # -- running

    def collect_trajectory(self, task: Any) -> Collected:
        """Run the agent on one task: its steps and its reward. Works inside a running event loop too."""
        return run_blocking(lambda: self._collect(task))

    async def rollout(
        self, model: TrainableModel[Any, Any], scenario: Any, **session_options: Any
    ) -> Trajectory:
        """One rollout of the agent on `scenario` with `model`, as a trajectory with its reward.

        `session_options` are those of `art.rollout`. The agent's own exception is raised unchanged.
        """
        with self._turn():
            async with open_rollout(model, **session_options) as session:
                result = await self._run(scenario, session)
                if isinstance(result, Trajectory):
                    session.metrics.update(result.metrics)
                    session.metadata.update(result.metadata)
                session.reward = await self._judge(result, scenario)
        if isinstance(result, Trajectory) and any(map(is_choice, result.messages_and_choices)):
            # Its choices say which of the recorded calls are meant.
            result.reward = session.trajectory.reward
            result.metrics = {**session.metrics, **result.metrics}
            result.rollout_id = session.rollout_id
            result.sampled_tokens = session.trajectory.sampled_tokens
            return result
        if not session.trajectory.messages_and_choices:
            self._notices.show([f"{self._label} made no call to {model.name}; such a run cannot be trained"])
        return session.trajectory

    async def run_with(self, session: SessionValues, scenario: Any) -> tuple[Any, float]:
        """One run with what `session` gives, and its reward. Nothing is opened or recorded on a server."""
        with self._turn():
            result = await self._run(scenario, session)
            return result, await self._judge(result, scenario)

    async def __call__(self, model: TrainableModel[Any, Any], scenario: Any) -> Trajectory:
        """`rollout(model, scenario)`, so that a wrapped agent is itself a rollout function."""
        return await self.rollout(model, scenario)

    async def _collect(self, task: Any) -> Collected:
        if self._model is None:
            result = await self._run(task, None)
            reward = await self._judge(result, task)
            return Collected(task=task, trajectory=result, reward=reward)
        kept: list[Any] = []
        with self._turn():
            async with open_rollout(self._model) as session:
                kept.append(await self._run(task, session))
                session.reward = await self._judge(kept[0], task)
        steps = kept[0] if kept[0] is not None else session.trajectory.messages()
        return Collected(task=task, trajectory=steps, reward=session.trajectory.reward)

    async def _run(self, task: Any, session: SessionValues | None) -> Any:
        if self._isolated is not None:
            return await self._isolated.run(task, session)
        plan = self._plan
        if self._factory is not None:
            agent = await self._make(self._factory, session)
            plan = self._entry_plan(agent)
        if plan is None:
            raise ConfigError(f"{self._label} cannot be run")
        async with AsyncExitStack() as stack:
            if session is not None and self.exclusive:
                await self._share(session, stack)
            return await _call(plan, task, session)

    async def _make(self, factory: CallPlan, session: SessionValues | None) -> Any:
        make = factory.bind(None, session)

        def made() -> Any:
            if session is None:
                return make()
            with session_environment(session.env):
                return make()

        agent = await in_thread(made)
        return await agent if inspect.isawaitable(agent) else agent

    async def _share(self, session: SessionValues, stack: AsyncExitStack) -> None:
        """Tell an agent that cannot be told by argument: through its own client, or the environment."""
        if not isinstance(session, RolloutSession):
            if self._clients:
                raise ConfigError(
                    f"{self._label} has a client of its own, which cannot be pointed at another service",
                    hint="let it take a `client` or `base_url`, or wrap a function that makes the agent",
                )
            await stack.enter_async_context(session_environment_async(session.env))
            return
        endpoint = await session.model.backend().connection.endpoint()
        clients = require_gateway(self._clients, endpoint.url)
        if clients:
            stack.enter_context(pointed_at(clients, session.base_url, session.api_key))
        else:
            await stack.enter_async_context(session_environment_async(session.env))

    def _turn(self) -> AbstractContextManager[None]:
        return self._one_at_a_time() if self.exclusive else nullcontext()

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        # Checked and set between two awaits of one loop, or under the lock from several threads.
        with self._lock:
            if self._busy:
                raise Conflict(
                    f"{self._label} is already running",
                    cause="this one instance (or function) is told where the model is through its own client "
                    "or the environment, which two runs cannot share",
                    hint="wrap a factory (the class, or a function that makes the agent), let it take a "
                    "`client` or `base_url`, or run with max_concurrency=1",
                )
            self._busy = True
        try:
            yield
        finally:
            self._busy = False

    # -- reading the agent

    def _factory_plan(self, plan: CallPlan) -> CallPlan:
        if plan.task is not None and plan.task.default is inspect.Parameter.empty:
            raise ConfigError(
                f"{self._label} needs {plan.task.name} to be made, which ART cannot fill",
                hint=f"wrap a function that makes it: art.wrap(lambda: {self._label}(...), reward)",
            )
        return CallPlan(plan.function, None, plan.given, is_async=plan.is_async)

    def _entry_plan(self, agent: Any) -> CallPlan:
        if self._entry is None and _is_function(agent):  # a factory may make a function
            return plan_call(agent, label=self._label)
        names = (self._entry,) if self._entry else _ENTRIES
        for name in names:
            method = getattr(agent, name, None)
            if callable(method):
                return plan_call(method, label=f"{self._label}.{name}")
        raise ConfigError(
            f"{self._label} has no {' or '.join(names)} to give a task to",
            hint='name the method: art.wrap(agent, reward, entry="solve")',
        )

    async def _judge(self, result: Any, task: Any) -> float:
        if self._reward is None:
            if isinstance(result, Trajectory):
                return result.reward
            if isinstance(result, int | float):
                return check_reward(result, f"the reward of {self._label}")
            raise InvalidInput(
                f"{self._label} was wrapped without a reward and returned a {type(result).__name__}",
                hint="art.wrap(agent, reward), or let the agent return its reward or an art.Trajectory",
            )
        value = call_reward(self._reward, result, task)
        if inspect.isawaitable(value):
            value = await value
        return check_reward(value, f"the reward of {self._label}")


def runnable(rollout: Any, reward: RewardFunction | None) -> RolloutAgent:
    """What a fit runs: a RolloutAgent as it is, anything else as `as_agent` takes it."""
    if isinstance(rollout, RolloutAgent) and reward is None:
        return rollout
    return as_agent(rollout, reward)


def as_agent(rollout: Any, reward: RewardFunction | None) -> WrappedAgent:
    """`rollout` as a wrapped agent. A function of two arguments is taken for `rollout(model, scenario)`."""
    if isinstance(rollout, WrappedAgent):
        if reward is not None:
            raise InvalidInput(
                "fit was given a reward beside a wrapped agent", hint="give the reward to art.wrap alone"
            )
        return rollout
    if inspect.isroutine(rollout):
        places = [
            parameter
            for parameter in inspect.signature(rollout).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        if len(places) == 2 and not any(place.name in GIVEN for place in places):
            return wrap(_model_first(rollout), reward)
    return wrap(rollout, reward)


def _model_first(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    if inspect.iscoroutinefunction(function):
        coroutine_function = cast(Callable[..., Coroutine[Any, Any, Any]], function)

        async def run_async(model: Any, scenario: Any) -> Any:
            return await coroutine_function(model, scenario)

        return run_async

    def run(model: Any, scenario: Any) -> Any:
        return function(model, scenario)

    return run


async def _call(plan: CallPlan, task: Any, session: SessionValues | None) -> Any:
    """Run an agent: a coroutine in this loop, anything else in a thread of its own."""
    call = plan.bind(task, session)
    result = call() if plan.is_async else await in_thread(call)
    return await result if inspect.isawaitable(result) else result


def _is_function(agent: Any) -> bool:
    return inspect.isroutine(agent) or isinstance(agent, functools.partial)


def call_reward(reward: RewardFunction, result: Any, task: Any) -> Any:
    """Call a reward function with what it takes: the result, and the task where it has room for it."""
    try:
        parameters = list(inspect.signature(reward).parameters.values())
    except (TypeError, ValueError):
        return reward(result)
    places = [one for one in parameters if one.kind in _PLACES]
    keyword_task = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.name in _TASK]
    if keyword_task:
        return reward(result, **{keyword_task[0]: task})
    if len(places) >= 2 and (places[1].default is inspect.Parameter.empty or places[1].name in _TASK):
        swapped = places[0].name in _TASK
        return reward(task, result) if swapped else reward(result, task)
    return reward(result)


_TASK = ("task", "scenario", "prompt", "question", "input", "example")
_PLACES = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
