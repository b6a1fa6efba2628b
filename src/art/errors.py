"""Every error ART raises, drawn as one tree.

ArtError                          what happened, why, what to do, and a stable code
├── ConfigError                   a setting is unknown, ignored or impossible
│   ├── UnsupportedOption         a known option that this backend would have to ignore
│   └── VersionMismatch           client and server are too far apart; says which of them to upgrade
├── InvalidInput                  a program handed over something that cannot be right
│   ├── InvalidReward             a reward that is not a finite number
│   ├── PromptTooLong             the prompt does not fit into the model's context
│   ├── BodyTooLarge              a request's body is over the server's bound
│   ├── RequestTimeout            a request's body did not arrive in time
│   ├── TokensDeleted             the tokens of a redacted call, which are deleted once they were trained
│   └── MethodNotAllowed          the route exists, with another method
├── NotFound                      a model, rollout, checkpoint or job that does not exist
│   └── ThreadNotFound            a conversation that the client wants to go on with and that is not kept here
├── Unauthorized                  no key, or a wrong one
│   └── Forbidden                 a known key without the right, or a name that is not the server's
├── Conflict                      the thing exists or is in a state that forbids the request
│   ├── NoTrajectory              a trajectory was asked for where none is made (also a RuntimeError)
│   ├── FixedValue                a value that was given once and cannot be another (also a ValueError)
│   └── ReadOnly                  a change, or a sample, asked of what only shows a folder (`art ui`)
├── Overloaded                    a bounded queue is full; try again after a while
│   └── QuotaExceeded             a key has used up one of its quotas; try again when it is free again
├── LimitReached                  a rollout has used what its limits allow
├── AgentFailed                   an agent in a process of its own ended without a result
├── InfraError                    a part of ART failed, not the agent and not its input
│   ├── Damaged                   what a store holds is not what was written there
│   ├── ServerUnreachable         no answer from the server within the deadline
│   ├── ServerStartFailed         the child server did not come up
│   ├── WorkerDied                the engine or trainer process ended or fell silent
│   ├── UpstreamFailed            a configured upstream gave no usable answer
│   └── DeadlineExceeded          a wait reached its deadline
└── TrainingFailed                a training job ended in an error
    └── ParityFailed              trainer and engine disagree about the recorded tokens

`boundary()` turns a foreign exception into one of these where a failure crosses from one part into
another; it is the only place that catches `Exception`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar


class ArtError(Exception):
    """An error with a cause and a remedy.

    `message` says what happened, `cause` why (may be empty), `hint` what to do (may be empty).
    `code` is stable across releases; `status` is the HTTP status the server answers with.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, cause: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.message]
        if self.cause:
            parts.append(f"cause: {self.cause}")
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)

    def to_dict(self) -> dict[str, str]:
        """The wire form: `code`, `message`, `cause`, `hint`."""
        return {"code": self.code, "message": self.message, "cause": self.cause, "hint": self.hint}

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments do not survive the default reduction (copy, concurrent.futures).
        return (_rebuild, (type(self), self.message, self.cause, self.hint))


def _rebuild(kind: type[ArtError], message: str, cause: str, hint: str) -> ArtError:
    return kind(message, cause=cause, hint=hint)


class ConfigError(ArtError):
    """A setting is unknown, would be ignored, or cannot work."""

    code = "config"
    status = 400


class UnsupportedOption(ConfigError):
    """A known option that would be ignored here, refused by name."""

    code = "unsupported_option"


class VersionMismatch(ConfigError):
    """Client and server have no protocol in common. The hint says which of them to upgrade."""

    code = "version_mismatch"


class InvalidInput(ArtError):
    """A value that cannot be right, refused before it does harm."""

    code = "invalid_input"
    status = 400


class InvalidReward(InvalidInput):
    """A reward that is not a finite number."""

    code = "invalid_reward"


class NotFound(ArtError):
    """A model, rollout, checkpoint, job or base model that does not exist."""

    code = "not_found"
    status = 404


class ThreadNotFound(NotFound):
    """The recorded answer that a request goes on from. Clients that hold the whole history send it anew."""

    code = "thread_not_found"


class Unauthorized(ArtError):
    """No key, or one that is not known."""

    code = "unauthorized"
    status = 401


