"""The frame: keys, the key, themes, live updates, and what a role may do."""

from __future__ import annotations

import re
from typing import Any

from browser_kit import ROLLED_BACK, RUN, Site, settled, show

_RUN = f"/run/{RUN[0]}/{RUN[1]}"


def address(page: Any) -> str:
    return str(page.evaluate("location.hash"))


def focused_row(page: Any) -> int:
    """Which row has the focus, -1 for none."""
    return int(page.evaluate("[...document.querySelectorAll('[data-row]')].indexOf(document.activeElement)"))


# -- keyboard


def test_every_view_is_reached_by_its_keys(open_page: Any) -> None:
    page = open_page(_RUN)
    for key, where in {
        "t": f"{_RUN}/steps",
        "g": f"{_RUN}/groups",
        "l": f"{_RUN}/rollouts",
        "n": f"{_RUN}/scenarios",
        "x": f"{_RUN}/extremes",
        "p": f"{_RUN}/try",
        "o": _RUN,
        "m": "/models",
        "c": "/compare",
        "s": "/server",
        "r": "/",
    }.items():
        page.keyboard.press("Escape") if page.evaluate(
            "document.activeElement.matches('input, textarea')"
        ) else None
        page.keyboard.press("g")
        page.keyboard.press(key)
        settled(page)
        assert address(page).split("?")[0] == f"#{where}", key


def test_rows_open_with_j_k_and_enter_and_escape_goes_up(open_page: Any) -> None:
    page = open_page("/")
    page.keyboard.press("j")
    assert focused_row(page) == 0
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert focused_row(page) == 2
    page.keyboard.press("k")
    assert focused_row(page) == 1
    opened = page.evaluate("document.activeElement.getAttribute('href')")
    page.keyboard.press("Enter")
    settled(page)
    assert address(page) == opened
    page.keyboard.press("Escape")
    settled(page)
    assert address(page) == "#/"


def test_a_step_is_three_keys_from_a_trajectory(open_page: Any) -> None:
    page = open_page(f"{_RUN}/steps")
    for deeper in ("groups", "groups/", "rollouts/"):
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        settled(page)
        assert f"{_RUN}/{deeper}" in address(page)


def test_slash_goes_to_the_filter_and_letters_stay_letters_there(open_page: Any) -> None:
    page = open_page("/")
    page.keyboard.press("/")
    page.keyboard.type("desk-03")
    assert page.get_by_test_id("runs-table").locator("tbody tr").count() == 1
    assert "q=desk-03" in address(page), "the address holds the filter"
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    assert focused_row(page) == 0


def test_help_opens_with_a_question_mark_and_keeps_the_focus(open_page: Any) -> None:
    page = open_page("/")
    page.keyboard.press("?")
    page.get_by_test_id("help").wait_for()
    page.keyboard.press("j")
    assert page.evaluate("document.querySelector('dialog').contains(document.activeElement)")
    page.keyboard.press("Escape")
    page.get_by_test_id("help").wait_for(state="detached")
    assert address(page) == "#/", "Esc closed the help and went nowhere"


def test_a_chart_is_read_with_the_arrow_keys(open_page: Any) -> None:
    page = open_page(_RUN)
    chart = page.locator('[data-metric="train/reward"]')
    chart.locator(".chart-plot").focus()
    page.keyboard.press("End")
    newest = chart.locator(".chart-read").inner_text()
    page.keyboard.press("Home")
    oldest = chart.locator(".chart-read").inner_text()
    first, last = (int(re.search(r"step (\d+)", text)[1]) for text in (oldest, newest))  # type: ignore[index]
    assert first < last
    page.keyboard.press("ArrowRight")
    assert re.search(r"step (\d+)", chart.locator(".chart-read").inner_text())[1] != str(first)  # type: ignore[index]


# -- mouse


def test_the_tabs_of_a_run_and_a_row_are_clicked(open_page: Any) -> None:
    page = open_page("/")
    page.get_by_test_id("runs-table").locator("tbody tr").first.locator("td").nth(2).click()
    settled(page)
    assert address(page).startswith("#/run/shop/")
    for label in (
        "Steps",
        "Groups",
        "Rollouts",
        "Scenarios",
        "Reward check",
        "Checkpoints",
        "Try",
        "Config",
        "Overview",
    ):
        page.locator(".tabs").get_by_text(label, exact=True).click()
        settled(page)
        assert page.locator(".tabs [aria-current]").inner_text() == label
        assert page.locator("main .error-box").count() == 0


