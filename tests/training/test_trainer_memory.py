"""What rows keep in memory: measured, chosen by, computed again instead, and given up when there is too little.

Memory really runs out in one test, in a process with a limit on its private memory. Elsewhere a policy refuses rows over a
size as an allocator would, forward or backward, so that every path there is can be gone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_trainer_forward import MODELS, SIZES, choice, gradients, make_policy, save_model, some_choices
from test_trainer_sft import examples, sft_job
from torch import Tensor
from trainer_kit import Recorder, Sample
from transformers import OPTConfig, OPTForCausalLM

from art.cli._memory_plan import plan_memory
from art.config.model import LoraConfig, ModelConfig
from art.config.train import TrainConfig
from art.errors import TrainingFailed, UnsupportedOption
from art.trainer import memory, row_plan
from art.trainer.base_models import describe, resolve_base_model
from art.trainer.checkpoint import CheckpointStore
from art.trainer.footprint import footprint, saved_bytes
from art.trainer.forward import Policy, Row, make_row
from art.trainer.jobs import Trainer
from art.trainer.llama import LlamaBody, estimated_footprint, merges
from art.trainer.memory import Footprint, Known, choose_cut
from art.trainer.peft_body import PeftBody
from art.trainer.protocol import ResolvedBaseModel, TrainOutcome
from art.trainer.row_plan import RowPlan, ran_out
from art.trainer.sft import train_sft

VOCAB = 258
"""Of the tiny model."""
NO_PARITY = {"parity_mean": 1e9, "parity_p99": 1e9, "parity_k3": 1e9}
REFUSED = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "1073741824 bytes. Error code 12 (Cannot allocate memory)"
)
"""What torch 2.13 says on Linux."""

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model("llama", tmp_path_factory.mktemp("llama"))


# Measured


@pytest.mark.parametrize("body", [LlamaBody, PeftBody])
@pytest.mark.parametrize("tree", [True, False])
def test_what_is_measured_on_short_rows_holds_for_long_ones(
    folder: Path, body: type[Any], tree: bool
) -> None:
    """Bytes are counted and not guessed: what a row of any length keeps is known to the byte."""
    policy = make_policy(folder, body=body)
    policy.tree = tree
    each = footprint(policy).plain
    rows = [
        make_row([choice([0], [token] * length) for token in ((0, 1) if tree else (0,))], policy.device)
        for length in (50, 200)
    ]
    few, many = (saved_bytes(lambda row=row: policy.logprobs(row, chunk=64)) for row in rows)
    assert many - few == each * (rows[1].trie.size - rows[0].trie.size)
    again = make_policy(folder, body=body)
    again.tree = tree
    assert footprint(again) == footprint(policy)


def test_counting_keeps_nothing_and_counts_a_storage_once() -> None:
    x = torch.randn(100, requires_grad=True)
    assert saved_bytes(lambda: x * x) == 400
    assert saved_bytes(lambda: (x * x).exp().exp()) == 3 * 400
    assert saved_bytes(lambda: x + 1) == 0


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("dtype", "merge"), [(torch.float32, True), (torch.float32, False), (torch.bfloat16, False)]
)
def test_the_estimate_before_loading_is_near_what_is_measured(
    kind: str, dtype: torch.dtype, merge: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art.trainer.llama.MERGED_SHARE", 1.0 if merge else 0.0)
    policy = make_policy(save_model(kind, tmp_path), dtype)
    assert isinstance(policy.body, LlamaBody)
    merged = merges(policy.body.config, dtype, policy.device)
    assert merged is merge
    expected = estimated_footprint(policy.body.config, dtype, merged=merged)
    found = footprint(policy)  # narrow products and norms of heads are not in the estimate
    assert 0.95 < found.plain / expected.plain < 1.25
    assert found.checkpointed is not None
    assert expected.checkpointed is not None
    assert 0.95 < found.checkpointed / expected.checkpointed < 1.25


# Computed again


@pytest.mark.parametrize(
    ("body", "tree", "dtype"),
    [
        (LlamaBody, True, torch.float32),
        (LlamaBody, False, torch.float32),
        (LlamaBody, True, torch.bfloat16),
        (PeftBody, True, torch.float32),
        (PeftBody, False, torch.float32),
        (PeftBody, True, torch.bfloat16),
    ],
)
def test_layers_that_are_computed_again_give_the_same_gradient(
    folder: Path, body: type[Any], tree: bool, dtype: torch.dtype
) -> None:
    policy = make_policy(folder, dtype, body=body)
    policy.tree = tree
    row = make_row(some_choices() if tree else some_choices()[:1], policy.device)

    def computed(on: bool) -> tuple[Tensor, dict[str, Tensor], int]:
        policy.body.checkpointing = on
        kept = saved_bytes(lambda: policy.logprobs(row, chunk=64))
        logprobs, _ = policy.logprobs(row, chunk=64)
        weights = torch.linspace(-1, 1, len(logprobs))
        return logprobs, gradients(policy, (logprobs * weights).sum()), kept

    once, expected, much = computed(False)
    twice, found, little = computed(True)
    assert little < much / 3
    torch.testing.assert_close(twice, once, atol=1e-6, rtol=0)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6 * float(gradient.abs().max()), rtol=0)


def test_computing_again_leaves_dropout_off(tmp_path: Path) -> None:
    """OPT's layers drop features out when they are told to train, which transformers' own checkpointing tells them."""
    torch.manual_seed(0)
    sizes = {name: SIZES[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    config = OPTConfig(**sizes, ffn_dim=128, num_attention_heads=4, word_embed_proj_dim=64, dropout=0.5)
    OPTForCausalLM(config).save_pretrained(tmp_path)
    lora = LoraConfig(target_modules=("q_proj", "v_proj", "fc1"))
    body = PeftBody.load(tmp_path, lora=lora, dtype=torch.float32)
    assert body.layers == 2
    body.checkpointing = True
    tokens, depth = torch.arange(1, 9), torch.arange(8)
    first, second = (body.hidden(tokens, depth, None) for _ in range(2))
    assert first.requires_grad
    assert torch.equal(first, second)


def test_an_adapter_in_float32_is_multiplied_in_the_base_models_type(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By transformers and PEFT too, which would compute it in float32 and keep its inputs in that."""
    policy = make_policy(folder, torch.bfloat16, body=PeftBody)
    row = make_row(some_choices(), policy.device)
    found, _ = policy.logprobs(row, chunk=64)
    assert {gradient.dtype for gradient in gradients(policy, found.sum()).values()} == {torch.float32}
    ours = make_policy(folder, torch.bfloat16)
    assert float((found - ours.logprobs(row, chunk=64)[0]).detach().abs().mean()) < 0.02
    kept = footprint(policy).plain
    policy.known.footprints.clear()
    monkeypatch.setattr(torch, "autocast", lambda *arguments, **options: nullcontext())
    assert kept < 0.9 * footprint(policy).plain