class Forbidden(Unauthorized):
    """The key is known but has no right to this, or the request names another server."""

    code = "forbidden"
    status = 403


class Conflict(ArtError):
    """The thing exists already or is in a state that forbids the request."""

    code = "conflict"
    status = 409


class NoTrajectory(Conflict, RuntimeError):
    """A trajectory was asked for outside of what makes one. Programs catch it as a RuntimeError too."""

    code = "no_trajectory"


class FixedValue(Conflict, ValueError):
    """A value that was given once and cannot become another. Programs catch it as a ValueError too."""

    code = "fixed_value"


class ReadOnly(Conflict):
    """A change, or a sample, asked of a server that only shows what a folder holds."""

    code = "read_only"


class Overloaded(ArtError):
    """A bounded queue is full."""

    code = "overloaded"
    status = 429
    retry_after: float = 1.0
    """Seconds until another try may help; a queue place is free when one of the running calls ends."""


class QuotaExceeded(Overloaded):
    """A key has used up one of its quotas (`art key list`)."""

    code = "quota_exceeded"


class LimitReached(ArtError):
    """A rollout has used the calls, tokens or seconds that its limits allow."""

    code = "limit_reached"
    status = 403  # not 429: clients repeat those, and repeating does not help


class PromptTooLong(InvalidInput):
    """The prompt does not fit into the model's context."""

    code = "context_length_exceeded"


class TokensDeleted(InvalidInput):
    """The tokens of a redacted call, which are deleted once they were trained."""

    code = "tokens_deleted"


class BodyTooLarge(InvalidInput):
    """The request's body is over the server's bound."""

    code = "body_too_large"
    status = 413


class RequestTimeout(InvalidInput):
    """A request's body did not arrive in time."""

    code = "request_timeout"
    status = 408


class MethodNotAllowed(InvalidInput):
    """The route exists, with another method."""

    code = "method_not_allowed"
    status = 405


class AgentFailed(ArtError):
    """An agent that runs in a process of its own was killed, ran out of time, or gave no result."""

    code = "agent_failed"


class InfraError(ArtError):
    """A part of ART failed; the agent and its input are not to blame."""

    code = "infra_error"
    status = 503


class Damaged(InfraError):
    """What a store holds is not what was written there: it cannot be read, and trying again does not help."""

    code = "damaged"
    status = 500


class ServerUnreachable(InfraError):
    """No answer from the server within the deadline."""

    code = "server_unreachable"


class ServerStartFailed(InfraError):
    """The child server did not come up."""

    code = "server_start_failed"


class WorkerDied(InfraError):
    """The engine or trainer process ended, or fell silent past its deadline."""

    code = "worker_died"


class UpstreamFailed(InfraError):
    """A configured upstream cannot be reached, refused the server's key, or gave no usable answer."""

    code = "upstream_failed"
    status = 502


class DeadlineExceeded(InfraError):
    """A wait reached its deadline."""

    code = "deadline_exceeded"
    status = 504


class TrainingFailed(ArtError):
    """A training job ended in an error."""

    code = "training_failed"


class ParityFailed(TrainingFailed):
    """The trainer's log-probabilities differ from the recorded ones past the bound."""

    code = "parity_failed"


def _subclasses(kind: type[ArtError]) -> Iterator[type[ArtError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _subclasses(child)


def from_dict(data: dict[str, Any]) -> ArtError:
    """Rebuild the error whose `to_dict()` crossed a process or the network; an unknown code gives ArtError."""
    code = str(data.get("code", ""))
    # The first one: a class that has no code of its own does not stand for the one it has it from.
    kind = next((kind for kind in _subclasses(ArtError) if kind.code == code), ArtError)
    return kind(
        str(data.get("message", "unknown error")),
        cause=str(data.get("cause", "")),
        hint=str(data.get("hint", "")),
    )


@contextmanager
def boundary(what: str, kind: type[ArtError] = InfraError, *, hint: str = "") -> Iterator[None]:
    """Classify what crosses from one part into another.

    An ArtError passes unchanged. Any other `Exception` becomes `kind` with the original as its cause.
    `BaseException`s that are not `Exception`s (cancellation, Ctrl-C) pass unchanged.
    """
    try:
        yield
    except ArtError:
        raise
    except Exception as error:
        raise kind(f"{what} failed", cause=f"{type(error).__name__}: {error}", hint=hint) from error
