"""Sensitive data on a server that samples and trains: no file holds it, the model sees it, and nothing leaves the machine.

One server for all: `open` keeps everything, `clinic` redacts, `bank` keeps no content. Every process of it writes down
which addresses it asks for, and may reach loopback alone.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from train_kit import ENVIRONMENT, Trained
from typer.testing import CliRunner

import art
from art.cli import data
from art.cli._data_flow import environment_flows, lines, report
from art.server.selection import GONE
from art.types.explain import Explanation

pytestmark = pytest.mark.absent(
    importlib.util.find_spec("cryptography") is None, reason="cryptography (the extra `encryption`)"
)

SECRET = "rumpelstiltskin@example.org"
OPENLY = "grace.hopper@example.org"
"""Also of a project that keeps everything: it stays on the disk."""
MARK = "[REDACTED:email]"
ELSEWHERE = "192.0.2.1"
"""Of the addresses that documentation uses and nobody has (RFC 5737)."""
PROJECTS = {"clinic": {"redact": "standard"}, "bank": {"content": "none"}}
GUARD = """\
import os, sys

log = os.open(os.environ["NET_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def hook(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = args[1]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        address = args
    else:
        return
    if not isinstance(address, tuple) or address[0] is None:  # a Unix socket, a name for listening
        return
    host = address[0].decode() if isinstance(address[0], bytes) else str(address[0])
    os.write(log, f"{host}\\n".encode())
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise PermissionError(f"{host} is not loopback")

sys.addaudithook(hook)
"""


class Kept(Trained):
    """The server, and what its processes asked the network for."""

    def __init__(self, server: Any, base_model: Path, net_log: Path) -> None:
        Trained.__init__(self, server, base_model)
        self.net_log = net_log

    def hosts(self) -> set[str]:
        return set(self.net_log.read_text().split())

    def registered(self, project: str) -> str:
        body = {"project": project, "name": "m", "config": {"base_model": self.base_model}}
        self.api("POST", "models", body)
        return f"{project}/m"

    def ask(self, model: str, rollout_id: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"model": model, "messages": messages, "max_tokens": 6, "logprobs": True}
        response = self.raw("POST", "/v1/chat/completions", body, **{"X-ART-Rollout": rollout_id})
        assert response.status_code == 200, response.text
        return dict(response.json())

    def handed_over(self, model: str, said: str, rewards: tuple[float, ...] = (0.0, 1.0)) -> dict[str, Any]:
        """Rollouts of one call as a program hands them over."""
        trajectories = []
        for reward in rewards:
            rollout_id, messages = f"r-{uuid.uuid4().hex[:12]}", [{"role": "user", "content": said}]
            choice = self.ask(model, rollout_id, messages)["choices"][0]
            trajectories.append(
                {"messages_and_choices": [*messages, choice], "reward": reward, "rollout_id": rollout_id}
            )
        return {"trajectories": trajectories}

    def trained(self, model: str, group: dict[str, Any]) -> dict[str, Any]:
        project, name = model.split("/")
        return self.train([group], project=project, name=name)

    def tokens(self, text: str) -> list[int]:
        found: list[int] = Tokenizer.from_file(f"{self.base_model}/tokenizer.json").encode(text).ids
        return found

    def files(self) -> bytes:
        """Every byte that the server keeps: database, its log, token files, logs, models."""
        return b"\n".join(file.read_bytes() for file in self.server.path.rglob("*") if file.is_file())

    def leaks(self, text: str) -> list[str]:
        """How a text, or the tokens it is made of, can be read in the server's folder."""
        kept, ids = self.files(), self.tokens(text)
        forms = {
            "text": text.encode(),
            "tokens, 32 bits": np.array(ids, dtype=np.int32).tobytes(),
            "tokens, 64 bits": np.array(ids, dtype=np.int64).tobytes(),
            "tokens in JSON": ",".join(map(str, ids)).encode(),
            "tokens in lines": ", ".join(map(str, ids)).encode(),
        }
        spaceless = b"".join(kept.split())
        return [name for name, form in forms.items() if form in kept or b"".join(form.split()) in spaceless]

    def explained(self, rollout_id: str) -> Explanation:
        return Explanation.model_validate(self.api("GET", f"rollouts/{rollout_id}/explain?tokens=true"))


@pytest.fixture(scope="module")
def kept(
    start_art_server: Any, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kept]:
    guard = tmp_path_factory.mktemp("guard")
    (guard / "sitecustomize.py").write_text(GUARD)
    net_log = guard / "hosts"
    server = start_art_server(
        engine="torch",
        arguments=["--set", f"server.upstreams.far=http://{ELSEWHERE}:9/v1,timeout=5"],
        environment={
            **ENVIRONMENT,
            "ART_SERVER__PROJECTS": json.dumps(PROJECTS),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(guard), os.environ.get("PYTHONPATH", "")])),
            "NET_LOG": str(net_log),
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
        },
    )
    yield Kept(server, tiny_model_dir, net_log)
    server.stop()


