"""What the code never does, and what it may be made of: dangerous calls, licences, hashes."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "art"

MODULES = {
    "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve",
}  # fmt: skip
"""Modules that run what a file tells them to, or whose only use is such files."""
CALLS = {
    "__import__", "asyncio.create_subprocess_shell", "compile", "eval", "exec", "numpy.load", "os.popen", "os.system",
    "subprocess.getoutput", "subprocess.getstatusoutput", "torch.hub.load", "torch.jit.load", "torch.load", "torch.save",
    "yaml.full_load", "yaml.load", "yaml.unsafe_load", "jinja2.Environment", "jinja2.Template",
}  # fmt: skip
"""Calls that run code, read pickles or hand a text to a shell. A chat template runs in jinja2's sandbox alone."""
ONLY_FALSE = {"allow_pickle", "shell", "trust_remote_code"}
"""Keywords that may be given as a literal False and in no other way."""
ONLY_TRUE = {"weights_only", "use_safetensors"}
SHELLS = {"sh", "bash", "zsh", "/bin/sh", "/bin/bash", "cmd", "powershell"}

EXCEPTIONS = {
    (
        "rollouts/command.py",
        "a shell",
    ): "the reward command is a line for the shell, written by who starts `art rollout`",
}
"""(File, what it does) -> why it may."""


def full_name(node: ast.expr, names: dict[str, str]) -> str:
    """`np.load` as numpy.load; "" for what is no dotted name."""
    if isinstance(node, ast.Attribute):
        before = full_name(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(Name in the module, what it stands for)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.partition(".")[0],
                    alias.name if alias.asname else alias.name.partition(".")[0],
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def dangers(text: str) -> set[str]:
    """What a module's code does that it must not."""
    tree = ast.parse(text)
    names = dict(imported(tree))
    found = {f"imports {value}" for value in names.values() if value.partition(".")[0] in MODULES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found |= set(of_call(node, names))
        elif isinstance(node, ast.List | ast.Tuple):
            words = [item.value for item in node.elts if isinstance(item, ast.Constant)]
            if words[:1] and words[0] in SHELLS and "-c" in words:
                found.add("a shell")
    return found


def of_call(node: ast.Call, names: dict[str, str]) -> Iterator[str]:
    name = full_name(node.func, names)
    if name in CALLS:
        yield f"calls {name}"
    keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    for keyword, value in keywords.items():
        for only, expected in ((ONLY_FALSE, False), (ONLY_TRUE, True)):
            if keyword in only and not (isinstance(value, ast.Constant) and value.value is expected):
                yield f"gives {keyword} as {ast.unparse(value)}"
    if isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained":
        loader = full_name(node.func.value, names).rpartition(".")[2]
        if "trust_remote_code" not in keywords:
            yield f"{loader} is not told to run no remote code"
        if loader.startswith("AutoModel") and not {"use_safetensors", "gguf_file"} & keywords.keys():
            yield f"{loader} may read pickled weights"


def test_the_code_does_nothing_that_runs_what_it_is_sent() -> None:
    found = {
        (str(path.relative_to(SOURCE)), what)
        for path in sorted(SOURCE.rglob("*.py"))
        for what in dangers(path.read_text())
    }
    assert found - EXCEPTIONS.keys() == set()
    assert EXCEPTIONS.keys() - found == set(), "an exception that nothing needs"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import pickle", "imports pickle"),
        ("from joblib import load", "imports joblib.load"),
        ("import torch as t\nt.load('x')", "calls torch.load"),
        ("from torch import load\nload('x')", "calls torch.load"),
        ("import numpy as np\nnp.load('x', allow_pickle=yes)", "gives allow_pickle as yes"),
        ("import subprocess\nsubprocess.run('x', shell=True)", "gives shell as True"),
        ("import os\nos.system('x')", "calls os.system"),
        ("run(('/bin/sh', '-c', text))", "a shell"),
        ("eval('1')", "calls eval"),
        ("AutoTokenizer.from_pretrained('x')", "AutoTokenizer is not told to run no remote code"),
        ("m = transformers.AutoModel.from_pretrained('x', trust_remote_code=False)", "AutoModel may read pickled weights"),
        ("AutoModel.from_pretrained('x', trust_remote_code=asked, use_safetensors=True)", "gives trust_remote_code as asked"),
        ("from jinja2 import Environment\nEnvironment()", "calls jinja2.Environment"),
    ],
)  # fmt: skip
def test_what_is_looked_for_is_found(code: str, what: str) -> None:
    assert what in dangers(code)


