"""What the tests of the inference routes share: a script for the engine, and short ways to ask the server."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
from tokenizers import Tokenizer

from art.testing.server import ArtServer

FRUITS = [
    "apple",
    "banana",
    "cherry",
    "date",
    "elder",
    "fig",
    "grape",
    "kiwi",
    "lemon",
    "mango",
    "nut",
    "olive",
]
TICKS = "tick " * 160

SCRIPT: dict[str, Any] = {
    "token_delay_ms": 1,
    "rules": [
        {"match": r"sunny(?!.*<\|im_start\|>user).*assistant\n$", "replies": ["Take a hat, it is sunny."]},
        {
            "match": r"weather in (\w+)[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$",
            "replies": [
                r'Let me see. <tool_call>{"name":  "get_weather", "arguments": {"city": "\1"}}</tool_call>'
            ],
            "expand": True,
        },
        {"match": r"broken call[^<]*<", "replies": ['<tool_call>{"name": "get_weather", oops}</tool_call>']},
        {"match": r"plain json[^<]*<", "replies": ['{"name": "get_weather", "arguments": {"city": "Oslo"}}']},
        {
            "match": r"two calls[^<]*<",
            "replies": [
                '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>\n'
                '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
            ],
        },
        {"match": r"a fruit[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$", "replies": FRUITS},
        {"match": r"count[^<]*<", "replies": ["one two three four five"]},
        {"match": r"greet[^<]*<", "replies": ["Grüße, 你好 🙂!"]},
        {"match": r"slowly[^<]*<", "replies": [TICKS]},
        {
            "match": r"ponder[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n<think>\n$",
            "replies": [
                "Where is it?\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\n7\n</parameter>\n"
                "</function>\n</tool_call>"
            ],
        },
        {"match": r"rainy\n</tool_response>.*assistant\n<think>\n$", "replies": ["Ah.</think>\n\nStay in."]},
        {
            "match": r"ponder[^<]*<\|end\|><\|start\|>assistant$",
            "replies": [
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
                'to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>'
            ],
        },
        {
            "match": r'"rainy"<\|end\|><\|start\|>assistant$',
            "replies": ["<|channel|>final<|message|>Stay in."],
        },
        {
            "match": r"fail[^<]*<",
            "error": {
                "code": "infra_error",
                "message": "the engine lost its mind",
                "hint": "try again later",
            },
        },
    ],
    "default": "I do not know.",
}

THINKER = """\
{%- if tools %}{{- '<|im_start|>system\\nTools:' }}{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n<tool_call>{"name": ..., "arguments": {...}}</tool_call><|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
"""A template of a model that thinks in <think>, with the line that switches it off."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def says(text: str) -> list[dict[str, Any]]:
    """A conversation of one user message."""
    return [{"role": "user", "content": text}]


@dataclass
class Served:
    """A running server with registered models."""

    server: ArtServer
    base_model: str

    def register(self, project: str, name: str, **config: Any) -> dict[str, Any]:
        body = {"project": project, "name": name, "config": {"base_model": self.base_model, **config}}
        return self.api("POST", "models", body)

    def api(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> Any:
        """A control API request that must succeed."""
        response = self.raw(method, f"/api/v1/{path}", body, key=key)
        assert response.status_code == 200, response.text
        return response.json()

    def raw(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx2.Response:
        given = {"Authorization": f"Bearer {key or self.server.admin_key}", **(headers or {})}
        return httpx2.request(method, self.server.url + path, json=body, headers=given, timeout=120)

    def chat(self, body: dict[str, Any], **options: Any) -> httpx2.Response:
        """A chat request as plain HTTP."""
        return self.raw("POST", "/v1/chat/completions", {"model": "tests/alpha", **body}, **options)

    def client(self, *, base_url: str | None = None, key: str | None = None) -> openai.OpenAI:
        url = base_url or f"{self.server.url}/v1"
        return openai.OpenAI(base_url=url, api_key=key or self.server.admin_key, max_retries=0, timeout=120)

    def open(self, model: str = "tests/alpha", **options: Any) -> dict[str, Any]:
        """Open a rollout."""
        return dict(self.api("POST", "rollouts", {"model": model, **options}))

    def agent(self, opened: dict[str, Any]) -> openai.OpenAI:
        """The client of an agent inside a rollout: base URL and scoped key, nothing else."""
        return self.client(base_url=opened["base_url"], key=opened["api_key"])

    def rollout(self, rollout_id: str) -> dict[str, Any]:
        return dict(self.api("GET", f"rollouts/{rollout_id}"))

    def decode(self, token_ids: list[int]) -> str:
        """The text of tokens, special ones included."""
        tokenizer = Tokenizer.from_file(f"{self.base_model}/tokenizer.json")
        return str(tokenizer.decode(token_ids, skip_special_tokens=False))

    def call_row(self, call_id: str) -> dict[str, Any]:
        """A call as the store has it."""
        with sqlite3.connect(f"file:{self.server.path}/server/art.db?mode=ro", uri=True) as conn:
            conn.row_factory = sqlite3.Row
            row = conn.execute("SELECT * FROM calls WHERE call_id = ?", (call_id,)).fetchone()
            assert row is not None, "the call was not recorded before its answer"
            return dict(row)


def stream(response: Any) -> dict[str, Any]:
    """The chunks of an SDK stream put together: text, tokens, calls, and the ends of its choices."""
    out: dict[str, Any] = {"text": {}, "tokens": {}, "logprobs": {}, "calls": {}, "finish": {}, "art": {}}
    out |= {"prompt": None, "usage": None, "chunks": 0}
    for chunk in response:
        out["chunks"] += 1
        out["prompt"] = getattr(chunk, "prompt_token_ids", None) or out["prompt"]
        out["usage"] = chunk.usage or out["usage"]
        for choice in chunk.choices:
            i = choice.index
            out["text"][i] = out["text"].get(i, "") + (choice.delta.content or "")
            out["tokens"].setdefault(i, []).extend(getattr(choice, "token_ids", None) or [])
            rows = choice.logprobs.content if choice.logprobs and choice.logprobs.content else []
            out["logprobs"].setdefault(i, []).extend(rows)
            out["calls"].setdefault(i, []).extend(choice.delta.tool_calls or [])
            if choice.finish_reason:
                out["finish"][i] = choice.finish_reason
                out["art"][i] = choice.art
    return out


def arguments(call: Any) -> Any:
    return json.loads(call.function.arguments)