def test_a_redacted_call_is_trained_and_nothing_of_it_is_on_the_disk(kept: Kept) -> None:
    model = kept.registered("clinic")
    said = f"Mail {SECRET} please"
    rollout_id = f"r-{uuid.uuid4().hex[:12]}"
    messages: list[dict[str, Any]] = [{"role": "user", "content": said}]
    first = kept.ask(model, rollout_id, messages)
    needle = kept.tokens(SECRET)
    prompt = first["prompt_token_ids"]
    assert any(prompt[at : at + len(needle)] == needle for at in range(len(prompt))), (
        "the model sees the true text"
    )
    messages += [first["choices"][0]["message"], {"role": "user", "content": "yes or no?"}]
    second = kept.ask(model, rollout_id, messages)
    whole = prompt + first["choices"][0]["token_ids"]
    assert second["prompt_token_ids"][: len(whole)] == whole, "the exact tokens, from memory"

    assert kept.leaks(SECRET) == []
    group = kept.handed_over(model, said)
    group["trajectories"].append(
        {
            "messages_and_choices": [messages[0], first["choices"][0], messages[2], second["choices"][0]],
            "reward": 0.5,
            "rollout_id": rollout_id,
            "metadata": {"patient": SECRET},
        }
    )
    before = kept.explained(rollout_id)
    assert [call.withheld for call in before.calls] == [
        "its conversation was redacted; its tokens are encrypted until they were trained"
    ] * 2
    assert all(call.prompt_tail is None for call in before.calls)
    shown = kept.rollout(rollout_id)
    assert shown["messages"][0]["content"] == f"Mail {MARK} please"

    result = kept.trained(model, group)
    assert result["published"], result["reason"]
    assert [item["status"] for item in result["trajectories"]] == ["trained"] * 3
    assert kept.leaks(SECRET) == []
    after = kept.explained(rollout_id)
    assert [call.choices[0].fate for call in after.calls] == ["trained"] * 2
    assert all("were deleted" in call.withheld for call in after.calls)
    assert kept.rollout(rollout_id)["metadata"] == {"patient": MARK}
    sealed = kept.query(
        "SELECT COUNT(*) FROM calls JOIN rollouts USING (rollout_id) WHERE project = 'clinic' AND blob IS NOT NULL"
    )
    assert sealed == [(0,)], "nothing is left to be read by whoever has the key"

    log = {"step": 1, "split": "val", "recorded_at": "now", "groups": [group]}
    assert kept.api("POST", "models/clinic/m/log", log)["rollouts"] == 3
    assert kept.leaks(SECRET) == []
    again = kept.trained(model, group)
    assert not again["published"]
    assert {item["reason"] for item in again["trajectories"]} == {GONE}