# Chosen


TOKEN = Footprint(plain=1e6, checkpointed=1e5)


def cut_of(longest: int, share: float, known: Known | None = None, **config: Any) -> memory.Cut:
    return choose_cut(
        TrainConfig(**config), footprint=TOKEN, longest=longest, share=share, known=known or Known()
    )


def test_rows_and_checkpointing_are_chosen_by_what_a_row_may_keep() -> None:
    off = cut_of(1000, 1e9)
    assert (off.tokens, off.checkpointing) == (1000, False)
    assert "rows of 1000 tokens: each keeps 1 MB" in off.notes[0]
    assert "gradient checkpointing off: the longest sequence has 1000 tokens, which keep 1 GB" in off.notes[1]
    on = cut_of(1001, 1e9)
    assert (on.tokens, on.checkpointing) == (4096, True)
    assert "each keeps 0.1 MB" in on.notes[0]
    assert "where a row may keep 1 GB; with it they keep 0.1 GB" in on.notes[1]
    assert cut_of(10, 0.0).tokens == memory.MIN_ROW_TOKENS
    asked = cut_of(1001, 1e9, packed_sequence_length=64, gradient_checkpointing=False)
    assert (asked.tokens, asked.checkpointing) == (64, False)
    assert all("as asked" in note for note in asked.notes)


def test_what_ran_out_before_is_not_tried_again() -> None:
    cut = cut_of(10, 1e9, Known(row_limit=300, checkpointing=True))
    assert (cut.tokens, cut.checkpointing) == (300, True)
    assert all("in an earlier step" in note for note in cut.notes)
    assert cut_of(10, 1e9, Known(row_limit=300), packed_sequence_length=200).tokens == 200


