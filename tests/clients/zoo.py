"""The programs, what each is expected to do, and the script that the engine answers them from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ANSWER = "It is 7 degrees warmer in Oslo than in Rome."


@dataclass(frozen=True)
class Program:
    """One way of asking: a file of `programs/` with its options."""

    client: str
    """For people: the library, and the way it is used where there are several."""
    package: str
    """Whose version counts: a distribution, `npm:` and a package, or a command."""
    dialect: str
    file: str
    options: tuple[str, ...] = ()
    calls: int = 3
    rewrites: bool = False
    """It tells the model another history than the one that happened, so every call is a branch of its own."""

    @property
    def name(self) -> str:
        return " ".join((self.file.split(".")[0], *(option.strip("-") for option in self.options)))


CHAT, RESPONSES, ANTHROPIC = "openai.chat", "openai.responses", "anthropic.messages"
PROGRAMS = (
    Program("openai, chat", "openai", CHAT, "openai_chat.py"),
    Program("openai, responses", "openai", RESPONSES, "openai_responses.py"),
    Program("openai, previous_response_id", "openai", RESPONSES, "openai_responses_chained.py"),
    Program("anthropic", "anthropic", ANTHROPIC, "anthropic_messages.py"),
    Program("LangGraph, ChatOpenAI", "langgraph", CHAT, "langgraph_agent.py"),
    Program("LangGraph, Responses", "langgraph", RESPONSES, "langgraph_agent.py", ("--responses",)),
    Program("LangGraph, ChatAnthropic", "langgraph", ANTHROPIC, "langgraph_agent.py", ("--anthropic",)),
    Program("OpenAI Agents SDK", "openai-agents", RESPONSES, "openai_agents.py"),
    Program("OpenAI Agents SDK, chat", "openai-agents", CHAT, "openai_agents.py", ("--chat",)),
    Program("pydantic-ai, chat", "pydantic-ai-slim", CHAT, "pydantic_ai_agent.py"),
    Program(
        "pydantic-ai, responses", "pydantic-ai-slim", RESPONSES, "pydantic_ai_agent.py", ("--responses",)
    ),
    Program(
        "pydantic-ai, anthropic", "pydantic-ai-slim", ANTHROPIC, "pydantic_ai_agent.py", ("--anthropic",)
    ),
    Program("smolagents, ToolCallingAgent", "smolagents", CHAT, "smolagents_agent.py", rewrites=True),
    Program(
        "smolagents, CodeAgent", "smolagents", CHAT, "smolagents_agent.py", ("--code",), 2, rewrites=True
    ),
    Program("LiteLLM, openai/", "litellm", CHAT, "litellm_agent.py"),
    Program("LiteLLM, anthropic/", "litellm", ANTHROPIC, "litellm_agent.py", ("--anthropic",)),
    Program("npm openai, runTools", "npm:openai", CHAT, "openai_node.mjs"),
    Program("curl", "curl", CHAT, "curl.sh"),
)


def _call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


_TURN = r"[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$"
_LOOK = _call("get_weather", '{"city": "Oslo"}') + "\n" + _call("get_weather", '{"city": "Rome"}')
_SUBTRACT = _call("subtract", r'{"a": \1, "b": \2}')
_CODE = """\
Thought: I look it up.
<code>
print(get_weather(city="Oslo"))
print(get_weather(city="Rome"))
</code>"""
_DEGREES = r"Oslo: (\d+) degrees.*Rome: (\d+) degrees"
SCRIPT: dict[str, Any] = {
    "token_delay_ms": 1,
    "tail_chars": 20_000,
    "rules": [
        # smolagents: its texts have headings, and its agents end by a call of final_answer.
        {
            "match": rf"Execution logs:\n{_DEGREES}{_TURN}",
            "replies": [
                'Thought: I subtract.\n<code>\ndifference = subtract(a=\\1, b=\\2).split()[-1]\nfinal_answer(f"It is {difference} degrees warmer in Oslo than in Rome.")\n</code>'
            ],
            "expand": True,
        },
        {"match": rf"<code>.*New task:\n[^<]*warmer{_TURN}", "replies": [_CODE]},
        {
            "match": rf"Observation:\n[^<]*difference is (-?\d+){_TURN}",
            "replies": [
                _call("final_answer", r'{"answer": "It is \1 degrees warmer in Oslo than in Rome."}')
            ],
            "expand": True,
        },
        {"match": rf"Observation:\n{_DEGREES}{_TURN}", "replies": [_SUBTRACT], "expand": True},
        {"match": rf"New task:\n[^<]*warmer{_TURN}", "replies": [_LOOK]},
        # All others.
        {
            "match": rf"difference is (-?\d+){_TURN}",
            "replies": [r"It is \1 degrees warmer in Oslo than in Rome."],
            "expand": True,
        },
        {"match": f"{_DEGREES}{_TURN}", "replies": [_SUBTRACT], "expand": True},
        {"match": f"warmer{_TURN}", "replies": [f"I look it up. {_LOOK}"]},
    ],
    "default": "I do not know.",
}