def test_figures_are_smoothed_added_and_removed_and_the_address_holds_it(open_page: Any) -> None:
    page = open_page(_RUN)
    before = page.get_by_test_id("chart").count()
    page.get_by_label("Add a chart").select_option("loss/grad_norm")
    page.locator('[data-metric="loss/grad_norm"] canvas').wait_for()
    page.get_by_role("button", name="Time").click()
    page.locator('input[type="range"]').fill("0.5")
    assert page.get_by_test_id("chart").count() == before + 1
    told = address(page)
    for part in ("more=loss", "axis=time", "smooth=0.5"):
        assert part in told
    again = open_page(told.removeprefix("#"))
    again.locator('[data-metric="loss/grad_norm"]').wait_for()
    again.get_by_role("button", name=re.compile("Remove the chart")).click()
    again.locator('[data-metric="loss/grad_norm"]').wait_for(state="detached")


def test_runs_are_marked_and_compared(open_page: Any) -> None:
    page = open_page("/")
    page.get_by_label("Compare shop/desk-01").check()
    page.get_by_label("Compare shop/desk-02").check()
    page.get_by_test_id("compare-chosen").click()
    settled(page)
    assert page.get_by_test_id("compare-table").locator("tbody tr").count() == 2
    chart = page.locator('[data-metric="train/reward"]')
    chart.locator("canvas").wait_for()
    assert all(
        run in (chart.locator(".chart-plot").get_attribute("aria-label") or "")
        for run in ("desk-01", "desk-02")
    )
    page.get_by_label("Add a run").select_option("shop/desk-03")
    settled(page)
    assert page.get_by_test_id("compare-table").locator("tbody tr").count() == 3
    page.get_by_label("Remove shop/desk-01").click()
    settled(page)
    assert page.get_by_test_id("compare-table").locator("tbody tr").count() == 2


# -- the key


def test_without_a_key_the_page_asks_for_one_and_takes_it(open_page: Any, site: Site) -> None:
    page = open_page("/models", key="", allowed=("401",))
    page.get_by_label("Key").fill("wrong")
    page.get_by_role("button", name="Open").click()
    page.locator(".error-box").wait_for()
    assert "not known" in page.locator(".error-box").inner_text()
    page.get_by_label("Key").fill(site.key)
    page.get_by_role("button", name="Open").click()
    page.get_by_test_id("models-table").wait_for()
    assert address(page) == "#/models", "it goes on where it was"


def test_one_key_alone_leads_nowhere_however_early_it_comes(open_page: Any) -> None:
    page = open_page(_RUN)
    # The page's clock begins with the page; here it has hardly begun.
    page.add_init_script("performance.now = () => 5")
    page.reload()
    settled(page)
    page.keyboard.press("t")
    settled(page)
    assert address(page) == f"#{_RUN}"
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_function(f"location.hash.startsWith('#{_RUN}/steps')")


def test_the_address_loses_the_key_at_once(open_page: Any, site: Site) -> None:
    page = open_page(f"{_RUN}/steps")
    assert address(page) == f"#{_RUN}/steps"
    assert site.key not in page.evaluate("document.documentElement.outerHTML")
    assert page.evaluate("Object.values(localStorage).join()").find(site.key) < 0, "kept for this tab only"
    page.reload()
    settled(page)
    assert page.locator(".tabs [aria-current]").inner_text() == "Steps"


def test_what_a_role_may_not_do_is_shown_disabled_with_the_reason(open_page: Any, site: Site) -> None:
    made = site.ask("POST", "keys", {"role": "rollout", "project": RUN[0], "label": "looks only"})
    page = open_page(f"/run/{ROLLED_BACK[0]}/{ROLLED_BACK[1]}/checkpoints", key=made["key"], allowed=("403",))
    reason = "Your key's role is rollout; this needs train."
    page.locator("main").get_by_text(reason).wait_for()
    button = page.get_by_role("button", name=re.compile("Promote")).first
    assert button.is_disabled()
    assert button.get_attribute("title") == reason
    show(page, "/server?part=keys")
    assert "administrator" in page.locator("main").inner_text()


# -- themes


def test_the_theme_is_chosen_and_remembered(open_page: Any) -> None:
    page = open_page("/")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    page.keyboard.press("d")  # system, light, dark
    page.keyboard.press("d")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    settled(page)
    assert page.evaluate(ground) == dark


# -- live


def test_a_rollout_and_a_step_appear_while_the_page_is_open(open_page: Any, site: Site) -> None:
    page = open_page("/")
    page.locator(".live-live").wait_for()
    row = page.get_by_test_id("runs-table").locator("tr", has_text="desk-03")
    assert "running" not in row.inner_text()
    opened = site.ask("POST", "rollouts", {"model": "shop/desk-03", "scenario_id": "live"})
    row.get_by_text("running").wait_for()
    kept = site.ask("GET", "models/shop/desk-03/checkpoints")["checkpoints"]
    assert [one["step"] for one in kept if one["leased"]] == [opened["step"]], (
        "an open rollout keeps its step"
    )
    site.ask("POST", f"rollouts/{opened['rollout_id']}/reward", {"reward": 0.5})
    site.ask("POST", f"rollouts/{opened['rollout_id']}/finish", {})
    row.get_by_text("running").wait_for(state="detached")

    show(page, "/run/shop/desk-03")
    chart = page.locator('[data-metric="train/reward"]')
    label = chart.locator(".chart-plot")
    before = label.get_attribute("aria-label")
    step = site.view("runs/shop/desk-03")["run"]["step"] + 1
    logged = {
        "split": "train",
        "step": step,
        "metrics": {"reward": 7.25},
        "recorded_at": "2026-11-30T12:00:00",
    }
    site.ask("POST", "models/shop/desk-03/log", logged)
    page.wait_for_function(
        """() => document.querySelector('[data-metric="train/reward"] .chart-plot').getAttribute('aria-label').includes('7.25')"""
    )
    assert label.get_attribute("aria-label") != before


