"""Every place that data can go from a server, as its settings, its folder and its keys stand. No web framework."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from art.config import outside
from art.config.content import ContentRule
from art.config.data_key import FILE as DATA_KEY
from art.config.data_key import VARIABLE
from art.config.server import ServerConfig
from art.config.trackers import uses_in
from art.config.upstreams import UpstreamConfig
from art.store.records import KeyRow, Role
from art.types.data_flow import DataFlow, Flow
from art.types.wire_retention import ProjectRetention

FOLDERS = (
    ("server", "all of the below"),
    ("server/art.db", "texts of calls, metadata, logged trajectories, keys as hashes, the audit log"),
    ("server/blobs", "token ids and log-probabilities of calls"),
    ("server/logs", "what gateway, engine and trainer say; no content"),
    ("server/base_models", "converted base models; no content"),
    ("server/admin.key", "the admin key"),
    (f"server/{DATA_KEY}", "the key that tokens of redacted calls are encrypted with"),
)
READERS = {
    Role.INFER: "asks models; reads the answers that it names by their ids (`/v1/responses`)",
    Role.ROLLOUT: "reads rollouts with their texts and tokens",
    Role.TRAIN: "reads rollouts with their texts and tokens, and what was logged",
    Role.ADMIN: "reads and deletes everything",
}
"""What a key of each role can read."""


def flows_of(
    settings: ServerConfig,
    root: Path,
    *,
    url: str | None,
    keys: Sequence[KeyRow],
    retentions: Sequence[ProjectRetention],
) -> DataFlow:
    """`url` is that of the server that runs; None when none does. `keys` without those of rollouts."""
    found = [
        _listens(settings, url),
        *_upstreams(settings),
        _hub(),
        *_trackers(root),
        *_content(settings),
        *(_retention(row) for row in retentions),
        *_folders(settings, root),
        *_keys(keys),
    ]
    return DataFlow(running=url is not None, flows=found)


def _listens(settings: ServerConfig, url: str | None) -> Flow:
    port = settings.port or "a free port"
    place = f"{settings.host}:{url.rpartition(':')[2] if url is not None else port}"
    if settings.is_loopback:
        return Flow(kind="listens", place=place, what="programs on this machine that have a key")
    secured = "over TLS" if settings.tls_cert is not None else "plain HTTP, so a TLS proxy belongs before it"
    what = f"whoever reaches this address and has a key; {secured}"
    return Flow(kind="listens", place=place, what=what, leaves=True)


def _upstreams(settings: ServerConfig) -> Iterator[Flow]:
    for name, config in sorted(settings.upstreams.items()):
        host = outside.host_of(config.base_url)
        away = not outside.is_loopback(host)
        what = f"requests for the model {name!r}, whole and unredacted: {_key_of(config)}"
        if away and (through := outside.proxies()):
            what += f"; by the proxy {', '.join(sorted(set(through.values())))}"
        yield Flow(kind="upstream", place=host, what=what, leaves=away)


def _key_of(config: UpstreamConfig) -> str:
    if config.api_key_env is not None:
        return f"with the key in {config.api_key_env}"
    return f"with the key in {config.api_key_file}" if config.api_key_file is not None else "without a key"


def _hub() -> Flow:
    place = outside.hub()
    if place is None:
        return Flow(kind="hub", place="none", what="downloads of base models are switched off")
    what = "names of base models that are not on this machine (organisation/model); nothing that was recorded"
    return Flow(kind="hub", place=place, what=what, leaves=True)


def _trackers(root: Path) -> Iterator[Flow]:
    """Those that runs of this folder were sent to. A run asks for them by name; the server itself sends nothing."""
    found = list(uses_in(root))
    if not found:
        yield Flow(kind="tracker", place="none", what="no run of this folder was sent to a tracker")
    for model, use in found:
        opened = time.strftime("%Y-%m-%d %H:%M", time.gmtime(use.last))
        what = f"{use.name} gets of {model}: {use.what}; last opened {opened} UTC"
        yield Flow(kind="tracker", place=use.place, what=what, leaves=use.leaves)


def _content(settings: ServerConfig) -> Iterator[Flow]:
    for project, rule in [
        ("every other project", settings.content_rule()),
        *settings.project_rules().items(),
    ]:
        yield Flow(kind="content", place=project, what=_rule(rule))
    if settings.engine.token_log is not None:
        what = "every token that the engine is given and samples, in plain (engine.token_log)"
        yield Flow(kind="content", place=str(settings.engine.token_log), what=what, leaves=True)


def _rule(rule: ContentRule) -> str:
    if rule.content == "none":
        return "no content is kept; tokens are encrypted until they were trained, then deleted"
    if not rule.changes:
        return "everything is kept as it was said"
    names = [*rule.redact, *rule.redact_patterns]
    names += [f"the function {rule.redact_with}"] if rule.redact_with is not None else []
    return (
        f"redacted before it is stored: {', '.join(names)}; tokens of such calls are encrypted until trained"
    )


def _retention(row: ProjectRetention) -> Flow:
    days = row.keep_seconds / 86400
    return Flow(kind="retention", place=row.project, what=f"deleted {days:g} days after a rollout's end")


def _folders(settings: ServerConfig, root: Path) -> Iterator[Flow]:
    for name, what in FOLDERS:
        yield from _place(root / name, what)
    if not (root / "server" / DATA_KEY).exists() and _encrypts(settings):
        yield Flow(
            kind="folder", place=VARIABLE, what="the data key: in the environment, or made at the start"
        )
    for models in sorted(root.glob("*/models")):
        yield from _place(models, "adapters, metrics and history of the project's models; no content")


def _encrypts(settings: ServerConfig) -> bool:
    return any(rule.changes for rule in (settings.content_rule(), *settings.project_rules().values()))


def _place(path: Path, what: str) -> Iterator[Flow]:
    """A file or folder with its mode; others can read it where no folder above it keeps them out."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    shown = f"{what}; mode {stat.S_IMODE(mode):04o}"
    yield Flow(kind="folder", place=str(path), what=shown, leaves=_readable_by_others(path))


def _readable_by_others(path: Path) -> bool:
    mode = path.stat().st_mode
    readable = bool(mode & (stat.S_IRGRP | stat.S_IROTH))
    if not readable:
        return False
    way_in = stat.S_IXGRP | stat.S_IXOTH
    return all(parent.stat().st_mode & way_in for parent in path.parents)


def _keys(keys: Sequence[KeyRow]) -> Iterator[Flow]:
    for key in keys:
        if key.revoked_at is not None or (key.expires_at is not None and key.expires_at < time.time()):
            continue
        label = f" ({key.label})" if key.label else ""
        where = f" of {key.project}" if key.project is not None else " of every project"
        yield Flow(
            kind="key", place=f"{key.key_id}{label}", what=f"{key.role.value}{where}: {READERS[key.role]}"
        )
