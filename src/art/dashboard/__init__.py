"""The dashboard: a page of hand-written ES modules that reads `/api/v1`; there is no build."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
"""`index.html` is the page; everything else is served below `/assets/`."""