def test_what_only_looks_alike_is_not() -> None:
    assert (
        dangers("model.eval()\nre.compile('x')\njson.load(f)\nsubprocess.run(['ls', '-c'], shell=False)")
        == set()
    )


# -- the scripts of `make audit`


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def distribution(**fields: Any) -> Any:
    meta = Message()
    for name, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            meta[name.replace("_", "-")] = value
    return SimpleNamespace(metadata=meta)


def test_everything_installed_has_a_licence_that_is_allowed() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "licences.py")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_licence_that_is_not_allowed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    licences = script("licences", monkeypatch)
    policy = licences.Policy.read((ROOT / ".ci" / "licences.toml").read_text())
    osi = "License :: OSI Approved :: "
    wrong = [
        distribution(Name="Copy.Left", License_Expression="GPL-3.0-only"),
        distribution(Name="both", License_Expression="MIT AND (GPL-2.0-only OR AGPL-3.0-only)"),
        distribution(
            Name="old", Classifier=[f"{osi}MIT License", f"{osi}GNU General Public License v3 (GPLv3)"]
        ),
        distribution(Name="text", License="All rights reserved.\nNobody may do anything."),
        distribution(Name="nothing"),
        distribution(Name="broken", License_Expression="(MIT"),
    ]
    right = [
        distribution(Name="choice", License_Expression="GPL-2.0-only OR MIT"),
        distribution(
            Name="several", License_Expression="Apache-2.0 WITH LLVM-exception AND (BSD-3-Clause OR X)"
        ),
        distribution(Name="old", Classifier=[f"{osi}MIT License"], License="a\nlong\ntext"),
        distribution(Name="field", License="MIT"),
        distribution(Name="openai_harmony"),
        distribution(Name="agent-reinforcement-trainer"),
    ]
    problems = licences.check(wrong, policy)
    assert [line.partition(":")[0] for line in problems] == [
        "both",
        "broken",
        "copy-left",
        "nothing",
        "old",
        "text",
    ]
    assert licences.check(right, policy) == []
    with pytest.raises(ValueError, match="without a reason"):
        licences.Policy.read('allowed = []\n[names]\n[[exception]]\nname = "a"\nlicence = "b"\n')


