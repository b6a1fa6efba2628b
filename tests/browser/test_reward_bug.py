"""A reward that pays for length, from the first look to the proof: the run of docs/reward-bug.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from browser_kit import RUN, Site, settled, show

_RUN = f"/run/{RUN[0]}/{RUN[1]}"


@pytest.fixture(scope="module")
def cheated(start_art_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    from art.testing.seeded import Plan, seed

    plan = Plan(runs=1, steps=12, groups=3, group_size=6, reward_bug="length")
    server = start_art_server(path=seed(tmp_path_factory.mktemp("cheated") / "runs", plan))
    yield Site(server.url, server.admin_key)
    server.stop()


def test_the_overview_warns_and_leads_to_what_the_reward_goes_with(open_page: Any, cheated: Site) -> None:
    page = open_page(_RUN, base=cheated.url, key=cheated.key)
    warnings = page.get_by_test_id("warnings")
    warnings.get_by_role("link", name=re.compile(r"Reward follows length \(r = \+0\.\d\d\)")).wait_for()
    told = warnings.inner_text()
    assert "Reward rises and right does not." in told
    assert "scored by the same judge" in told
    right = page.get_by_test_id("own-metrics").locator('[data-metric="train/right"]')
    right.locator("canvas").wait_for()
    label = right.locator(".chart-plot").get_attribute("aria-label") or ""
    assert "train:" in label
    warnings.get_by_role("link", name=re.compile("Reward follows length")).click()
    settled(page)
    assert page.locator(".tabs [aria-current]").inner_text() == "Reward check"
    assert "Reward follows length" in page.get_by_test_id("reward-warnings").inner_text()
    cloud = page.get_by_test_id("cloud-metric").filter(has_text="Reward against right")
    assert "Reward and right hardly go together." in cloud.inner_text()
    known = cheated.view(f"runs/{RUN[0]}/{RUN[1]}/extremes")["points"]["metrics"]["right"]
    assert cloud.locator("path.point").count() == len(known)


def test_a_group_shows_what_the_judge_said_and_the_search_finds_it(open_page: Any, cheated: Site) -> None:
    page = open_page(f"{_RUN}/groups/desk-01-12-0", base=cheated.url, key=cheated.key)
    assert re.search(
        r"names .* state .*; it has \d+ words", page.get_by_test_id("explanation").first.inner_text()
    )
    show(page, f'{_RUN}/rollouts?search="names another state"')
    assert page.get_by_test_id("rollouts-table").locator("tbody tr").count() > 0


def test_a_sound_reward_has_no_warning(open_page: Any) -> None:
    page = open_page(f"{_RUN}/extremes")
    page.get_by_test_id("cloud-metric").first.wait_for()
    page.locator("main").get_by_text("scored by the same judge").wait_for()
    assert page.get_by_test_id("reward-warnings").count() == 0


def test_scenarios_compare_like_with_like(open_page: Any, site: Site) -> None:
    page = open_page(f"{_RUN}/scenarios")
    line = site.view(f"runs/{RUN[0]}/{RUN[1]}/scenarios")["scenarios"][0]
    table = page.get_by_test_id("scenarios-table")
    row = table.locator("tbody tr").first
    assert {"train": "training", "evaluate": "evaluation"}[line["purpose"]] in row.inner_text()
    assert f"of {line['rollouts_last']}" in row.inner_text()
    assert "right" in table.locator("thead").inner_text()
    assert row.locator(".good, .bad").count() == 0, "a rise is not praised"
