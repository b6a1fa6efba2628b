"""Whose fault an exception is: the agent's, or the infrastructure's.

An infrastructure failure is retried and never counts as a bad run; an agent's own exception is data.
"""

from __future__ import annotations

from art.errors import Conflict, InfraError, Overloaded

_OPENAI_INFRA = {"APIConnectionError", "APITimeoutError", "InternalServerError", "RateLimitError"}
_CODES = {
    "infra_error",
    "overloaded",
    "quota_exceeded",
    "server_unreachable",
    "worker_died",
    "deadline_exceeded",
}


def is_infrastructure(error: BaseException) -> bool:
    """True when ART, the network or the machine failed; looks through `raise ... from` chains.

    openai's and anthropic's exceptions are recognised by name, so that neither needs to be installed.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, InfraError | Overloaded | ConnectionError):
            return True
        if _is_sdk_infrastructure(current) or _rollout_was_lost(current):
            return True
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return False


def _is_sdk_infrastructure(error: BaseException) -> bool:
    for kind in type(error).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in {"openai", "anthropic"} and kind.__name__ in _OPENAI_INFRA:
            return True
        if package in {"httpx", "httpx2"} and kind.__name__ == "TransportError":
            return True
    return False


def _rollout_was_lost(error: BaseException) -> bool:
    """The server was stopped while the rollout ran and has closed it as `infra_error` (answer 409)."""
    if isinstance(error, Conflict):
        return "infra_error" in str(error)
    body = getattr(error, "body", None)
    if isinstance(body, dict):
        if body.get("code") in _CODES:
            return True
        return getattr(error, "status_code", None) == 409 and "infra_error" in str(body)
    return False
