"""Which layout of weights the engine computes with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from art.engine.torch import weights

needs_mkl = pytest.mark.absent(not torch.backends.mkl.is_available(), reason="a build of torch with MKL")


@pytest.mark.parametrize(
    ("vendor", "layout"),
    [
        pytest.param("GenuineIntel", weights.MklLinear, marks=needs_mkl),
        ("AuthenticAMD", weights.PackedLinear),
    ],
)
def test_the_processors_maker_decides_the_layout(
    monkeypatch: pytest.MonkeyPatch, vendor: str, layout: type
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: f"processor\t: 0\nvendor_id\t: {vendor}\n")
    placement, _ = weights.choose_placement("fp32")
    monkeypatch.undo()
    matrix, bias, x = torch.randn(48, 64), torch.randn(48), torch.randn(5, 64)
    linear = placement.linear(matrix, bias)
    assert type(linear) is layout
    torch.testing.assert_close(linear(x), functional.linear(x, matrix, bias))


def test_without_linux_the_platform_names_the_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", absent)
    found = []
    for name in (
        "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel",
        "AMD64 Family 25, AuthenticAMD",
        "arm",
    ):
        monkeypatch.setattr(weights.platform, "processor", lambda name=name: name)
        found.append(weights._by_intel())
    assert found == [True, False, False]
