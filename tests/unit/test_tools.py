"""Tools that act: dry runs, recorded answers, rules on arguments, and the loop that answers a model's calls."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from client_kit import KEY, FakeGateway
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel, Field

import art
from art.errors import ConfigError, InfraError, InvalidInput, NotFound
from art.rollouts.recording import Recording, recording_into
from art.utils import Effect, Recorded, Refusal, Toolbox, allow, dry_run, record, under

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the web.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["query"],
        },
    },
}


class Address(BaseModel):
    """Where somebody is written to."""

    name: str
    mail: str


def send_mail(to: str, body: str = "") -> str:
    """Send a mail."""
    raise AssertionError("a mail went out")


async def pay(account: str, amount: float) -> dict[str, Any]:
    raise AssertionError("money was spent")


def write(path: str, text: str) -> int:
    return Path(path).write_text(text)


def asked(*calls: tuple[str, Any]) -> dict[str, Any]:
    """An assistant message with these calls."""
    tool_calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for number, (name, given) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": tool_calls}


def contents(toolbox: Toolbox, *calls: tuple[str, Any]) -> list[str]:
    messages = toolbox.answers_sync(asked(*calls))
    assert [message["tool_call_id"] for message in messages] == [f"call_{n}" for n in range(len(calls))]
    assert {message["role"] for message in messages} <= {"tool"}
    return [message["content"] for message in messages]


# -- dry runs


def test_a_dry_run_does_nothing_and_tells_what_it_would_have_done() -> None:
    effects: list[Effect] = []
    send = dry_run(send_mail, answer="sent", effects=effects)
    assert send("ann@example.org") == "sent"
    assert send(body="Hi", to="bob@example.org") == "sent"
    assert effects == [
        Effect("send_mail", {"to": "ann@example.org", "body": ""}, "sent"),
        Effect("send_mail", {"to": "bob@example.org", "body": "Hi"}, "sent"),
    ]
    assert inspect.signature(send) == inspect.signature(send_mail)
    assert (send.__name__, send.__doc__) == ("send_mail", "Send a mail.")


def test_an_async_tool_stays_async_and_its_answer_may_be_computed() -> None:
    async def receipt(account: str, amount: float) -> dict[str, Any]:
        return {"account": account, "left": 100 - amount}

    for answer in (receipt, lambda account, amount: {"account": account, "left": 100 - amount}):
        effects: list[Effect] = []
        dry = dry_run(pay, answer=answer, effects=effects)
        assert inspect.iscoroutinefunction(dry)
        assert asyncio.run(dry("a", amount=30)) == {"account": "a", "left": 70}
        assert effects[0].answer == {"account": "a", "left": 70}
    with pytest.raises(ConfigError, match="async and send_mail is not"):
        dry_run(send_mail, answer=receipt)


def test_a_dry_run_takes_what_the_tool_takes() -> None:
    effects: list[Effect] = []
    send = dry_run(send_mail, effects=effects)
    for wrong in ({}, {"to": "a", "cc": "b"}):
        with pytest.raises(TypeError):
            send(**wrong)
    with pytest.raises(TypeError):
        send("a", "b", "c")
    assert effects == []


@pytest.mark.parametrize("definition", [SEARCH, SEARCH["function"]], ids=["whole", "inner"])
def test_a_definition_is_enough_for_a_dry_run(definition: dict[str, Any]) -> None:
    effects: list[Effect] = []
    search = dry_run(definition, answer=["a page"], effects=effects)
    given = search(query="art", limit=3)
    given.append("changed by the agent")
    assert search(query="art") == ["a page"]
    assert [effect.arguments for effect in effects] == [{"query": "art", "limit": 3}, {"query": "art"}]
    assert Toolbox([search]).definitions == [SEARCH]
    with pytest.raises(TypeError, match="lacks query"):
        search(limit=3)
    with pytest.raises(TypeError, match="does not take page"):
        search(query="a", page=2)


def test_recorded_answers_are_given_again(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"

    def look_up(city: str, days: int = 1) -> dict[str, Any]:
        return {"city": city, "days": days}

    async def forecast(city: str) -> str:
        return f"rain in {city}"

    real = record(look_up, file)
    assert real("Oslo") == {"city": "Oslo", "days": 1}
    assert real(days=2, city="Rome") == {"city": "Rome", "days": 2}
    assert asyncio.run(record(forecast, file)("Oslo")) == "rain in Oslo"

    def gone(city: str, days: int = 1) -> dict[str, Any]:
        raise AssertionError("it was really called")

    gone.__name__ = "look_up"
    again = dry_run(gone, answer=Recorded(file))
    assert again(city="Oslo") == {"city": "Oslo", "days": 1}
    assert again("Rome", 2) == {"city": "Rome", "days": 2}
    with pytest.raises(NotFound, match="no answer of look_up to city='Bonn'"):
        again("Bonn")
    assert dry_run(gone, answer=Recorded(file, otherwise=None))("Bonn") is None
    file.write_text('{"tool": "look_up"}\n')
    with pytest.raises(InvalidInput, match="line 1"):
        Recorded(file)


# -- rules


def test_a_call_that_breaks_a_rule_is_not_made(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    guarded = allow(write, path=under(site))
    assert guarded(str(site / "a.txt"), "in") == 2
    for path in (str(tmp_path / "b.txt"), f"{site}/../b.txt", f"{site}x/b.txt", str(tmp_path), "b.txt"):
        answer = guarded(path=path, text="out")
        assert isinstance(answer, Refusal)
        assert answer.startswith("refused: write may not be called with path=")
        assert str(site) in answer
    assert [file.name for file in tmp_path.rglob("*.txt")] == ["a.txt"]


def test_a_link_that_leads_outside_is_outside(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "out").symlink_to(tmp_path)
    guarded = allow(write, path=under(tmp_path / "site"))
    assert isinstance(guarded(str(tmp_path / "site" / "out" / "b.txt"), "out"), Refusal)
    assert isinstance(guarded(f"{tmp_path}/site/\0", "out"), Refusal)


def test_rules_of_every_kind() -> None:
    def ask(host: str, port: int = 443, method: str = "GET") -> str:
        return f"{method} {host}:{port}"

    guarded = allow(
        ask, host=re.compile(r"[a-z]+\.example\.org"), port=lambda port: port < 1024, method=["GET", "HEAD"]
    )
    assert guarded("www.example.org") == "GET www.example.org:443"
    wrong: list[dict[str, Any]] = [
        {"host": "www.example.org.evil.net"},
        {"host": 7},
        {"host": "www.example.org", "port": 8080},
        {"host": "www.example.org", "port": "ssh"},  # the predicate cannot judge it
        {"host": "www.example.org", "method": "POST"},
        {"host": "www.example.org", "method": ["unhashable"]},
    ]
    for given in wrong:
        assert isinstance(guarded(**given), Refusal), given
    assert "possible: 'GET', 'HEAD'" in guarded("www.example.org", method="POST")

    def default(path: str = "/etc") -> str:
        return path

    assert isinstance(allow(default, path=["/srv"])(), Refusal)


def test_an_async_tool_under_a_rule_and_a_dry_run_under_one() -> None:
    effects: list[Effect] = []
    guarded = allow(dry_run(pay, answer={"ok": True}, effects=effects), amount=lambda amount: amount <= 10)
    assert inspect.iscoroutinefunction(guarded)
    assert asyncio.run(guarded("a", 10)) == {"ok": True}
    assert isinstance(asyncio.run(guarded("a", 11)), Refusal)
    assert [effect.arguments["amount"] for effect in effects] == [10]
    search = allow(dry_run(SEARCH), query=re.compile("art.*"))
    assert search(query="art") == "done"
    assert isinstance(search(query="bombs"), Refusal)
    assert isinstance(allow(dry_run(SEARCH), limit=[1])(query="art"), Refusal), (
        "a rule for what was not given"
    )


def test_a_rule_that_could_not_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameter file"):
        allow(write, file=under("/srv"))
    with pytest.raises(ConfigError, match="no parameter file"):
        allow(dry_run(SEARCH), file=under("/srv"))
    with pytest.raises(ConfigError, match="is a str"):
        allow(write, path="/srv")
    with pytest.raises(ConfigError, match="no rule"):
        allow(write)
    with pytest.raises(ConfigError, match="no folder"):
        under()


# -- the loop


def test_a_toolbox_describes_functions_and_answers_calls() -> None:
    def weather(city: str, days: Annotated[int, Field(description="How many.")] = 1) -> str:
        """The weather of a city."""
        return f"{city} {days + 1}"

    async def greet(who: Address, loud: bool = False) -> dict[str, Any]:
        return {"to": who.mail, "loud": loud}

    toolbox = Toolbox([weather, greet, (SEARCH, lambda query, limit=5: [query, limit])])
    described = {one["function"]["name"]: one["function"] for one in toolbox.definitions}
    assert list(described) == ["weather", "greet", "search"]
    assert described["weather"]["description"] == "The weather of a city."
    parameters = described["weather"]["parameters"]
    assert parameters["properties"]["city"] == {"type": "string"}
    assert parameters["properties"]["days"] == {"type": "integer", "description": "How many.", "default": 1}
    assert parameters["required"] == ["city"]
    (reference,) = described["greet"]["parameters"]["properties"]["who"].values()
    name = reference.rpartition("/")[2]
    assert described["greet"]["parameters"]["$defs"][name]["required"] == ["name", "mail"]
    answers = contents(
        toolbox,
        ("weather", {"city": "Oslo"}),
        ("weather", {"city": "Oslo", "days": "3"}),
        ("greet", {"who": {"name": "Ann", "mail": "ann@example.org"}}),
        ("search", {"query": "art"}),
    )
    assert answers == [
        "Oslo 2",
        "Oslo 4",
        '{"to": "ann@example.org", "loud": false}',
        '["art", 5]',
    ]
    assert toolbox.answers_sync({"role": "assistant", "content": "Done."}) == []


def test_choices_and_messages_are_taken_as_the_client_gives_them() -> None:
    toolbox = Toolbox([dry_run(send_mail, answer="sent")])
    message = asked(("send_mail", {"to": "ann"}))
    choice = Choice.model_validate({"index": 0, "finish_reason": "tool_calls", "message": message})
    expected = [{"role": "tool", "tool_call_id": "call_0", "content": "sent"}]
    for said in (choice, choice.message, message, {"message": message, "finish_reason": "tool_calls"}):
        assert asyncio.run(toolbox.answers(said)) == expected
    with pytest.raises(InvalidInput, match="whole completion"):
        toolbox.answers_sync({"choices": [choice]})


def test_what_is_wrong_with_a_call_is_an_answer() -> None:
    def divide(a: int, b: int) -> float:
        return a / b

    recording = Recording()
    with recording_into(recording):
        answers = contents(
            Toolbox([divide, dry_run(SEARCH)]),
            ("divide", "{"),
            ("divide", "[1, 2]"),
            ("divide", {"a": 1}),
            ("divide", {"a": 1, "b": 2, "c": 3}),
            ("divide", {"a": "one", "b": 2}),
            ("divide", {"a": 1, "b": 0}),
            ("search", {"limit": 1}),
            ("delete_everything", {}),
        )
    assert [answer.partition(":")[0] for answer in answers] == ["error"] * 7 + ["refused"]
    assert "ZeroDivisionError" in answers[5]
    assert "lacks query" in answers[6]
    assert recording.trajectory.metrics == {"tools/failed": 7, "tools/refused": 1}
    well = Recording()
    with recording_into(well):
        contents(Toolbox([divide]), ("divide", {"a": 1, "b": 2}))
    assert well.counts == {"tools/failed": 0, "tools/refused": 0}, (
        "or a mean would be over the failures alone"
    )
    broken = {
        "role": "assistant",
        "tool_calls": [{"id": "x", "type": "custom", "custom": {"name": "divide"}}],
    }
    (answer,) = Toolbox([divide]).answers_sync(broken)
    assert answer["content"] == "error: this is no call of a function"


def test_only_the_tools_that_are_allowed_are_called() -> None:
    effects: list[Effect] = []
    tools = [dry_run(send_mail, effects=effects), dry_run(pay, effects=effects)]
    toolbox = Toolbox(tools, allow=["send_mail"])
    assert [one["function"]["name"] for one in toolbox.definitions] == ["send_mail", "pay"]
    answers = contents(toolbox, ("pay", {"account": "a", "amount": 1}), ("send_mail", {"to": "ann"}))
    assert answers == ["refused: pay may not be called", "done"]
    assert [effect.tool for effect in effects] == ["send_mail"]
    with pytest.raises(ConfigError, match="names fly, which is no tool"):
        Toolbox(tools, allow=["fly"])
    with pytest.raises(ConfigError, match="is a text"):
        Toolbox(tools, allow="pay")
    with pytest.raises(ConfigError, match="two tools are named pay"):
        Toolbox([pay, pay])


def test_failures_of_the_machine_are_no_answers() -> None:
    def unreachable() -> None:
        raise InfraError("away")

    def unplugged() -> None:
        raise ConnectionResetError("gone")

    with pytest.raises(InfraError):
        contents(Toolbox([unreachable]), ("unreachable", {}))
    with pytest.raises(ConnectionResetError):
        contents(Toolbox([unplugged]), ("unplugged", {}))


def test_a_function_that_no_model_could_call_is_refused() -> None:
    def spread(*parts: str) -> None: ...

    def unknown(what: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
        ...

    def odd(what: asyncio.Lock) -> None: ...

    for function in (spread, unknown, odd):
        with pytest.raises(ConfigError, match=function.__name__):
            Toolbox([function])
    for nothing in (7, ({}, write), ({"function": {}}, write)):
        with pytest.raises(ConfigError):
            Toolbox([nothing])  # type: ignore[list-item]


# -- counting


def test_refusals_and_dry_runs_are_counted_in_the_trajectory() -> None:
    recording = Recording()
    send = allow(dry_run(send_mail), to=re.compile(".*@example.org"))
    send("nobody's")  # outside of any rollout nothing is counted, and nothing fails
    with recording_into(recording):
        send("ann@example.org")
        assert recording.trajectory.metrics == {"tools/dry_run": 1, "tools/refused": 0}
        send("x@evil.net")
        send("y@evil.net")
    assert recording.trajectory.metrics == {"tools/dry_run": 1, "tools/refused": 2}
    late = Recording()
    with recording_into(late):
        send("x@evil.net")
    assert late.trajectory.metrics == {"tools/refused": 1}


def test_a_gather_member_finds_its_counts_in_its_own_trajectory() -> None:
    send = allow(dry_run(send_mail), to=re.compile(".*@example.org"))

    async def member(*receivers: str) -> art.Trajectory:
        for receiver in receivers:
            await asyncio.sleep(0)
            send(receiver)
        return art.Trajectory(reward=1.0, metrics={"mine": 1})

    members = [member("ann@example.org"), member("x@evil.net", "bob@example.org"), member()]
    gathered = asyncio.run(art.gather_trajectories(members, pbar_desc=None))
    assert [one.metrics for one in gathered] == [
        {"mine": 1, "tools/dry_run": 1, "tools/refused": 0},
        {"mine": 1, "tools/dry_run": 1, "tools/refused": 1},
        {"mine": 1},
    ]


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        yield running


@pytest.fixture
def model(gateway: FakeGateway) -> art.TrainableModel[Any, Any]:
    made: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model="base")
    made.register(art.RemoteBackend(gateway.url, KEY))
    return made


def test_a_sessions_counts_reach_its_trajectory_and_the_server(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    send = allow(dry_run(send_mail), to=re.compile(".*@example.org"))

    async def run() -> art.Trajectory:
        async with art.rollout(model) as session:
            send("x@evil.net")
            session.metrics["mine"] = 2
            session.reward = 0.5
        return session.trajectory

    expected = {"mine": 2, "tools/refused": 1}
    assert asyncio.run(run()).metrics == expected
    assert [body["metrics"] for body in gateway.bodies("/reward")] == [expected]

    def agent(task: str) -> art.Trajectory:
        send("x@evil.net")
        answer = {"message": {"role": "assistant", "content": "no"}, "finish_reason": "stop", "index": 0}
        return art.Trajectory(messages_and_choices=[answer], reward=1.0, metrics={"turns": 1})

    wrapped = asyncio.run(art.wrap(agent).rollout(model, "x"))
    assert (wrapped.metrics["tools/refused"], wrapped.metrics["turns"]) == (1, 1)


def test_an_agents_process_tells_what_it_counted(
    model: art.TrainableModel[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acting_agent.py").write_text(
        "from art.utils import allow\n\ndef act(task):\n"
        "    return allow(lambda path: path, path=['/srv'])(path=task)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    wrapped = art.wrap("acting_agent:act", lambda answer: 0.0, isolate="process")
    trajectory = asyncio.run(wrapped.rollout(model, "/etc"))
    assert trajectory.metrics["tools/refused"] == 1
