"""The files of the page: small enough, complete, licensed, and none of them makes markup from strings."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from art.dashboard import STATIC

LIMIT_BYTES = 150_000
OWN = sorted((STATIC / "js").rglob("*.js"))
_IMPORT = re.compile(r"""(?:from\s+|import\s*\(\s*|import\s+)["'](\.[^"']+)["']""")


def test_all_of_it_compressed_is_under_150_kb() -> None:
    files = [file for file in STATIC.rglob("*") if file.suffix in (".js", ".css", ".html", ".svg")]
    total = sum(len(gzip.compress(file.read_bytes(), 9)) for file in files)
    assert total < LIMIT_BYTES, f"{total} bytes compressed"


def test_every_import_is_a_file_and_every_file_is_imported() -> None:
    found: set[Path] = {STATIC / "js" / "main.js", STATIC / "js" / "theme.js"}
    for file in OWN:
        for name in _IMPORT.findall(file.read_text()):
            target = (file.parent / name).resolve()
            assert target.is_file(), f"{file.name} imports {name}"
            found.add(target)
    assert set(OWN) <= found, "nothing lies about"


def test_what_the_page_names_is_there() -> None:
    page = (STATIC / "index.html").read_text()
    for name in re.findall(r"""(?:href|src)="assets/([^"]+)\"""", page):
        assert (STATIC / name).is_file(), name
    assert "style=" not in page
    assert not re.search(r"<script(?![^>]*src=)", page), "nothing inline"


def test_no_markup_is_made_from_strings() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|\beval\(|new Function"
    )
    assert [file.name for file in OWN if forbidden.search(file.read_text())] == []


def test_vendored_files_have_their_licence_and_version() -> None:
    vendor = STATIC / "vendor"
    readme = (vendor / "README.md").read_text()
    for file in vendor.glob("*.*s"):
        assert re.search(rf"`{re.escape(file.name)}`.*\d+\.\d+\.\d+", readme), file.name
    for package in ("preact", "htm", "uPlot"):
        assert (vendor / f"LICENSE-{package}.txt").read_text().strip()


def test_what_the_first_view_needs_is_asked_for_at_once() -> None:
    """Each module that is found only when another one has been read is a round trip more."""
    page = (STATIC / "index.html").read_text()
    named = {STATIC / name for name in re.findall(r"""(?:href|src)="assets/([^"]+\.js)\"""", page)}
    needed, todo = set(), [STATIC / "js" / "main.js"]
    while todo:
        file = todo.pop()
        needed.add(file)
        statics = re.findall(r"""(?:from\s+|^import\s+)["'](\.[^"']+)["']""", file.read_text(), re.MULTILINE)
        todo += [target for name in statics if (target := (file.parent / name).resolve()) not in needed]
    assert needed <= named, sorted(str(file.relative_to(STATIC)) for file in needed - named)
