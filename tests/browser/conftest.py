"""A real `art serve` over a seeded store, and Debian's Chromium on it. Whatever a page asks of another host, and whatever
its console says, fails the test that opened it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser_kit import WIDE, Site, Watched, settled, viewer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 15_000


def _lacking() -> str:
    try:
        import axe_playwright_python  # noqa: F401
        import playwright  # noqa: F401
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed (make test-browser installs it)"
    return "" if CHROMIUM else "there is no Chromium (apt-get install chromium)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacking = _lacking()
    for item in items:
        if Path(__file__).parent in item.path.parents and "open_page" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.absent(bool(lacking), reason=lacking))


SCRIPT = {"token_delay_ms": 5, "default": "The order is on its way, and arrives on Tuesday."}


@pytest.fixture(scope="session")
def seeded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from art.testing.seeded import Plan, seed

    return seed(
        tmp_path_factory.mktemp("dashboard") / "runs",
        Plan(runs=3, steps=10, group_size=6, long_tokens=12_000),
    )


@pytest.fixture(scope="session")
def site(start_art_server: Any, seeded_folder: Path) -> Iterator[Site]:
    server = start_art_server(path=seeded_folder, script=SCRIPT)
    yield Site(server.url, server.admin_key)
    server.stop()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


OpenPage = Callable[..., "Page"]


@pytest.fixture
def open_page(site: Site, chromium: Browser) -> Iterator[OpenPage]:
    """`open_page("/run/shop/desk-01", width=..., theme=...)`: a page of its own that shows the view behind `#`."""
    opened: list[tuple[Page, Watched]] = []

    def open_view(
        where: str = "/",
        *,
        size: tuple[int, int] = WIDE,
        theme: str = "light",
        key: str | None = None,
        allowed: tuple[str, ...] = (),
        base: str | None = None,
    ) -> Page:
        context = chromium.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
        )
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        watched = Watched(site if base is None else Site(base, ""), allowed=list(allowed))
        page.on("console", watched.hear)
        page.on("pageerror", lambda error: watched.said.append(f"error: {error}"))
        page.on("request", watched.see)
        opened.append((page, watched))
        given = site.key if key is None else key
        page.goto(f"{base or site.url}/#{f'key={given}&' if given else ''}{where}")
        if given:
            settled(page)
        return page

    yield open_view
    for page, watched in opened:
        page.context.close()
        watched.check()


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """`art ui` over a folder that no server runs on: its address and its key."""
    from art.testing.seeded import Plan, seed

    folder = seed(tmp_path_factory.mktemp("ended") / "runs", Plan(runs=1, steps=4, group_size=4))
    with viewer(folder) as found:
        yield found
