"""Trackers: whatever one does, the run does not wait for it, does not fail with it, and what it missed is told."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_kit import KEY, FakeGateway
from tracker_kit import DEADLINE, Gate, MadeByName, NotingTracker, row, run_info

import art
from art.config.trackers import chosen
from art.errors import ConfigError, FixedValue, InfraError
from art.integrations import worker
from art.integrations.registry import CLASSES, make, ready, require
from art.integrations.reporter import Reporter
from art.integrations.tracker import Tracker
from art.integrations.tracking import DROPS
from art.utils.console import Notices


def trainable(**fields: Any) -> art.TrainableModel[Any, Any]:
    return art.TrainableModel(**{"name": "m", "project": "p", "base_model": "base", **fields})


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def reporter_of(tmp_path: Path, *trackers: NotingTracker) -> Iterator[Reporter]:
    reporter = Reporter(run_info(tmp_path / "p" / "models" / "m"))
    for tracker in trackers:
        reporter.add(tracker)
    try:
        yield reporter
    finally:
        reporter.close(seconds=0.0)


# -- one that works


def test_everything_arrives_in_order_on_a_thread_of_the_trackers_own(tmp_path: Path) -> None:
    tracker = NotingTracker(checkpoints=True)
    assert isinstance(tracker, Tracker)
    with reporter_of(tmp_path, tracker) as reporter:
        for step in range(50):
            reporter.row(row(step, reward=step / 10))
        reporter.close(seconds=DEADLINE)
        assert [one.step for one in tracker.rows] == list(range(50))
        assert tracker.rows[3].metrics == {"train/reward": 0.3}
        assert tracker.runs[0].config == {"base_model": "base"}
        assert tracker.threads == {"art-tracker-noting"}
        assert tracker.closed.is_set()
        assert reporter.lost == 0


def test_where_a_run_was_sent_is_written_down(tmp_path: Path) -> None:
    with reporter_of(tmp_path, NotingTracker(rollouts=True), NotingTracker("other")) as reporter:
        reporter.row(row(0))
        reporter.close(seconds=DEADLINE)
    kept = json.loads((tmp_path / "p" / "models" / "m" / "trackers.json").read_text())["trackers"]
    assert {one["name"]: one["what"] for one in kept} == {
        "noting": "figures, rollouts without what was said",
        "other": "figures",
    }


# -- one that does not


def test_a_slow_one_is_not_waited_for_and_what_finds_no_room_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(worker.ROOM, "row", 3)
    gate, slow, quick = Gate(), NotingTracker("slow"), NotingTracker("quick")
    slow.does["log"] = gate.wait
    with reporter_of(tmp_path, slow, quick) as reporter:
        reporter.row(row(0))
        assert gate.reached.wait(DEADLINE)
        for step in range(1, 6):  # three find room
            reporter.row(row(step))
            reporter._workers["quick"].drain(DEADLINE)
        assert reporter.lost == 2
        assert [one.step for one in quick.rows] == list(range(6)), "one that is slow holds up no other"
        gate.open()
        reporter.close(seconds=DEADLINE)
    assert [one.step for one in slow.rows] == [0, 1, 2, 3]
    said = capsys.readouterr().err
    assert said.count("slower than the run") == 1
    assert "tracker slow: 2 rows did not reach it" in said


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)], ids=["raises", "exits"])
def test_one_that_fails_is_told_the_next_all_the_same(
    error: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(given: Any) -> None:
        if given.step != 2:
            raise error

    tracker = NotingTracker()
    tracker.does["log"] = fail
    with reporter_of(tmp_path, tracker) as reporter:
        for step in range(4):
            reporter.row(row(step))
        reporter.close(seconds=DEADLINE)
        assert reporter.lost == 3
    assert [one.step for one in tracker.rows] == [2]
    assert capsys.readouterr().err.count(type(error).__name__) == 1


def test_one_that_is_down_is_tried_again_and_loses_nothing_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "FIRST_PAUSE", 0.001)
    tracker, tries = NotingTracker(), []

    def down(_: Any) -> None:
        tries.append(1)
        if len(tries) < 4:
            raise ConnectionRefusedError("nobody there")

    tracker.does["start"] = down
    with reporter_of(tmp_path, tracker) as reporter:
        reporter.row(row(7))
        while len(tries) < 4:
            reporter.drain(DEADLINE)
        assert reporter.drain(DEADLINE)
        reporter.close(seconds=DEADLINE)
    assert [one.step for one in tracker.rows] == [7]


def test_one_that_stays_down_holds_up_neither_drain_nor_close(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(_: Any) -> None:
        raise ConnectionRefusedError("nobody there")

    tracker = NotingTracker()
    tracker.does["start"] = down
    with reporter_of(tmp_path, tracker) as reporter:
        reporter.row(row(0))
        assert not reporter.drain(10 * DEADLINE)  # returns, or the test's own deadline ends it
        reporter.close(seconds=10 * DEADLINE)
        assert reporter.lost == 1
    assert "cannot be started (ConnectionRefusedError: nobody there)" in capsys.readouterr().err


def test_one_that_can_never_start_is_not_tried_again(tmp_path: Path) -> None:
    tries = []

    def refuse(_: Any) -> None:
        tries.append(1)
        raise ConfigError("it has no key")

    tracker = NotingTracker()
    tracker.does["start"] = refuse
    with reporter_of(tmp_path, tracker) as reporter:
        reporter.row(row(0))
        reporter.drain(DEADLINE)
        reporter.row(row(1))
        reporter.close(seconds=DEADLINE)
        assert reporter.lost == 2
    assert tries == [1]


@pytest.mark.parametrize("where", ["start", "log", "close"])
def test_one_that_hangs_is_given_up_at_the_deadline(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate, stuck, good = Gate(), NotingTracker("stuck"), NotingTracker("good")
    stuck.does[where] = gate.wait
    with reporter_of(tmp_path, stuck, good) as reporter:
        reporter.row(row(0))
        if where != "close":
            assert gate.reached.wait(DEADLINE)
        assert reporter._workers["good"].drain(DEADLINE)
        reporter.close(seconds=0.2)
        assert good.closed.is_set()
        assert not stuck.closed.is_set()
        assert reporter.lost == (0 if where == "close" else 1)
        gate.open()
    assert "tracker stuck: it did not end within 0.2 s" in capsys.readouterr().err


def test_a_program_with_a_tracker_that_hangs_ends(tmp_path: Path) -> None:
    import subprocess

    code = f"""
