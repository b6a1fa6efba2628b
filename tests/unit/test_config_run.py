"""run.toml: who wins, what is refused and how it is said, units, paths, and TOML that gives the same run again."""

from __future__ import annotations

import string
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.config.lines import line_of
from art.config.load import Loaded, load_config
from art.config.resolved import kinds_of_origin, leaves, resolved, to_toml, who_set
from art.config.runnable import require_runnable
from art.config.units import count_of, seconds_of
from art.errors import ConfigError, UnsupportedOption

WHOLE = """\
[model]
project = "weather"
name = "agent"
base_model = "./base"

[model.lora]
r = 4

[run]
agent = "agent:run"
scenarios = "scenarios.jsonl"
steps = "1k"

[limits]
max_tokens = "8k"
max_seconds = "5m"

[train]
learning_rate = 3e-4
truncated_importance_sampling = "none"

[engine]
context = "2Ki"
"""


def write(folder: Path, text: str = WHOLE) -> Path:
    file = folder / "run.toml"
    file.write_text(text)
    (folder / "scenarios.jsonl").write_text("1\n")
    return file


def load(folder: Path, text: str = WHOLE, flags: Any = None, **environment: str) -> Loaded:
    return load_config(file=write(folder, text), flags=flags, environment=environment)


# -- who wins


