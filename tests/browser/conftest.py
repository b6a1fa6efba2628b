"""A real `art serve` over a seeded store, and Debian's Chromium on it. Whatever a page asks of another host, and whatever
its console says, fails the test that opened it."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
PATIENCE_MS = 15_000
WIDE, NARROW = (1440, 900), (360, 740)
RUN = ("shop", "desk-01")
ROLLED_BACK = ("shop", "desk-02")


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


@dataclass(frozen=True)
class Site:
    """The server under the dashboard."""

    url: str
    key: str

    def ask(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> Any:
        """The API, as another program uses it beside the page."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{self.url}/api/v1/{path}", data=data, method=method, headers=headers
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or "null")

    def view(self, path: str) -> Any:
        return self.ask("GET", f"views/{path}")

    def run_path(self, run: tuple[str, str] = RUN) -> str:
        return f"views/runs/{run[0]}/{run[1]}"


SCRIPT = {"rules": [], "default": {"text": "The order is on its way, and arrives on Tuesday."}}


@pytest.fixture(scope="session")
def seeded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from art.testing.seeded import Plan, seed

    return seed(tmp_path_factory.mktemp("dashboard") / "runs", Plan(runs=3, steps=10, group_size=6))


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


@dataclass
class Watched:
    """What a page did that it should not."""

    site: Site
    said: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    """Parts of console messages that the test provokes (a refused key, an unknown run)."""

    def hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.said.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def see(self, request: Request) -> None:
        if not request.url.startswith((self.site.url, "data:", "blob:")):
            self.elsewhere.append(request.url)

    def check(self) -> None:
        unexpected = [text for text in self.said if not any(part in text for part in self.allowed)]
        assert unexpected == [], "the console is quiet"
        assert self.elsewhere == [], "nothing is asked of another host"


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


def settled(page: Page) -> None:
    """Wait until the view has what it asked for."""
    page.wait_for_selector("main :is(h1, .error-box)")
    page.wait_for_function(
        """() => !document.querySelector('[aria-busy="true"]')
            && ![...document.querySelectorAll('.state')].some((state) => state.textContent.startsWith('Loading'))"""
    )


def show(page: Page, where: str) -> None:
    """Another view in the same page, as a link would show it."""
    page.evaluate("(where) => { location.hash = where }", where)
    settled(page)


def shot(page: Page, name: str) -> None:
    """A picture of the whole page, kept for a person to look at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True, animations="disabled")
