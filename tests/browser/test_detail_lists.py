"""Lists of rollouts and scenarios: filter, search, sort, saved views, before and after, extremes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from browser_kit import NARROW, RUN, Site, settled, viewer

from art.testing.seeded import Plan, seed

if TYPE_CHECKING:
    from playwright.sync_api import Page

RUN_AT = f"/run/{RUN[0]}/{RUN[1]}"
RUN_VIEW = f"runs/{RUN[0]}/{RUN[1]}"


def column(page: Page, label: str) -> list[str]:
    """The texts of one column of the rollouts' table."""
    return page.locator(f"[data-testid=rollouts-table] td[data-label='{label}']").all_inner_texts()


def query(page: Page) -> dict[str, str]:
    found = page.evaluate("Object.fromEntries(new URLSearchParams(location.hash.split('?')[1] ?? ''))")
    return dict(found)


def test_a_filter_is_completed_while_it_is_typed(open_page: Any) -> None:
    page = open_page(f"{RUN_AT}/rollouts")
    page.keyboard.press("/")
    page.keyboard.type("tool_e")
    page.get_by_role("option", name="tool_errors").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.type("> 0 and status = tr")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('filter=')")
    settled(page)
    assert query(page)["filter"] == "tool_errors > 0 and status = trained"
    errors = column(page, "Tool errors")
    assert errors
    assert all(int(count) > 0 for count in errors)
    assert set(column(page, "Status")) == {"trained"}


def test_what_the_program_logs_has_columns_and_is_asked_for_by_its_name(open_page: Any, site: Site) -> None:
    page = open_page(f"{RUN_AT}/rollouts")
    assert set(column(page, "right")) <= {"0", "1"}
    assert len(column(page, "turns")) == len(column(page, "right")) > 0
    page.get_by_role("button", name="right = 0 and reward > 0.5", exact=True).wait_for()
    page.get_by_test_id("metric-columns").locator("summary").click()
    page.get_by_test_id("metric-columns").get_by_label("turns").uncheck()
    page.wait_for_function("() => location.hash.includes('cols=right')")
    settled(page)
    assert column(page, "turns") == []
    page.get_by_test_id("filter-input").fill("right = 0")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('filter=right')")
    settled(page)
    assert set(column(page, "right")) == {"0"}
    told = site.view(f"{RUN_VIEW}/rollouts?limit=1&filter={quote('metrics.right = 0')}")
    mean = f"{told['reward_mean']:.3f}".replace("-", "−")
    page.get_by_text(f"{told['total']} rollouts, mean reward {mean}").wait_for()
    answers = site.view(f"{RUN_VIEW}/rollouts?filter={quote('right = 0')}")["rollouts"]
    assert column(page, "Answer tokens") == [str(row["answer_tokens"]) for row in answers]


def test_an_unknown_name_is_told_at_its_place(open_page: Any) -> None:
    page = open_page(f"{RUN_AT}/rollouts", allowed=("400",))
    page.get_by_test_id("filter-input").fill("reward < 0.5 and tool_erors > 0")
    page.keyboard.press("Enter")
    error = page.get_by_test_id("filter-error")
    error.wait_for()
    assert "did you mean tool_errors" in error.inner_text()
    place = error.locator(".filter-place").evaluate("(pre) => pre.textContent.split('\\n')[1].indexOf('^')")
    assert place == len("reward < 0.5 and ")
    page.get_by_test_id("filter-input").fill("reward < 0.5 and tool_errors > 0")
    page.keyboard.press("Enter")
    error.wait_for(state="detached")
    settled(page)
    assert all(float(reward.replace("−", "-")) < 0.5 for reward in column(page, "Reward"))


