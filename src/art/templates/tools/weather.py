"""The weather of tomorrow, from a table: an agent in training needs a world that answers fast and always the same."""

from __future__ import annotations

WEATHER = {
    "Bergen": "rainy",
    "Oslo": "sunny",
    "Rome": "sunny",
    "London": "rainy",
    "Cairo": "sunny",
    "Dublin": "rainy",
    "Madrid": "sunny",
    "Hamburg": "rainy",
    "Lisbon": "sunny",
    "Glasgow": "rainy",
    "Athens": "sunny",
    "Brussels": "rainy",
}


def forecast(city: str) -> str:
    """What the tool says."""
    return WEATHER.get(city, f"no city {city!r} is known")
