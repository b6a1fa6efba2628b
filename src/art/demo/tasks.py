"""The tasks by name."""

from __future__ import annotations

from art.demo import guess, tictactoe, weather
from art.demo.task import Task

TASKS: dict[str, Task] = {task.name: task for task in (weather.TASK, tictactoe.TASK, guess.TASK)}