def test_where_no_content_is_kept_training_goes_on_all_the_same(kept: Kept) -> None:
    model, said = kept.registered("bank"), "the vault opens at nine"
    group = kept.handed_over(model, said)
    rollout_id = group["trajectories"][0]["rollout_id"]
    assert kept.leaks(said) == []
    shown = kept.rollout(rollout_id)
    assert shown["messages"][0] == {"role": "user", "content": ""}
    assert shown["calls"][0]["choices"][0]["token_count"] > 0
    result = kept.trained(model, group)
    assert result["published"], result["reason"]
    (call,) = kept.explained(rollout_id).calls
    assert call.withheld == "its content is not kept; its tokens were deleted"
    assert call.choices[0].fate == "trained"
    assert kept.rollout(rollout_id)["reward"] == 0.0
    assert kept.leaks(said) == []


def test_what_the_dashboard_shows_and_keeps(kept: Kept) -> None:
    """Notes, saved views and configurations pass the same rule; of sealed calls no token is listed."""
    for project, text in (("clinic", f"Mail {MARK} please"), ("bank", "")):
        model, rollout_id = kept.registered(project), f"r-{uuid.uuid4().hex[:12]}"
        kept.ask(model, rollout_id, [{"role": "user", "content": f"Mail {SECRET} please"}])
        (call,) = kept.api("GET", f"views/rollouts/{rollout_id}")["calls"]
        assert [message["text"] for message in call["tail"]] == [text]
        assert "encrypted until they were trained" in call["withheld"]
        page = kept.api("GET", f"views/rollouts/{rollout_id}/tokens?call_id={call['call_id']}&start=-1000")
        assert (page["ids"], page["text"], page["withheld"]) == ([], [], call["withheld"])
        assert page["total"] == call["choices"][0]["token_count"]
        note = {"flag": "bad", "note": f"he says {SECRET}"}
        answer = kept.raw("PUT", f"/api/v1/rollouts/{rollout_id}/note", note)
        if project == "bank":
            assert answer.status_code == 400
            assert "keeps no texts" in answer.text
            answer = kept.raw("PUT", f"/api/v1/rollouts/{rollout_id}/note", {"flag": "bad"})
        assert answer.json()["note"] == ("" if project == "bank" else f"he says {MARK}")
        assert answer.json()["flag"] == "bad"
        kept.api("PUT", f"views/saved/{project}", {"name": "his", "location": f"/?filter={SECRET}"})
        assert kept.api("GET", f"views/saved?project={project}")["views"][0]["location"] == f"/?filter={MARK}"
        config = {"config": {"mail_to": SECRET, "steps": 3}}
        told = kept.api("PUT", f"models/{model}/run-config", config)
        assert told["config"] == {"mail_to": MARK, "steps": 3}
    assert kept.leaks(SECRET) == []


def test_what_an_agent_refers_to_is_what_was_said(kept: Kept) -> None:
    """`previous_response_id`: the server holds the history, the model must not be told a marker for it."""
    model = kept.registered("clinic")
    ask = {"model": model, "input": f"I am {SECRET}", "max_output_tokens": 4}
    first = kept.raw("POST", "/v1/responses", ask)
    assert first.status_code == 200, first.text
    more = {
        "model": model,
        "input": "go on",
        "previous_response_id": first.json()["id"],
        "max_output_tokens": 4,
    }
    second = kept.raw("POST", "/v1/responses", more)
    assert second.status_code == 200, second.text
    prompt, needle = second.json()["prompt_token_ids"], kept.tokens(SECRET)
    assert any(prompt[at : at + len(needle)] == needle for at in range(len(prompt)))
    assert kept.leaks(SECRET) == []


def test_examples_for_supervised_training_are_not_left_behind(kept: Kept) -> None:
    kept.registered("clinic")
    conversation = {
        "messages": [{"role": "user", "content": SECRET}, {"role": "assistant", "content": "yes"}]
    }
    body = {"project": "clinic", "name": "m", "examples": [{"conversations": [conversation]}], "config": {}}
    job = kept.api("POST", "jobs/sft", body)
    done = kept.finished(job["job_id"])
    assert done["status"] == "succeeded", done["error"]
    assert kept.leaks(SECRET) == []
    assert not list((kept.server.path / "server" / "blobs" / "clinic").glob("sft-*"))