import sys, threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from tracker_kit import NotingTracker, row, run_info
from art.integrations import reporter
reporter.Reporter.close.__defaults__ = (0.2,)
made = reporter.Reporter(run_info(Path({str(tmp_path)!r})))
stuck = NotingTracker("stuck")
reached = threading.Event()
stuck.does["log"] = lambda _: (reached.set(), threading.Event().wait())
made.add(stuck)
made.row(row(0))
reached.wait(30)
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "1 row did not reach it" in done.stderr


# -- asking


def test_what_cannot_be_had_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"no tracker 'wnadb'(.|\n)*did you mean 'wandb'"):
        trainable(report_metrics=["wnadb"]).register(art.RemoteBackend("http://127.0.0.1:1", KEY))
    with pytest.raises(ConfigError, match=r"colour.*there are dir"):
        make({"name": "tensorboard", "colour": "red"})
    with pytest.raises(ConfigError, match="did you mean 'endpoint'"):
        make({"name": "otel", "endpiont": "x"})
    with pytest.raises(ConfigError, match="cannot be imported"):
        make("tracker_kit:Nothing")
    with pytest.raises(ConfigError, match="unexpected keyword argument 'size'"):
        make({"name": "tracker_kit:MadeByName", "size": 1})
    with pytest.raises(ConfigError, match="makes a dict"):
        make("builtins:dict")
    with pytest.raises(ConfigError, match="is no tracker"):
        make(object())  # type: ignore[arg-type]


def test_a_package_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art.integrations.registry.installed", lambda package: False)
    with pytest.raises(ConfigError, match=r"no mlflow(.|\n)*agent-reinforcement-trainer\[mlflow\]"):
        make("mlflow")


def test_a_folder_that_is_called_like_a_package_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "nowhere_else"  # as `wandb` and `tensorboard` leave theirs beside a program
    folder.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(CLASSES, "mlflow", (*CLASSES["mlflow"][:2], "nowhere_else"))
    with pytest.raises(ConfigError, match=r"there is no nowhere_else; .*/nowhere_else is a folder"):
        make("mlflow")
    (folder / "__init__.py").touch()
    importlib.invalidate_caches()
    assert make("mlflow").about.name == "mlflow"


