"""A choice as a program handed it back: what is read of it, and the refusal of what is none."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from art.errors import InvalidInput

Essence = tuple[str, tuple[tuple[str | None, str | None], ...]]
"""Text, and name and arguments of every tool call."""


class _Given(BaseModel):
    """Types as JSON has them; what nobody reads here may be anything."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class GivenFunction(_Given):
    name: str | None = None
    arguments: str | None = None


class GivenCall(_Given):
    function: GivenFunction | None = None


class GivenMessage(_Given):
    content: str | None = None
    tool_calls: list[GivenCall] | None = None

    def essence(self) -> Essence:
        """What identifies an assistant message: its text and its tool calls without their ids."""
        functions = [call.function or GivenFunction() for call in self.tool_calls or ()]
        return self.content or "", tuple((function.name, function.arguments) for function in functions)


class GivenLogprob(_Given):
    logprob: float


class GivenLogprobs(_Given):
    content: list[GivenLogprob] | None = None

    def values(self) -> list[float] | None:
        """One per token; None where the program kept none."""
        return None if self.content is None else [item.logprob for item in self.content]


class GivenMark(_Given):
    """The `art` field: which recorded choice this is."""

    call_id: str
    choice: int = Field(0, ge=0, lt=2**31)


class GivenChoice(_Given):
    message: GivenMessage
    logprobs: GivenLogprobs | None = None
    art: GivenMark | None = None

    @classmethod
    def read(cls, choice: dict[str, Any]) -> GivenChoice:
        """The choice of a history. InvalidInput names the field that cannot be right.

        With an `art` field nothing else is read: programs may have edited the text.
        """
        mark = choice.get("art")
        try:
            return cls.model_validate(choice if mark is None else {"art": mark, "message": {}})
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InvalidInput(
                f"a choice in messages_and_choices cannot be right: {where}: {first['msg']}",
                hint="keep response.choices[0] as the server returned it",
            ) from error
