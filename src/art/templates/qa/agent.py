"""An agent that answers a question with one word.

ART fills in `client`: an OpenAI client that talks to the model in training. The model's name is of no importance.
"""

from __future__ import annotations

from openai import AsyncOpenAI

INSTRUCTION = "Answer the question with one word: yes, no or maybe."


async def run(client: AsyncOpenAI, scenario: dict[str, str]) -> str:
    """The model's answer to the scenario's question."""
    answer = await client.chat.completions.create(
        model="agent",
        messages=[
            {"role": "system", "content": INSTRUCTION},
            {"role": "user", "content": scenario["question"]},
        ],
        max_tokens=16,
    )
    return answer.choices[0].message.content or ""
