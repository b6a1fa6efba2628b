"""What is left of a run's budget, step after step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from art.config.budget import Budget
from art.errors import ConfigError
from art.types.cumulative import totals_in

if TYPE_CHECKING:
    from art.model import TrainableModel


class Purse:
    """A run's budget and what the run has used of it. Without a budget it never empties."""

    def __init__(self, budget: Budget | None, say: Callable[[str], None]) -> None:
        self._budget = budget
        self._say = say
        self._totals: dict[str, float] = {}
        self._told = False
        self.reason = ""
        """Why the run ends; empty while something is left."""

    async def look_back(self, model: TrainableModel[Any, Any]) -> None:
        """Count what earlier programs have used of the run."""
        if self._budget is None:
            return
        api = model.backend().connection.api
        for row in await api.history(model.project, model.name):
            self._take(row)

    def spend(self, row: Mapping[str, Any]) -> None:
        """Count a step by its row."""
        if self._budget is None:
            return
        self._take(row)
        if not self._told and (told := self._budget.without_effect(self._totals)):
            self._told = True
            self._say(told)

    def _take(self, row: Mapping[str, Any]) -> None:
        assert self._budget is not None, "asked for only where there is one"
        for name, value in totals_in(row).items():
            self._totals[name] = max(value, self._totals.get(name, value))
        self.reason = self._budget.used_up(self._totals)


def budget_of(given: Budget | Mapping[str, Any] | None) -> Budget | None:
    """The budget that a program gave, as an object or as a mapping. ConfigError for what is none."""
    if given is None or isinstance(given, Budget):
        return given
    try:
        return Budget.model_validate(given)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'budget'}: {item['msg']}" for item in error.errors()
        )
        raise ConfigError(
            "the budget cannot be right",
            cause=wrong,
            hint='budget={"usd": 5} or {"tokens": 1_000_000} or {"seconds": 3600}, or several of them',
        ) from error
