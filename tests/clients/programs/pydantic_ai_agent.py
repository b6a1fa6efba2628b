"""A pydantic-ai agent: `openai-chat:` by default, `--responses` and `--anthropic` for the other two."""

import asyncio
import json
import sys

from pydantic_ai import Agent
from pydantic_ai.messages import PartDeltaEvent

if "--anthropic" in sys.argv:
    model = "anthropic:claude-sonnet-4-5"
elif "--responses" in sys.argv:
    model = "openai-responses:gpt-4o"
else:
    model = "openai-chat:gpt-4o"

agent = Agent(model, instructions="You look things up before you answer.")


@agent.tool_plain
def get_weather(city: str) -> str:
    """The temperature in a city."""
    return f"{city}: {({'Oslo': 21, 'Rome': 14})[city]} degrees"


@agent.tool_plain
def subtract(a: int, b: int) -> str:
    """a minus b."""
    return f"the difference is {a - b}"


async def main() -> str:
    question = "How much warmer is it in Oslo than in Rome?"
    if "--stream" not in sys.argv:
        return (await agent.run(question)).output
    deltas = 0
    async with agent.iter(question) as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    async for event in events:
                        deltas += isinstance(event, PartDeltaEvent)
    assert deltas > 10, f"{deltas} deltas"
    return run.result.output


print(json.dumps({"answer": asyncio.run(main())}))