@settings(max_examples=60, deadline=None)
@given(given=st.sets(st.sampled_from(["flag", "environment", "file"])))
def test_flag_over_environment_over_file_over_default(given: set[str], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("run")
    value = {"flag": 16, "environment": 8, "file": 4}
    loaded = load_config(
        file=write(folder, "[model.lora]\nr = 4\n" if "file" in given else ""),
        environment={"ART_MODEL__LORA__R": "8"} if "environment" in given else {},
        flags={"model": {"lora": {"r": "16"}}} if "flag" in given else None,
    )
    winner = next((one for one in value if one in given), None)
    assert loaded.model.lora.r == (value[winner] if winner else 8)
    origin = {"flag": "flag", "environment": "ART_MODEL__LORA__R", "file": str(folder / "run.toml")}
    assert loaded.origins.get("model.lora.r") == (origin[winner] if winner else None)
    data = resolved(loaded)
    kind = {"flag": "flag", "environment": "environment", "file": "run.toml", None: "default"}
    assert kinds_of_origin(loaded, data)["model.lora.r"] == kind[winner]


def test_who_set_what_names_the_line(tmp_path: Path) -> None:
    loaded = load(tmp_path, ART_TRAIN__UPDATES="2", flags={"run": {"seed": "7"}})
    told = {name: who_set(loaded, name) for name, _ in leaves(resolved(loaded))}
    assert told["model.lora.r"] == "run.toml:7"
    assert told["run.steps"] == "run.toml:12"
    assert told["train.updates"] == "ART_TRAIN__UPDATES"
    assert told["run.seed"] == "flag"
    assert told["run.groups_per_step"] == "default"


# -- units


def test_counts_and_times_may_have_units(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        ART_SERVER__MAX_BODY_BYTES="64Mi",
        ART_SERVER__CALL_SECONDS="1.5m",
        ART_RUN__BUDGET_TOKENS="2M",
    )
    assert (loaded.run.steps, loaded.limits.max_tokens, loaded.limits.max_seconds) == (1000, 8000, 300.0)
    assert loaded.server.engine.context == 2048
    assert (loaded.server.max_body_bytes, loaded.server.call_seconds) == (64 * 1024**2, 90.0)
    assert loaded.run.budget_tokens == 2_000_000
    assert loaded.train.truncated_importance_sampling is None


@pytest.mark.parametrize(
    ("text", "count"), [("8k", 8000), ("1.5k", 1500), ("2M", 2_000_000), ("1Ki", 1024), ("1.25Ki", 1280)]
)
def test_counts(text: str, count: int) -> None:
    assert count_of(text) == count


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("30s", 30.0), ("1.5m", 90.0), ("2h", 7200.0), ("1d", 86400.0)]
)
def test_times(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["8", "8 k", "-8k", "k", "1.0005k", "8kk", "1e3k", "٣k"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="is no count"):
        count_of(text)


@pytest.mark.parametrize("text", ["30", "s", "-1s", "1 s", "1w"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is no span of time"):
        seconds_of(text)


def test_a_text_is_a_text_whatever_it_looks_like(tmp_path: Path) -> None:
    loaded = load(
        tmp_path, ART_MODEL__NAME="8k", ART_MODEL__REASONING_PARSER="none", ART_RUN__TRACKERS="a, b"
    )
    assert (loaded.model.name, loaded.model.reasoning_parser) == ("8k", "none")
    assert loaded.run.trackers == ("a", "b")


# -- what is refused


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[rum]\nsteps = 1", "section [rum]", "'run'"),
        ("[run]\nstep = 1", "run.step", "'steps'"),
        ("\n[run]\nsteps = 3\nagnet = 'a:b'", "line 4", "'agent'"),
        ("[model.lora]\nrank = 3", "model.lora.rank", "'r'"),
        ("[train]\nsteps = 3", "train.steps", "[run]"),
        ("[train]\nlr = 3", "train.lr", "'learning_rate'"),
        ("[run]\nsteps = 'many'", "run.steps cannot be 'many'", ""),
        ("[run]\nsteps = 0", "run.steps cannot be 0", ""),
        ("[model]\nlora = 3", "model.lora is a table", "model.lora.NAME"),
        ("[run]\nloop = 'never'", "run.loop cannot be 'never'", ""),
        ("[run]\nagent = 'agent.run'", "run.agent cannot be", ""),
        ("[run.tracker.wandb]\napi_key = 'x'", "run.tracker cannot be", ""),
        ("[limits]\nmax_call = 3", "limits.max_call", "'max_calls'"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("[evaluation]\nevery = 3", "evaluation.every"),
        ("[sft]\nepochs = 3", "sft"),
        ("[pipeline]\nworkers = 3", "pipeline"),
    ],
)
def test_what_would_be_ignored_is_refused(tmp_path: Path, more: str, named: str) -> None:
    require_runnable(load(tmp_path))
    with pytest.raises(UnsupportedOption, match=f"{named} would be ignored"):
        require_runnable(load(tmp_path, f"{WHOLE}\n{more}"))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('reward_command = "x"', "run.reward_command"),
        ('timeout = "1m"', "run.timeout"),
        ('command = "node agent.js"', "run.agent"),
        ('url = "http://127.0.0.1:1"', "engine"),
    ],
)
def test_what_would_be_ignored_in_the_loop_is_refused(tmp_path: Path, line: str, named: str) -> None:
    with pytest.raises(UnsupportedOption, match=f"{named} would be ignored"):
        require_runnable(load(tmp_path, WHOLE.replace("[run]", f"[run]\n{line}")))


