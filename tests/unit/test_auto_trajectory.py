"""auto_trajectory and yield_trajectory over a real server: what the agent's own client heard, as trajectories."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

import art
from art.backends.clients import Recorder
from art.errors import ArtError, Conflict, NoTrajectory
from art.rollouts.recording import Recording, canonical, completed_choices, recording_into

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
SCRIPT = {
    "token_delay_ms": 1,
    "rules": [
        {"match": r"sunny(?!.*<\|im_start\|>user).*assistant\n$", "replies": ["Take a hat, it is sunny."]},
        {
            "match": r"weather in (\w+)[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$",
            "replies": [r'<tool_call>{"name":  "get_weather", "arguments": {"city": "\1"}}</tool_call>'],
            "expand": True,
        },
        {"match": r"a fruit[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$", "replies": FRUITS},
        {"match": r"slowly[^<]*<", "replies": ["tick " * 160]},
    ],
    "default": "I do not know.",
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
Model = art.TrainableModel[Any, Any]


@pytest.fixture(scope="module")
def backend(start_art_server: Any) -> Iterator[art.RemoteBackend]:
    server = start_art_server(script=SCRIPT)
    with art.RemoteBackend(server.url, server.admin_key) as running:
        yield running
    server.stop()


@pytest.fixture(scope="module")
def model(backend: art.RemoteBackend, tiny_model_dir: Any) -> Model:
    made: Model = art.TrainableModel(name="m", project="auto", base_model=str(tiny_model_dir))
    made.register(backend)
    return made


@pytest.fixture(scope="module")
def opponent(backend: art.RemoteBackend, tiny_model_dir: Any) -> Model:
    made: Model = art.TrainableModel(name="other", project="auto", base_model=str(tiny_model_dir))
    made.register(backend)
    return made


def says(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


async def ask(model: Model, messages: list[Any], **options: Any) -> Any:
    """One call, its answer appended to the messages as SDK users do."""
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, **options
    )
    messages.append(answer.choices[0].message)
    return answer


async def streamed(model: Model, messages: list[Any], **options: Any) -> str:
    """The same call as a stream."""
    chunks = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, stream=True, **options
    )
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])
    messages.append(says(text, "assistant"))
    return text


def recorded(model: Model, rollout_id: str | None) -> Any:
    return asyncio.run(model.backend().connection.api.rollout(str(rollout_id)))


def calls_of(trajectory: art.Trajectory) -> list[str]:
    """The call ids of every choice, main history first."""
    items = [trajectory, *trajectory.additional_histories]
    return [
        item.art["call_id"] for h in items for item in h.messages_and_choices if not isinstance(item, dict)
    ]


async def weather(model: Model) -> str:
    """A tool agent of two turns; the second is streamed."""
    messages: list[Any] = [says("weather in Oslo?")]
    answer = await ask(model, messages, tools=TOOLS)
    call = answer.choices[0].message.tool_calls[0]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    return await streamed(model, messages, tools=TOOLS)


def test_a_captured_agent_gives_its_trajectory(model: Model) -> None:
    trajectory = asyncio.run(art.capture_auto_trajectory(weather(model)))
    assert [message["role"] for message in trajectory.messages()] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert trajectory.messages()[3]["content"] == "Take a hat, it is sunny."
    assert trajectory.tools == TOOLS
    assert trajectory.additional_histories == []
    first, second = trajectory.messages_and_choices[1], trajectory.messages_and_choices[3]
    assert first.finish_reason == "tool_calls"
    assert second.token_ids
    assert [row.logprob <= 0 for row in second.logprobs.content] == [True] * len(second.token_ids)
    info = recorded(model, trajectory.rollout_id)
    assert (info.status, calls_of(trajectory)) == ("finished", [call.call_id for call in info.calls])
    assert [call.choices[0].token_count for call in info.calls] == [
        len(first.token_ids),
        len(second.token_ids),
    ]


def test_the_trajectory_is_live(model: Model) -> None:
    async def agent() -> None:
        trajectory = art.auto_trajectory(required=True)
        assert trajectory.messages_and_choices == []
        messages: list[Any] = [says("a fruit")]
        await ask(model, messages)
        assert len(trajectory.messages_and_choices) == 2
        await streamed(model, [*messages, says("again, a fruit")])
        assert len(trajectory.messages_and_choices) == 4
        assert art.auto_trajectory() is trajectory
        trajectory.reward = 0.5

    assert asyncio.run(art.capture_auto_trajectory(agent())).reward == 0.5


def test_outside_there_is_none_and_required_says_so() -> None:
    assert art.auto_trajectory() is None
    for kind in (RuntimeError, ArtError, NoTrajectory, Conflict):
        with pytest.raises(kind, match="capture_auto_trajectory"):
            art.auto_trajectory(required=True)


def test_a_history_that_is_not_continued_becomes_another(model: Model) -> None:
    async def agent() -> None:
        messages: list[Any] = [says("a fruit")]
        await ask(model, messages)
        await ask(model, [says("You are a critic.", "system"), says("is that a fruit?")])  # a sub-agent
        await ask(model, [*messages, says("another")])
        await ask(model, [*messages, says("weather in Rome")], tools=TOOLS)  # other tools

    trajectory = asyncio.run(art.capture_auto_trajectory(agent()))
    lengths = [len(h.messages_and_choices) for h in (trajectory, *trajectory.additional_histories)]
    assert lengths == [4, 3, 4]
    assert [h.tools for h in trajectory.additional_histories] == [None, TOOLS]
    assert len(set(calls_of(trajectory))) == 4


def test_gathered_captures_do_not_mix(model: Model) -> None:
    async def agent(number: int) -> None:
        messages: list[Any] = [says(f"a fruit for {number}")]
        await ask(model, messages)
        await asyncio.gather(*(ask(model, [*messages, says(f"a fruit {i}")]) for i in range(2)))

    async def run() -> list[art.TrajectoryGroup]:
        return await art.gather_trajectory_groups(
            [art.TrajectoryGroup(art.capture_auto_trajectory(agent(number)) for number in range(4))]
        )

    (group,) = asyncio.run(run())
    assert len({trajectory.rollout_id for trajectory in group}) == 4
    for number, trajectory in enumerate(group):
        assert trajectory.messages()[0]["content"] == f"a fruit for {number}"
        called = {call.call_id for call in recorded(model, trajectory.rollout_id).calls}
        assert (set(calls_of(trajectory)), len(called)) == (called, 3)


def test_a_gather_member_has_one_without_a_capture(model: Model) -> None:
    async def rollout() -> art.Trajectory:
        await ask(model, [says("a fruit")])
        trajectory = art.auto_trajectory(required=True)
        trajectory.reward = 1.0
        return trajectory

    (trajectory,) = asyncio.run(art.gather_trajectories([rollout()]))
    assert len(trajectory.messages_and_choices) == 2
    assert recorded(model, trajectory.rollout_id).reward == 1.0


def test_the_innermost_capture_has_the_call(model: Model) -> None:
    async def inner() -> None:
        await ask(model, [says("a fruit inside")])

    async def outer() -> art.Trajectory:
        await ask(model, [says("a fruit outside")])
        return await art.capture_auto_trajectory(inner())

    async def both() -> tuple[art.Trajectory, art.Trajectory]:
        kept: list[art.Trajectory] = []

        async def run() -> None:
            kept.append(await outer())

        return await art.capture_auto_trajectory(run()), kept[0]

    trajectories = asyncio.run(both())
    assert [t.messages()[0]["content"] for t in trajectories] == ["a fruit outside", "a fruit inside"]
    assert [len(t.messages_and_choices) for t in trajectories] == [2, 2]


def test_another_models_calls_are_not_mixed_in(model: Model, opponent: Model) -> None:
    async def game() -> None:
        await ask(model, [says("a fruit")])
        await ask(opponent, [says("a fruit")])
        await ask(model, [says("a fruit, please")])

    trajectory = asyncio.run(art.capture_auto_trajectory(game()))
    versions = [item.art["version"] for item in (trajectory.messages_and_choices[1],)]
    versions += [h.messages_and_choices[1].art["version"] for h in trajectory.additional_histories]
    assert versions == ["auto/m@0", "auto/m@0"]


def test_a_failing_agent_raises_and_its_rollout_says_so(model: Model) -> None:
    ids: list[str | None] = []

    async def agent() -> None:
        answer = await ask(model, [says("a fruit")])
        ids.append(answer.choices[0].art["call_id"])
        ids.append(art.rollouts.scope.current_scope().rollout_id)  # type: ignore[attr-defined]
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        asyncio.run(art.capture_auto_trajectory(agent()))
    assert recorded(model, ids[1]).status == "agent_error"


def test_a_session_has_one_also_for_a_thread_without_its_context(model: Model) -> None:
    with art.rollout(model) as session:
        client = session.sync_openai_client()

        def agent() -> None:
            with client:  # closing it must not close what other rollouts use
                client.chat.completions.create(model="gpt-4o", messages=[says("a fruit")])  # type: ignore[list-item]

        thread = threading.Thread(target=agent)
        thread.start()
        thread.join()
        with session.sync_openai_client() as again:
            stream = again.chat.completions.create(
                model="gpt-4o",
                messages=[says("a fruit")],  # type: ignore[list-item]
                stream=True,
            )
            assert [chunk for chunk in stream]  # noqa: C416 - read to its end
        trajectory = art.auto_trajectory(required=True)
        session.reward = 1.0
    assert len(calls_of(trajectory)) == 2
    assert sorted(calls_of(trajectory)) == sorted(
        call.call_id for call in recorded(model, session.rollout_id).calls
    )


def test_of_several_choices_the_continued_one_stays(model: Model) -> None:
    picked: list[str] = []

    async def agent() -> None:
        messages: list[Any] = [says("a fruit")]
        answer = await ask(model, messages, n=3)
        texts = [choice.message.content for choice in answer.choices]
        assert texts[2] not in texts[:2], "the seeds of this test draw three fruits"
        picked.append(texts[2])
        await ask(model, [messages[0], answer.choices[2].message, says("more")])

    # Draws are a function of the rollout, so that one of a few has three different fruits.
    for attempt in range(20):
        try:
            trajectory = asyncio.run(art.capture_auto_trajectory(agent()))
            break
        except AssertionError:
            assert attempt < 19
    assert trajectory.messages()[1]["content"] == picked[0]
    assert trajectory.messages_and_choices[1].art["choice"] == 2
    assert len(trajectory.messages_and_choices) == 4


def test_a_stream_that_was_left_is_not_part_of_it(model: Model) -> None:
    async def agent() -> None:
        chunks = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(),
            messages=[says("slowly")],  # type: ignore[list-item]
            stream=True,
        )
        async for _ in chunks:
            break
        await chunks.close()

    assert asyncio.run(art.capture_auto_trajectory(agent())).messages_and_choices == []


def test_calls_that_are_no_chat_completions_are_said_to_be_elsewhere(
    model: Model, capfd: pytest.CaptureFixture[str]
) -> None:
    with art.rollout(model) as session:
        client = session.sync_anthropic_client()
        answer = client.messages.create(model="claude", max_tokens=9, messages=[says("a fruit")])  # type: ignore[typeddict-item]
        assert answer.content
        assert art.auto_trajectory(required=True).messages_and_choices == []
        session.reward = 1.0
    assert "calls to /messages are not in auto_trajectory" in capfd.readouterr().err
    assert len(session.trajectory.messages_and_choices) == 2


# -- without a server


def test_messages_are_the_same_whatever_sdks_do_to_them() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": 2}'}}
    again = {"id": "b", "function": {"name": "f", "arguments": '{"b":2,"a":1}'}}
    assert canonical({"role": "assistant", "content": None, "tool_calls": [call]}) == canonical(
        {"role": "assistant", "content": "", "tool_calls": [again], "refusal": None}
    )
    assert canonical(says("hi \n")) == canonical(
        {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    )
    assert canonical(says("hi")) != canonical(says("hi", "system"))
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    assert canonical(image) != canonical(says(""))


def test_chunks_become_choices() -> None:
    function = [{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a"'}}]
    parts: list[Any] = [
        {"index": 0, "delta": {"role": "assistant", "content": "a\u2028"}, "token_ids": [1]},
        {
            "index": 0,
            "delta": {"content": "b", "reasoning_content": "x"},
            "logprobs": {"content": [{"logprob": -1}]},
        },
        {"index": 0, "delta": {"tool_calls": function}, "logprobs": {"content": [{"logprob": -2}]}},
        {"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}},
        {"index": 0, "delta": {}, "finish_reason": "tool_calls", "token_ids": [2], "art": {"call_id": "q"}},
        {"index": 1, "delta": {"content": "unfinished"}},
    ]
    lines = [f"data: {json.dumps({'choices': [part]}, ensure_ascii=False)}\n\n: ping\n\n" for part in parts]
    (choice,) = completed_choices(("".join(lines) + "data: [DONE]\n\n").encode())
    assert choice["message"]["content"] == "a\u2028b"
    assert choice["message"]["reasoning_content"] == "x"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert (choice["token_ids"], choice["art"]) == ([1, 2], {"call_id": "q"})
    assert [row["logprob"] for row in choice["logprobs"]["content"]] == [-1, -2]
    assert completed_choices(b"<html>") == completed_choices(b'{"error": {}}') == completed_choices(b"") == []


def test_an_answer_that_a_proxy_compressed_is_read() -> None:
    choice = {"index": 0, "finish_reason": "stop", "message": says("yes", "assistant")}
    packed = gzip.compress(json.dumps({"choices": [choice]}).encode())

    def answer(request: httpx2.Request) -> httpx2.Response:
        stream = httpx2.ByteStream(packed)
        return httpx2.Response(200, headers={"content-encoding": "gzip"}, stream=stream)

    recording = Recording()
    client = httpx2.Client(transport=httpx2.MockTransport(answer), event_hooks=Recorder("m").sync_hooks())
    with recording_into(recording):
        body = {"messages": [says("well?")]}
        assert client.post("http://x/v1/chat/completions", json=body).json()["choices"] == [choice]
        client.post("http://x/v1/embeddings", json=body)
    assert [message["content"] for message in recording.trajectory.messages()] == ["well?", "yes"]


# -- yielding


def test_a_yielded_trajectory_reaches_whoever_captures_it() -> None:
    async def agent(*rewards: float) -> str:
        for reward in rewards:
            await asyncio.to_thread(art.yield_trajectory, art.Trajectory(reward=reward))
        return "its own result"

    async def run() -> list[float]:
        found = await asyncio.gather(*(art.capture_yielded_trajectory(agent(0.0, n)) for n in (1.0, 2.0)))
        return [trajectory.reward for trajectory in found]

    assert asyncio.run(run()) == [1.0, 2.0]
    assert asyncio.run(agent(1.0)) == "its own result"  # nobody captures: nothing happens
    with pytest.raises(RuntimeError, match="yield_trajectory"):
        asyncio.run(art.capture_yielded_trajectory(agent()))
