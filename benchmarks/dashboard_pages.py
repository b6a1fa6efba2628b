"""What a person waits for in a real Chromium: the first view, a trajectory of 30,000 tokens, scrolling through it."""

from __future__ import annotations

import shutil
import sys
from statistics import median
from typing import Any

ROUNDS = 5
TOKENS = '[data-testid="token-line"] .token'
ROWS = '[data-testid="runs-table"] tbody tr'
SEEN = """
(([selector, name]) => {
  const look = () => {
    if (window[name] === undefined && document.querySelector(selector)) {
      requestAnimationFrame(() => requestAnimationFrame(() => { window[name] ??= performance.now(); }));
    }
  };
  new MutationObserver(look).observe(document, { childList: true, subtree: true });
  look();
})"""
"""Notes when something was first painted: two frames after it is in the document, in ms since the page was asked for."""
OPEN = """
([where, selector]) => new Promise((done) => {
  const began = performance.now();
  const look = () => document.querySelectorAll(selector).length > 300
    ? requestAnimationFrame(() => done(performance.now() - began)) : requestAnimationFrame(look);
  location.hash = where;
  look();
})"""
SCROLL = """
(seconds) => new Promise((done) => {
  const view = document.querySelector('[data-testid="token-view"]');
  const box = view.scrollHeight > view.clientHeight + 10 ? view : document.scrollingElement;
  const tasks = [];
  const watching = new PerformanceObserver((list) => list.getEntries().forEach((one) => tasks.push(one.duration)));
  watching.observe({ type: "longtask" });
  const began = performance.now();
  const gaps = [];
  let before = began;
  const step = (now) => {
    gaps.push(now - before);
    before = now;
    const part = Math.min(1, (now - began) / (1000 * seconds));
    box.scrollTop = part * (box.scrollHeight - box.clientHeight);
    if (part < 1) requestAnimationFrame(step);
    else setTimeout(() => {
      const lines = document.querySelectorAll('[data-testid="token-line"]');
      done({ gaps, tasks, last: Number(lines[lines.length - 1]?.dataset.at ?? -1), drawn: document.querySelectorAll('.token').length });
    }, 1000);
  };
  requestAnimationFrame(step);
})"""
SCROLL_SECONDS = 6.0


class Pages:
    """A Chromium on one server."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key

    def measure(self, project: str, run: str) -> dict[str, Any]:
        """Medians of ROUNDS, each in a browser profile of its own; scrolling once."""
        try:
            from playwright.sync_api import sync_playwright
        except ModuleNotFoundError:
            sys.exit("playwright is not installed: make test-browser installs it, or use --no-browser")
        chromium = (
            shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        )
        if chromium is None:
            sys.exit("there is no Chromium: make test-browser installs it, or use --no-browser")
        first: list[float] = []
        tokens: list[float] = []
        where = f"/run/{project}/{run}/rollouts/{run}-long?as=tokens"
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for number in range(ROUNDS):
                context = browser.new_context(viewport={"width": 1440, "height": 900})
                page = context.new_page()
                page.add_init_script(f"{SEEN}({[ROWS, 'firstView']})")
                page.goto(f"{self._url}/#key={self._key}&/")
                page.wait_for_function("() => window.firstView !== undefined", timeout=30_000)
                first.append(page.evaluate("window.firstView"))
                tokens.append(page.evaluate(OPEN, [where, TOKENS]))
                scrolled = page.evaluate(SCROLL, SCROLL_SECONDS) if number == ROUNDS - 1 else {}
                context.close()
            browser.close()
        gaps = scrolled["gaps"]
        return {
            "first_view_ms": round(median(first), 1),
            "first_view_worst_ms": round(max(first), 1),
            "tokens_drawn_ms": round(median(tokens), 1),
            "tokens_drawn_worst_ms": round(max(tokens), 1),
            "longest_task_ms": round(max(scrolled["tasks"], default=0.0), 1),
            "frames_a_second": round(len(gaps) / SCROLL_SECONDS, 1),
            "longest_gap_between_frames_ms": round(max(gaps), 1),
            "tokens_in_document_at_the_end": scrolled["drawn"],
            "last_line_begins_at": scrolled["last"],
        }
