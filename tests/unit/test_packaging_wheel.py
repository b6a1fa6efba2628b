"""The built wheel: it holds the dashboard whole, and no file of the package is missing."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from art.dashboard import STATIC

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_holds_the_dashboard(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {
            name.removeprefix("art/dashboard/static/"): archive.read(name)
            for name in archive.namelist()
            if name.startswith("art/dashboard/static/")
        }
    lying = {
        file.relative_to(STATIC).as_posix(): file.read_bytes() for file in STATIC.rglob("*") if file.is_file()
    }
    assert packed == lying
    assert "index.html" in packed