def test_a_search_shows_its_hits_and_the_trajectory_marks_them(open_page: Any) -> None:
    page = open_page(f"{RUN_AT}/rollouts")
    page.get_by_test_id("search-input").fill("kettle")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-testid=rollouts-table] .hit mark")
    hits = page.locator("[data-testid=rollouts-table] .hit mark").all_inner_texts()
    assert hits
    assert {hit.lower() for hit in hits} == {"kettle"}
    page.keyboard.press("Tab")
    page.get_by_test_id("rollouts-table").locator("a.row-link").first.click()
    bar = page.locator(".find-bar")
    bar.get_by_text("1 of").wait_for()
    assert page.evaluate("CSS.highlights.get('find').size") >= 1
    bar.get_by_role("button", name="Clear").click()
    bar.wait_for(state="detached")


def test_sorting_paging_and_the_address(open_page: Any) -> None:
    page = open_page(f"{RUN_AT}/rollouts")
    page.get_by_test_id("rollouts-table").get_by_role("button", name="Reward").click()
    page.wait_for_function("() => location.hash.includes('sort=reward')")
    settled(page)
    rewards = [float(text.replace("−", "-")) for text in column(page, "Reward") if text != "–"]
    assert rewards == sorted(rewards, reverse=True)
    before = len(column(page, "Reward"))
    page.get_by_role("button", name="Show more").click()
    page.wait_for_function("() => location.hash.includes('pages=2')")
    settled(page)
    after = len(column(page, "Reward"))
    assert after > before
    page.reload()
    settled(page)
    assert len(column(page, "Reward")) == after
    page.get_by_test_id("rollouts-table").get_by_role("button", name="Reward").click()
    page.wait_for_function("() => location.hash.includes('order=asc')")
    settled(page)
    rewards = [float(text.replace("−", "-")) for text in column(page, "Reward") if text != "–"]
    assert rewards == sorted(rewards)


