"""Parquet files of exports, with pyarrow: columns of their own for what is filtered by, JSON for what has any form.

Token ids, log-probabilities and masks are lists of numbers; numbers are 64 bits wide, so that nothing is rounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from art.errors import ConfigError, InvalidInput
from art.types.wire_export import ExportedCall, ExportedChoice, ExportedLog, ExportedRollout

COMPRESSION = "zstd"
_TEXT = (
    "kind",
    "project",
    "model",
    "rollout_id",
    "purpose",
    "split",
    "status",
    "reason",
    "scenario_id",
    "group_id",
    "sampling",
    "flag",
    "note",
)
_WHOLE = ("format", "step", "member", "run_seed", "group", "index")
_REAL = ("reward", "created_at", "ended_at")
_JSON = ("metrics", "metadata", "agent_rewards", "limits", "body")
"""Columns of a record. What one kind of record has not is null."""
_CALL_TEXT = ("call_id", "parent_call_id", "agent", "dialect", "version", "auxiliary_reason", "withheld")
_CALL_WHOLE = ("parent_choice", "number", "branch", "prompt_token_count", "reused_token_count")
_CALL_REAL = ("started_at", "first_token_at", "finished_at")
_CALL_JSON = ("sampling_asked", "sampling_used", "tail", "tools")
_CHOICE_TEXT = ("finish_reason", "fate", "reason")
_CHOICE_WHOLE = ("index", "token_count", "trained_tokens", "trained_step")
_CHOICE_REAL = ("reward", "weight", "advantage")
_CHOICE_JSON = ("message", "spans")


def require() -> Any:
    """pyarrow. ConfigError with the line that installs it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "Parquet needs pyarrow",
            cause=str(error),
            hint="pip install 'agent-reinforcement-trainer[parquet]'; JSONL needs nothing more",
        ) from error
    return pyarrow


def record_schema() -> Any:
    """Of the records of an export."""
    pa = require()
    choice = [
        *_fields(pa, _CHOICE_TEXT, _CHOICE_WHOLE, _CHOICE_REAL, _CHOICE_JSON),
        pa.field("token_ids", pa.list_(pa.int64())),
        pa.field("logprobs", pa.list_(pa.float64())),
        pa.field("trainable", pa.list_(pa.bool_())),
        pa.field("trained_logprobs", pa.list_(pa.float64())),
    ]
    call = [
        *_fields(pa, _CALL_TEXT, _CALL_WHOLE, _CALL_REAL, _CALL_JSON),
        pa.field("auxiliary", pa.bool_()),
        pa.field("prompt_token_ids", pa.list_(pa.int64())),
        pa.field("choices", pa.list_(pa.struct(choice))),
    ]
    return pa.schema(
        [*_fields(pa, _TEXT, _WHOLE, _REAL, _JSON), pa.field("calls", pa.list_(pa.struct(call)))]
    )


def _fields(
    pa: Any, text: Sequence[str], whole: Sequence[str], real: Sequence[str], as_json: Sequence[str]
) -> list[Any]:
    return [
        *(pa.field(name, pa.string()) for name in text),
        *(pa.field(name, pa.int64()) for name in whole),
        *(pa.field(name, pa.float64()) for name in real),
        *(pa.field(name, pa.string()) for name in as_json),
    ]


def row_of(record: ExportedRollout | ExportedLog) -> dict[str, Any]:
    """A record as a row of `record_schema`."""
    values = dict(record)
    row = _packed(values, (*_TEXT, *_WHOLE, *_REAL), _JSON)
    if isinstance(record, ExportedRollout):
        row["calls"] = [_call_row(call) for call in record.calls]
    return row


def _call_row(call: ExportedCall) -> dict[str, Any]:
    row = _packed(
        dict(call), (*_CALL_TEXT, *_CALL_WHOLE, *_CALL_REAL, "auxiliary", "prompt_token_ids"), _CALL_JSON
    )
    row["choices"] = [_choice_row(choice) for choice in call.choices]
    return row


def _choice_row(choice: ExportedChoice) -> dict[str, Any]:
    arrays = ("token_ids", "logprobs", "trainable", "trained_logprobs")
    return _packed(dict(choice), (*_CHOICE_TEXT, *_CHOICE_WHOLE, *_CHOICE_REAL, *arrays), _CHOICE_JSON)


def _packed(values: Mapping[str, Any], plain: Sequence[str], as_json: Sequence[str]) -> dict[str, Any]:
    row = {name: values.get(name) for name in plain}
    for name in as_json:
        value = values.get(name)
        row[name] = None if value is None else json.dumps(value, ensure_ascii=False)
    return row


def record_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the record's data."""
    kind = ExportedRollout if row["kind"] == "rollout" else ExportedLog
    data = _unpacked(row, _JSON, kind.model_fields)
    if kind is ExportedRollout:
        data["calls"] = [_call_data(call) for call in row["calls"] or ()]
    return data


def _call_data(row: Mapping[str, Any]) -> dict[str, Any]:
    data = _unpacked(row, _CALL_JSON, ExportedCall.model_fields)
    data["choices"] = [
        _unpacked(choice, _CHOICE_JSON, ExportedChoice.model_fields) for choice in row["choices"] or ()
    ]
    return data


def _unpacked(row: Mapping[str, Any], as_json: Sequence[str], known: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: json.loads(value) if name in as_json and value is not None else value
        for name, value in row.items()
        if name in known and name not in ("calls", "choices")
    }


class TableWriter:
    """Rows of one schema into an open file, a row group a `write`."""

    def __init__(self, file: IO[bytes], schema: Any) -> None:
        self._pa = require()
        self._schema = schema
        self._writer = self._pa.parquet.ParquetWriter(file, schema, compression=COMPRESSION)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """One row group."""
        self._writer.write_table(self._pa.Table.from_pylist(list(rows), schema=self._schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the file's end, also of one that nobody will read: pyarrow would do so later, into a closed file."""
        self._writer.close()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, a bounded number at a time. InvalidInput for what is no Parquet."""
    pa = require()
    try:
        with pa.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64):
                yield from batch.to_pylist()
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"{path} is no Parquet file", cause=str(error)) from error
