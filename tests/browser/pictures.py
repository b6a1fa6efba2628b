"""Draw the pictures of docs/dashboard.md anew, from a seeded store:

    .venv/bin/python tests/browser/pictures.py

Small on purpose: one pixel a pixel, cut to what is told, at most 128 colours.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from browser_kit import settled
from PIL import Image
from playwright.sync_api import sync_playwright

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
COLOURS = 128


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = ArtServer(seed(Path(folder) / "runs", Plan(runs=4, steps=24)), script=SCRIPT).start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, reduced_motion="reduce")
        page.goto(f"{server.url}/#key={server.admin_key}")
        settled(page)
        IMAGES.mkdir(exist_ok=True)
        for name, (where, height) in PICTURES.items():
            page.evaluate("(where) => { location.hash = where }", where)
            settled(page)
            page.wait_for_timeout(500)
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": height}
            shown = Image.open(io.BytesIO(page.screenshot(clip=clip, full_page=True))).convert("RGB")
            target = IMAGES / f"dashboard-{name}.png"
            shown.quantize(COLOURS).save(target, optimize=True)
            print(f"{target.name}: {target.stat().st_size} bytes")
        browser.close()
        server.stop()


if __name__ == "__main__":
    main()