def test_checkpointing_that_cannot_be_is_refused_by_name() -> None:
    fixed = Footprint(plain=1e6, checkpointed=None)
    with pytest.raises(UnsupportedOption, match="gradient_checkpointing"):
        choose_cut(
            TrainConfig(gradient_checkpointing=True), footprint=fixed, longest=1, share=1e9, known=Known()
        )
    cut = choose_cut(TrainConfig(), footprint=fixed, longest=9999, share=1e9, known=Known())
    assert not cut.checkpointing
    assert "cannot be computed again" in cut.notes[1]


@pytest.mark.parametrize("asked", [{}, {"lora": {"r": 4, "dora": True}}, {"quantization": "nf4"}], ids=str)
def test_the_doctor_says_what_the_trainer_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    """On a machine that is small for the model, so that neither bound of a row's length decides."""
    config = ModelConfig.model_validate({"base_model": str(tmp_path), **asked})
    (save_model("llama", tmp_path) / "tokenizer.json").write_text("{}")
    base = resolve_base_model(str(tmp_path), cache_dir=tmp_path / "cache", quantization=config.quantization)
    size = int(memory.PROGRAMS + 100e6)
    for user in ("art.cli._memory_plan", "art.trainer.row_plan", "art.trainer.llama"):
        monkeypatch.setattr(f"{user}.memory_bytes", lambda device: size)
    plan = plan_memory(base, config)
    policy = Trainer().policy(base, config.adapter)
    assert plan.rows is not None
    assert sum(plan.least.values()) - plan.least["a short row"] == pytest.approx(
        policy.body.taken.all, rel=0.01
    )
    plain, longer = (
        RowPlan(policy, TrainConfig(), [choice([0] * length, [1])])
        for length in (int(plan.rows.plain_up_to * 0.8), int(plan.rows.plain_up_to * 1.3))
    )
    assert memory.MIN_ROW_TOKENS < plan.rows.tokens < memory.MAX_ROW_TOKENS
    assert plain.tokens == pytest.approx(plan.rows.tokens, rel=0.2)
    assert longer.tokens == pytest.approx(plan.rows.checkpointed_tokens, rel=0.2)
    assert [note.partition(":")[0] for note in (plain.notes[1], longer.notes[1])] == [
        "gradient checkpointing off",
        "gradient checkpointing on",
    ]
    assert f"rows of {plan.rows.tokens} tokens" in plan.check().detail


# Given up


@pytest.fixture(scope="module")
def described(base: Path) -> ResolvedBaseModel:
    return describe(base, name="tiny", source="folder")


@pytest.fixture
def trainer() -> Trainer:
    """One of its own: what a policy gave up stays given up."""
    return Trainer(dtype="fp32")


@pytest.fixture
def recorder(described: ResolvedBaseModel, tmp_path: Path, trainer: Trainer) -> Recorder:
    made = Recorder(tmp_path, described)
    trainer.prepare_model(made.prepare())
    return made


def group(recorder: Recorder, count: int, length: int) -> list[Any]:
    """Rollouts of one call of about `length` tokens, that share nothing."""
    rng = np.random.default_rng(length)
    drawn = [
        Sample(
            [index, *rng.integers(0, 250, length - 9).tolist()], rng.integers(0, 250, 8).tolist(), [-5.5] * 8
        )
        for index in range(count)
    ]
    return [recorder.trajectory(index % 2, recorder.call(one)) for index, one in enumerate(drawn)]


