"""What the browser's tests share: the server under the dashboard, and how to wait for a page."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Request

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
WIDE, NARROW = (1440, 900), (360, 740)
RUN = ("shop", "desk-01")
ROLLED_BACK = ("shop", "desk-02")


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


@contextlib.contextmanager
def viewer(folder: Path) -> Iterator[tuple[str, str]]:
    """`art ui` over a folder that no server runs on: its address and its key."""
    command = [sys.executable, "-m", "art.cli.main", "ui", str(folder), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address, _, key = json.loads(process.stdout.readline())["url"].partition("/#key=")
        yield address, key
    finally:
        process.terminate()
        process.wait(timeout=30)


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


RULES = {
    "resultTypes": ["violations"],
    # Colours are part of the rules; what is experimental or a matter of taste is not.
    "runOnly": {
        "type": "tag",
        "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    },
}

OVERHANG = """() => {
    const found = [];
    const wide = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > wide) found.push(`the page is ${document.documentElement.scrollWidth} px wide`);
    for (const element of document.querySelectorAll("main *")) {
        const style = getComputedStyle(element);
        const box = element.getBoundingClientRect();
        if (box.width === 0 || style.visibility === "hidden" || element.closest(".visually-hidden, .u-wrap, svg")) continue;
        const clips = style.overflowX === "hidden" && style.textOverflow !== "ellipsis" && style.webkitLineClamp === "none";
        if (clips && element.clientWidth > 1 && element.scrollWidth > element.clientWidth + 1 && element.textContent.trim())
            found.push(`cut: <${element.localName} class="${element.className}"> ${element.textContent.trim().slice(0, 60)}`);
        const scroller = element.closest(".table-box, .tabs, [data-scrolls], pre, .chart-data");
        if (!scroller && box.right > wide + 1) found.push(`over the edge: <${element.localName} class="${element.className}">`);
    }
    return found;
}"""


def problems(page: Page, name: str) -> list[str]:
    """Rules of accessibility that the page breaks."""
    from axe_playwright_python.sync_playwright import Axe

    answer: dict[str, Any] = Axe().run(page, options=RULES).response
    return [
        f"{name}: {rule['id']} ({rule['impact']}): {node['html'][:160]}: {node['failureSummary'][:240]}"
        for rule in answer["violations"]
        for node in rule["nodes"][:3]
    ]


def contrast(page: Page, where: str) -> list[str]:
    """Texts inside `where` that stand out too little from their ground."""
    from axe_playwright_python.sync_playwright import Axe

    options = {"resultTypes": ["violations"], "runOnly": {"type": "rule", "values": ["color-contrast"]}}
    answer: dict[str, Any] = Axe().run(page, context=where, options=options).response
    return [
        f"{node['html'][:160]}: {node['failureSummary'][:240]}"
        for rule in answer["violations"]
        for node in rule["nodes"]
    ]


def overhang(page: Page) -> list[str]:
    """What is cut, or goes beyond the page's edge."""
    return list(page.evaluate(OVERHANG))
