"""A program that knows nothing of ART: it sorts a review by asking an OpenAI-compatible service over plain HTTP.

OPENAI_BASE_URL and OPENAI_API_KEY say where the service is. A program in any other language would do as well.
"""

from __future__ import annotations

import json
import os
import urllib.request

INSTRUCTION = "Is this review positive? Answer with one word: yes, no or maybe."


def ask(review: str) -> str:
    """The service's answer."""
    body = {
        "model": "gpt-4o-mini",
        "max_tokens": 16,
        "messages": [
            {"role": "system", "content": INSTRUCTION},
            {"role": "user", "content": review},
        ],
    }
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        answer = json.load(response)
    return str(answer["choices"][0]["message"]["content"] or "")


if __name__ == "__main__":
    scenario = json.loads(os.environ["ART_SCENARIO"])
    print(ask(scenario["review"]))
