"""From a run down to its tokens: steps, groups, a group side by side, a trajectory, its tokens, a person's note."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from browser_kit import NARROW, RUN, WIDE, Site, contrast, overhang, problems, settled, shot, show

from art.types.scenario_names import digest

if TYPE_CHECKING:
    from playwright.sync_api import Page

RUN_AT = f"/run/{RUN[0]}/{RUN[1]}"
RUN_VIEW = f"runs/{RUN[0]}/{RUN[1]}"


def rollouts(site: Site, condition: str, *, limit: int = 1, more: str = "") -> list[dict[str, Any]]:
    """Rollouts of the run that a filter finds; at least one."""
    found = site.view(f"{RUN_VIEW}/rollouts?limit={limit}&filter={quote(condition)}{more}")["rollouts"]
    assert found, f"the store has no rollout with {condition}"
    return list(found)


def chat(site: Site, opened: dict[str, Any], text: str) -> None:
    """One call of the agent in an open rollout."""
    body = json.dumps({"model": RUN[1], "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": f"Bearer {opened['api_key']}", "Content-Type": "application/json"}
    address = f"{site.url}/r/{opened['rollout_id']}/v1/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=30) as answer:
        assert json.load(answer)["choices"]


def reach(page: Page, part: str) -> None:
    """Wait until the address holds `part`, and the view of it has what it asked for."""
    page.wait_for_function("(part) => location.hash.includes(part)", arg=part)
    settled(page)


def at(rollout: dict[str, Any], query: str = "") -> str:
    return f"{RUN_AT}/rollouts/{quote(rollout['rollout_id'], safe='')}{query}"


def test_three_clicks_from_the_runs_to_a_trajectory(open_page: Any) -> None:
    page = open_page("/")
    page.locator(f"[data-testid=runs-table] a[href='#{RUN_AT}/steps']").click()
    page.get_by_test_id("steps-table").locator("tbody tr").first.click()
    page.get_by_test_id("groups-table").locator("a.chip").first.click()
    page.get_by_test_id("transcript").locator(".message").nth(1).wait_for()


def test_the_keyboard_walks_from_steps_to_groups_and_back(open_page: Any) -> None:
    page = open_page(f"{RUN_AT}/steps")
    page.keyboard.press("j")
    page.keyboard.press("j")
    second = page.locator(":focus").inner_text()
    batch = re.search(r"\d+", second)
    assert batch is not None, "the second row has the focus"
    page.keyboard.press("Enter")
    reach(page, f"groups?batch={batch[0]}")
    page.locator("[data-prev]").first.wait_for()
    page.keyboard.press("[")
    reach(page, f"groups?batch={int(batch[0]) - 1}")
    page.get_by_text(f"batch {batch[0]} ›").wait_for()
    page.keyboard.press("]")
    reach(page, f"groups?batch={batch[0]}")
    page.get_by_role("heading", name=f"Groups of batch {batch[0]}").wait_for()
    settled(page)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_test_id("group-columns").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_test_id("transcript").wait_for()
    page.locator("a[data-next]").first.wait_for()
    before = page.evaluate("location.hash")
    page.keyboard.press("]")  # the next of its group
    page.wait_for_function("(before) => location.hash !== before", arg=before)
    settled(page)
    page.keyboard.press("Escape")  # back to the group
    page.get_by_test_id("group-columns").wait_for()
    page.keyboard.press("Escape")
    page.get_by_test_id("groups-table").wait_for()


@pytest.fixture(scope="module")
def parted(site: Site) -> dict[str, Any]:
    """A group whose rollouts differ, and have different rewards."""
    for line in site.view(f"{RUN_VIEW}/groups?limit=50")["groups"]:
        detail: dict[str, Any] = site.view(f"{RUN_VIEW}/groups/{quote(line['group_id'], safe='')}")
        if detail["divergence"] and line["reward_max"] > line["reward_min"]:
            return detail
    raise AssertionError("no group of the store parts")


def test_a_group_stands_side_by_side_and_shows_where_it_parts(open_page: Any, parted: dict[str, Any]) -> None:
    page = open_page(f"{RUN_AT}/groups/{quote(parted['group']['group_id'], safe='')}")
    heads = page.locator(".group-head .group-reward b").all_inner_texts()
    rewards = [member["rollout"]["reward"] for member in parted["members"]]
    assert heads == [f"{reward:.3f}".replace("-", "−") for reward in rewards]
    assert rewards == sorted(rewards, reverse=True)
    cells = page.get_by_test_id("divergence")
    assert cells.count() == len(rewards)
    assert page.locator(".group-cell .here").first.is_visible()
    assert page.locator(".group-cell .here").first.evaluate(
        "(mark) => { const box = mark.getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight }"
    ), "the place is scrolled to"
    # Row by row the same message: cells of one row begin at the same height.
    tops = cells.evaluate_all("(cells) => cells.map((cell) => Math.round(cell.getBoundingClientRect().top))")
    assert len(set(tops)) == 1


def test_a_group_on_a_phone_shows_one_rollout_at_a_time(open_page: Any, parted: dict[str, Any]) -> None:
    page = open_page(f"{RUN_AT}/groups/{quote(parted['group']['group_id'], safe='')}", size=NARROW)

    def shown() -> list[str]:
        return list(page.locator(".group-head:visible .group-reward .mono").all_inner_texts())

    first = shown()
    assert len(first) == 1
    page.keyboard.press("]")
    page.wait_for_function("() => location.hash.includes('member=')")
    second = shown()
    assert len(second) == 1
    assert second != first
    page.keyboard.press("[")
    page.wait_for_function(
        f"() => document.querySelector('.group-head.is-chosen .mono').textContent === '{first[0]}'"
    )


def test_a_trajectory_says_what_was_said_and_what_became_of_it(open_page: Any, site: Site) -> None:
    rollout = rollouts(site, "tool_errors > 0 and status = trained")[0]
    detail = site.view(f"rollouts/{rollout['rollout_id']}")
    page = open_page(at(rollout))
    transcript = page.get_by_test_id("transcript")
    main = next(call for call in detail["calls"] if not call["auxiliary"])
    assert transcript.locator(".message.role-user").first.inner_text().count(main["tail"][-1]["text"]) == 1
    reasoned = next(call for call in detail["calls"] if call["choices"][0]["message"]["reasoning"])
    fold = transcript.locator(f"[data-call='{reasoned['number']}'] details.reasoning")
    assert not fold.locator(".text").is_visible()
    fold.locator("summary").click()
    assert reasoned["choices"][0]["message"]["reasoning"] in fold.inner_text()
    assert transcript.locator(".message.is-error").count() >= 1
    tool = transcript.locator(".tool-call").first
    assert '{\n  "order":' in tool.locator(".text").inner_text()
    fates = transcript.locator(".fate .status").all_inner_texts()
    assert "trained" in fates
    page.get_by_test_id("note-form").wait_for()


def test_branches_can_be_clicked_through(open_page: Any, site: Site) -> None:
    rows = site.view(f"{RUN_VIEW}/rollouts?limit=100")["rollouts"]
    read = (site.view(f"rollouts/{row['rollout_id']}") for row in rows)
    detail = next(found for found in read if len({call["branch"] for call in found["calls"]}) > 1)
    page = open_page(at(detail["rollout"]))
    outline = page.get_by_test_id("outline")
    assert outline.locator(".outline-call").count() == len(detail["calls"])
    hidden = outline.locator(".outline-call:not(.is-shown)").first
    number = hidden.locator(".outline-number").inner_text()
    assert page.locator(f".transcript [data-call='{number}']").count() == 0
    hidden.click()
    page.wait_for_selector(f".transcript [data-call='{number}']")
    reach(page, f"call={number}")
    page.reload()
    settled(page)
    assert page.locator(f".transcript [data-call='{number}']").count() == 1


def test_a_rollout_opens_on_the_branch_in_which_it_ended(open_page: Any, site: Site) -> None:
    rows = site.view(f"{RUN_VIEW}/rollouts?limit=100&filter={quote('status = trained')}")["rollouts"]
    read = (site.view(f"rollouts/{row['rollout_id']}") for row in rows)

    def main(found: dict[str, Any]) -> list[dict[str, Any]]:
        return [call for call in found["calls"] if not call["auxiliary"]]

    detail = next(found for found in read if len({call["branch"] for call in main(found)}) > 1)
    first, last = main(detail)[0], main(detail)[-1]
    page = open_page(at(detail["rollout"]))
    said = last["choices"][0]["message"]["text"]
    assert said in page.get_by_test_id("transcript").inner_text()
    page.get_by_text(f"Shown is branch {last['branch']}, in which it ended").wait_for()
    show(page, at(detail["rollout"], f"?call={first['number']}"))
    page.get_by_test_id("goes-on").get_by_role("link").click()
    reach(page, f"call={last['number']}")
    page.wait_for_selector(f".transcript [data-call='{last['number']}']")
    group = quote(detail["rollout"]["group_id"], safe="")
    show(page, f"{RUN_AT}/groups/{group}")
    columns = page.get_by_test_id("group-columns")
    columns.get_by_text(f"its last answer is in branch {last['branch']}").wait_for()
    assert said in columns.inner_text()


def test_a_batch_says_what_it_was_sampled_at_and_published(open_page: Any, site: Site) -> None:
    newest = site.view(f"{RUN_VIEW}/steps?limit=1")["steps"][0]
    page = open_page(f"{RUN_AT}/groups?batch={newest['batch']}")
    told = f"trained on top of step {newest['parent_step']}, published as step {newest['step']}"
    page.get_by_test_id("batch-steps").get_by_text(told).wait_for()
    page.locator("a[data-prev]").wait_for()
    assert page.locator("a[data-next]").count() == 0, "no batch comes behind the newest one"


def test_a_link_leads_to_the_place_that_was_read(open_page: Any, site: Site) -> None:
    found = (site.view(f"rollouts/{row['rollout_id']}") for row in rollouts(site, "calls = 3", limit=20))
    rollout = next(one["rollout"] for one in found if all(call["branch"] == 0 for call in one["calls"]))
    page = open_page(at(rollout, "?at=2"), size=(1000, 400))
    page.wait_for_function(
        "() => { const top = document.querySelector('[data-call=\"2\"]')?.getBoundingClientRect().top; return top >= 0 && top < 200 }"
    )
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_function("() => !location.hash.includes('at=')")
    page.evaluate("document.querySelector('[data-call=\"1\"]').scrollIntoView()")
    page.wait_for_function("() => location.hash.includes('at=1')")


def test_a_trajectory_can_be_copied(open_page: Any, site: Site) -> None:
    rollout = rollouts(site, "calls > 1")[0]
    page = open_page(at(rollout))
    page.get_by_role("button", name="Copy as JSON").click()
    page.get_by_text("Copied").wait_for()
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert copied["rollout"]["rollout_id"] == rollout["rollout_id"]
    assert copied["calls"][0]["choices"][0]["token_count"] > 0
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_function("() => navigator.clipboard.readText().then((text) => text === location.href)")


def test_tokens_are_those_that_were_sampled(open_page: Any, site: Site) -> None:
    rollout = rollouts(site, "status = trained")[0]
    call = site.view(f"rollouts/{rollout['rollout_id']}")["calls"][0]
    page = open_page(at(rollout))
    page.get_by_role("button", name="Tokens").click()
    view = page.locator(f"[data-call='{call['number']}']").get_by_test_id("token-view").first
    view.get_by_test_id("token-line").first.wait_for()
    told = site.view(
        f"rollouts/{rollout['rollout_id']}/tokens?call_id={call['call_id']}&choice=0&start=0&limit=50"
    )
    drawn = view.locator(".token-line > .token").evaluate_all(
        "(tokens) => tokens.map((token) => token.textContent)"
    )
    assert drawn[:50] == told["text"]
    view.locator(".token-line > .token").nth(1).hover()
    tip = view.locator(".token-tip")
    assert str(told["ids"][1]) in tip.inner_text()
    assert f"{told['logprob'][1]:.3f}".replace("-", "−") in tip.inner_text()
    page.locator(".token-legend").get_by_text("nats").wait_for()


def test_tokens_by_keyboard(open_page: Any, site: Site) -> None:
    rollout = rollouts(site, "status = trained")[0]
    call = site.view(f"rollouts/{rollout['rollout_id']}")["calls"][0]
    told = site.view(f"rollouts/{rollout['rollout_id']}/tokens?call_id={call['call_id']}&choice=0&limit=50")
    page = open_page(at(rollout, "?as=tokens"))
    view = page.get_by_test_id("token-view").first
    view.get_by_test_id("token-line").first.wait_for()
    view.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "(id) => document.querySelector('[data-testid=token-view] [role=status]').textContent.includes(`id ${id}`)",
        arg=told["ids"][1],
    )
    assert view.locator(".token.is-current").inner_text() == told["text"][1]
    page.keyboard.press("End")
    page.wait_for_function(
        "(last) => document.querySelector('[data-testid=token-view] [role=status]').textContent.includes(`token ${last}`)",
        arg=told["total"] - 1,
    )
    page.keyboard.press("Home")
    page.wait_for_function(
        "() => document.querySelector('[data-testid=token-view] .token.is-current')?.i === 0"
    )


@pytest.mark.parametrize(
    ("colour", "mark"), [("advantage", r"t-[pm]\d"), ("mask", "t-in"), ("version", r"t-v\d"), ("gap", "t-")]
)
def test_colours_stand_in_the_address(open_page: Any, site: Site, colour: str, mark: str) -> None:
    rollout = rollouts(site, "status = trained and (reward > 0.8 or reward < 0.2)")[0]
    page = open_page(at(rollout, "?as=tokens"))
    page.get_by_test_id("token-colour").select_option(colour)
    page.wait_for_function(f"() => location.hash.includes('colour={colour}')")
    page.reload()
    settled(page)
    page.get_by_test_id("token-line").first.wait_for()
    classes = page.locator(".transcript .token-line > .token").evaluate_all(
        "(tokens) => tokens.map((token) => token.className)"
    )
    assert any(re.search(mark, name) for name in classes) or colour == "gap"
    assert page.locator(".token-legend .token-key").count() >= 2


def test_tokens_can_be_read_in_every_colour_and_theme(open_page: Any, site: Site) -> None:
    rollout = rollouts(site, "status = trained and tool_errors > 0")[0]
    page = open_page(at(rollout, "?as=tokens"))
    for colour in ("none", "logprob", "advantage", "mask", "version", "gap"):
        page.get_by_test_id("token-colour").select_option(colour)
        page.get_by_test_id("token-line").first.wait_for()
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            assert contrast(page, ".trajectory-main") == [], f"{colour}, {theme}"
        shot(page, f"tokens-{colour}-{WIDE[0]}-dark")
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    shot(page, f"tokens-gap-{NARROW[0]}-dark")
    assert overhang(page) == []
    assert problems(page, "tokens, narrow") == []


def test_a_long_answer_is_drawn_as_far_as_it_is_seen(
    open_page: Any, site: Site, long_rollout: dict[str, Any]
) -> None:
    run = f"/run/{long_rollout['project']}/{long_rollout['model']}"
    page = open_page(f"{run}/rollouts/{quote(long_rollout['rollout_id'], safe='')}?as=tokens")
    view = page.get_by_test_id("token-view").last
    view.get_by_test_id("token-line").first.wait_for()
    total = long_rollout["sampled_tokens"]
    assert 0 < view.locator(".token-line > .token").count() < total / 2
    view.focus()
    page.keyboard.press("End")
    page.wait_for_function(
        "(last) => [...document.querySelectorAll('[data-testid=token-view]')].at(-1).querySelector('[role=status]').textContent.includes(`token ${last}`)",
        arg=total - 1,
    )
    assert view.locator(".token-line > .token").count() < total / 2, "what is far away has left the document"
    reached = view.evaluate("(box) => box.scrollTop / (box.scrollHeight - box.clientHeight)")
    assert reached > 0.9


@pytest.fixture(scope="module")
def long_rollout(site: Site) -> dict[str, Any]:
    """The longest answer of the store."""
    for run in site.view("runs")["runs"]:
        [row] = site.view(f"runs/{run['project']}/{run['name']}/rollouts?limit=1&sort=sampled_tokens")[
            "rollouts"
        ]
        if row["sampled_tokens"] >= 5000:
            return dict(row)
    raise AssertionError("the store holds no long answer")


def test_a_flag_and_a_note_are_kept(open_page: Any, site: Site) -> None:
    rollout = rollouts(site, "flag = none", more="&sort=reward")[0]
    page = open_page(at(rollout))
    form = page.get_by_test_id("note-form")
    assert form.get_by_role("button", name="Save").is_disabled(), "nothing was typed"
    form.get_by_label("bad").check()
    form.get_by_label("Note").fill("It says the parcel is lost, which the record does not.")
    form.get_by_role("button", name="Save").click()
    form.get_by_text("Saved.").wait_for()
    kept = site.view(f"rollouts/{rollout['rollout_id']}")["note"]
    assert (kept["flag"], kept["note"]) == ("bad", "It says the parcel is lost, which the record does not.")
    page.reload()
    settled(page)
    assert form.get_by_label("bad").is_checked()
    form.get_by_text("set ").wait_for()
    page.locator(".toolbar .flag-bad").wait_for()


def test_a_folder_that_is_only_looked_at_shows_tokens_and_takes_no_notes(
    open_page: Any, looked_at: tuple[str, str]
) -> None:
    address, key = looked_at
    page = open_page(f"{RUN_AT}/rollouts/desk-01-2-0-0?as=tokens", base=address, key=key)
    page.get_by_test_id("token-line").first.wait_for()
    form = page.get_by_test_id("note-form")
    form.get_by_text("art ui").wait_for()
    assert form.get_by_label("Note").is_disabled()
    assert form.get_by_label("bad").is_disabled()


HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>\u202eevil\u200b {"a": [1, 12345678901234567890]}'


def test_what_an_agent_says_is_text_and_nothing_else(open_page: Any, site: Site) -> None:
    opened = site.ask("POST", "rollouts", {"model": "/".join(RUN), "scenario_id": "hostile/<b>one</b>"})
    chat(site, opened, HOSTILE)
    site.ask("POST", f"rollouts/{opened['rollout_id']}/finish", {})
    page = open_page(f"{RUN_AT}/rollouts/{opened['rollout_id']}")
    message = page.locator(".transcript .message.role-user").first
    visible = HOSTILE.replace("\u202e", "\\u202e").replace("\u200b", "\\u200b")
    assert visible in message.locator(".text-part").evaluate("(part) => part.textContent")
    assert page.locator(".transcript img, .transcript script").count() == 0
    assert not page.title().startswith(("1", "2"))
    message.get_by_text("unseen characters").wait_for()
    page.get_by_label("White space").check()
    assert "‹U+202E›evil‹U+200B›" in message.locator(".text-part").evaluate("(part) => part.textContent")
    show(page, f"{RUN_AT}/scenarios/{quote('hostile/<b>one</b>', safe='')}")
    page.get_by_role("heading", name="Scenario hostile/<b>one</b>").wait_for()


STRANGE = "a/b c%\u202ed"


def test_strange_names_lead_somewhere_and_hide_nothing(open_page: Any, site: Site) -> None:
    """A group whose id has a slash, scenarios without an id of their own, and texts that turn around what follows them."""
    asked = "Where is \u202eparcel\u2066 \x9b17?"
    identity = digest(asked)
    for member in range(2):
        named = {"scenario_id": identity, "group_id": STRANGE, "member": member}
        opened = site.ask("POST", "rollouts", {"model": "/".join(RUN), **named})
        chat(site, opened, asked)
        site.ask("POST", f"rollouts/{opened['rollout_id']}/finish", {})
    told = site.view(f"{RUN_VIEW}/groups/{quote(STRANGE, safe='')}")
    assert (told["group"]["group_id"], len(told["members"])) == (STRANGE, 2)
    assert site.view(f"{RUN_VIEW}/groups/{quote(STRANGE)}") == told  # a slash as it is

    visible = r"Where is \u202eparcel\u2066 \x9b17?"
    page = open_page(f"{RUN_AT}/groups?scenario={identity}")
    row = page.get_by_test_id("groups-table").locator("tbody tr").first
    assert row.locator(".scenario-cell").inner_text() == visible
    assert row.locator(".preview").get_attribute("title") == visible
    row.locator("a.row-link").click()
    page.get_by_test_id("group-columns").wait_for()
    assert f"groups/{quote(STRANGE, safe='')}" in page.evaluate("location.hash")
    link = page.locator(".facts a", has_text=visible)
    assert identity in (link.get_attribute("href") or "")
    link.click()
    page.get_by_role("heading", name=f"Scenario {visible}").wait_for()
    settled(page)
    assert visible in page.locator("[data-testid=side-after] .role-user .text-part").first.inner_text()
    raw = "() => /[\\p{Cf}\\x80-\\x9f]/u.test(document.body.innerText.replaceAll(/[\\u200c\\u200d]/g, ''))"
    for view in (
        "rollouts",
        "groups",
        "scenarios",
        f"scenarios/{identity}",
        f"groups/{quote(STRANGE, safe='')}",
    ):
        show(page, f"{RUN_AT}/{view}")
        assert not page.evaluate(raw), view


def test_a_rollout_that_runs_is_seen_to_grow(open_page: Any, site: Site) -> None:
    opened = site.ask("POST", "rollouts", {"model": "/".join(RUN)})
    page = open_page(f"{RUN_AT}/rollouts/{opened['rollout_id']}")
    page.wait_for_selector("[data-testid=live]:text('live')")
    page.get_by_text("The agent has not called the model yet.").wait_for()
    chat(site, opened, "Where is my parcel?")
    page.locator(".transcript .message.role-user").get_by_text("Where is my parcel?").wait_for()
    site.ask("POST", f"rollouts/{opened['rollout_id']}/finish", {})
    page.locator(".toolbar .s-finished").wait_for()