def test_a_run_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "play.py").write_text("def run(scenario):\n    return 1.0\n")
    (tmp_path / "scenarios.jsonl").write_text('"one"\n')
    (tmp_path / "run.toml").write_text(
        '[model]\nproject = "p"\nname = "m"\nbase_model = "nothing"\n'
        '[run]\nagent = "play:run"\nscenarios = "scenarios.jsonl"\nsteps = 1\n'
    )
    for tracker, hint in (
        ("absent:Tracker", "cannot be imported"),
        ("mlflow", "pip install 'agent-reinforcement-trainer[mlflow]'"),
    ):
        asked = ["--set", f"run.trackers={tracker}", "--path", str(tmp_path / "server")]
        command = [sys.executable, "-m", "art.cli", "run", *asked]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1, done.stderr
        assert done.stderr.startswith(f"error: the tracker {tracker}")
        assert hint in done.stderr
        assert not (tmp_path / "server").exists()


def test_a_run_is_refused_where_a_tracker_lacks_its_key() -> None:
    keyless = NotingTracker(lacks=ConfigError("it has no key", hint="give one"))
    with pytest.raises(ConfigError, match="it has no key"):
        ready([NotingTracker("another"), keyless])
    assert [one.about.name for one in require([keyless])] == ["noting"]  # what can be told of it is told


def test_an_import_path_makes_a_tracker_with_its_options() -> None:
    made = make({"name": "tracker_kit:MadeByName", "colour": "red"})
    assert isinstance(made, MadeByName)
    assert made.colour == "red"
    assert len(require(["tracker_kit:MadeByName", {"name": "tracker_kit:MadeByName"}])) == 1


def test_an_entry_point_makes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    point = EntryPoint("ours", "tracker_kit:MadeByName", "art.trackers")
    monkeypatch.setattr("art.integrations.registry.entry_points", lambda group: [point])
    assert isinstance(make("ours"), MadeByName)
    with pytest.raises(ConfigError, match="did you mean 'ours'"):
        make("our")


def test_what_a_run_would_be_sent_to_is_listed(tmp_path: Path) -> None:
    from art.cli._data_flow import report

    toml = tmp_path / "run.toml"
    toml.write_text(
        '[run]\ntrackers = ["otel", "openpipe"]\n'
        '[run.tracker.otel]\nendpoint = "https://otel.example.com"\ncontent = true\n'
    )
    flows = {flow.place: flow for flow in report(tmp_path / "nothing", toml).flows if flow.kind == "tracker"}
    assert flows["otel.example.com"].leaves
    assert "rollouts with what was said" in flows["otel.example.com"].what
    assert "rollouts without what was said" in flows["openpipe.jsonl of the model"].what
    assert not flows["openpipe.jsonl of the model"].leaves


def test_names_and_tables_of_a_settings_file() -> None:
    assert chosen(["wandb", "otel", "wandb"], {"otel": {"content": True}}) == [
        {"name": "wandb"},
        {"name": "otel", "content": True},
    ]
    with pytest.raises(ConfigError, match="mlflow has options and is not asked for"):
        chosen(["wandb"], {"mlflow": {}})


def test_the_same_tracker_asked_for_twice_with_other_options_is_refused() -> None:
    model = trainable()
    model.report_to("tracker_kit:MadeByName", colour="red")
    model.report_to("tracker_kit:MadeByName", colour="red")
    with pytest.raises(ConfigError, match="asked for twice, and differently"):
        model.report_to("tracker_kit:MadeByName", colour="blue")


# -- a model's rows


def test_the_row_that_was_recorded_is_reported() -> None:
    tracker = NotingTracker()
    with FakeGateway() as gateway:
        gateway.logged_row = {
            "step": 3,
            "training_step": 3,
            "recorded_at": "2026-01-01T00:00:00+00:00",
            "x/y": 2,
        }

        async def program() -> None:
            model = trainable()
            model.report_to(tracker)
            await model.register(art.RemoteBackend(gateway.url, KEY))
            await model.log(metrics={"speed": 1.0}, step=3)
            model.tracking.close()

        asyncio.run(program())
    assert [(one.step, one.split, one.metrics, one.time) for one in tracker.rows] == [
        (3, "val", {"x/y": 2.0}, 1767225600.0)
    ]


