"""The dashboard's files: handed out without a key, whole or not at all, and with nothing beside them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chat_kit import Served

from art.dashboard import STATIC
from art.server.headers import page_headers
from art.server.page import MEDIA_TYPES, is_page, read_assets


def get(served: Served, path: str, *, method: str = "GET", **headers: str) -> httpx2.Response:
    """Without a key, and with the path as it stands."""
    url = httpx2.URL(served.server.url).copy_with(raw_path=path.encode())
    return httpx2.request(method, url, headers={"Accept-Encoding": "identity", **headers}, timeout=30)


def test_the_page_is_there_without_a_key(served: Served) -> None:
    page = get(served, "/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == (STATIC / "index.html").read_bytes()
    assert {name: page.headers.get(name) for name in page_headers()} == page_headers()
    for address in re.findall(rb'(?:src|href)="(/assets/[^"]+)"', page.content):
        assert get(served, address.decode()).status_code == 200, address


def test_every_file_has_its_type_and_comes_as_it_is(served: Served) -> None:
    names = {str(file.relative_to(STATIC)) for file in STATIC.rglob("*") if file.suffix in MEDIA_TYPES}
    assert names == set(read_assets(STATIC)), "a file of another kind lies there"
    for name in sorted(names):
        answer = get(served, f"/assets/{name}")
        assert answer.content == (STATIC / name).read_bytes(), name
        assert answer.headers["content-type"] == MEDIA_TYPES[Path(name).suffix], name
        zipped = get(served, f"/assets/{name}", **{"Accept-Encoding": "br, gzip;q=0.5"})
        assert zipped.content == answer.content, name


def test_a_browser_that_has_it_is_told_so(served: Served) -> None:
    first = get(served, "/")
    again = get(served, "/", **{"If-None-Match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert again.headers["cache-control"] == "no-cache"
    assert get(served, "/", **{"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/assets/",
        "/assets/nothing.js",
        "/assets/../__init__.py",
        "/assets/%2e%2e/__init__.py",
        "/assets/..%2f..%2fserver/admin.key",
        "/assets//etc/passwd",
        "/assets/%00",
        "/index.html",
    ],
)
def test_nothing_else_is_handed_out(served: Served, path: str) -> None:
    answer = get(served, path)
    assert answer.status_code in (401, 404), answer.text
    assert set(answer.json()["error"]) >= {"code", "message", "hint"}


def test_a_page_opens_no_other_door(served: Served) -> None:
    assert get(served, "/", method="HEAD").status_code == 200
    assert get(served, "/", method="POST").status_code == 401
    assert get(served, "/assets/app.css", method="DELETE").status_code == 401
    assert get(served, "/", Host="evil.example.com").status_code == 403
    for path in ("/api/v1/models", "/assets/../api/v1/models", "//api/v1/models", "/v1/models"):
        assert get(served, path).status_code in (401, 404), path
    assert [
        is_page(method, path) for method, path in (("GET", "/assetsx"), ("PUT", "/"), ("GET", "/api"))
    ] == [False] * 3


def test_what_is_read_of_a_folder(tmp_path: Path) -> None:
    files: dict[str, bytes] = {
        "index.html": b"<p>" * 500,
        "js/app.js": b"",
        "b.woff2": bytes(range(256)),
        ".git/config.json": b"{}",
        "notes.py": b"1",
    }
    for name, body in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(body)
    found = read_assets(tmp_path)
    assert set(found) == {"index.html", "js/app.js", "b.woff2"}
    page = found["index.html"]
    assert page.zipped is not None
    assert gzip.decompress(page.zipped) == page.body
    assert found["b.woff2"].zipped is None
    tags: list[Any] = [page.tag(zipped=True), page.tag(zipped=False), found["js/app.js"].tag(zipped=False)]
    assert len(set(tags)) == 3