# -- models


def test_rolling_back_names_what_happens_and_can_be_cancelled_and_undone(open_page: Any, site: Site) -> None:
    project, name = ROLLED_BACK
    latest = site.ask("GET", f"models/{project}/{name}")["step"]
    page = open_page(f"/run/{project}/{name}/checkpoints")
    page.get_by_role("button", name=re.compile("Roll back")).first.click()
    dialog = page.get_by_test_id("move-dialog")
    told = dialog.inner_text()
    assert f"serves step {latest} now" in told
    assert "Nothing is deleted" in told
    dialog.get_by_role("button", name="Cancel").click()
    assert site.ask("GET", f"models/{project}/{name}")["step"] == latest

    page.get_by_role("button", name=re.compile("Promote")).first.click()
    dialog.get_by_role("button", name=re.compile("Promote step")).click()
    dialog.wait_for(state="detached")
    promoted = site.ask("GET", f"models/{project}/{name}")["step"]
    assert promoted > latest
    marked = page.locator("tr.is-marked")
    marked.get_by_text(f"step {promoted}", exact=True).wait_for()
    site.ask("POST", f"models/{project}/{name}/rollback", {"step": latest})
    page.locator("tr.is-marked").get_by_text(f"step {latest}", exact=True).wait_for()


def test_two_versions_answer_the_same_prompt_side_by_side(open_page: Any) -> None:
    page = open_page(f"{_RUN}/try")
    page.get_by_label("Prompt").fill("Where is my order?")
    page.get_by_role("button", name="Ask both").click()
    for side in ("side-a", "side-b"):
        panel = page.get_by_test_id(side)
        panel.get_by_text(re.compile("ended: stop")).wait_for()
        assert "arrives on Tuesday" in panel.inner_text()
        assert "tokens/s" in panel.inner_text() or "tokens in" in panel.inner_text()
    versions = [page.get_by_test_id(side).locator("select").input_value() for side in ("side-a", "side-b")]
    assert versions[0] != versions[1]


# -- the server


def test_queues_workers_keys_and_the_audit_log_are_shown(open_page: Any, site: Site) -> None:
    page = open_page("/server")
    assert page.get_by_test_id("queues-table").locator("tbody tr").count() >= 2
    page.get_by_role("button", name="Keys").click()
    settled(page)
    made = site.ask("POST", "keys", {"role": "infer", "project": "shop", "label": "to be revoked"})
    page.reload()
    settled(page)
    row = page.get_by_test_id("keys-table").locator("tr", has_text="to be revoked")
    row.get_by_role("button").click()
    page.get_by_role("button", name="Revoke", exact=True).click()
    row.get_by_text("revoked").last.wait_for()
    page.get_by_role("button", name="Audit log").click()
    settled(page)
    page.get_by_test_id("audit-table").get_by_text("DELETE /api/v1/keys", exact=False).first.wait_for()
    assert made["info"]["key_id"] in page.get_by_test_id("audit-table").inner_text()


def test_an_unknown_run_is_an_error_with_its_hint(open_page: Any) -> None:
    page = open_page("/run/shop/nobody", allowed=("404",))
    assert "nobody" in page.locator(".error-box").inner_text()
    assert "hint" in page.locator(".error-box").inner_text()


# -- a run that has ended


def test_art_ui_shows_everything_and_changes_nothing(open_page: Any, looked_at: tuple[str, str]) -> None:
    base, key = looked_at
    page = open_page("/", base=base, key=key)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    settled(page)
    assert page.locator('[data-metric="train/reward"] canvas').count() == 1
    show(page, f"{_RUN}/checkpoints")
    page.locator("main").get_by_text("no server runs").wait_for()
    page.get_by_test_id("checkpoints-table").wait_for()
    assert page.get_by_role("button", name=re.compile("Roll back")).count() == 0
    page.locator("[data-testid=live]:text('read-only')").wait_for()
    show(page, f"{_RUN}/try")
    page.locator("main").get_by_text("no server runs").wait_for()
    assert page.get_by_role("button", name="Ask both").count() == 0
    show(page, "/server")
    assert "no engine, no trainer" in page.locator("main").inner_text()