@pytest.mark.parametrize("name", ["project", "name", "base_model", "agent", "scenarios"])
def test_what_is_missing_is_said(tmp_path: Path, name: str) -> None:
    text = "\n".join(line for line in WHOLE.splitlines() if not line.startswith(f"{name} ="))
    with pytest.raises(ConfigError, match=f"{name} is missing"):
        require_runnable(load(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.scenarios: there is no file"):
        require_runnable(load(tmp_path, WHOLE.replace("scenarios.jsonl", "nothing.jsonl")))


def test_a_value_of_the_environment_for_a_server_may_be_meant_for_another(tmp_path: Path) -> None:
    text = WHOLE.replace('[engine]\ncontext = "2Ki"\n', "").replace(
        "[run]", '[run]\nurl = "http://127.0.0.1:1"'
    )
    require_runnable(load(tmp_path, text, ART_ENGINE__THREADS="1"))


# -- paths


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (inner := tmp_path / "inner").mkdir()
    (tmp_path / "demos.jsonl").write_text("{}")
    text = WHOLE + '\n[sft]\nfile = "../demos.jsonl"\n[server]\npath = "runs"\ntls_cert = "../x.pem"\n'
    loaded = load(inner, text)
    assert loaded.model.base_model == str(inner / "base")
    assert loaded.run.scenarios == str(inner / "scenarios.jsonl")
    assert loaded.sft.file == tmp_path / "demos.jsonl"
    assert (loaded.server.path, loaded.server.tls_cert) == (inner / "runs", tmp_path / "x.pem")
    assert resolved(loaded)["run"]["folder"] == str(inner)
    monkeypatch.chdir(tmp_path)
    from_flag = load(inner, flags={"run": {"scenarios": "demos.jsonl"}})
    assert resolved(from_flag)["run"]["scenarios"] == str(tmp_path / "demos.jsonl")


def test_an_import_path_and_a_hub_id_stay_as_they_are(tmp_path: Path) -> None:
    text = WHOLE.replace("./base", "hub/base").replace("scenarios.jsonl", "world:scenarios")
    loaded = load(tmp_path, text)
    assert (loaded.model.base_model, loaded.run.scenarios) == ("hub/base", "world:scenarios")


# -- TOML that gives the same run again


def again(loaded: Loaded, folder: Path) -> Loaded:
    file = folder / "run.resolved.toml"
    data = resolved(loaded)
    file.write_text(to_toml(data, kinds_of_origin(loaded, data)))
    return load_config(file=file, environment={})


def test_the_resolved_settings_give_the_same_run(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        WHOLE.replace("[run]", '[run]\ntrackers = ["wandb"]\ntracker.wandb.project = "p"'),
        ART_SERVER__REDACT="email,card",
    )
    require_runnable(loaded)
    (elsewhere := tmp_path / "models").mkdir()
    second = again(loaded, elsewhere)
    require_runnable(second)
    assert resolved(second) == resolved(loaded)
    assert second.train.truncated_importance_sampling is None
    assert second.run.tracker == {"wandb": {"project": "p"}}


def test_a_run_of_a_program_can_be_repeated_too(tmp_path: Path) -> None:
    text = WHOLE.replace('agent = "agent:run"', 'command = "node agent.js"\nreward_command = \'echo "1"\'')
    loaded = load(tmp_path, text)
    assert loaded.run.command == ("node", "agent.js")
    require_runnable(loaded)
    second = again(loaded, tmp_path)
    require_runnable(second)
    assert resolved(second) == resolved(loaded)


values = st.recursive(
    st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
names = st.text(st.sampled_from(string.ascii_letters + '_- ."é'), min_size=1, max_size=6)
tables = st.dictionaries(names, values | st.dictionaries(names, values, min_size=1, max_size=2), max_size=4)


@settings(max_examples=100, deadline=None)
@given(data=st.dictionaries(names, tables, max_size=3))
def test_toml_says_what_it_was_given(data: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(data)) == data


def test_lines_are_found_through_tables_and_long_texts() -> None:
    text = '[a]\nx = """\n[b]\ny = 1\n"""\n[b]\n"y" = 2 # y\nz.w = 3\n[b.c]\ny = 4\n'
    assert line_of(text, "a", "x") == 2
    assert line_of(text, "b", "y") == 7
    assert line_of(text, "b", "z", "w") == 8
    assert line_of(text, "b", "c", "y") == 10
    assert line_of(text, "b", "c") == 9
    assert line_of(text, "b", "nothing") is None


def test_the_example_of_the_page_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "run.md").read_text()
    _, _, rest = page.partition("## The file\n")
    text = "\n".join(line.strip() for line in rest.splitlines() if line.startswith("    "))
    loaded = load(tmp_path, text)
    require_runnable(loaded)
    assert (loaded.limits.max_tokens, loaded.train.learning_rate) == (8000, 3e-4)
