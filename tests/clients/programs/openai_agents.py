"""The OpenAI Agents SDK: on Responses as it comes, `--chat` on chat completions."""

import asyncio
import json
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_tracing_disabled(True)  # traces would go to api.openai.com with this key
if "--chat" in sys.argv:
    set_default_openai_api("chat_completions")


@function_tool
def get_weather(city: str) -> str:
    """The temperature in a city."""
    return f"{city}: {({'Oslo': 21, 'Rome': 14})[city]} degrees"


@function_tool
def subtract(a: int, b: int) -> str:
    """a minus b."""
    return f"the difference is {a - b}"


agent = Agent(
    name="Weather",
    model="gpt-4o",
    instructions="You look things up before you answer.",
    tools=[get_weather, subtract],
)


async def main() -> str:
    question = "How much warmer is it in Oslo than in Rome?"
    if "--stream" not in sys.argv:
        return (await Runner.run(agent, question)).final_output
    result = Runner.run_streamed(agent, question)
    deltas = 0
    async for event in result.stream_events():
        deltas += event.type == "raw_response_event" and event.data.type.endswith(".delta")
    assert deltas > 10, f"{deltas} deltas"
    return result.final_output


print(json.dumps({"answer": asyncio.run(main())}))
