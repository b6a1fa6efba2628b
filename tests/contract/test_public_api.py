"""The public surface: names, signatures, and what importing costs."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from typing import Any

import pytest

import art

#: Imports that load a part the client does not install; `art.server` and below need the `[server]` extra,
#: which the test environment has.
HEAVY = ("torch", "openai", "transformers", "starlette", "uvicorn", "httpx2", "numpy", "peft", "rich")


def in_clean_interpreter(code: str) -> Any:
    """What `code` prints, as JSON, in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


def test_importing_art_loads_nothing_heavy() -> None:
    code = f"import art, sys, json; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    assert in_clean_interpreter(code) == []


def test_using_the_client_loads_no_torch_openai_or_web_framework() -> None:
    code = """
import art, json, sys
art.fit, art.wrap, art.rollout, art.gather_trajectories, art.trajectory_group_batches
model = art.TrainableModel(name="m", project="p", base_model="b")
model.register(art.LocalBackend(path="/nowhere"))
art.wrap(lambda task: 1.0).collect_trajectory("x")
print(json.dumps([m for m in ("torch", "openai", "starlette", "uvicorn", "numpy") if m in sys.modules]))
"""
    assert in_clean_interpreter(code) == []


def test_all_lists_every_public_name_once_and_each_resolves() -> None:
    code = """
import art, json
before = sorted(dir(art))
from art import *
missing = [name for name in art.__all__ if name not in globals()]
print(json.dumps([missing, sorted(set(art.__all__) - set(before)), len(art.__all__) - len(set(art.__all__))]))
"""
    assert in_clean_interpreter(code) == [[], [], 0]
    assert len(art.__all__) <= 34
    assert art.__version__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = art.nonsense


@pytest.mark.parametrize("name", ["dev", "ServerlessBackend", "mcp"])
def test_what_this_release_lacks_is_said_by_name(name: str) -> None:
    assert not hasattr(art, name)
    with pytest.raises(AttributeError, match=f"art.{name} is not in this release; instead: "):
        getattr(art, name)
    with pytest.raises(AttributeError, match=r"art\.rewards\.ruler is not in this release"):
        _ = art.rewards.ruler


def test_nothing_that_exists_is_said_to_be_missing() -> None:
    from art import missing

    model = art.TrainableModel[Any, Any](name="m", project="p", base_model="b")
    backend = art.RemoteBackend("http://127.0.0.1:1", "k")
    there = [
        name
        for owner, table in (
            (art, missing.MODULE),
            (art.rewards, missing.REWARDS),
            (model, missing.MODEL),
            (backend, missing.BACKEND),
        )
        for name in table
        if hasattr(owner, name)
    ]
    assert there == []


def test_the_command_is_also_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "art.cli", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "art"), done.stderr


def test_names_are_still_what_they_are_after_every_module_was_imported() -> None:
    """Importing `art.rollouts.retry` must not turn `art.retry` into a module, and the like."""
    code = """
import importlib, json, pkgutil, types
import art
skipped = []
for module in pkgutil.walk_packages(art.__path__, "art."):
    if module.name.endswith("__main__") or ".testing.plugin" in module.name:
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        skipped.append((module.name, error.name))
modules = [n for n in art.__all__ if isinstance(getattr(art, n), types.ModuleType)]
print(json.dumps([modules, [s for s in skipped if s[1].startswith("art")]]))
"""
    modules, broken = in_clean_interpreter(code)
    assert modules == ["errors"]
    assert broken == []


def test_every_public_function_and_class_can_be_called() -> None:
    for name in art.__all__:
        value = getattr(art, name)
        if name in {"errors", "Messages", "MessagesAndChoices", "Tools"}:
            continue
        assert callable(value), name
        assert inspect.getdoc(value), f"{name} has no docstring"


SIGNATURES = {
    "gather_trajectory_groups": "groups * pbar_desc pbar_total_completion_tokens max_exceptions max_metrics after_each",
    "gather_trajectories": "trajectories * pbar_desc pbar_total_completion_tokens max_exceptions max_metrics",
    "trajectory_group_batches": "groups * batch_size max_batch_exceptions max_concurrent_batches skip_batches pbar_desc",
    "auto_trajectory": "* required",
    "capture_auto_trajectory": "coroutine",
    "capture_yielded_trajectory": "coroutine",
    "yield_trajectory": "trajectory",
    "retry": "max_attempts delay backoff_factor exceptions on_retry",
    "iterate_dataset": "dataset groups_per_step num_epochs initial_step use_tqdm",
    "Model.log": "self trajectories split * metrics step",
    "Model.register": "self backend _openai_client_config",
    "Model.get_inference_name": "self step",
    "Model.litellm_completion_params": "self step",
    "TrainableModel.delete_checkpoints": "self best_checkpoint_metric",
    "TrainableModel.train": "self trajectory_groups config",
    "TrajectoryGroup.__init__": "self trajectories * exceptions metadata metrics logs",
    "pipeline_trainer.PipelineTrainer.__init__": "self model backend rollout_fn scenarios config eval_fn * "
    "num_rollout_workers min_batch_size max_batch_size max_steps_off_policy queue_maxsize learning_rate loss_fn "
    "loss_fn_config normalize_advantages adam_params packed_sequence_length max_steps discard_queue_multiplier "
    "log_interval_seconds status_ewa_alpha total_scenarios eval_every_n_steps eval_at_start save_checkpoint "
    "checkpoint_retention_strategy checkpoint_retention_interval resume",
    "pipeline_trainer.PipelineTrainer.train": "self handle_signals",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_programs_use(name: str) -> None:
    value: Any = art
    for part in name.split("."):
        value = getattr(value, part)
    expected, keyword_only = SIGNATURES[name].split(), False
    parameters = dict(inspect.signature(value).parameters)
    for wanted in expected:
        if wanted == "*":
            keyword_only = True
            continue
        assert wanted in parameters, f"{name} lacks {wanted}"
        assert (parameters[wanted].kind is inspect.Parameter.KEYWORD_ONLY) == keyword_only, wanted
    positional = [key for key, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional == list(expected[: expected.index("*") if "*" in expected else None])


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("art.local", ["LocalBackend"]),
        ("art.pipeline_trainer", ["PipelineTrainer", "make_group_rollout_fn", "keep_recent_and_top"]),
        ("art.utils", ["iterate_dataset", "retry"]),
        ("art.trajectories", ["get_messages", "Trajectory", "TrajectoryGroup", "History"]),
        ("art.errors", ["ArtError"]),
    ],
)
def test_import_paths_programs_use(path: str, names: list[str]) -> None:
    module = importlib.import_module(path)
    for name in names:
        assert getattr(module, name) is getattr(art, name, getattr(module, name))


def test_the_client_never_imports_the_server_side() -> None:
    """Also at run time: everything a client can reach, without server, engine, trainer or store."""
    names = [
        name
        for _, name, _ in pkgutil.walk_packages(art.__path__, "art.")
        if name.split(".")[1]
        in {"backends", "rollouts", "utils", "model", "trajectories", "local", "types", "config"}
    ]
    code = f"""
import importlib, json, sys
for name in {names}:
    importlib.import_module(name)
bad = [m for m in sys.modules if m.startswith(("art.server", "art.engine", "art.trainer", "art.store", "torch"))]
print(json.dumps(bad))
"""
    assert in_clean_interpreter(code) == []
