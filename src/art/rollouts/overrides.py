"""What a session served otherwise than its agent asked, in words for a person."""

from __future__ import annotations

from collections.abc import Iterable

from art.types.tokens import CallRecord

SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "min_p", "logit_bias")
OFF: dict[str, object] = {"frequency_penalty": 0, "presence_penalty": 0, "min_p": 0, "logit_bias": {}}
KEEP = "sampling='caller' keeps the agent's"


def overrides(calls: Iterable[CallRecord], *, model: str) -> list[str]:
    """One line for each option that a call asked for and did not get, whatever the value; no line twice.

    `model` is the session's model, `project/name`. Values are left out of the comparison of lines, so that an
    agent that asks for many temperatures is told once.
    """
    found: dict[str, str] = {}
    for call in calls:
        asked, used = call.sampling_asked, call.sampling_used.model_dump()
        for name in SAMPLING:
            served = used.get(name, OFF.get(name))
            value = asked.get(name)
            if value is not None and value != served:
                found.setdefault(name, f"{name} is {served} in training, not the agent's; {KEEP}")
        wanted = asked.get("model")
        if isinstance(wanted, str) and not is_name_of(wanted, call.version):
            found.setdefault(f"model {wanted}", f"{wanted!r} is served by {model}")
    return list(found.values())


def is_name_of(wanted: str, version: str) -> bool:
    """Whether a model name means the version `project/name@step`."""
    full = version.rpartition("@")[0]
    names = {full, full.rpartition("/")[2]}
    return wanted.partition("@")[0] in names
