"""Who asks, and whether they may: one rule per route, held in the route table."""

from __future__ import annotations

from dataclasses import dataclass, field

from art.errors import Forbidden
from art.store.records import Role
from art.types.wire_keys import Quotas


@dataclass(frozen=True, slots=True)
class Principal:
    """The key behind a request."""

    key_id: str
    role: Role
    project: str | None = None
    """None: every project."""
    rollout_id: str | None = None
    """A scoped key: calls inside this rollout and nothing else."""
    account: str = ""
    """Whose use of the models it counts as."""
    quotas: Quotas = field(default_factory=Quotas)
    """Bounds on that use."""

    def require(self, role: Role) -> None:
        """Forbidden unless the key's role includes `role`."""
        if not self.role.includes(role):
            raise Forbidden(
                f"this key's role is {self.role.value!r}, the request needs {role.value!r}",
                hint="use a key with that role; the admin key lies in server/admin.key",
            )

    def require_project(self, project: str) -> None:
        """Forbidden when the key belongs to another project."""
        if self.project is not None and self.project != project:
            raise Forbidden(
                f"this key belongs to the project {self.project!r}, not to {project!r}",
                hint="use a key of that project",
            )

    def require_rollout(self, rollout_id: str) -> None:
        """Forbidden when the key is scoped to another rollout."""
        if self.rollout_id is not None and self.rollout_id != rollout_id:
            raise Forbidden(
                "this key is scoped to another rollout",
                hint="each rollout has a key of its own; use the one it was opened with",
            )
