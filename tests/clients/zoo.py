"""The programs, what each is expected to do, and the script that the engine answers them from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWER = "It is 7 degrees warmer in Oslo than in Rome."


@dataclass(frozen=True)
class Program:
    """One way of asking: a file with its options."""

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
        return " ".join((Path(self.file).stem, *(option.strip("-") for option in self.options)))


CHAT, RESPONSES, ANTHROPIC = "openai.chat", "openai.responses", "anthropic.messages"
PROGRAMS = (
    Program("openai, chat", "openai", CHAT, "programs/openai_chat.py"),
    Program("openai, responses", "openai", RESPONSES, "programs/openai_responses.py"),
    Program("openai, previous_response_id", "openai", RESPONSES, "programs/openai_responses_chained.py"),
    Program("anthropic", "anthropic", ANTHROPIC, "programs/anthropic_messages.py"),
    Program("LangGraph, ChatOpenAI", "langgraph", CHAT, "programs/langgraph_agent.py"),
    Program("LangGraph, Responses", "langgraph", RESPONSES, "programs/langgraph_agent.py", ("--responses",)),
    Program(
        "LangGraph, ChatAnthropic", "langgraph", ANTHROPIC, "programs/langgraph_agent.py", ("--anthropic",)
    ),
    Program("OpenAI Agents SDK", "openai-agents", RESPONSES, "programs/openai_agents.py"),
    Program("OpenAI Agents SDK, chat", "openai-agents", CHAT, "programs/openai_agents.py", ("--chat",)),
    Program("pydantic-ai, chat", "pydantic-ai-slim", CHAT, "programs/pydantic_ai_agent.py"),
    Program(
        "pydantic-ai, responses",
        "pydantic-ai-slim",
        RESPONSES,
        "programs/pydantic_ai_agent.py",
        ("--responses",),
    ),
    Program(
        "pydantic-ai, anthropic",
        "pydantic-ai-slim",
        ANTHROPIC,
        "programs/pydantic_ai_agent.py",
        ("--anthropic",),
    ),
    Program(
        "smolagents, ToolCallingAgent", "smolagents", CHAT, "programs/smolagents_agent.py", rewrites=True
    ),
    Program(
        "smolagents, CodeAgent",
        "smolagents",
        CHAT,
        "programs/smolagents_agent.py",
        ("--code",),
        2,
        rewrites=True,
    ),
    Program("LiteLLM, openai/", "litellm", CHAT, "programs/litellm_agent.py"),
    Program("LiteLLM, anthropic/", "litellm", ANTHROPIC, "programs/litellm_agent.py", ("--anthropic",)),
    Program("npm openai, runTools", "npm:openai", CHAT, "node/agent.mjs"),
    Program("curl", "curl", CHAT, "programs/curl.sh"),
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
# In whatever order: smolagents sorts the results of parallel calls by their ids.
_DEGREES = r"(?=.*Oslo: (\d+) degrees)(?=.*Rome: (\d+) degrees)"
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
        {"match": rf"\A{_DEGREES}.*degrees{_TURN}", "replies": [_SUBTRACT], "expand": True},
        {"match": f"warmer{_TURN}", "replies": [f"I look it up. {_LOOK}"]},
    ],
    "default": "I do not know.",
}
