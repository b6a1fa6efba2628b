"""Text completions through the real OpenAI SDK against a real server with the scripted engine."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from chat_kit import FRUITS, Served, says
from openai.types.completion import Completion
from pydantic import TypeAdapter

ASKED = "<|im_start|>user\ncount<|im_end|>\n<|im_start|>assistant\n"
"""The script answers this with five words."""


def ask(prompt: Any = ASKED, **options: Any) -> dict[str, Any]:
    return {"model": "tests/alpha", "prompt": prompt, "max_tokens": 100, **options}


def raw(served: Served, **options: Any) -> Any:
    return served.raw("POST", "/v1/completions", ask(**options))


def stored(served: Served, call_id: str) -> dict[str, Any]:
    return dict(json.loads(served.call_row(call_id)["text"]))


def test_an_answer_carries_its_tokens_and_its_call(served: Served) -> None:
    data = raw(served).json()
    TypeAdapter(Completion).validate_python(data)
    choice = data["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == (
        "one two three four five",
        "stop",
        None,
    )
    assert served.decode(data["prompt_token_ids"]) == ASKED
    assert data["usage"]["completion_tokens"] == len(choice["token_ids"])
    row = served.call_row(choice["art"]["call_id"])
    assert (row["dialect"], row["prompt_token_count"]) == (
        "openai.completions",
        len(data["prompt_token_ids"]),
    )
    assert json.loads(row["sampling_used"])["max_tokens"] == 100
    text = stored(served, choice["art"]["call_id"])
    assert text["tail"] == [{"role": "user", "content": ASKED}]
    assert [said["content"] for said in text["completions"]] == ["one two three four five"]


def test_a_prompt_may_be_tokens(served: Served) -> None:
    create = served.client().completions.create
    by_text = create(**ask())
    for prompt in (by_text.prompt_token_ids, [by_text.prompt_token_ids], [ASKED]):
        answer = create(**ask(prompt))
        assert answer.prompt_token_ids == by_text.prompt_token_ids
        assert answer.choices[0].text == by_text.choices[0].text


def test_the_default_length_is_openais(served: Served) -> None:
    choice = served.client().completions.create(model="tests/alpha", prompt=ASKED).choices[0]
    assert (len(choice.token_ids), choice.finish_reason) == (16, "length")


def test_stop_strings_and_several_answers(served: Served) -> None:
    create = served.client().completions.create
    choice = create(**ask(stop=["ee f", "never"])).choices[0]
    assert (choice.text, choice.finish_reason) == ("one two thr", "stop")
    fruit = ASKED.replace("count", "a fruit")
    answer = create(**ask(fruit, n=4, extra_body={"best_of": 4}))
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} <= set(FRUITS)
    assert len({choice.art["call_id"] for choice in answer.choices}) == 1


def test_log_probabilities_in_openais_older_form(served: Served) -> None:
    create = served.client().completions.create
    for top in (0, 3):
        choice = create(**ask(logprobs=top)).choices[0]
        found = choice.logprobs
        assert "".join(found.tokens[:-1]) == choice.text
        assert found.text_offset == [len("".join(found.tokens[:i])) for i in range(len(found.tokens))]
        assert len(found.token_logprobs) == len(choice.token_ids)
        for token, value, alternatives in zip(
            found.tokens, found.token_logprobs, found.top_logprobs, strict=True
        ):
            assert alternatives[token] == value
            assert len(alternatives) == max(1, top)
    whole = create(**ask(logprobs=3)).choices[0].logprobs
    parts = [chunk.choices[0].logprobs for chunk in create(**ask(logprobs=3, stream=True))]
    kept = [part for part in parts if part is not None]
    assert len(kept) > 5
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        joined = [item for part in kept for item in getattr(part, name)]
        if name in ("tokens", "text_offset"):
            assert joined == getattr(whole, name)
        assert len(joined) == len(whole.tokens)


def test_a_stream_says_what_an_answer_says(served: Served) -> None:
    create = served.client().completions.create
    whole = create(**ask(n=2))
    texts, tokens, ends, marks, prompt, usage = ["", ""], [[], []], {}, {}, None, None
    chunks = list(create(**ask(n=2, stream=True, stream_options={"include_usage": True})))
    for chunk in chunks:
        prompt = getattr(chunk, "prompt_token_ids", None) or prompt
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += getattr(choice, "token_ids", None) or []
            if choice.finish_reason:
                ends[choice.index], marks[choice.index] = choice.finish_reason, choice.art
    assert len(chunks) > 20
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.token_ids for choice in whole.choices]
    assert ends == {0: "stop", 1: "stop"}
    assert prompt == whole.prompt_token_ids
    assert usage.total_tokens == whole.usage.total_tokens
    assert [marks[i]["choice"] for i in range(2)] == [0, 1]


def test_a_prompt_that_goes_on_from_known_tokens_continues_their_call(served: Served) -> None:
    opened = served.open(sampling="caller")
    agent = served.agent(opened)
    first = agent.completions.create(**ask(model="alpha"))
    known = first.prompt_token_ids + first.choices[0].token_ids
    more = "\n" + ASKED.replace("count", "a fruit")
    tail = agent.completions.create(**ask(more, model="alpha")).prompt_token_ids  # knows nothing: a branch
    second = agent.completions.create(**ask(known + tail, model="alpha"))
    assert second.prompt_token_ids == known + tail
    assert second.choices[0].text in FRUITS
    third = agent.completions.create(**ask(known[:-1] + tail, model="alpha"))  # not what was sampled
    calls = served.rollout(opened["rollout_id"])["calls"]
    one, two, three, four = calls
    assert [call["parent_call_id"] for call in calls] == [None, None, one["call_id"], None]
    assert [call["reused_token_count"] for call in calls] == [0, 0, len(known), 0]
    assert (one["branch"], three["branch"]) == (0, 0)
    assert len({call["branch"] for call in (one, two, four)}) == 3
    assert stored(served, three["call_id"])["tail"] == [{"role": "user", "content": more}]
    assert third.prompt_token_ids == known[:-1] + tail


def test_a_chat_can_be_gone_on_with_by_its_tokens(served: Served) -> None:
    opened = served.open(sampling="caller")
    agent = served.agent(opened)
    chat = agent.chat.completions.create(model="alpha", messages=says("count"), max_tokens=5)
    known = chat.prompt_token_ids + chat.choices[0].token_ids
    agent.completions.create(**ask(known, model="alpha"))
    first, second = served.rollout(opened["rollout_id"])["calls"]
    assert second["parent_call_id"] == first["call_id"]
    assert second["reused_token_count"] == len(known)
    # And the chat still goes on from its own tokens.
    said = {"role": "assistant", "content": chat.choices[0].message.content}
    after = agent.chat.completions.create(model="alpha", messages=[*says("count"), said, *says("hi")])
    assert after.prompt_token_ids[: len(known)] == known


def test_nothing_in_a_text_is_a_call(served: Served) -> None:
    plain = ASKED.replace("count", "plain json")
    choice = served.client().completions.create(**ask(plain)).choices[0]
    assert choice.text.startswith('{"name"')
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"prompt": [ASKED, ASKED]}, "2 prompts"),
        ({"prompt": [[1], [2]]}, "2 prompts"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [5, 99999]}, "99999"),
        ({"prompt": [-1]}, "-1"),
        ({"prompt": [2**70]}, "no token"),
        ({"prompt": "a" * 5000}, "prompt has 5000 tokens"),
        ({"echo": True}, "echo"),
        ({"suffix": "the end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 1000}, "`n`"),
        ({"messages": []}, "messages"),
        ({"stream_options": {"x": 1}, "stream": True}, "stream_options.x"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"model": ""}, "model"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(
    served: Served, options: dict[str, Any], names: str
) -> None:
    response = raw(served, **options)
    assert response.status_code == 400, response.text
    assert names in response.json()["error"]["message"]


def test_neutral_values_are_accepted_and_errors_are_openais(served: Served) -> None:
    neutral = {
        "echo": False,
        "suffix": None,
        "best_of": 1,
        "frequency_penalty": 0,
        "logit_bias": {},
        "user": "u",
    }
    assert raw(served, **neutral).status_code == 200
    failing = ASKED.replace("count", "fail")
    with pytest.raises(openai.InternalServerError, match="lost its mind"):
        served.client().completions.create(**ask(failing))
    with pytest.raises(openai.NotFoundError):
        served.client().completions.create(**ask(model="tests/nobody"))
