"""Trajectory files of openpipe-art, and of models without a server, as Parquet.

Old files are `trajectories/{split}/{step}.jsonl`, a group a line; older ones `.yaml`, which need PyYAML to be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art.errors import ConfigError, InvalidInput
from art.trajectories import TrajectoryGroup
from art.utils.console import say
from art.utils.trajectory_logging import group_from_data, group_to_data, write_trajectory_groups_parquet


@dataclass
class MigrationResult:
    """What a migration did, or with `dry_run` would do."""

    files_migrated: int = 0
    files_skipped: int = 0
    """Their Parquet file was there already."""
    bytes_before: int = 0
    bytes_after: int = 0
    deleted_originals: int = 0
    errors: list[str] = field(default_factory=list)
    """A line a file that could not be read; it stays as it is."""

    def __add__(self, other: MigrationResult) -> MigrationResult:
        return MigrationResult(
            self.files_migrated + other.files_migrated,
            self.files_skipped + other.files_skipped,
            self.bytes_before + other.bytes_before,
            self.bytes_after + other.bytes_after,
            self.deleted_originals + other.deleted_originals,
            [*self.errors, *other.errors],
        )


def serialize_trajectory_groups(trajectory_groups: Iterable[TrajectoryGroup]) -> str:
    """Groups as JSONL, a group a line; nothing is left out."""
    return "\n".join(json.dumps(group_to_data(group)) for group in trajectory_groups)


def deserialize_trajectory_groups(serialized: str) -> list[TrajectoryGroup]:
    """Groups from JSONL, or from openpipe-art's older YAML. InvalidInput for anything else."""
    try:
        data: Any = [json.loads(line) for line in serialized.split("\n") if line.strip()]
    except ValueError as error:
        data = _yaml(serialized, error)
    if not isinstance(data, list) or not all(isinstance(group, dict) for group in data):
        raise InvalidInput("these are no trajectory groups", hint="a JSON object a line")
    return [group_from_data(group) for group in data]


def _yaml(text: str, error: ValueError) -> Any:
    try:
        import yaml
    except ImportError as missing:
        raise ConfigError(
            "the file is no JSONL", cause=str(error), hint="if it is YAML: pip install pyyaml"
        ) from missing
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as wrong:
        raise InvalidInput("the file is neither JSONL nor YAML", cause=str(error)) from wrong


def migrate_jsonl_to_parquet(jsonl_path: str | Path, parquet_path: str | Path | None = None) -> Path:
    """Write a file's groups as Parquet beside it (or to `parquet_path`); the new file."""
    source = Path(jsonl_path)
    target = source.with_suffix(".parquet") if parquet_path is None else Path(parquet_path)
    write_trajectory_groups_parquet(deserialize_trajectory_groups(source.read_text(encoding="utf-8")), target)
    return target


def migrate_trajectories_dir(
    trajectories_dir: str | Path,
    *,
    delete_originals: bool = False,
    dry_run: bool = False,
    progress: bool = False,
) -> MigrationResult:
    """Migrate every `.jsonl` and `.yaml` file below a folder. A file that cannot be read is told of and stays."""
    result = MigrationResult()
    folder = Path(trajectories_dir)
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".jsonl", ".yaml", ".yml"))
    for file in files:
        result += _migrate(file, delete_originals=delete_originals, dry_run=dry_run)
        if progress:
            say(f"{file.relative_to(folder)}: {'would be migrated' if dry_run else 'done'}")
    return result


def _migrate(file: Path, *, delete_originals: bool, dry_run: bool) -> MigrationResult:
    target, size = file.with_suffix(".parquet"), file.stat().st_size
    if target.exists():
        return MigrationResult(files_skipped=1)
    if dry_run:
        return MigrationResult(files_migrated=1, bytes_before=size)
    try:
        migrate_jsonl_to_parquet(file, target)
    except (InvalidInput, ValueError) as error:
        return MigrationResult(errors=[f"{file}: {' '.join(str(error).split())}"])
    if delete_originals:
        file.unlink()
    return MigrationResult(1, 0, size, target.stat().st_size, int(delete_originals))


def migrate_model_dir(model_dir: str | Path, **options: Any) -> MigrationResult:
    """`migrate_trajectories_dir` for one model's folder."""
    folder = Path(model_dir) / "trajectories"
    return migrate_trajectories_dir(folder, **options) if folder.is_dir() else MigrationResult()


def migrate_all_models(art_path: str | Path, **options: Any) -> MigrationResult:
    """`migrate_model_dir` for every model below `<art_path>/<project>/models`."""
    result = MigrationResult()
    for folder in sorted(Path(art_path).glob("*/models/*")):
        result += migrate_model_dir(folder, **options)
    return result


def auto_migrate_on_register(model_dir: str | Path) -> None:
    """Migrate a model's files, keeping the old ones; says what it did. Registration does not call it."""
    result = migrate_model_dir(model_dir)
    if result.files_migrated:
        say(f"{model_dir}: {result.files_migrated} trajectory files are there as Parquet now")
    for error in result.errors:
        say(error)
