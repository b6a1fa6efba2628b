"""What the commands are made of: units, columns, other people's texts, settings, SQL, the end of a pipe."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pty
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.cli import _shown
from art.cli._settings import checked, merged, only, parsed
from art.cli._text import Column, cut, number, short, span, spark, table, width_of
from art.cli._units import parse_count, parse_seconds, seconds_of
from art.cli._usage import WrongUsage
from art.cli.compare import differences, infos_of
from art.cli.main import EXIT_ERROR, EXIT_NO_READER, EXIT_USAGE, report, run
from art.cli.rollouts import RolloutSettings
from art.errors import ArtError
from art.store.schema import migrate
from art.types.wire_views import MetricInfo, RunDetail, RunLine
from art.utils.console import say
from art.utils.visible import clean, clean_json

# -- units


@pytest.mark.parametrize(
    ("text", "value"), [("500", 500), ("8k", 8000), ("1.5M", 1_500_000), ("2G", 2 * 10**9), (7, 7)]
)
def test_counts(text: Any, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "k", "-1", "1.5", "1.0001k", "1e3", "8kk", "٣", "1 k", True, -1, 1.5])
def test_what_is_no_count(text: Any) -> None:
    with pytest.raises(ValueError, match="count"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("30s", 30), ("5m", 300), ("1.5h", 5400), ("7d", 604800), ("250ms", 0.25), ("90", 90), (2.5, 2.5)],
)
def test_spans(text: Any, value: float) -> None:
    assert parse_seconds(text) == value


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1y", "5 minutes", "1e9s", "٣h", True, -1.0, float("nan"), float("inf")]
)
def test_what_is_no_span(text: Any) -> None:
    with pytest.raises(ValueError, match="span of time"):
        parse_seconds(text)


def test_a_number_alone_is_refused_where_it_could_mean_days() -> None:
    with pytest.raises(WrongUsage, match="--keep"):
        seconds_of("30", "--keep")


def test_spans_and_counts_are_shown_short() -> None:
    assert [span(value) for value in (None, 0.25, 35, 720, 12600, 200000)] == [
        *("-", "0.25 s", "35 s", "12 min", "3.5 h", "2.31 d")
    ]
    assert [short(value) for value in (950, 8200, 1_500_000, 2e9)] == ["950", "8.2k", "1.5M", "2G"]


# -- texts


def test_other_peoples_texts_move_no_cursor() -> None:
    hostile = "a\x1b[2J\x1b]0;title\x07b\rc\u202ed\u200be\x9bf\nnext\tcell"
    shown = clean(hostile)
    assert shown.isprintable()
    assert "\\x1b[2J" in shown
    assert "\\u202e" in shown
    assert clean("line\nnext", lines=True) == "line\nnext"
    assert clean("Grüße, 你好 🙂 👩\u200d💻 می\u200cخواهم") == "Grüße, 你好 🙂 👩\u200d💻 می\u200cخواهم"


@given(st.text())
def test_json_says_the_same_and_moves_no_cursor(text: str) -> None:
    document = clean_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(document) == {text: [text]}
    assert not {"\x7f", "\x9b", "\u202e", "\u2066"} & set(document)


def test_neither_errors_nor_notices_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    title = "\x1b]0;title\x07"
    report(ArtError(title, cause=f"{title}\nnext", hint=title))
    say(title)
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert said.count("\\x1b]0;title\\x07") == 4
    assert "\nnext\n" in said


def test_a_name_that_no_file_can_have_is_an_error_and_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["ls", "--path", "x" * 300]) == EXIT_ERROR
    assert capsys.readouterr().err.startswith("error: ")


@given(st.text())
def test_a_cleaned_text_is_one_line_of_printable_characters(text: str) -> None:
    assert all(one.isprintable() or one in "\u200c\u200d" for one in clean(text))


@given(st.text(), st.integers(min_value=1, max_value=20))
def test_what_is_cut_fits(text: str, cells: int) -> None:
    assert width_of(cut(clean(text), cells)) <= cells


def test_columns_stand_below_one_another() -> None:
    lines = table([Column("name"), Column("n", "right")], [("你好", "1"), ("x", "100")])
    assert lines == ["name    n", "你好    1", "x     100"]


def test_figures() -> None:
    assert [number(value) for value in (None, 3.0, 0.123456, 12345.0, float("nan"))] == [
        "-",
        "3",
        "0.1235",
        "12,345",
        "nan",
    ]
    assert spark([0.0, 0.5, 1.0]) == "▁▅█"
    assert spark([1.0]) == ""


# -- settings


def test_settings_are_tables() -> None:
    given_ = [
        "server.port=8000",
        "server.upstreams.judge.timeout=2",
        "engine.kind=scripted",
        "server.port=8001",
    ]
    assert parsed(given_) == {
        "server": {"port": "8001", "upstreams": {"judge": {"timeout": "2"}}},
        "engine": {"kind": "scripted"},
    }
    for wrong in ("port=1", "server.port", "server.=1"):
        with pytest.raises(WrongUsage):
            parsed([wrong])


def test_a_section_that_would_be_ignored() -> None:
    with pytest.raises(WrongUsage) as caught:
        only({"sever": {}}, ("server", "engine"))
    assert "'server'" in caught.value.hint
    only({"engine": {}}, ("server", "engine"))


def test_a_setting_has_one_value() -> None:
    with pytest.raises(WrongUsage, match=r"server.port is set twice"):
        merged({"server": {"port": "1"}}, {"server": {"port": 2}})
    assert merged({"server": {"host": "h"}}, {"server": {"port": 1, "host": None}}) == {
        "server": {"port": 1, "host": "h"}
    }


def test_settings_of_a_command_are_refused_by_name() -> None:
    assert checked(RolloutSettings, "rollout", {"timeout": "30s", "seed": "3"}).timeout == 30
    for values, word in (
        ({"sede": "3"}, "rollout.seed"),
        ({"seed": "-1"}, ""),
        ({"timeout": "x"}, ""),
        ({"timeout": "0"}, ""),
    ):
        with pytest.raises(WrongUsage) as caught:
            checked(RolloutSettings, "rollout", values)
        assert word in caught.value.hint


# -- sql


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a server leaves it, with three models."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "server").mkdir()
    with contextlib.closing(sqlite3.connect(folder / "server" / "art.db", isolation_level=None)) as conn:
        migrate(conn)
        for number_, name in enumerate(("alpha", "beta", "gam\x1bma")):
            conn.execute(
                "INSERT INTO models (project, name, config, base, model_dir, step, batch, created_at, notes)"
                " VALUES ('p', ?, '{\"rank\": 8}', '{}', '', ?, 0, 0.5, '[]')",
                (name, number_),
            )
        conn.execute(
            "INSERT INTO keys (key_id, sha256, role, label, created_at) VALUES ('k', 'secret hash', 'admin', '', 0)"
        )
    return folder


def sql(store: Path, capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    assert run(["sql", *words, "--path", str(store)]) == status
    return capsys.readouterr()


def test_a_query_as_columns_csv_and_json(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT name, step, NULL AS gap, x'0102' AS blob FROM models ORDER BY step"
    assert sql(store, capsys, query).out.splitlines() == [
        "name       step  gap  blob",
        "alpha         0       <2 bytes>",
        "beta          1       <2 bytes>",
        "gam\\x1bma     2       <2 bytes>",
    ]
    rows = list(csv.reader(sql(store, capsys, query, "--csv").out.splitlines()))
    assert rows[:2] == [["name", "step", "gap", "blob"], ["alpha", "0", "", "<2 bytes>"]]
    told = json.loads(sql(store, capsys, query, "--json", "--limit", "2").out)
    assert told["rows"] == [["alpha", 0, None, "<2 bytes>"], ["beta", 1, None, "<2 bytes>"]]
    assert told["truncated"] is True
    many = sql(store, capsys, "SELECT value FROM generate(3)", status=EXIT_ERROR)
    assert "generate" in many.err
    assert "json_each" not in many.err
    assert (
        sql(store, capsys, "SELECT json_extract(config, '$.rank') AS r FROM models LIMIT 1").out == "r\n8\n"
    )


def test_tables_and_what_is_stable(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(sql(store, capsys, "--tables", "--json").out)["rows"]
    assert ["rollouts", "reward", "REAL", 1] in rows
    assert ["keys", "sha256", "TEXT", 0] in rows


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM models",
        "UPDATE models SET step = 9",
        "INSERT INTO models SELECT * FROM models",
        "DROP TABLE models",
        "CREATE TABLE x (y)",
        "ATTACH DATABASE 'other.db' AS other",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA writable_schema = 1",
        "VACUUM INTO 'copy.db'",
        "SELECT load_extension('x')",
        "BEGIN",
        "EXPLAIN DELETE FROM models",
        "SELECT 1; DELETE FROM models",
        "WITH a AS (SELECT 1) DELETE FROM models",
        "",
        "/* nothing */",
        "nonsense",
    ],
)
def test_nothing_but_reading(
    store: Path, query: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store)
    before = (store / "server" / "art.db").read_bytes()
    told = sql(store, capsys, query, status=EXIT_ERROR)
    assert told.err.startswith("error: ")
    assert "hint: " in told.err
    assert (store / "server" / "art.db").read_bytes() == before
    assert [one.name for one in store.iterdir()] == ["server"]


def test_of_a_run_are_shown_the_settings_that_somebody_set() -> None:
    line = RunLine(
        project="p", name="a", base_model="b", state="idle", step=1, batch=1, created_at=0, updated_at=0,
        rollouts=0, running=0, sampled_tokens=0,
    )  # fmt: skip
    model = {"base_model": "b", "lora": {"r": 8}}
    resolved = {"model": model, "run": {"steps": 3, "seed": 0}, "train": {"updates": 1}}
    detail = RunDetail(
        run=line, figures=[], statuses={}, fates={}, notes=[], config={**model, "run": resolved},
        config_origin={"model.base_model": "run.toml", "model.lora.r": "default", "run.steps": "flag"},
    )  # fmt: skip
    few = [one.strip() for one in _shown.run(detail, full=False) if " = " in one]
    assert few == ['run.model.base_model = "b"  (run.toml)', "run.run.steps = 3  (flag)"]
    every = "\n".join(_shown.run(detail, full=True))
    for name in ("base_model", "lora.r", "run.model.lora.r", "run.run.seed", "run.train.updates"):
        assert f"  {name} = " in every
    unresolved = detail.model_copy(update={"config": model, "config_origin": {}})
    assert _shown.run(unresolved, full=False) == _shown.run(unresolved, full=True)


def test_a_hash_of_a_key_is_not_shown(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = sql(store, capsys, "SELECT key_id, sha256, length(sha256) AS n FROM keys", "--json")
    assert json.loads(told.out)["rows"] == [["k", None, None]]


def test_a_query_without_an_end_has_a_deadline(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n"
    told = sql(store, capsys, endless, "--timeout", "50ms", status=EXIT_ERROR)
    assert "longer than 0.05 s" in told.err
    huge = sql(store, capsys, "SELECT zeroblob(1000000000)", status=EXIT_ERROR)
    assert "too big" in huge.err


def test_a_misspelt_table_or_column(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean rollouts" in sql(store, capsys, "SELECT * FROM rolouts", status=EXIT_ERROR).err
    assert "did you mean reward" in sql(store, capsys, "SELECT rewrd FROM rollouts", status=EXIT_ERROR).err
    elsewhere = sql(store, capsys, "SELECT name FROM rollouts", status=EXIT_ERROR).err
    assert "name is a column of" in elsewhere
    assert "models" in elsewhere
    assert "did you mean" not in elsewhere
    assert sql(store, capsys, "SELECT 1", "--tables", status=EXIT_USAGE).err
    assert sql(store, capsys, "SELECT 1", "--csv", "--json", status=EXIT_USAGE).err


def test_a_folder_that_cannot_be_written_is_read(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql(store, capsys, "SELECT count(*) FROM models")
    assert [one.name for one in (store / "server").iterdir()] == ["art.db"], (
        "nothing is left beside the store"
    )


# -- comparison


def test_which_side_is_better() -> None:
    known = [
        MetricInfo(name="loss/train", title="", unit="", meaning="", direction="down"),
        MetricInfo(name="val/*", title="", unit="1", meaning="", direction="up"),
    ]
    a, b = (
        {"loss/train": 2.0, "val/reward": 0.5, "other": 1.0},
        {"loss/train": 1.0, "val/reward": 0.4, "new": 3.0},
    )
    infos = infos_of(a.keys() | b.keys(), known)
    found = {one.name: one for one in differences(a, b, infos, ("",))}
    assert (found["loss/train"].better, found["loss/train"].difference) == ("b", -1.0)
    assert (found["val/reward"].better, found["val/reward"].unit) == ("a", "1")
    assert (found["other"].b, found["other"].difference, found["other"].better) == (None, None, "")
    assert found["new"].a is None
    assert [one.name for one in differences(a, b, infos, ("val/",))] == ["val/reward"]


# -- pipes, terminals, completion


def art(*words: str) -> list[str]:
    return [sys.executable, "-m", "art.cli", *words]


def test_a_reader_that_goes_away_is_no_error(store: Path) -> None:
    query = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200000) SELECT i FROM n"
    command = art("sql", query, "--limit", "200k", "--path", str(store))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().strip() == b"i"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == EXIT_NO_READER


def test_colours_are_for_terminals_that_want_them(store: Path) -> None:
    command = art("sql", "SELECT name FROM models", "--path", str(store))
    assert b"\x1b" not in subprocess.run(command, capture_output=True, check=True).stdout
    assert b"\x1b[1mname" in on_terminal(command, {"TERM": "xterm"})
    assert b"\x1b" not in on_terminal(command, {"TERM": "xterm", "NO_COLOR": "1"})
    assert b"\x1b" not in on_terminal(command, {"TERM": "dumb"})


def on_terminal(command: list[str], environment: dict[str, str]) -> bytes:
    """What a command writes to a terminal of its own."""
    outer, inner = pty.openpty()
    without = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    with subprocess.Popen(command, stdout=inner, stdin=inner, env={**without, **environment}) as process:
        os.close(inner)
        written = b""
        while True:
            try:
                part = os.read(outer, 65536)
            except OSError:  # the terminal's other end is closed
                break
            if not part:
                break
            written += part
        assert process.wait(60) == 0
    os.close(outer)
    return written


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("art rollo", {"rollout", "rollouts"}, {"ls"}),
        ("art key ", {"create", "list"}, {"rollout"}),
        ("art ls --js", {"--json"}, {"--key"}),
        ("art ls ste", {"steps"}, {"runs"}),
        ("art show --path {store} p/b", {"p/beta"}, {"p/alpha"}),
        ("art checkpoint list --path {store} --model p/", {"p/alpha", "p/beta"}, set()),
        ("art show --path {store}/nowhere p/", set(), {"p/alpha"}),
        ("art show --url http://127.0.0.1:1 p/", set(), {"p/alpha"}),
    ],
)
def test_a_shell_is_offered_commands_flags_and_names(
    store: Path,
    line: str,
    offered: set[str],
    not_offered: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = line.format(store=store)
    monkeypatch.setenv("_ART_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - (not words.endswith(" "))))
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == 0
    shown = capsys.readouterr()
    found = set(shown.out.split())
    assert found >= offered
    assert not found & not_offered
    assert shown.err == ""