def test_what_was_dropped_is_a_metric_of_the_next_row(tmp_path: Path) -> None:
    def fail(_: Any) -> None:
        raise InfraError("no")

    async def program() -> None:
        tracker = NotingTracker()
        tracker.does["log"] = fail
        model: art.Model[Any, Any] = art.Model(name="m", project="p", base_path=str(tmp_path))
        model.report_to(tracker)
        for step in range(3):
            await model.log(metrics={"speed": 1.0}, step=step)
            model.tracking.drain()
        model.tracking.close()

    asyncio.run(program())
    rows = (tmp_path / "p" / "models" / "m" / "history.jsonl").read_text().splitlines()
    assert [json.loads(one).get(DROPS) for one in rows] == [None, 1.0, 2.0]


def test_training_is_the_same_with_a_tracker_that_does_everything_wrong(tmp_path: Path) -> None:
    """Its result, and that it ends while the tracker still hangs."""
    gate, stuck = Gate(), NotingTracker(rollouts=True, checkpoints=True)
    stuck.does["log"] = gate.wait

    async def program(*trackers: NotingTracker) -> art.TrainResult:
        model = trainable()
        for tracker in trackers:
            model.report_to(tracker)
        await model.register(art.RemoteBackend(gateway.url, KEY))
        group = art.TrajectoryGroup([art.Trajectory(reward=1), art.Trajectory(reward=0)])
        result = await model.train([group])
        if trackers:
            assert gate.reached.wait(DEADLINE)
            assert await model.train([group])
            model.tracking.close(seconds=0.1)
        return result

    with FakeGateway() as gateway:
        gateway.job_result = {"step": 1, "published": True, "batch": 1, "metrics": {"loss/train": 0.5}}
        assert asyncio.run(program(stuck)) == asyncio.run(program())
        rows = [body["metrics"] for body in gateway.bodies("/log")]
    gate.open()
    assert rows[0] == rows[-1]


def test_rollouts_come_from_the_servers_record_and_without_what_was_said_unless_asked() -> None:
    full, bare = NotingTracker("full", rollouts=True, content=True), NotingTracker("bare", rollouts=True)

    async def program() -> None:
        model = trainable()
        model.report_to(full)
        model.report_to(bare)
        await model.register(art.RemoteBackend(gateway.url, KEY))
        said = [{"role": "user", "content": "a secret"}]
        trajectory = art.Trajectory(messages_and_choices=said, reward=0.5, rollout_id="ro-1")
        unknown = art.Trajectory(messages_and_choices=said, reward=0.1, metadata={"who": "secret"})
        await model.log([trajectory, unknown, ValueError("secret")], step=2)
        model.tracking.close()

    with FakeGateway() as gateway:
        asyncio.run(program())
    (told,), (counted,) = full.batches, bare.batches
    assert (told.step, told.split, told.exceptions) == (2, "val", ("builtins.ValueError",))
    assert [(one.rollout_id, one.reward, one.status) for one in told.rollouts] == [
        ("ro-1", 0.5, "finished"),
        ("", 0.1, ""),
    ]
    assert "secret" not in str(told), "only what the server keeps is told, and it answered another text"
    assert counted.rollouts == tuple(one.without_content() for one in told.rollouts)


def test_a_model_without_a_server_tells_its_own_trajectories(tmp_path: Path) -> None:
    full, bare = NotingTracker("full", rollouts=True, content=True), NotingTracker("bare", rollouts=True)
    choice = {
        "index": 0,
        "finish_reason": "tool_calls",
        "message": {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
                }
            ],
        },
    }
    said = [
        {"role": "user", "content": "how is it in Oslo?"},
        choice,
        {"role": "tool", "tool_call_id": "t1", "content": "it rains"},
    ]

    async def program() -> None:
        model: art.Model[Any, Any] = art.Model(name="gpt", project="p", base_path=str(tmp_path))
        model.report_to(full)
        model.report_to(bare)
        await model.log([art.Trajectory(messages_and_choices=said, reward=1.0)], split="test", step=0)
        model.tracking.close()

    asyncio.run(program())
    ((call,),) = [one.calls for one in full.batches[0].rollouts]
    (tool,) = call.tools
    assert (tool.name, tool.arguments, tool.result) == ("weather", '{"city": "Oslo"}', "it rains")
    assert call.input == ({"role": "user", "content": "how is it in Oslo?"},)
    assert "Oslo" not in str(bare.batches)
    assert "rains" not in str(bare.batches)
    assert [tool.name for one in bare.batches[0].rollouts for call in one.calls for tool in call.tools] == [
        "weather"
    ]


