"""The dashboard's own files. They hold no data, so they are handed out without a key; what they show needs one.

Read and compressed once, when the application is built. A name that is no file's is not looked for on the disk.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from art.dashboard import STATIC
from art.errors import NotFound
from art.server.auth import Principal
from art.server.headers import page_headers
from art.store.records import Role

PAGE = "/"
ASSETS = "/assets/"
INDEX = "index.html"
METHODS = frozenset({"GET", "HEAD"})
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""By suffix; a file with another one is not handed out."""
WORTH = 0.9
"""Compressed to more than this part of its size, a file is sent as it is."""
NOBODY = Principal(key_id="", role=Role.INFER, project="")
"""Who asks for the page: no key, and a project that no model can have."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    media_type: str
    body: bytes
    zipped: bytes | None
    """The same under gzip, where that is worth it."""
    digest: str

    def tag(self, *, zipped: bool) -> str:
        """Of the bytes that are sent: two encodings are two of them (RFC 9110, section 8.8.3)."""
        return f'"{self.digest}{"-gz" if zipped else ""}"'


def is_page(method: str, path: str) -> bool:
    """Whether a request is for the page or its files, which need no key."""
    return method in METHODS and (path == PAGE or path.startswith(ASSETS))


def page_routes() -> list[Route]:
    """`/` and `/assets/...`."""
    assets = read_assets(STATIC)

    async def page(request: Request) -> Response:
        return _answer(request, assets, INDEX)

    async def asset(request: Request) -> Response:
        return _answer(request, assets, request.path_params["path"])

    return [Route(PAGE, page, methods=["GET"]), Route(f"{ASSETS}{{path:path}}", asset, methods=["GET"])]


@cache
def read_assets(root: Path) -> dict[str, Asset]:
    """Every file below `root` that is handed out, by its path there."""
    found: dict[str, Asset] = {}
    for file in sorted(root.rglob("*")):
        name = file.relative_to(root)
        media_type = MEDIA_TYPES.get(file.suffix.lower())
        if media_type is None or not file.is_file() or any(part.startswith(".") for part in name.parts):
            continue
        body = file.read_bytes()
        zipped = gzip.compress(body, 9, mtime=0)
        found[str(PurePosixPath(name))] = Asset(
            media_type=media_type,
            body=body,
            zipped=zipped if len(zipped) < WORTH * len(body) else None,
            digest=hashlib.sha256(body).hexdigest()[:32],
        )
    return found


def _answer(request: Request, assets: dict[str, Asset], name: str) -> Response:
    asset = assets.get(name)
    if asset is None:
        raise NotFound(
            f"the dashboard has no file {name[:200]!r}",
            hint="reload the page; if that does not help, install the package anew",
        )
    zipped = asset.zipped is not None and _takes_gzip(request.headers)
    tag = asset.tag(zipped=zipped)
    headers = {**page_headers(), "ETag": tag}
    if asset.zipped is not None:
        headers["Vary"] = "Accept-Encoding"
    if _has(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    if zipped:
        headers["Content-Encoding"] = "gzip"
    return Response(asset.zipped if zipped else asset.body, media_type=asset.media_type, headers=headers)


def _takes_gzip(headers: Headers) -> bool:
    """As RFC 9110, section 12.5.3, says it; `*` and a quality of 0 included."""
    weights: dict[str, float] = {}
    for part in ",".join(headers.getlist("accept-encoding")).split(","):
        name, _, parameter = part.partition(";")
        quality = parameter.strip().removeprefix("q=")
        try:
            weights[name.strip().lower()] = float(quality) if parameter else 1.0
        except ValueError:
            continue
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _has(given: str, tag: str) -> bool:
    """Whether an If-None-Match names the tag; a proxy may have made it weak."""
    return given.strip() == "*" or tag in (part.strip().removeprefix("W/") for part in given.split(","))
