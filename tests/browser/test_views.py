"""Every view in both themes and both widths: it shows itself, breaks no accessibility rule, and nothing hangs over."""

from __future__ import annotations

from typing import Any

import pytest
from browser_kit import NARROW, ROLLED_BACK, RUN, WIDE, Site, overhang, problems, shot

_RUN = f"/run/{RUN[0]}/{RUN[1]}"
VIEWS = {
    "runs": "/",
    "run": _RUN,
    "run-time-smooth": f"{_RUN}?axis=time&smooth=0.6",
    "steps": f"{_RUN}/steps",
    "groups": f"{_RUN}/groups",
    "group": f"{_RUN}/groups/{{group}}",
    "rollouts": f"{_RUN}/rollouts",
    "trajectory": f"{_RUN}/rollouts/{{rollout}}",
    "scenarios": f"{_RUN}/scenarios",
    "scenario": f"{_RUN}/scenarios/{{scenario}}",
    "extremes": f"{_RUN}/extremes",
    "checkpoints": f"/run/{ROLLED_BACK[0]}/{ROLLED_BACK[1]}/checkpoints",
    "config": f"{_RUN}/config",
    "try": f"{_RUN}/try",
    "compare": "/compare?runs=shop/desk-01,shop/desk-02,shop/desk-03",
    "models": "/models",
    "server": "/server",
    "server-keys": "/server?part=keys",
    "server-audit": "/server?part=audit",
}


@pytest.fixture(scope="module")
def places(site: Site) -> dict[str, str]:
    """Addresses of one group, rollout and scenario that exist."""
    from urllib.parse import quote

    run = f"runs/{RUN[0]}/{RUN[1]}"
    group = site.view(f"{run}/groups?limit=1")["groups"][0]["group_id"]
    rollout = site.view(f"{run}/rollouts?limit=1&filter={quote('tool_calls > 0')}")["rollouts"][0][
        "rollout_id"
    ]
    scenario = site.view(f"{run}/scenarios?limit=1")["scenarios"][0]["scenario_id"]
    told = {"group": group, "rollout": rollout, "scenario": scenario}
    return {name: quote(value, safe="") for name, value in told.items()}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_in_both_widths_and_themes(open_page: Any, places: dict[str, str], name: str) -> None:
    page = open_page(VIEWS[name].format(**places))
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for width, height in (WIDE, NARROW):
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_timeout(100)  # charts follow width and colours with the next frames
            shot(page, f"{name}-{width}-{theme}")
            assert page.locator("main .error-box").all_inner_texts() == []
            assert overhang(page) == []
            if width == WIDE[0] or theme == "light":  # what a width changes is the same in both themes
                assert problems(page, f"{name}, {width} px, {theme}") == []
