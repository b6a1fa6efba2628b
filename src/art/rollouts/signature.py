"""Reading a signature: which parameters of an agent are filled by ART, and which is the task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from art.errors import ConfigError

GIVEN = {
    "client": "client",
    "openai_client": "client",
    "llm": "client",
    "model": "model",
    "model_name": "model_name",
    "base_url": "base_url",
    "api_key": "api_key",
    "env": "env",
    "session": "session",
}
"""Parameter names that ART fills, and with what."""
_TASK_NAMES = ("task", "scenario", "prompt", "question", "input", "example")
_EMPTY = inspect.Parameter.empty
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class SessionValues(Protocol):
    """What an agent may be given of its session; the rest of GIVEN are attributes of the same names."""

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that say where the model is."""
        ...

    def openai_client(self) -> Any:
        """An AsyncOpenAI bound to the rollout."""
        ...

    def sync_openai_client(self) -> Any:
        """An OpenAI bound to the rollout."""
        ...

    def anthropic_client(self) -> Any:
        """An AsyncAnthropic bound to the rollout."""
        ...

    def sync_anthropic_client(self) -> Any:
        """An Anthropic bound to the rollout."""
        ...


@dataclass(frozen=True)
class CallPlan:
    """How a callable is called: the parameter that takes the task (None: it takes none), and what ART gives."""

    function: Callable[..., Any]
    task: inspect.Parameter | None
    given: Mapping[str, str]
    """Parameter name -> a value of GIVEN or of _CLIENTS."""
    is_async: bool

    @property
    def takes_connection(self) -> bool:
        """True when the call itself is told where the model is."""
        return any(kind != "model_name" for kind in self.given.values())

    def bind(self, task: object, session: SessionValues | None) -> Callable[[], Any]:
        """The call with everything filled in."""
        arguments: list[Any] = []
        keywords = {name: given_value(kind, session) for name, kind in self.given.items()}
        if self.task is not None:
            if self.task.kind in _POSITIONAL and self._task_is_first():
                arguments.append(task)
            else:
                keywords[self.task.name] = task
        return lambda: self.function(*arguments, **keywords)

    def _task_is_first(self) -> bool:
        first = next(iter(inspect.signature(self.function).parameters.values()))
        return self.task is not None and first.name == self.task.name


def plan_call(function: Callable[..., Any], *, label: str) -> CallPlan:
    """Read the signature of an agent, a factory or a method.

    ConfigError names parameters that can be neither the task nor something ART fills.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature: it is given the task
        task = inspect.Parameter("task", inspect.Parameter.POSITIONAL_ONLY)
        return CallPlan(function, task, {}, is_async=False)
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function
    )
    named = [parameter for parameter in parameters if parameter.kind not in _VARIADIC]
    given = {
        parameter.name: _kind_of(parameter, named, is_async)
        for parameter in named
        if parameter.name in GIVEN or _client_class(parameter)
    }
    rest = [parameter for parameter in named if parameter.name not in given]
    required = [parameter for parameter in rest if parameter.default is _EMPTY]
    task_parameter = _task_of(rest, required)
    missing = [parameter.name for parameter in required if parameter is not task_parameter]
    if missing:
        raise ConfigError(
            f"{label} needs {', '.join(missing)}, which ART cannot fill",
            hint="bind them beforehand (functools.partial or a lambda); ART gives the task and "
            + ", ".join(sorted(GIVEN)),
        )
    return CallPlan(function, task_parameter, given, is_async=is_async)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _task_of(rest: list[inspect.Parameter], required: list[inspect.Parameter]) -> inspect.Parameter | None:
    if required:
        return next((one for one in required if one.name in _TASK_NAMES), required[0])
    return next((one for one in rest if one.name in _TASK_NAMES), None)


def _annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if annotation is _EMPTY:
        return ""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _client_class(parameter: inspect.Parameter) -> str | None:
    """The kind of client that the annotation names: one of openai's or anthropic's."""
    return _CLIENTS.get(_annotation(parameter).split("|")[0].strip().rpartition(".")[2])


_CLIENTS = {
    "OpenAI": "sync_client",
    "AsyncOpenAI": "async_client",
    "Anthropic": "sync_anthropic",
    "AsyncAnthropic": "async_anthropic",
}


def _kind_of(parameter: inspect.Parameter, parameters: list[inspect.Parameter], is_async: bool) -> str:
    kind = _client_class(parameter) or GIVEN[parameter.name]
    if kind == "client":
        return "async_client" if is_async else "sync_client"
    if kind == "model":
        annotation = _annotation(parameter)
        # rollout(model, scenario) is how programs for openpipe-art take the model object; as a later
        # argument, or annotated str, `model` is the name to ask an API for.
        leads = parameter is parameters[0] and len(parameters) > 1 and annotation != "str"
        return "model" if leads or "Model" in annotation else "model_name"
    return kind


_ASKED = {
    "sync_client": "a client",
    "async_client": "an async client",
    "sync_anthropic": "an Anthropic client",
    "async_anthropic": "an async Anthropic client",
    "base_url": "a base URL",
    "api_key": "an API key",
    "env": "an environment",
    "session": "a session",
    "model": "a model",
    "model_name": "a model name",
}


def given_value(kind: str, session: SessionValues | None) -> Any:
    """What ART fills in; ConfigError when there is no session to take it from."""
    if session is None:
        raise ConfigError(
            f"the agent asks for {_ASKED[kind]}, but no model is attached",
            hint="art.wrap(agent, reward, model=model), or use wrapped.rollout(model, scenario)",
        )
    if kind == "sync_client":
        return session.sync_openai_client()
    if kind == "async_client":
        return session.openai_client()
    if kind == "sync_anthropic":
        return session.sync_anthropic_client()
    if kind == "async_anthropic":
        return session.anthropic_client()
    if kind == "session":
        return session
    return getattr(session, kind)
