"""The cold start: a task that no run of the base model earns anything on, solved by demonstrations first.

It is the weather task without the worked examples in the prompt, and with no reward for an answer that was not got
through the tool. No run calls the tool then, every group's rewards are all 0, and a train call publishes nothing.
Twenty demonstrations make calls possible; from there rewards teach.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import art
from art.demo import weather
from art.demo.live import Display
from art.demo.run import Options, Runner, new_model
from art.demo.step_record import StepRecord, has_signal
from art.demo.task import Scenario, Turns, sampled
from art.evals.intervals import Mean

if TYPE_CHECKING:
    from openai import AsyncOpenAI

DEMONSTRATIONS = 20
EPOCHS = 2
"""How often each demonstration is seen."""
PROBE_GROUPS = 8
"""Groups of runs that tell how many of them have a signal."""


async def agent(client: AsyncOpenAI, model: str, scenario: Scenario) -> Turns:
    """The weather agent, whose prompt has no example."""
    return await weather.converse(client, model, scenario, weather.opening(scenario.question, ()))


def reward(scenario: Scenario, turns: Turns) -> float:
    """The weather task's reward; nothing without a call of the tool."""
    return weather.reward(scenario, turns) if sampled(turns)[0].message.tool_calls else 0.0


TASK = replace(weather.TASK, name="cold", title="learn a tool that is never used", agent=agent, reward=reward)


def demonstration(scenario: Scenario) -> art.Trajectory:
    """How the agent should have behaved, as a person would write it down."""
    function = {"name": "get_weather", "arguments": json.dumps({"city": scenario.question})}
    call = {"id": "demonstrated", "type": "function", "function": function}
    return art.Trajectory(
        tools=[weather.TOOL],
        messages_and_choices=[
            *weather.opening(scenario.question, ()),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": scenario.hidden},
            {"role": "assistant", "content": f"It is {scenario.hidden}."},
        ],
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the model stood at one moment."""

    held_out: Mean
    groups: int
    groups_with_signal: int
    """Of `groups` groups of runs on training scenarios."""


@dataclass(frozen=True, slots=True)
class ColdOutcome:
    """What the cold start showed."""

    base: Stage
    refused: str
    """Why the train call on the base model's runs published nothing; empty if it did publish."""
    taught: Stage
    """After the demonstrations."""
    after: Stage
    """After reinforcement learning."""
    fine_tuning: dict[str, float]
    """Metrics of the supervised step."""
    records: list[StepRecord]


async def measure(
    runner: Runner, training: Sequence[Scenario], held_out: Sequence[Scenario], moment: str
) -> tuple[Stage, list[art.TrajectoryGroup]]:
    """Where the model stands, and the groups of runs that tell how many of them have a signal."""
    mean, _ = await runner.evaluate(held_out, f"held-out reward {moment}")
    groups = await runner.gather(training[:PROBE_GROUPS], f"probe {moment}")
    count = sum(has_signal(group) for group in groups)
    runner.display.say(f"groups with a signal {moment}: {count} of {len(groups)}")
    return Stage(mean, len(groups), count), groups


async def cold_start(options: Options, display: Display) -> ColdOutcome:
    """The cold start of a new model on a server of its own."""
    steps = TASK.steps if options.steps is None else options.steps
    async with art.LocalBackend(path=options.path) as backend:
        model = new_model(f"{TASK.name}-{options.seed}", options.base_model)
        display.phase(f"loading {options.base_model}", 0)
        await model.register(backend)
        runner = Runner(TASK, model, options.seed, display, options.train)
        held_out = TASK.held_out if options.held_out is None else options.held_out
        return await climb(runner, steps, held_out, options.budget_seconds)


async def climb(runner: Runner, steps: int, held_out: int, budget_seconds: float | None) -> ColdOutcome:
    """Measure the base model and let it try to train; demonstrate, measure; train, measure."""
    count = DEMONSTRATIONS + max(PROBE_GROUPS, steps * runner.task.groups_per_step)
    drawn, evaluation = runner.task.scenarios(runner.seed, count, held_out)
    shown, training = drawn[:DEMONSTRATIONS], drawn[DEMONSTRATIONS:]
    base, groups = await measure(runner, training, evaluation, "of the base model")
    refused = await runner.model.train(groups)
    runner.display.say(f"a train call on them: {refused.reason or 'published a step'}")
    runner.display.phase(f"{DEMONSTRATIONS} demonstrations", 0)
    lessons = [demonstration(scenario) for scenario in shown]
    fine_tuning = await runner.model.train_sft(lessons * EPOCHS)
    taught, _ = await measure(runner, training, evaluation, "after the demonstrations")
    records = await runner.train(training, steps, budget_seconds)
    after, _ = await measure(runner, training, evaluation, "after training")
    return ColdOutcome(
        base=base,
        refused=refused.reason,
        taught=taught,
        after=after,
        fine_tuning=dict(fine_tuning.metrics),
        records=records,
    )