def test_the_search_finds_what_is_not_redacted(kept: Kept) -> None:
    """Else it would prove nothing."""
    plain = "plainly@example.org"
    kept.handed_over(kept.registered("open"), f"Mail {plain} please")
    assert set(kept.leaks(plain)) >= {"text", "tokens, 32 bits"}


def test_retention_by_command(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_API_KEY", kept.server.admin_key)
    group = kept.handed_over(kept.registered("open"), "old by tomorrow")
    for trajectory in group["trajectories"]:
        kept.api("POST", f"rollouts/{trajectory['rollout_id']}/finish", {})

    def art(*arguments: str, typed: str = "") -> Any:
        return CliRunner().invoke(
            data.group, ["retention", *arguments, "--url", kept.server.url], input=typed
        )

    done = art("set", "--project", "open", "--keep", "30d", "--dry-run")
    assert "would delete 0 rollouts" in done.stdout, done.output
    assert "none: everything is kept" in art("list").stdout
    time.sleep(1.1)
    assert "delete 2 rollouts" in art("set", "--project", "open", "--keep", "1s", typed="n\n").output
    done = art("set", "--project", "open", "--keep", "1s", "--yes")
    assert "open keeps its data for 1s; deleted 2 rollouts" in done.stdout, done.output
    assert kept.raw("GET", f"/api/v1/rollouts/{group['trajectories'][0]['rollout_id']}").status_code == 404
    actions = [entry["action"] for entry in kept.api("GET", "audit?limit=2")["entries"]]
    assert actions == ["POST /api/v1/data/retention", "retention"]
    assert "open  1.15741e-05 days" in art("list").stdout
    key = kept.api("POST", "keys", {"role": "admin", "project": "bank"})["key"]
    theirs = {"Authorization": f"Bearer {key}"}
    assert kept.raw("GET", "/api/v1/data/retention", **theirs).json() == {"retentions": []}
    body = {"project": "open", "keep_seconds": None}
    assert kept.raw("POST", "/api/v1/data/retention", body, **theirs).status_code == 403
    assert kept.raw("GET", "/api/v1/data/flow", **theirs).status_code == 403
    assert art("clear", "--project", "open").stdout.strip() == "open keeps its data"
    assert kept.api("GET", "data/retention") == {"retentions": []}


def test_a_tracker_gets_what_is_kept_and_no_more(kept: Kept, tmp_path: Path) -> None:
    """Asked for content, too. And what it was sent is told."""
    path = kept.server.path / "tracked"

    async def program(project: str, content: bool) -> str:
        model = art.TrainableModel[Any, Any](
            name="m", project=project, base_model=str(kept.base_model), base_path=str(path)
        )
        file = tmp_path / f"{project}-{content}.jsonl"
        model.report_to("openpipe", file=str(file), content=content)
        group = kept.handed_over(kept.registered(project), f"Mail {OPENLY} please")
        await model.register(art.RemoteBackend(kept.server.url, kept.server.admin_key))
        await model.log(
            [art.TrajectoryGroup([art.Trajectory(**one) for one in group["trajectories"]])], "test"
        )
        model.tracking.close()
        assert len(file.read_text().splitlines()) == 2
        return file.read_text()

    said = {
        (project, content): asyncio.run(program(project, content))
        for project in ("open", "clinic", "bank")
        for content in (True, False)
    }
    assert [key for key, text in said.items() if OPENLY in text] == [("open", True)]
    assert [key for key, text in said.items() if MARK in text] == [("clinic", True)]
    assert [key for key, text in said.items() if "please" in text] == [("open", True), ("clinic", True)]
    flows = [flow for flow in report(path, None).flows if flow.kind == "tracker"]
    assert {flow.place for flow in flows} == {
        str(tmp_path / f"{project}-{content}.jsonl") for project, content in said
    }
    assert any("rollouts with what was said" in flow.what for flow in flows)
    (nobody,) = [flow for flow in report(tmp_path, None).flows if flow.kind == "tracker"]
    assert (nobody.place, nobody.leaves) == ("none", False)
    shutil.rmtree(path)


def test_an_export_holds_what_is_kept_and_no_more(kept: Kept) -> None:
    """Neither the text nor the tokens that spell it; what was not redacted is there with both."""
    said = f"Write to {OPENLY} please"
    for project, text, whole in (
        ("open", said, True),
        ("clinic", f"Write to {MARK} please", False),
        ("bank", "", False),
    ):
        model, rollout_id = kept.registered(project), f"r-{uuid.uuid4().hex[:12]}"
        kept.ask(model, rollout_id, [{"role": "user", "content": said}])
        lines = kept.raw("GET", f"/api/v1/models/{model}/export").text.splitlines()
        assert json.loads(lines[-1]) == {"kind": "end", "records": len(lines) - 1}
        (record,) = [one for line in lines[:-1] if (one := json.loads(line)).get("rollout_id") == rollout_id]
        (call,) = record["calls"]
        assert [message["content"] for message in call["tail"]] == [text]
        assert (OPENLY in json.dumps(record)) == whole
        tokens = [call["prompt_token_ids"], call["choices"][0]["token_ids"], call["choices"][0]["logprobs"]]
        assert [value is not None for value in tokens] == [whole] * 3
        assert bool(call["withheld"]) != whole


def test_every_place_is_listed(kept: Kept, tmp_path: Path) -> None:
    told = report(kept.server.path, None)
    assert told.running
    by_kind: dict[str, list[Any]] = {}
    for flow in told.flows:
        by_kind.setdefault(flow.kind, []).append(flow)
    (listens,) = by_kind["listens"]
    assert (listens.place, listens.leaves) == (f"127.0.0.1:{kept.server.port}", False)
    (upstream,) = by_kind["upstream"]
    assert (upstream.place, upstream.leaves) == (f"{ELSEWHERE}:9", True)
    assert by_kind["hub"][0].leaves
    rules = {flow.place: flow.what for flow in by_kind["content"]}
    assert "no content is kept" in rules["bank"]
    assert "redacted" in rules["clinic"]
    assert "everything is kept" in rules["every other project"]
    folders = {Path(flow.place).name: flow for flow in by_kind["folder"]}
    assert {"art.db", "blobs", "logs", "admin.key", "data.key"} <= folders.keys()
    assert not folders["art.db"].leaves, "the folder above it keeps others out"
    assert any("admin of every project" in flow.what for flow in by_kind["key"])
    shown = "\n".join(lines(told))
    assert f"! upstream    {ELSEWHERE}:9" in shown
    assert kept.server.admin_key not in shown

    toml = tmp_path / "art.toml"
    toml.write_text('[server]\nhost = "0.0.0.0"\nallow_remote = true\nredact = "email"\n')
    stopped = report(tmp_path / "nothing", toml)
    assert not stopped.running
    assert next(flow for flow in stopped.flows if flow.kind == "listens").leaves
    assert any(flow.kind == "content" and "email" in flow.what for flow in stopped.flows)

    given = {
        "OPENAI_API_KEY": "sk-x",
        "WANDB_API_KEY": "x",
        "HTTPS_PROXY": "http://user:pass@proxy.example:3128",
    }
    found = {(flow.kind, flow.place) for flow in environment_flows(given)}
    assert found == {
        ("judge", "api.openai.com"),
        ("environment", "Weights & Biases"),
        ("environment", "proxy.example:3128"),
    }
    assert not list(environment_flows({}))


def test_nothing_leaves_the_machine_and_the_guard_would_see_it(kept: Kept) -> None:
    """The last: everything above was served, trained and deleted under it."""
    assert kept.workers()["trainer"]["alive"]
    assert kept.hosts() <= {"127.0.0.1", "::1", "localhost"}
    body = {"model": "far", "messages": [{"role": "user", "content": "hi"}]}
    assert kept.raw("POST", "/v1/chat/completions", body).status_code == 502
    assert ELSEWHERE in kept.hosts()