def test_next_goes_along_the_list_that_a_rollout_was_opened_from(open_page: Any, site: Site) -> None:
    condition = "status = trained and tool_errors = 0"
    listed = site.view(
        f"{RUN_VIEW}/rollouts?limit=3&sort=sampled_tokens&order=desc&filter={quote(condition)}"
    )["rollouts"]
    page = open_page(f"{RUN_AT}/rollouts?sort=sampled_tokens&filter={quote(condition)}")
    page.get_by_test_id("rollouts-table").locator("a.row-link").first.click()
    settled(page)
    for row in listed[1:]:
        page.wait_for_selector("a[data-next]")
        page.keyboard.press("]")
        page.wait_for_function("(id) => location.hash.includes(id)", arg=row["rollout_id"])
        settled(page)
    page.wait_for_selector("a[data-prev]")
    page.keyboard.press("[")
    page.wait_for_function("(id) => location.hash.includes(id)", arg=listed[1]["rollout_id"])


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A run with more than a thousand rollouts."""
    plan = Plan(runs=1, steps=1, groups=24, group_size=44, turns=1, traces=False, evaluate_every=0)
    with viewer(seed(tmp_path_factory.mktemp("many") / "runs", plan)) as (address, key):
        yield Site(address, key)


def test_next_goes_on_behind_the_first_thousand(many: Site, open_page: Any) -> None:
    oldest = many.view(f"{RUN_VIEW}/rollouts?limit=21&order=asc")
    assert oldest["total"] > 1000
    here, following = (oldest["rollouts"][place]["rollout_id"] for place in (20, 19))
    where = f"{RUN_AT}/rollouts/{quote(here, safe='')}?in={quote('sort=created_at')}"
    page = open_page(where, base=many.url, key=many.key)
    page.wait_for_selector("a[data-next]")
    page.get_by_text(f"{oldest['total'] - 20} of {oldest['total']}").wait_for()
    page.keyboard.press("]")
    page.wait_for_function("(id) => location.hash.includes(id)", arg=following)
    settled(page)


def test_views_are_saved_for_everybody(open_page: Any, site: Site) -> None:
    page = open_page(f"{RUN_AT}/rollouts?filter={quote('tool_errors > 0')}&sort=reward&order=asc")
    page.get_by_test_id("saved-views").locator("summary").click()
    page.get_by_label("Name of this view").fill("Worst with errors")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Worst with errors").wait_for()
    [kept] = [
        view for view in site.view(f"saved?project={RUN[0]}")["views"] if view["name"] == "Worst with errors"
    ]
    assert kept["location"].startswith(f"{RUN_AT}/rollouts?")
    other = open_page(f"{RUN_AT}/rollouts")
    other.get_by_test_id("saved-views").locator("summary").click()
    other.get_by_role("link", name="Worst with errors").click()
    other.wait_for_function("() => location.hash.includes('filter=')")
    settled(other)
    assert query(other)["filter"] == "tool_errors > 0"
    other.get_by_test_id("saved-views").locator("summary").click()
    other.get_by_role("button", name="Delete the view Worst with errors").click()
    other.get_by_role("link", name="Worst with errors").wait_for(state="detached")
    assert all(view["name"] != "Worst with errors" for view in site.view(f"saved?project={RUN[0]}")["views"])


def test_a_new_rollout_appears_in_the_list(open_page: Any, site: Site) -> None:
    page = open_page(f"{RUN_AT}/rollouts")
    page.wait_for_selector("[data-testid=live]:text('live')")
    opened = site.ask("POST", "rollouts", {"model": "/".join(RUN), "scenario_id": "seen-live"})
    page.locator("[data-testid=rollouts-table]").get_by_text("seen-live").first.wait_for()
    site.ask("POST", f"rollouts/{opened['rollout_id']}/finish", {})
    page.locator(
        f"[data-testid=rollouts-table] tr:has(a[href*='{opened['rollout_id']}']) .s-no_calls"
    ).wait_for()


def test_a_scenario_before_and_after(open_page: Any, site: Site) -> None:
    lines = site.view(f"{RUN_VIEW}/scenarios?limit=50")["scenarios"]
    scenario = next(
        line
        for line in lines
        if line["last_step"] > line["first_step"] and line["scenario_id"].startswith("order")
    )
    page = open_page(f"{RUN_AT}/scenarios")
    page.get_by_test_id("scenarios-table").get_by_role(
        "link", name=scenario["scenario_id"], exact=True
    ).click()
    settled(page)
    before, after = page.get_by_test_id("side-before"), page.get_by_test_id("side-after")
    assert before.locator(".message").count() >= 2
    assert after.locator(".message").count() >= 2
    steps = after.locator("select option").evaluate_all("(options) => options.map((option) => option.value)")
    after.locator("select").select_option(steps[0])
    page.wait_for_function("() => location.hash.includes('b=')")
    settled(page)
    assert before.locator("select").input_value() == after.locator("select").input_value() == steps[0]
    page.keyboard.press("]")
    page.wait_for_function(
        f"() => document.querySelector('[data-testid=side-after] select').value === '{steps[1]}'"
    )
    chips = after.locator("button.chip")
    chips.last.click()
    page.wait_for_function("() => location.hash.includes('rb=')")
    assert chips.last.get_attribute("aria-pressed") == "true"


def test_scenarios_are_sorted(open_page: Any) -> None:
    page = open_page(f"{RUN_AT}/scenarios")
    page.get_by_role("button", name="Newest reward").click()
    page.wait_for_function("() => location.hash.includes('sort=reward_last')")
    settled(page)
    assert page.get_by_role("button", name="Newest reward").get_attribute("aria-pressed") == "true"
    assert page.get_by_test_id("scenarios-table").locator("tbody tr").count() > 3


def test_extremes_by_mouse_and_by_keyboard(open_page: Any, site: Site) -> None:
    told = site.view(f"{RUN_VIEW}/extremes?limit=20")
    page = open_page(f"{RUN_AT}/extremes")
    scatter = page.get_by_test_id("extremes-scatter").first
    assert scatter.locator("path.point").count() == len(told["points"]["rollout_id"])
    assert (
        f"r = {abs(told['correlation_tokens']):.2f}"[4:]
        in page.locator(".clouds .section-head").first.inner_text()
    )
    assert page.get_by_test_id("reading-length").inner_text().count("From the first third of the steps") == 1
    plot = scatter.locator("svg").first
    plot.focus()
    page.keyboard.press("Home")
    first = scatter.locator(".scatter-read").inner_text()
    page.keyboard.press("ArrowRight")
    assert scatter.locator(".scatter-read").inner_text() != first
    page.keyboard.press("Enter")
    page.get_by_test_id("transcript").wait_for()
    page.go_back()
    page.get_by_test_id("extremes-scatter").first.locator("path.point").first.wait_for()
    box = page.get_by_test_id("extremes-scatter").first.locator("path.point").first.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function("() => /rollouts\\/./.test(location.hash)")


CHECKS = [
    ("pretty.js", "m.prettyJson('{\"a\":[1,12345678901234567890,{}],\"b\":\"x:,{}\\\\\"\"}')", '{\n  "a": [\n    1,\n    12345678901234567890,\n    {}\n  ],\n  "b": "x:,{}\\""\n}'),
    ("pretty.js", "m.prettyJson('[1, 2')", None),
    ("pretty.js", "m.withMarks('a\\tb\\u0000\\u202e \\n')", "a⇥\tb␀‹U+202E›·⏎\n"),
    ("unseen.js", "m.seen('a\\u202eb\\u{e0041}\\u0007 \\u200d\\u200c\\u202f\\r\\n\\tc\\r')", "a\\u202eb\\U000e0041\\x07 \u200d\u200c\u202f\r\n\tc\\r"),
    ("pretty.js", "m.hasHidden('two lines\\r\\nand a tab\\t')", False),
    ("pretty.js", "m.hasHidden('a\\u200bb')", True),
    ("pretty.js", "m.beginning('a\\nb\\nc', {lines: 2, characters: 100})", "a\nb"),
    ("pretty.js", "m.inParts('ab\\n'.repeat(9), 6).join('\\n') === 'ab\\n'.repeat(9)", True),
    ("transcript.js", "m.placeIn({reasoning: '\U0001f600a', text: 'bc', tool_calls: []}, 4)", {"part": "text", "offset": 1}),
    ("transcript.js", "m.placeIn({reasoning: '', text: '', tool_calls: [{name: 'f', arguments: '{}'}]}, 2)", {"part": "call", "index": 0, "offset": 2}),
    ("filter.js", "m.suggestions('rew', 3).map((item) => item.text)", ["reward"]),
    ("filter.js", "m.suggestions('reward < 0 a', 12).map((item) => item.text)", ["and"]),
    ("filter.js", "m.suggestions('status = agent', 14).map((item) => item.text)", ["agent_error"]),
    ("filter.js", "m.suggestions('scenario_id ~ \"rew', 18)", []),
    ("filter.js", "m.suggestions('rig', 3, ['right', 'metrics.right']).map((item) => item.text)", ["right"]),
    ("filter.js", "m.suggestions('metrics.tu', 10, ['metrics.turns']).map((item) => item.text)", ["metrics.turns"]),
    ("statistics.js", "m.correlation([1, 2, 3], [2, 4, 6])", 1),
    ("statistics.js", "m.correlation([1, 1, 1], [2, 4, 6])", None),
    ("statistics.js", "m.withinSteps([0, 0, 1, 1, 2, 2], [1, 2, 11, 12, 21, 22], [1, 0, 11, 10, 21, 20])", -1),
    ("statistics.js", "m.drift([0, 1, 2, 3, 4, 5], [1, 1, 5, 5, 3, 3])", [{"from": 1, "to": 3}]),
    ("branches.js", "m.pathThrough(m.treeOf([{number: 0, parent: null, branch: 0, choices: []}, {number: 1, parent: 0, branch: 0, choices: []}, {number: 2, parent: 0, branch: 1, choices: []}]), 0).map((call) => call.number)", [0, 1]),
    ("branches.js", "m.pathThrough(m.treeOf([{number: 0, parent: null, branch: 0, choices: []}, {number: 1, parent: 0, branch: 0, choices: []}, {number: 2, parent: 0, branch: 1, choices: []}]), 2).map((call) => call.number)", [0, 2]),
    ("branches.js", "m.lastCall([{number: 0, choices: [{fate: 'trained'}]}, {number: 1, choices: [{fate: 'trained'}]}, {number: 2, choices: [{fate: 'filtered'}]}, {number: 3, auxiliary: true, choices: [{fate: 'trained'}]}])", 1),
    ("branches.js", "m.lastCall([{number: 0, choices: [{fate: 'stale'}]}, {number: 1, choices: [{fate: 'stale'}]}])", 1),
    ("branches.js", "m.lastCall([])", None),
    ("branches.js", "m.taken([{choices: [{index: 0, fate: 'filtered'}, {index: 1, fate: 'trained'}]}])[0].choice.index", 1),
    ("find.js", "'On its way, on its\\nway; station'.match(m.patternsOf(m.wordsOf('\"on its way\"')))", ["On its way", "on its\nway"]),
    ("find.js", "'on a station, on'.match(m.patternsOf(m.wordsOf('on stat*')))", ["on", "stat", "on"]),
    ("find.js", "'anything'.match(m.patternsOf([]))", None),
    ("metrics.js", "['train/right', 'val/right', 'train/reward', 'val/reward', 'mine/x'].map((name) => m.infoOf([{name: 'train/*', title: 'Metric'}, {name: 'val/*', title: 'Metric'}, {name: '*/reward', title: 'Evaluation reward'}, {name: 'train/reward', title: 'Reward'}], name).title)", ["right (train)", "right (val)", "Reward", "Evaluation reward", "x (mine)"]),
    ("plot.js", "m.shaded([[0, 1], [0.3, 0.9]], {warnBelow: 0.02, warnAbove: 40})", {"above": None, "below": 0.02}),
    ("token_paint.js", "m.paint('gap', {logprob: [-1], trained_logprob: [-1.3], mask: [true], version: [0]}, 0)", "t-m3"),
    ("token_paint.js", "m.paint('logprob', {logprob: [-0.01, -9], mask: [], version: []}, 1)", "t-l7"),
    ("token_paint.js", "m.paint('advantage', {logprob: [-1], mask: [false], version: [0], advantage: 2}, 0)", "t-none"),
    ("scatter.js", "m.ticks(0, 1)", [0, 0.2, 0.4, 0.6, 0.8, 1]),
]  # fmt: skip


@pytest.fixture(scope="module")
def module_page(chromium: Any, site: Site) -> Any:
    """A page whose scripts can be asked directly."""
    page = chromium.new_page()
    page.goto(site.url)
    yield page
    page.close()


@pytest.mark.parametrize(("module", "asked", "right"), CHECKS)
def test_what_the_pure_parts_answer(
    module_page: Any, open_page: Any, module: str, asked: str, right: Any
) -> None:
    answer = module_page.evaluate(f"import('/assets/js/{module}').then((m) => {asked})")
    if isinstance(right, int | float) and not isinstance(right, bool):
        assert answer == pytest.approx(right)
    else:
        assert answer == right


def test_the_lists_on_a_phone_scroll_no_page(open_page: Any) -> None:
    page = open_page(f"{RUN_AT}/rollouts", size=NARROW)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    for menu in ("saved-views", "metric-columns"):
        page.get_by_test_id(menu).evaluate("(details) => { details.open = true }")
        body = page.get_by_test_id(menu).locator(".menu-body").bounding_box()
        assert body is not None
        assert body["x"] >= 0
        assert body["x"] + body["width"] <= NARROW[0]