class Small:
    """A policy whose allocator refuses rows over `limit` tokens; with gradient checkpointing, over `checkpointed`."""

    def __init__(self, limit: int, checkpointed: int = 0, *, backward: bool = False, spared: int = 0) -> None:
        self.limit = limit
        self.checkpointed = checkpointed or limit
        self.backward = backward
        """It fails there, and not forward."""
        self.spared = spared
        """As many large rows pass before the first that fails."""
        self.refused: list[int] = []

    def fit(self, monkeypatch: pytest.MonkeyPatch) -> Small:
        plain = Policy.logprobs

        def logprobs(policy: Policy, row: Row, **options: Any) -> tuple[Tensor, Tensor]:
            found, entropy = plain(policy, row, **options)
            limit = self.checkpointed if policy.body.checkpointing else self.limit
            counts = policy.verified and row.choices[0].call_id.startswith(("call", "example"))
            if row.trie.size <= limit or not counts:
                return found, entropy
            if self.spared:
                self.spared -= 1
                return found, entropy
            self.refused.append(row.trie.size)
            if not self.backward or not found.requires_grad:
                raise RuntimeError(REFUSED)
            found.register_hook(refuse)
            return found, entropy

        def refuse(gradient: Tensor) -> Tensor:
            raise RuntimeError(REFUSED)

        monkeypatch.setattr(Policy, "logprobs", logprobs)
        return self


def run(trainer: Trainer, recorder: Recorder, members: Sequence[Any], **config: Any) -> TrainOutcome:
    job = recorder.job([members], config={**NO_PARITY, **config})
    return trainer.train(job, on_progress=lambda progress: None)


def weights(recorder: Recorder, step: int = 1) -> dict[str, Tensor]:
    store = CheckpointStore(recorder.model_dir)
    return {**store.load_adapter(step), **store.load_optimizer(step)}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


FIGURES = (
    "loss/train",
    "loss/entropy",
    "loss/grad_norm",
    "parity/tokens",
    "data/step_num_datums",
    "parity/mean",
)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("config", "spared"),
    [
        ({}, 0),
        ({"packed_sequence_length": 200}, 1),  # when the gradient has a row's part already
        ({"updates": 2}, 1),  # when there has been an update
        ({"precalculate_logprobs": True, "kl_penalty_coef": 0.1}, 0),
    ],
)
def test_a_step_that_ran_out_is_the_step_with_smaller_rows(
    described: ResolvedBaseModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    spared: int,
    backward: bool,
) -> None:
    """Bit for bit: nothing of what failed is left in gradients, weights, moments or figures."""
    trainer, short = Trainer(dtype="fp32"), Trainer(dtype="fp32")
    plain, small = Recorder(tmp_path / "plain", described), Recorder(tmp_path / "small", described)
    members = [group(recorder, 8, 60) for recorder in (plain, small)]
    for one, recorder in ((trainer, plain), (short, small)):
        one.prepare_model(recorder.prepare())
    policy = Small(130, backward=backward, spared=spared)
    with monkeypatch.context() as patch:
        policy.fit(patch)
        outcome = run(short, small, members[1], **config)
    assert policy.refused
    rows = short.policy(described, small.lora).known.row_limit
    assert rows is not None
    assert rows <= 130
    expected = run(trainer, plain, members[0], **{**config, "packed_sequence_length": rows})
    assert_equal(weights(small), weights(plain))
    for name in FIGURES:
        assert outcome.metrics[name] == expected.metrics[name], name
    told = [note for note in outcome.notes if "memory ran out" in note]
    assert len(told) == len(policy.refused)
    assert f"begun again with rows of {rows} tokens" in told[-1]
    assert "can't allocate memory" in told[0]


