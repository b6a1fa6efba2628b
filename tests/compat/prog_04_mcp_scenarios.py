"""Learn to use an MCP server: invent tasks from its tools, roll them out, let RULER score them, log the scores.

The rollouts here are those of a prompted model (the baseline that a trained one is compared with).
"""

from __future__ import annotations

import json
import os
from typing import Any

import art
from art.mcp import (
    GeneratedScenario,
    GeneratedScenarioCollection,
    MCPResource,
    MCPTool,
    complete_task_tool,
    generate_scenarios,
)
from art.rewards import ruler_score_group

TOOLS = [
    MCPTool(
        name="get_balance",
        description="Balance of an account, in cents.",
        parameters={
            "type": "object",
            "properties": {"account": {"type": "string"}},
            "required": ["account"],
        },
    ),
    MCPTool(
        name="list_accounts", description="All accounts.", parameters={"type": "object", "properties": {}}
    ),
]
RESOURCES = [
    MCPResource(uri="bank://rules", name="rules", description="House rules", mime_type="text/plain"),
]
MAX_TURNS = 2


async def call_tool(name: str, arguments: dict[str, Any]) -> str:
    """Stands for the session with the MCP server."""
    if name == "list_accounts":
        return json.dumps(["a-1", "a-2"])
    return json.dumps({"account": arguments.get("account"), "balance": 1200})


async def rollout(model: art.Model, scenario: GeneratedScenario) -> art.Trajectory:
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "Use the tools; call complete_task when you are done."},
            {"role": "user", "content": scenario.task},
        ],
        tools=[tool.to_tool_schema() for tool in [*TOOLS, complete_task_tool]],
        metadata={"task": scenario.task, "difficulty": scenario.difficulty},
        metrics={"completed": False, "turns": 0},
    )
    client = model.openai_client()
    for _ in range(MAX_TURNS):
        response = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages(),
            tools=trajectory.tools,
            max_completion_tokens=16,
        )
        choice = response.choices[0]
        trajectory.messages_and_choices.append(choice)
        trajectory.metrics["turns"] += 1
        if not choice.message.tool_calls:
            break
        for call in choice.message.tool_calls:
            if call.function.name == complete_task_tool.name:
                trajectory.metrics["completed"] = True
                return trajectory
            content = await call_tool(call.function.name, json.loads(call.function.arguments))
            trajectory.messages_and_choices.append(
                {"role": "tool", "tool_call_id": call.id, "content": content}
            )
    return trajectory


async def main(base_model: str, art_path: str) -> dict[str, Any]:
    url = os.environ["FAKE_OPENAI_BASE_URL"]
    collection = await generate_scenarios(
        tools=TOOLS,
        resources=RESOURCES,
        num_scenarios=4,
        show_preview=False,
        custom_instructions="Ask about balances only.",
        generator_model="openai/gpt-4.1-mini",
        generator_api_key="generator-key",
        generator_base_url=url,
    )
    again = GeneratedScenarioCollection.from_json(collection.to_json())
    again.shuffle()
    train, val = again.split(train_size=2)

    model = art.Model(
        name="baseline",
        project="mcp",
        inference_model_name="gpt-4o-mini",
        inference_base_url=url,
        inference_api_key="model-key",
        base_path=art_path,
    )
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(model, scenario) for _ in range(4)) for scenario in train),
        after_each=lambda group: ruler_score_group(
            group, "openai/o4-mini", {"base_url": url, "api_key": "judge-key"}
        ),
    )
    await model.log(groups, split="train", step=0)
    return {
        "tasks": [scenario.task for scenario in collection],
        "difficulties": [scenario.difficulty for scenario in collection],
        "distribution": collection.get_difficulty_distribution(),
        "easy": len(collection.filter_by_difficulty(max_difficulty=2)),
        "split": [len(train), len(val)],
        "rewards": [t.reward for group in groups for t in group],
        "completed": [t.metrics["completed"] for group in groups for t in group],
        "roles": [message["role"] for message in groups[0].trajectories[0].messages()],
        "tool_names": [tool["function"]["name"] for tool in groups[0].trajectories[0].tools],
    }