# -- W&B by its name, as programs for openpipe-art use it


def test_a_key_in_the_environment_sends_nothing_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setattr("art.integrations.tracking._notices", Notices())
    model: art.Model[Any, Any] = art.Model(name="m", project="p", base_path=str(tmp_path))
    asyncio.run(model.log(metrics={"x": 1}, step=0))
    assert model.tracking.names == []
    hint = 'WANDB_API_KEY is set, and nothing is sent to W&B: report_metrics=["wandb"] sends it there'
    assert hint in capsys.readouterr().err
    for named in ([], ["tracker_kit:MadeByName"]):
        other: art.Model[Any, Any] = art.Model(
            name="o", project="p", base_path=str(tmp_path), report_metrics=named
        )
        asyncio.run(other.log(metrics={"x": 1}, step=0))
        assert other.tracking.names == named
        other.tracking.close()
    assert hint not in capsys.readouterr().err, "who says what is sent needs no hint"


def test_the_wandb_config_is_merged_and_a_value_never_changes(tmp_path: Path) -> None:
    model: art.Model[Any, Any] = art.Model(name="m", project="p", base_path=str(tmp_path))
    model.update_wandb_config({"lr": 1, "deep": {"a": 1}})
    model.update_wandb_config({"lr": 1, "deep": {"b": 2}})
    with pytest.raises(FixedValue, match=r"immutable once set(.|\n)*deep\.a is 1 and would become 3"):
        model.update_wandb_config({"deep": {"a": 3}})
    assert issubclass(FixedValue, ValueError)


def test_without_a_key_there_is_no_wandb_run(tmp_path: Path) -> None:
    model: art.Model[Any, Any] = art.Model(name="m", project="p", base_path=str(tmp_path))
    assert model._get_wandb_run() is None
    assert model.tracking.names == []


def test_asking_for_no_tracker_starts_no_thread_and_imports_nothing(tmp_path: Path) -> None:
    model: art.Model[Any, Any] = art.Model(name="m", project="p", base_path=str(tmp_path))
    before = threading.active_count()
    asyncio.run(model.log(metrics={"x": 1}, step=0))
    assert threading.active_count() <= before + 1  # asyncio.to_thread's own
    import subprocess

    code = (
        "import art, asyncio, sys\n"
        f"model = art.Model(name='m', project='p', base_path={str(tmp_path)!r})\n"
        "asyncio.run(model.log(metrics={'x': 1}, step=0))\n"
        "print([m for m in sys.modules if m.startswith('art.integrations')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['art.integrations', 'art.integrations.tracking']", done.stderr


# -- a fit's own trackers


def test_trackers_of_a_block_are_closed_at_its_end_and_others_stay(tmp_path: Path) -> None:
    mine, fits = NotingTracker("mine"), NotingTracker("fits")

    async def program() -> None:
        model: art.Model[Any, Any] = art.Model(name="m", project="p", base_path=str(tmp_path))
        model.report_to(mine)
        async with model.tracking.during([fits]):
            await model.log(metrics={"x": 1}, step=0)
        assert fits.closed.is_set()
        assert not mine.closed.is_set()
        await model.log(metrics={"x": 2}, step=1)
        model.tracking.close()

    asyncio.run(program())
    assert [one.step for one in fits.rows] == [0]
    assert [one.step for one in mine.rows] == [0, 1]


@pytest.mark.parametrize("fails", [False, True], ids=["works", "fails"])
def test_a_fit_reports_its_rows_and_closes_what_it_was_given(fails: bool) -> None:
    from test_client_fit import rollout

    tracker = NotingTracker()
    if fails:
        tracker.does["log"] = lambda _: sys.exit(1)

    async def program() -> art.FitResult:
        model = trainable()
        await model.register(art.RemoteBackend(gateway.url, KEY))
        options: dict[str, Any] = {
            "steps": 2,
            "groups_per_step": 1,
            "rollouts_per_group": 2,
            "verbose": False,
        }
        with pytest.raises(ConfigError, match="there is no tracker 'nobody'"):
            await art.fit(model, rollout, [1, 2], trackers=["nobody"], **options)
        return await art.fit(model, rollout, [1, 2], trackers=[tracker], **options)

    with FakeGateway() as gateway:
        result = asyncio.run(program())
    assert result.batch == 2
    assert [one.split for one in tracker.rows] == ([] if fails else ["train", "train"])
    assert tracker.closed.is_set()
