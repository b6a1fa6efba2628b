"""An agent that sorts a support ticket by how urgent it is.

ART fills in `client`: an OpenAI client that talks to the model in training. The model's name is of no importance.
"""

from __future__ import annotations

from openai import AsyncOpenAI

INSTRUCTION = "Is this ticket urgent? Answer `urgent: yes`, `urgent: no` or `urgent: maybe`."


async def run(client: AsyncOpenAI, scenario: dict[str, str]) -> str:
    """The model's answer to the scenario's ticket."""
    answer = await client.chat.completions.create(
        model="agent",
        messages=[
            {"role": "system", "content": INSTRUCTION},
            {"role": "user", "content": scenario["ticket"]},
        ],
        max_tokens=16,
    )
    return answer.choices[0].message.content or ""
