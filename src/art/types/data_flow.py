"""Where data can go: one entry a place, for a person and for a program."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

FlowKind = Literal[
    "listens", "upstream", "hub", "tracker", "judge", "environment", "folder", "key", "content", "retention"
]


class Flow(BaseModel):
    """One place."""

    kind: FlowKind
    place: str
    """A host, a folder, a key."""
    what: str
    """Which data, under which condition."""
    leaves: bool = False
    """It can leave this machine that way, or be read by other users of it."""


class DataFlow(BaseModel):
    """All of them."""

    running: bool
    """True: told by the server that runs. False: from the settings and the folder, as a server would start with them."""
    flows: list[Flow] = Field(default_factory=list)

    @property
    def leaving(self) -> list[Flow]:
        """What deserves a look."""
        return [flow for flow in self.flows if flow.leaves]
