"""Files of trajectories and exports are read back equal, whatever is in them."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

import art
from art.errors import InvalidInput
from art.types.wire_export import (
    RECORD,
    ExportedCall,
    ExportedChoice,
    ExportedLog,
    ExportedRollout,
)
from art.utils import exports, parquet
from art.utils.trajectory_logging import read_trajectory_groups_parquet, write_trajectory_groups_parquet
from art.utils.trajectory_migration import (
    deserialize_trajectory_groups,
    migrate_all_models,
    serialize_trajectory_groups,
)

HOSTILE = st.text(st.characters(exclude_categories=()), max_size=12)
"""Any code point: nulls, line separators, halves of characters."""
TEXT = st.text(max_size=12)
NUMBERS = st.one_of(st.booleans(), st.integers(-(2**80), 2**80), st.floats(allow_nan=False))
METADATA = st.dictionaries(HOSTILE, st.one_of(NUMBERS, HOSTILE, st.none()), max_size=3)
METRICS = st.dictionaries(
    HOSTILE, st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False)), max_size=3
)
SETTINGS = settings(
    max_examples=12,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def choice(text: str, logprobs: list[float]) -> Choice:
    content = [
        {
            "token": text,
            "logprob": value,
            "bytes": [0, 255],
            "top_logprobs": [{"token": "a", "logprob": value, "bytes": None}],
        }
        for value in logprobs
    ]
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text, "reasoning_content": text},
            "logprobs": {"content": content, "refusal": None},
            "token_ids": list(range(len(logprobs))),
            "art": {"call_id": "ca-1", "choice": 0, "version": "p/m@3"},
        }
    )


ITEMS = st.lists(
    st.one_of(
        st.builds(lambda text: {"role": "user", "content": text}, HOSTILE),
        st.builds(lambda text: {"role": "tool", "content": [{"type": "text", "text": text}], "tool_call_id": text}, HOSTILE),
        st.builds(
            lambda text: {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": text}}]},
            HOSTILE,
        ),
        st.builds(choice, HOSTILE, st.lists(st.floats(-100, 0), max_size=3)),
        st.builds(lambda text: choice(text, [-0.1]).model_dump(mode="json"), TEXT),
    ),
    max_size=3,
)  # fmt: skip
TRAJECTORIES = st.builds(
    art.Trajectory,
    messages_and_choices=ITEMS,
    tools=st.sampled_from([None, [], [{"type": "function", "function": {"name": "f", "parameters": {}}}]]),
    additional_histories=st.lists(st.builds(art.History, messages_and_choices=ITEMS), max_size=2),
    reward=st.floats(allow_nan=False, allow_infinity=False),
    metrics=METRICS,
    metadata=METADATA,
    logs=st.lists(HOSTILE, max_size=2),
    initial_policy_version=st.one_of(st.none(), st.integers(0, 99)),
    final_policy_version=st.one_of(st.none(), st.integers(0, 99)),
    start_time=st.datetimes(timezones=st.just(UTC)).map(lambda time: time.replace(fold=0)),
    rollout_id=st.sampled_from([None, "ro-1"]),
    selects_rollout=st.booleans(),
)
GROUPS = st.lists(
    st.builds(
        art.TrajectoryGroup,
        st.lists(TRAJECTORIES, max_size=2),
        exceptions=st.lists(st.builds(lambda text: ValueError(text), HOSTILE), max_size=1),
        metadata=METADATA,
        metrics=METRICS,
        logs=st.lists(HOSTILE, max_size=1),
    ),
    max_size=3,
)


def same(first: Any, second: Any) -> bool:
    """Equal in every bit that counts: types too, and -0.0 is not 0.0."""
    return repr(first.__dict__) == repr(second.__dict__)


@SETTINGS
@given(GROUPS)
def test_groups_come_back_from_parquet_as_they_were(
    tmp_path: Path, groups: list[art.TrajectoryGroup]
) -> None:
    file = tmp_path / "groups.parquet"
    write_trajectory_groups_parquet(groups, file)
    found = read_trajectory_groups_parquet(file)
    assert found == groups
    assert all(same(*pair) for pair in zip(found, groups, strict=True))
    times = [[t.start_time for t in group] for group in groups]
    assert [[t.start_time for t in group] for group in found] == times
    assert not list(tmp_path.glob(".*")), "nothing is left beside it"


@SETTINGS
@given(GROUPS)
def test_groups_come_back_from_jsonl_as_they_were(groups: list[art.TrajectoryGroup]) -> None:
    found = deserialize_trajectory_groups(serialize_trajectory_groups(groups))
    assert all(same(*pair) for pair in zip(found, groups, strict=True))


def test_the_columns_are_those_that_other_programs_read(tmp_path: Path) -> None:
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "hi"}, choice("yes", [-0.5])],
        reward=0.25,
        metrics={"won": True},
        metadata={"city": "Paris"},
        logs=["a line"],
    )
    write_trajectory_groups_parquet(
        [art.TrajectoryGroup([trajectory], metadata={"k": 1})], tmp_path / "a.parquet"
    )
    [row] = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert row["reward"] == 0.25
    assert (json.loads(row["metrics"]), json.loads(row["group_metadata"])) == ({"won": True}, {"k": 1})
    assert row["logs"] == ["a line"]
    assert [(m["role"], m["content"], m["trainable"]) for m in row["messages"]] == [
        ("user", "hi", False),
        ("assistant", "yes", True),
    ]


def test_a_file_of_openpipe_art_is_read(tmp_path: Path) -> None:
    message = {
        "role": "assistant",
        "content": "yes",
        "tool_calls": None,
        "tool_call_id": None,
        "trainable": True,
    }
    row = {
        "group_index": 0, "group_metadata": '{"a": 1}', "group_metrics": "{}", "group_logs": [], "reward": 1.0,
        "metrics": '{"n": 2}', "metadata": "{}", "tools": None, "logs": ["x"], "messages": [message],
    }  # fmt: skip
    pq.write_table(pa.Table.from_pylist([row, {**row, "reward": 0.0}]), tmp_path / "old.parquet")
    [group] = read_trajectory_groups_parquet(tmp_path / "old.parquet")
    assert [trajectory.reward for trajectory in group] == [1.0, 0.0]
    assert group.metadata == {"a": 1}
    assert group.trajectories[0].messages_and_choices == [{"role": "assistant", "content": "yes"}]


def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "groups.parquet"
    write_trajectory_groups_parquet([art.TrajectoryGroup([art.Trajectory(reward=1.0)])], file)

    def breaking() -> Any:
        yield art.TrajectoryGroup([art.Trajectory(reward=2.0)])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trajectory_groups_parquet(breaking(), file)
    assert read_trajectory_groups_parquet(file)[0].trajectories[0].reward == 1.0
    assert [found.name for found in tmp_path.iterdir()] == ["groups.parquet"]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\x00" * 100, b'{"a": 1}'])
def test_what_is_no_parquet_is_told(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.parquet"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match="no Parquet"):
        read_trajectory_groups_parquet(file)


def test_models_are_migrated_and_bad_files_stay(tmp_path: Path) -> None:
    folder = tmp_path / "p" / "models" / "m" / "trajectories" / "val"
    folder.mkdir(parents=True)
    good = serialize_trajectory_groups([art.TrajectoryGroup([art.Trajectory(reward=1.0)])])
    (folder / "0001.jsonl").write_text(good)
    (folder / "0002.jsonl").write_text("{not json")
    tried = migrate_all_models(tmp_path, dry_run=True)
    assert (tried.files_migrated, list(folder.glob("*.parquet"))) == (2, [])
    done = migrate_all_models(tmp_path, delete_originals=True)
    assert (done.files_migrated, done.deleted_originals, len(done.errors)) == (1, 1, 1)
    assert sorted(file.name for file in folder.iterdir()) == ["0001.parquet", "0002.jsonl"]
    assert migrate_all_models(tmp_path, delete_originals=True).files_migrated == 0


# -- exports

FLOATS = st.floats()
CHOICES = st.builds(
    ExportedChoice,
    index=st.integers(0, 3),
    finish_reason=TEXT,
    message=st.dictionaries(TEXT, st.one_of(TEXT, st.integers(), st.lists(TEXT, max_size=2)), max_size=2),
    token_count=st.integers(0, 9),
    token_ids=st.one_of(st.none(), st.lists(st.integers(0, 2**31 - 1), max_size=4)),
    logprobs=st.one_of(st.none(), st.lists(FLOATS, max_size=4)),
    trainable=st.one_of(st.none(), st.lists(st.booleans(), max_size=4)),
    trained_logprobs=st.one_of(st.none(), st.lists(FLOATS, max_size=4)),
    spans=st.lists(st.just({"start": 0, "end": 2, "version": "p/m@1"}), max_size=2),
    fate=st.sampled_from(["trained", "pending"]),
    reason=TEXT,
    reward=st.one_of(st.none(), FLOATS),
    advantage=st.one_of(st.none(), FLOATS),
    trained_step=st.one_of(st.none(), st.integers(0, 9)),
)
CALLS = st.builds(
    ExportedCall,
    call_id=TEXT,
    parent_call_id=st.one_of(st.none(), TEXT),
    number=st.integers(0, 9),
    branch=st.integers(0, 3),
    dialect=TEXT,
    version=TEXT,
    sampling_used=st.dictionaries(
        TEXT, st.one_of(st.none(), st.integers(), st.floats(allow_nan=False)), max_size=2
    ),
    prompt_token_count=st.integers(0, 9),
    prompt_token_ids=st.one_of(st.none(), st.lists(st.integers(0, 2**31 - 1), max_size=4)),
    tail=st.lists(st.dictionaries(TEXT, TEXT, max_size=2), max_size=2),
    tools=st.one_of(st.none(), st.just([]), st.just([{"a": None}])),
    started_at=st.floats(0, 1e10),
    choices=st.lists(CHOICES, max_size=2),
)
RECORDS = st.one_of(
    st.builds(
        ExportedRollout,
        project=TEXT,
        model=TEXT,
        rollout_id=TEXT,
        step=st.integers(0, 2**40),
        purpose=st.sampled_from(["train", "evaluate"]),
        status=TEXT,
        reward=st.one_of(st.none(), FLOATS),
        metrics=st.dictionaries(TEXT, NUMBERS, max_size=2),
        metadata=st.dictionaries(TEXT, st.one_of(NUMBERS, TEXT, st.none()), max_size=2),
        flag=st.sampled_from([None, "bad"]),
        note=TEXT,
        created_at=st.floats(0, 1e10),
        calls=st.lists(CALLS, max_size=2),
    ),
    st.builds(
        ExportedLog,
        project=TEXT,
        model=TEXT,
        split=TEXT,
        step=st.integers(0, 9),
        group=st.integers(0, 9),
        index=st.integers(0, 9),
        reward=FLOATS,
        body=st.dictionaries(TEXT, st.one_of(TEXT, st.lists(st.integers(), max_size=2)), max_size=2),
        created_at=st.floats(0, 1e10),
    ),
)


@SETTINGS
@given(st.lists(RECORDS, max_size=4))
def test_records_are_the_same_in_both_formats(tmp_path: Path, records: list[Any]) -> None:
    lines = [record.model_dump_json().encode() for record in records]
    for name, sink in (("a.jsonl", exports.jsonl_sink), ("a.parquet", exports.parquet_sink)):
        with exports.whole_file(tmp_path / name) as file, sink(file) as add:
            for line in lines:
                add(line)
    for name in ("a.jsonl", "a.parquet"):
        found = list(exports.read_export(tmp_path / name))
        assert [repr(record) for record in found] == [repr(record) for record in records], name


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_BATCH_RECORDS", 3)
    record = ExportedLog(
        project="p", model="m", split="val", step=0, group=0, index=0, reward=1.0, created_at=0.0
    )
    with exports.whole_file(tmp_path / "a.parquet") as file, exports.parquet_sink(file) as add:
        for _ in range(8):
            add(record.model_dump_json().encode())
    assert [pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(n).num_rows for n in range(3)] == [
        3,
        3,
        2,
    ]


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"kind": "rollout"}\n')
    with pytest.raises(InvalidInput, match="line 1"):
        list(exports.read_export(file))
    newer = ExportedLog(
        project="p", model="m", split="v", step=0, group=0, index=0, reward=1.0, created_at=0.0, format=99
    )
    file.write_text(newer.model_dump_json() + "\n")
    with pytest.raises(InvalidInput, match="format 99"):
        list(exports.read_export(file))
    with pytest.raises(InvalidInput, match="says no format"):
        exports.format_of(tmp_path / "a.csv")


def test_numbers_that_json_has_no_words_for() -> None:
    made = ExportedChoice(
        index=0, finish_reason="stop", token_count=3, fate="trained", logprobs=[math.nan, -math.inf, -0.0]
    )
    text = made.model_dump_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    again = ExportedChoice.model_validate_json(text).logprobs
    assert repr(again) == "[nan, -inf, -0.0]"


def test_every_field_has_a_column() -> None:
    """A field that is added to a record and not to the table would be lost."""
    names = {field.name for field in parquet.record_schema()}
    assert ExportedRollout.model_fields.keys() | ExportedLog.model_fields.keys() == names
    call = parquet.record_schema().field("calls").type.value_type
    assert {call.field(n).name for n in range(call.num_fields)} == set(ExportedCall.model_fields)
    choice = call.field("choices").type.value_type
    assert {choice.field(n).name for n in range(choice.num_fields)} == set(ExportedChoice.model_fields)
    assert RECORD is not None


def test_times_of_the_day_light_saving_changes_stay() -> None:
    trajectory = art.Trajectory(start_time=datetime(2026, 10, 25, 1, 30, tzinfo=UTC))
    [group] = deserialize_trajectory_groups(serialize_trajectory_groups([art.TrajectoryGroup([trajectory])]))
    assert group.trajectories[0].start_time == trajectory.start_time
