"""What a store keeps under a rule: no secret in any file, tokens that can be read until they were trained, and then by nobody."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from art.config.content import ContentRule, ProjectRule
from art.config.data_key import FILE, VARIABLE, data_keys
from art.config.load import load_config
from art.config.model import ModelConfig
from art.config.sft import TrainSFTConfig, resolve
from art.config.train import TrainConfig
from art.errors import ConfigError, InvalidInput, TokensDeleted
from art.server.data_keeper import DataKeeper
from art.server.keys import Keys
from art.server.redacted_logs import formatter
from art.store.blobs import BlobStore
from art.store.records import (
    CallText,
    JobRow,
    JobSpec,
    LoggedTrajectory,
    ModelRow,
    Outcomes,
    RewardChange,
    RolloutRow,
)
from art.store.rules import Rules, redaction_of
from art.store.sealing import HEAD, MAGIC, Seal
from art.store.store import Store
from art.store.true_text import true_history, true_text
from art.types.jobs import (
    ChoiceFate,
    ChoiceRef,
    ResolvedBaseModel,
    SftSpec,
    TrainGroup,
    TrainTrajectory,
)
from art.types.policy import Fate, RolloutStatus, SamplingParams
from art.types.tokens import BlobRef, CallRecord, ChoiceRecord
from art.types.upstreams import UpstreamCall
from art.types.wire import JobInfo, JobResult

pytestmark = pytest.mark.absent(
    importlib.util.find_spec("cryptography") is None, reason="cryptography (the extra `encryption`)"
)

SECRET = "rumpelstiltskin@example.org"
MARK = "[REDACTED:email]"
STANDARD = ContentRule(redact=("standard",))
NONE = ContentRule(content="none")
TOKENS = list(range(40_000, 40_032))
NEEDLE = np.array(TOKENS, dtype=np.int32).tobytes()
"""How the tokens lie in a file that is not encrypted."""


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]


@asynccontextmanager
async def opened(folder: Path, rule: ContentRule, **projects: ContentRule) -> AsyncIterator[Store]:
    data_keys(folder, make=True)
    store = await Store.open(folder, redact=redaction_of(rule, projects))
    try:
        yield store
    finally:
        await store.close()


def files(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def rollout(rollout_id: str = "r1", **values: Any) -> RolloutRow:
    return RolloutRow(rollout_id=rollout_id, project="p", model="m", step=0, **values)


def call(call_id: str = "c1", rollout_id: str = "r1", **values: Any) -> CallRecord:
    choice = ChoiceRecord(index=0, finish_reason="stop", token_count=32)
    return CallRecord(call_id=call_id, rollout_id=rollout_id, choices=[choice], version="p/m@0", **values)


def arrays() -> dict[str, np.ndarray]:
    return {
        "prompt_token_ids": np.array(TOKENS, dtype=np.int32),
        "c0.token_ids": np.array(TOKENS, dtype=np.int32),
        "c0.logprobs": np.full(32, -0.5, dtype=np.float32),
    }


def text(said: str, answer: str = "Noted.") -> CallText:
    return CallText(
        tail=[{"role": "user", "content": said}], completions=[{"role": "assistant", "content": answer}]
    )


def trained(*call_ids: str) -> Outcomes:
    fates = [ChoiceFate(call_id=name, choice=0, fate=Fate.TRAINED, trained_tokens=32) for name in call_ids]
    return Outcomes(choices=fates)


def job_row(**spec: Any) -> JobRow:
    info = JobInfo(job_id="j1", project="p", name="m", kind="train", status="queued", created_at=1.0)
    return JobRow(info=info, spec=JobSpec(config=TrainConfig(), **spec), batch=1, parent_step=0)


async def train(store: Store, *call_ids: str) -> None:
    """A job that trains the calls and ends."""
    base = ResolvedBaseModel(
        name="b", path="/b", sha256="x", parameters=1, context_length=64, source="folder"
    )
    model = ModelRow(
        project="p", name="m", config=ModelConfig(base_model="b"), base=base, model_dir="/nowhere"
    )
    await store.put_model(model)
    await store.submit_job(job_row())
    await store.start_job("j1")
    result = JobResult(step=1, published=True, reason="", batch=1, metrics={}, trajectories=[], notes=[])
    await store.complete_job("j1", result, trained(*call_ids))


@pytest.mark.parametrize("rule", [STANDARD, NONE], ids=["standard", "none"])
def test_no_file_of_a_store_holds_a_secret(tmp_path: Path, rule: ContentRule) -> None:
    async def main() -> None:
        async with opened(tmp_path, rule) as store:
            await store.open_rollout(rollout(metadata={"who": SECRET, "n": 3}))
            said = text(SECRET, f"I write to {SECRET}.")
            said.tools = [{"type": "function", "function": {"name": "f", "description": SECRET}}]
            said.kept = {"store": True, "echo": {"user": SECRET}}
            asked = {
                "model": "gpt-4o",
                "stop": [SECRET],
                "max_tokens": 5,
                "response_schema": {"enum": [SECRET]},
            }
            used = SamplingParams(stop=(SECRET,))
            stored = await store.add_call(
                call(sampling_asked=asked, sampling_used=used), arrays=arrays(), text=said, project="p"
            )
            await store.set_reward(RewardChange(rollout_id="r1", reward=1.0, metadata={"again": SECRET}))
            await store.finish_rollout("r1", RolloutStatus.AGENT_ERROR, f"KeyError: {SECRET}")
            change = RewardChange(rollout_id="r1", reward=1.0, metadata={"third": SECRET})
            await store.submit_job(job_row(), rewards=[change])
            await store.fail_job("j1", status="failed", error={"code": "x", "message": SECRET})
            await store.add_job_arrays("p/sft-1.blob", {"token_ids": np.array(TOKENS, dtype=np.int32)})
            body = {
                "messages_and_choices": [{"role": "user", "content": SECRET}],
                "logs": [SECRET],
                "metrics": {"k": 2},
            }
            logged = LoggedTrajectory(
                project="p", name="m", split="val", step=0, group=0, index=0, reward=1.0, body=body
            )
            await store.add_history(
                project="p", name="m", step=0, recorded_at="t", data={"val/reward": 1.0}, trajectories=[logged],
                outcomes=Outcomes(),
            )  # fmt: skip
            up = UpstreamCall(call_id="u", upstream="o", model="o", route="x", outcome="failed", error=SECRET)
            await store.add_upstream_call(
                up, project="p", key_id="k", request={"messages": [SECRET]}, answer=[{"text": SECRET}]
            )
            assert stored.blob is not None
            assert stored.blob.sealed
            read = await store.read_arrays(stored.blob)
            assert read["prompt_token_ids"].tolist() == TOKENS
            assert await true_text(store, stored) == said
            row = await store.get_rollout("r1")
            assert (row.reward, row.status) == (1.0, RolloutStatus.AGENT_ERROR)
            (kept,) = await store.list_logged("p", "m", 0)
            assert kept.body["metrics"] == {"k": 2}
            assert (await store.upstream_calls_of("", "p")) == []
            # What is kept can be read as what it is.
            (again,) = await store.calls_of("r1")
            assert again.sampling_asked["model"] == "gpt-4o"
            assert again.sampling_asked["max_tokens"] == 5
            assert "response_schema" in again.sampling_asked

    run(main)
    found = files(tmp_path)
    assert SECRET.encode() not in found
    assert b"rumpelstiltskin" not in found
    assert NEEDLE not in found


def test_what_is_left_of_a_redacted_text_and_of_one_that_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ContentRule(), p=STANDARD, q=NONE) as store:
            await store.open_rollout(rollout())
            await store.open_rollout(rollout("r2").model_copy(update={"project": "q"}))
            await store.open_rollout(rollout("r3").model_copy(update={"project": "z"}))
            for number, project in ((1, "p"), (2, "q"), (3, "z")):
                await store.add_call(
                    call(f"c{number}", f"r{number}"),
                    arrays=arrays(),
                    text=text(f"write to {SECRET}"),
                    project=project,
                )
            assert (await store.text_of("c1")).tail == [{"role": "user", "content": f"write to {MARK}"}]
            assert (await store.text_of("c1")).completions == [{"role": "assistant", "content": "Noted."}]
            nothing = await store.text_of("c2")
            assert nothing.dropped
            assert nothing.tail == [{"role": "user", "content": ""}]
            assert nothing.completions == [{"role": "assistant", "content": ""}]
            assert SECRET in str((await store.text_of("c3")).tail)
            third = await store.get_call("c3")
            assert third is not None
            assert third.blob is not None
            assert not third.blob.sealed

    run(main)
    assert NEEDLE in files(tmp_path), "of the project that keeps everything"


def test_a_call_that_goes_on_from_a_redacted_one_is_sealed_too(tmp_path: Path) -> None:
    """Its prompt holds the tokens of the one before."""

    async def main() -> None:
        async with opened(tmp_path, STANDARD) as store:
            await store.open_rollout(rollout())
            plain = await store.add_call(call("c0"), arrays=arrays(), text=text("hello"), project="p")
            first = await store.add_call(
                call("c1", parent_call_id="c0"), arrays=arrays(), text=text(SECRET), project="p"
            )
            second = await store.add_call(
                call("c2", parent_call_id="c1"), arrays=arrays(), text=text("go on"), project="p"
            )
            assert [one.blob is not None and one.blob.sealed for one in (plain, first, second)] == [
                False,
                True,
                True,
            ]
            given = await true_history(store, second)
            assert given is not None
            assert [message["content"] for message in given] == ["hello", "Noted.", SECRET, "Noted.", "go on"]
            shown = await store.history_of("c2")
            assert [message["content"] for message in shown] == ["hello", "Noted.", MARK, "Noted.", "go on"]

    run(main)


def test_tokens_go_when_they_were_trained_and_not_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, STANDARD) as store:
            refs = {}
            for name in ("r1", "r2", "r3"):
                await store.open_rollout(rollout(name))
                stored = await store.add_call(
                    call(name, name), arrays=arrays(), text=text(SECRET), project="p"
                )
                assert stored.blob is not None
                refs[name] = stored.blob
                if name != "r3":
                    await store.finish_rollout(name)
            await store.set_outcomes(trained("r3"))
            await train(store, "r1")  # r2 waits for its training, r3 still runs
            for name, gone in (("r1", True), ("r2", False), ("r3", False)):
                found = await store.get_call(name)
                assert found is not None
                assert (found.blob is None) is gone
                if not gone:
                    assert (await store.read_arrays(refs[name]))["prompt_token_ids"].tolist() == TOKENS
            with pytest.raises(TokensDeleted, match="deleted after they were trained"):
                await store.read_arrays(refs["r1"])
            gone_call = await store.get_call("r1")
            assert gone_call is not None
            assert await true_text(store, gone_call) is None
            assert await true_history(store, gone_call) is None
            record = (tmp_path / "blobs" / refs["r1"].path).read_bytes()[refs["r1"].offset :][
                : refs["r1"].length
            ]
            assert record == MAGIC + bytes(len(record) - len(MAGIC))
            await store.finish_rollout("r3")
            assert await store.keeping.settle() == 1

    run(main)


def test_what_a_job_is_about_to_train_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, STANDARD) as store:
            await store.open_rollout(rollout())
            stored = await store.add_call(call(), arrays=arrays(), text=text(SECRET), project="p")
            await store.finish_rollout("r1")
            assert stored.blob is not None
            ref = ChoiceRef(call_id="c1", choice=0, blob=stored.blob, temperature=1.0, version="p/m@0")
            group = TrainGroup(
                group_id="g", trajectories=[TrainTrajectory(rollout_id="r1", reward=1.0, choices=[ref])]
            )
            await store.submit_job(job_row(groups=[group]))
            await store.set_outcomes(trained("c1"))
            assert await store.keeping.settle() == 0
            assert (await store.read_arrays(stored.blob))["c0.token_ids"].tolist() == TOKENS

    run(main)


def test_examples_of_supervised_training_go_with_their_job(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, STANDARD) as store:
            examples = {"token_ids": np.array(TOKENS, dtype=np.int32)}
            ref = await store.add_job_arrays("p/sft-1.blob", examples)
            assert ref.sealed
            config, _ = resolve(TrainSFTConfig(), examples=1, parameters=10, whole=False)
            row = job_row(sft=SftSpec(config=config, blob=ref, examples=1))
            row.info.kind = "sft"
            await store.submit_job(row)
            assert (await store.read_arrays(ref))["token_ids"].tolist() == TOKENS
            await store.fail_job("j1", status="cancelled", error={"code": "x", "message": "y"})
            assert not (tmp_path / "blobs" / ref.path).exists()

    run(main)


def test_a_record_can_be_read_with_its_key_in_its_place_alone(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "server", tmp_path / "b" / "server"
    for folder in (first, second):
        folder.mkdir(parents=True)
        data_keys(folder, make=True)
    blobs = BlobStore(first / "blobs")
    ref = blobs.append("p/r.blob", arrays(), sealed=True)
    assert ref.sealed
    assert blobs.read(ref)["c0.token_ids"].tolist() == TOKENS
    assert BlobStore(first / "blobs").read(ref)["c0.token_ids"].tolist() == TOKENS, (
        "as another process reads it"
    )
    file = first / "blobs" / "p" / "r.blob"
    assert NEEDLE not in file.read_bytes()

    (second / "blobs" / "p").mkdir(parents=True)
    (second / "blobs" / "p" / "r.blob").write_bytes(file.read_bytes())
    with pytest.raises(InvalidInput, match="another key"):
        BlobStore(second / "blobs").read(ref)
    (first / "blobs" / "p" / "other.blob").write_bytes(file.read_bytes())
    with pytest.raises(InvalidInput, match="damaged"):
        blobs.read(ref.model_copy(update={"path": "p/other.blob"}))
    broken = bytearray(file.read_bytes())
    broken[HEAD + 20] ^= 1
    whole = file.read_bytes()
    file.write_bytes(bytes(broken))
    with pytest.raises(InvalidInput, match="damaged"):
        blobs.read(ref)
    file.write_bytes(whole)
    (first / FILE).unlink()
    with pytest.raises(ConfigError, match="no key"):
        BlobStore(first / "blobs").read(ref)


def test_records_beside_a_destroyed_one_stay(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs", Seal([os.urandom(32)]))
    refs = [blobs.append("p/r.blob", arrays(), sealed=sealed) for sealed in (True, False, True)]
    assert blobs.destroy(refs[:2]) == 1, "a plain record is nobody's to overwrite"
    with pytest.raises(TokensDeleted):
        blobs.read(refs[0])
    for ref in refs[1:]:
        assert blobs.read(ref)["c0.token_ids"].tolist() == TOKENS
    assert blobs.destroy(refs[:1]) == 1, "it may be repeated"
    assert blobs.destroy([BlobRef(path="p/none.blob", offset=0, length=9, crc32=0, sealed=True)]) == 0


def test_the_data_key_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    (key,) = data_keys(tmp_path, make=True, environment={})
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert data_keys(tmp_path, make=True, environment={}) == [key]
    own = os.urandom(32)
    given = {VARIABLE: base64.b64encode(own).decode()}
    assert data_keys(tmp_path, make=True, environment=given) == [own, key], (
        "what the file's key sealed stays readable"
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    assert data_keys(empty, make=True, environment=given) == [own]
    assert not (empty / FILE).exists(), "it must not lie beside the data then"
    assert data_keys(empty, environment={}) == []
    with pytest.raises(ConfigError, match="holds no key"):
        data_keys(empty, environment={VARIABLE: "short"})
    (tmp_path / FILE).chmod(0o640)
    with pytest.raises(ConfigError, match="read by others"):
        data_keys(tmp_path, environment={})


def test_a_project_keeps_its_data_so_long_and_no_longer(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ContentRule()) as store:
            now = time.time()
            for name, project, age in (("old", "p", 100.0), ("new", "p", 1.0), ("theirs", "q", 100.0)):
                row = rollout(name, created_at=now - age, ended_at=now - age, status=RolloutStatus.FINISHED)
                await store.open_rollout(row.model_copy(update={"project": project}))
            await store.open_rollout(rollout("running", created_at=now - 100))
            keeper = DataKeeper(store, Keys(store))
            told = await keeper.set("p", 50.0, dry_run=True)
            assert (told.purged.rollouts, told.purged.kept_running) == (1, 1)
            assert await store.keeping.retentions() == []
            assert await store.find_rollout("old") is not None

            told = await keeper.set("p", 50.0, dry_run=False)
            assert told.purged.rollouts == 1
            assert await store.find_rollout("old") is None
            assert await store.find_rollout("new") is not None
            assert await store.find_rollout("theirs") is not None
            (entry,) = await store.list_audit()
            assert (entry.key_id, entry.action, entry.target) == (None, "retention", "p")
            assert (entry.detail["keep_seconds"], entry.detail["rollouts"]) == (50.0, 1)
            await keeper.look()
            assert len(await store.list_audit()) == 1, "a round that deletes nothing is nothing to write down"

            await store.finish_rollout("running")
            await keeper.set("q", 10.0, dry_run=False)
            await keeper.set("q", None, dry_run=False)
            assert [row.project for row in await store.keeping.retentions()] == ["p"]

    run(main)


def test_the_keeper_looks_at_its_start_and_survives_a_failing_round(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ContentRule()) as store:
            await store.open_rollout(
                rollout("old", created_at=1.0, ended_at=1.0, status=RolloutStatus.FINISHED)
            )
            await store.keeping.set_retention("p", 50.0)
            fails, rounds = [True], asyncio.Event()
            keeper = DataKeeper(store, Keys(store), round_seconds=0.01)
            look = keeper.look

            async def shaky() -> None:
                if fails and fails.pop():
                    raise ValueError("a bug")
                await look()
                rounds.set()

            keeper.look = shaky  # type: ignore[method-assign]
            keeper.start()
            async with asyncio.timeout(30):
                await rounds.wait()
            await keeper.stop()
            assert await store.find_rollout("old") is None
            assert not fails

    run(main)


def test_a_projects_rule_stands_over_the_servers(tmp_path: Path) -> None:
    toml = tmp_path / "art.toml"
    toml.write_text(
        '[server]\nredact = ["email"]\n[server.redact_patterns]\nbadge = "EMP-[0-9]{4}"\n'
        '[server.projects.clinic]\ncontent = "none"\n[server.projects.open]\nredact = "off"\nredact_patterns = {}\n'
    )
    settings = load_config(file=toml, environment={}).server
    assert settings.content_rule() == ContentRule(
        redact=("email",), redact_patterns={"badge": "EMP-[0-9]{4}"}
    )
    rules = settings.project_rules()
    assert (rules["clinic"].content, rules["clinic"].redact) == ("none", ("email",))
    assert not rules["open"].changes
    flags = load_config(flags={"server": {"redact": "standard", "content": "none"}}, environment={}).server
    assert "phone" in flags.redact
    assert flags.content == "none"
    given = {"ART_SERVER__REDACT": "email,card", "ART_SERVER__PROJECTS": '{"p": {"content": "none"}}'}
    assert load_config(environment=given).server.projects == {"p": ProjectRule(content="none")}


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("redact", "emial", "no built-in pattern"),
        ("redact", "off,email", "stands alone"),
        ("redact_patterns", '{"b": "(("}', "no regular expression"),
        ("redact_patterns", '{"b": "x*"}', "fits nothing at all"),
        ("redact_patterns", '{"email": "x"}', "built-in pattern"),
        ("redact_patterns", '{"A b": "x"}', "cannot name a pattern"),
        ("redact_with", "no path", "import path"),
        ("content", "some", "cannot be 'some'"),
        ("projects", '{"p": {"redcat": "email"}}', "projects"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(setting: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(environment={f"ART_SERVER__{setting.upper()}": value})
    assert said in str(refused.value)


def test_a_function_that_is_not_there_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="cannot be imported"):
        Rules(ContentRule(redact_with="art.nowhere:f"), {})
    rules = Rules(ContentRule(redact_with="textwrap:dedent"), {})
    assert rules.content({"a": "  x"}) == {"a": "x"}


def test_log_lines_pass_the_patterns() -> None:
    import logging

    record = logging.LogRecord("art", logging.ERROR, __file__, 1, "asked by %s", (SECRET,), None)
    settings = load_config(environment={"ART_SERVER__PROJECTS": '{"p": {"content": "none"}}'}).server
    assert formatter("%(message)s", settings).format(record) == f"asked by {MARK}"
    assert formatter("%(message)s", load_config(environment={}).server).format(record) == f"asked by {SECRET}"
