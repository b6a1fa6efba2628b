"""Draw the pictures of docs/dashboard.md and docs/reward-bug.md anew, from seeded stores:

    .venv/bin/python tests/browser/pictures.py [dashboard | reward-bug]

Small on purpose: one pixel a pixel, cut to what is told, at most 128 colours.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

from browser_kit import settled
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from art.testing.seeded import Plan, seed
from art.testing.server import ArtServer
from conftest import CHROMIUM, SCRIPT

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
WIDTH = 1080
PICTURES = {
    "runs": ("/", 330),
    "run": ("/run/shop/desk-01", 860),
    "checkpoints": ("/run/shop/desk-02/checkpoints", 470),
    "group": ("/run/shop/desk-01/groups/desk-01-6-0", 620),
    "tokens": ("/run/shop/desk-01/rollouts/desk-01-6-0-0?as=tokens", 800),
}
"""Name -> what stands behind `#`, and how many pixels of it from the top."""
CHEATED = Plan(runs=1, steps=30, groups=4, group_size=6, reward_bug="length")
"""The run of docs/reward-bug.md."""
_WRONG_AND_PAID = quote("metrics.right = 0 and reward > 0.9")
STEPS_OF_GUIDE = {
    "overview": ("/run/shop/desk-01", 620),
    "metrics": ("/run/shop/desk-01", "own-metrics"),
    "check": ("/run/shop/desk-01/extremes", 900),
    "filter": (f"/run/shop/desk-01/rollouts?filter={_WRONG_AND_PAID}", 560),
    "group": ("/run/shop/desk-01/groups/desk-01-30-0", 640),
}
COLOURS = 128


def draw(page: Page, where: str, shown: int | str, target: Path) -> None:
    """`shown`: pixels from the top, or the test id of the part."""
    page.evaluate("(where) => { location.hash = where }", where)
    settled(page)
    page.wait_for_timeout(1000)
    page.mouse.move(0, 0)
    if isinstance(shown, str):
        drawn = page.get_by_test_id(shown).screenshot()
    else:
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": shown}
        drawn = page.screenshot(clip=clip, full_page=True)
    Image.open(io.BytesIO(drawn)).convert("RGB").quantize(COLOURS).save(target, optimize=True)
    print(f"{target.name}: {target.stat().st_size} bytes")


def main(only: str = "") -> None:
    IMAGES.mkdir(exist_ok=True)
    books = {"dashboard": (Plan(runs=4, steps=24), PICTURES), "reward-bug": (CHEATED, STEPS_OF_GUIDE)}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for book, (plan, pictures) in books.items():
            if only not in ("", book):
                continue
            server = ArtServer(seed(Path(folder) / book, plan), script=SCRIPT).start()
            page = browser.new_page(viewport={"width": WIDTH, "height": 900}, reduced_motion="reduce")
            page.goto(f"{server.url}/#key={server.admin_key}")
            settled(page)
            for name, (where, shown) in pictures.items():
                draw(page, where, shown, IMAGES / f"{book}-{name}.png")
            page.close()
            server.stop()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:2])