def test_a_sequence_that_cannot_be_cut_is_computed_again(
    trainer: Trainer, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = group(recorder, 2, 90)
    with monkeypatch.context() as patch:
        policy = Small(50, 100).fit(patch)
        outcome = run(trainer, recorder, members)
    assert policy.refused == [178, 89]
    assert "with rows of 89 tokens" in outcome.notes[-2]
    assert "with gradient checkpointing" in outcome.notes[-1]
    # The next job begins with what fits.
    with monkeypatch.context() as patch:
        policy = Small(50, 100).fit(patch)
        job = recorder.job([group(recorder, 2, 90)], parent=1, config=NO_PARITY)
        outcome = trainer.train(job, on_progress=lambda progress: None)
    assert policy.refused == []
    assert any(note.startswith("gradient checkpointing on: memory ran out") for note in outcome.notes)


def test_with_nothing_left_to_give_up_the_step_fails_with_figures(
    trainer: Trainer, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        Small(50).fit(patch)
        with pytest.raises(
            TrainingFailed, match="a row of 89 tokens, which cannot be cut, with gradient"
        ) as caught:
            run(trainer, recorder, group(recorder, 2, 90))
        with pytest.raises(TrainingFailed, match="without gradient") as refused:
            run(trainer, recorder, group(recorder, 2, 90), gradient_checkpointing=False)
    assert "on a machine with" in caught.value.cause
    assert "max_sequence_length below 89" in caught.value.hint
    assert "leave gradient_checkpointing out" in refused.value.hint
    assert CheckpointStore(recorder.model_dir).steps() == [0]
    assert run(trainer, recorder, group(recorder, 2, 90)).published


def test_another_error_is_no_lack_of_memory(trainer: Trainer, recorder: Recorder) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("art.trainer.step.Updater._tokens", broken)
        with pytest.raises(TrainingFailed, match="training step failed") as caught:
            run(trainer, recorder, group(recorder, 2, 20))
    assert "shapes" in caught.value.cause


@pytest.mark.parametrize(
    ("error", "memory_ran_out"),
    [
        (RuntimeError(REFUSED), True),
        (
            RuntimeError(
                "[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."
            ),
            True,
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_says_that_memory_ran_out(error: Exception, memory_ran_out: bool) -> None:
    assert ran_out(error) is memory_ran_out


@pytest.mark.parametrize("backward", [False, True])
def test_fine_tuning_that_ran_out_is_fine_tuning_with_smaller_rows(
    described: ResolvedBaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backward: bool
) -> None:
    trainer, plain, small = (
        Trainer(dtype="fp32"),
        Recorder(tmp_path / "plain", described),
        Recorder(tmp_path / "small", described),
    )
    for recorder in (plain, small):
        trainer.prepare_model(recorder.prepare())
    order = [*range(8)] * 2
    with monkeypatch.context() as patch:
        policy = Small(80, backward=backward).fit(patch)
        job = sft_job(small, examples(8), order, batch_size=8)
        outcome = train_sft(trainer, job, on_progress=lambda progress: None)
    assert policy.refused
    known = trainer.policy(described, small.lora).known
    rows, known.row_limit = known.row_limit, None
    job = sft_job(plain, examples(8), order, batch_size=8, packed_sequence_length=rows)
    expected = train_sft(trainer, job, on_progress=lambda progress: None)
    assert_equal(weights(small), weights(plain))
    for name in ("loss/train", "loss/grad_norm", "loss/entropy", "data/step_num_datums"):
        assert outcome.metrics[name] == expected.metrics[name], name
    assert outcome.metrics["data/step_num_gradient_steps"] == 2
    assert any(f"begun again with rows of {rows} tokens" in note for note in outcome.notes)


def test_memory_that_really_runs_out(base: Path, tmp_path: Path) -> None:
    """A limit on private memory, under which a row of all sequences cannot be computed and one of half of them can."""
    program = Path(__file__).with_name("short_of_memory.py")
    done = subprocess.run(
        [sys.executable, str(program), str(base), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=program.parent,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["limited"], "the process may take what the machine has, less what the others hold"
    assert told["rows"] < told["whole"]
    ran_out = [note for note in told["notes"] if note.startswith("memory ran out on a row of")]
    assert ran_out, told["notes"]
    assert f"a row of {told['whole']} tokens" in ran_out[0]
    assert told["datums"] > 1
    assert told["equal"], "the step is that of a run with such rows and no limit, bit for bit"


# Told


def test_a_step_tells_its_choices_with_their_reasons(
    trainer: Trainer, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = group(recorder, 4, 60)
    notes = "\n".join(run(trainer, recorder, members).notes)
    assert "rows of 4096 tokens: each keeps" in notes
    assert "gradient checkpointing off: the longest sequence has 60 tokens" in notes
    assert "adapter in float32" in notes
    policy = trainer.policy(recorder.base, recorder.lora)
    each = footprint(policy)
    # A machine on which a row may keep what 50 tokens do.
    size = policy.body.taken.all + memory.ROW_MEMORY_SHARE * 50 * each.plain
    monkeypatch.setattr(row_plan, "memory_bytes", lambda device: size)
    job = recorder.job([members], job_id="again", config={**NO_PARITY})
    outcome = trainer.train(job, on_progress=lambda progress: None)
    assert any(note.startswith("gradient checkpointing on: the longest") for note in outcome.notes)
    assert policy.body.checkpointing