def test_every_pin_has_its_hashes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "lock.py"), "check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_list_of_hashes_that_does_not_fit_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lock = script("lock", monkeypatch)
    one, two = "a" * 64, "b" * 64
    known = {("some-name", "1.0"): {f"sha256:{one}", f"sha256:{two}"}, ("other", "2.0"): {f"sha256:{one}"}}
    assert lock.hashes(lock.written(known)) == known
    assert lock.problems({"some-name": "1.0", "other": "2.0"}, known) == []
    assert lock.problems({"some-name": "1.1", "other": "2.0", "third": "3"}, known) == [
        "some-name==1.1 is not in requirements.lock",
        "third==3 is not in requirements.lock",
        "some-name==1.0 is not in constraints.txt",
    ]
    assert lock.problems({"bare": "1"}, {("bare", "1"): set()}) == ["bare==1 has no hash"]
    built = known | {("some-name", "1.0+cpu"): {f"sha256:{two}"}}
    text = lock.written(built)
    assert lock.hashes(text) == built
    assert lock.problems({"some-name": "1.0", "other": "2.0"}, built) == []
    requirements = [Requirement(line.rstrip("\\ ")) for line in text.splitlines() if line[0].isalpha()]
    for place, version in (({"sys_platform": "linux"}, "1.0+cpu"), ({"sys_platform": "darwin"}, "1.0")):
        where = {"platform_machine": "x86_64", "python_version": "3.11", **place}
        taken = [one for one in requirements if one.marker is None or one.marker.evaluate(where)]
        assert [str(one.specifier) for one in taken if one.name == "some-name"] == [f"=={version}"]
    wheel = tmp_path / "Some_Name-1.0+cpu-py3-none-any.whl"
    wheel.write_bytes(b"abc")
    pin, digest = lock.of_file(wheel)
    assert pin == ("some-name", "1.0+cpu")
    assert digest == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_advisories_are_judged_and_a_silent_source_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = script("audit", monkeypatch)
    hit = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.0"]}
    reported = [{"name": "a", "version": "1.0", "vulns": [hit]}, {"name": "b", "version": "1.0", "vulns": []}]
    assert audit.judged(reported, {}) == ["a==1.0: PYSEC-1, mended in 2.0"]
    assert audit.judged(reported, {"CVE-1": "not reached"}) == []
    assert audit.judged([], {"CVE-1": "not reached"}) == [
        "CVE-1: accepted in advisories.toml, and not found any more"
    ]
    assert audit.judged([{"name": "c", "skip_reason": "unknown"}], {}) == ["c: it was not looked up: unknown"]
    with pytest.raises(ValueError, match="without a reason"):
        audit.accepted('[[accepted]]\nid = "CVE-1"\n')
    mirror = SimpleNamespace(
        stdout='{"dependencies": [{"name": "a", "skip_reason": "not found"}]}', returncode=1
    )
    with monkeypatch.context() as patch:
        patch.setattr(audit.subprocess, "run", lambda *_, **__: mirror)
        assert audit.reported() == (None, "the index tells nothing of any of the pinned versions")
    monkeypatch.setattr(audit.sys, "executable", "false")
    assert audit.advisories(strict=False) == 0
    assert "absent: a source of advisories (1 check could not run)" in capsys.readouterr().out
    assert audit.advisories(strict=True) == 1


def test_a_bill_of_materials_must_be_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = script("audit", monkeypatch)
    pinned = audit.pins(audit.PINS.read_text())
    assert {"torch", "openai", "httpx2", "starlette"} <= audit.required() <= pinned.keys()
    assert audit.lacking(pinned, pinned, audit.required()) == []
    assert audit.lacking({"a": "1"}, {"a": "2"}, {"a", "b"}) == ["b is not in it", "a is 1, not the pinned 2"]
    file = tmp_path / "bill.json"
    parts = [
        {"name": name, "version": version} for name, version in (pinned | {"torch": "2.13.0+cpu"}).items()
    ]
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [*parts, {"name": "own"}]}
    file.write_text(json.dumps(bill))
    assert audit.sbom(file) == 0
    assert "installed and not pinned: own" in capsys.readouterr().out
    file.write_text(json.dumps(bill | {"components": parts[:5]}))
    assert audit.sbom(file) == 1
    file.write_text("{}")
    assert audit.sbom(file) == 1


# -- SECURITY.md


def test_every_defence_names_a_test_that_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 20
    missing = [f"{file}::{test}" for file, test in named if not defines(ROOT / file, test)]
    assert missing == []
    rows = [line for line in text.splitlines() if line.startswith("|") and line.count("|") == 5]
    defences = [row for row in rows if not row.startswith(("| boundary", "|---"))]
    assert all("::" in row.rpartition(" | ")[2] for row in defences), "a defence without a test"


def defines(file: Path, test: str) -> bool:
    return file.exists() and any(
        isinstance(node, ast.FunctionDef) and node.name == test
        for node in ast.walk(ast.parse(file.read_text()))
    )
