"""What a notebook shows of trajectories, groups and runs: HTML that stands alone, is bounded, and runs nothing.

All that a model or a tool said is shown as text: escaped, with invisible and direction-changing characters spelled out. No
script, no link, no address of anything outside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from art.types.metrics import info

if TYPE_CHECKING:
    from art.backends.results import TrainResult
    from art.evals.result import EvalResult
    from art.rollouts.fit_report import FitResult
    from art.trajectories import Trajectory, TrajectoryGroup

MAX_TEXT = 4_000
"""Characters of one text."""
MAX_MESSAGES = 80
"""Of one history."""
MAX_ROWS = 64
"""Of one table: rollouts of a group, steps of a run, scenarios of an evaluation."""
MAX_BUDGET = 300_000
"""Characters of the whole, about: what comes behind is counted and not shown."""
_SPELLED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Characters that cannot be seen, turn the reading direction, or are none."""

STYLE = """<style>
.art-nb{--fg:#1c2024;--dim:#60646c;--line:#d9dce3;--bg:#fff;--soft:#f4f5f8;--good:#1a7f37;--bad:#b3261e;--mark:#3451b2;
font:13px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);border:1px solid var(--line);border-radius:8px;padding:10px 12px;
max-width:960px;overflow-wrap:anywhere}
@media (prefers-color-scheme:dark){.art-nb{--fg:#edeef0;--dim:#b0b4ba;--line:#43484e;--bg:#18191b;--soft:#212225;--good:#5bd087;--bad:#ff9592;--mark:#9eb1ff}}
body[data-jp-theme-light="true"] .art-nb,body.vscode-light .art-nb{--fg:#1c2024;--dim:#60646c;--line:#d9dce3;--bg:#fff;--soft:#f4f5f8;--good:#1a7f37;--bad:#b3261e;--mark:#3451b2}
body[data-jp-theme-light="false"] .art-nb,body.vscode-dark .art-nb{--fg:#edeef0;--dim:#b0b4ba;--line:#43484e;--bg:#18191b;--soft:#212225;--good:#5bd087;--bad:#ff9592;--mark:#9eb1ff}
.art-nb .art-nb{border:0;padding:0;max-width:none}
.art-nb h4{margin:0 0 6px;font-size:14px;font-weight:600;color:var(--fg)}
.art-nb .dim{color:var(--dim)}.art-nb .good{color:var(--good)}.art-nb .bad{color:var(--bad)}
.art-nb .chip{display:inline-block;background:var(--soft);border-radius:6px;padding:0 6px;margin:0 4px 4px 0}
.art-nb .msg{border-left:3px solid var(--line);padding:2px 0 2px 10px;margin:8px 0}
.art-nb .msg.assistant{border-color:var(--mark)}.art-nb .role{font-size:12px;font-weight:600;color:var(--dim)}
.art-nb pre{white-space:pre-wrap;margin:2px 0;padding:0;font:12px/1.5 ui-monospace,monospace;color:var(--fg);background:none;border:0}
.art-nb summary{cursor:pointer;color:var(--dim)}
.art-nb .wide{overflow-x:auto}
.art-nb table{border-collapse:collapse;width:100%;color:var(--fg);background:none;margin:0}
.art-nb tr{background:none!important}
.art-nb th,.art-nb td{text-align:left;vertical-align:top;padding:3px 10px 3px 0;border:0;border-bottom:1px solid var(--line);color:var(--fg);background:none}
.art-nb td:last-child{width:100%}.art-nb th{color:var(--dim);font-weight:500;white-space:nowrap}.art-nb td.n,.art-nb th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.art-nb svg{display:block;margin:4px 0;color:var(--mark)}
</style>"""


class _Room:
    """Characters that are left of the bound; texts that do not fit any more are counted."""

    def __init__(self, characters: int = MAX_BUDGET) -> None:
        self._left = characters
        self.hidden = 0

    def text(self, value: object, most: int = MAX_TEXT) -> str:
        """A text for a person: escaped, shortened, nothing in it that cannot be seen."""
        text = value if isinstance(value, str) else str(value)
        room = max(0, min(most, self._left))
        shown = escape(_SPELLED.sub(_spelled, text[:room]))
        self._left -= len(shown)
        cut = len(text) - room
        if cut <= 0:
            return shown
        self.hidden += 1
        return f'{shown}<span class="dim">… {cut:,} more characters</span>'

    @property
    def empty(self) -> bool:
        """Nothing fits any more."""
        return self._left <= 0


def _spelled(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _page(body: str, *, nested: bool = False) -> str:
    return f'<div class="art-nb">{"" if nested else STYLE}{body}</div>'


def number(value: object) -> str:
    """A number of four significant digits, or all of a whole part that is longer; a truth value as a word."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if 1000 <= abs(value) < 1e12:
        return f"{value:,.0f}"
    return str(value) if isinstance(value, int) and abs(value) < 1000 else f"{value:.4g}"


# -- trajectories


def trajectory_html(trajectory: Trajectory) -> str:
    """A trajectory: reward, metrics, metadata, what was said, logs."""
    return _page(_trajectory(trajectory, _Room()))


def _trajectory(trajectory: Trajectory, room: _Room) -> str:
    parts = [f"<h4>Trajectory <span class='dim'>reward</span> {_reward(trajectory.reward)}</h4>"]
    if trajectory.rollout_id is not None:
        parts.append(f"<div class='dim'>rollout {room.text(trajectory.rollout_id, 200)}</div>")
    parts.append(_chips(trajectory.metrics, room))
    parts.append(_chips(trajectory.metadata, room))
    parts.append(_history(trajectory.messages_and_choices, room))
    for count, history in enumerate(trajectory.additional_histories, start=1):
        if room.empty:
            break
        body = _history(history.messages_and_choices, room)
        parts.append(f"<details><summary>further history {count}</summary>{body}</details>")
    if trajectory.logs and not room.empty:
        lines = "\n".join(room.text(line, 1000) for line in trajectory.logs[:MAX_MESSAGES])
        parts.append(
            f"<details><summary>{len(trajectory.logs)} log lines</summary><pre>{lines}</pre></details>"
        )
    return "".join(parts)


def _reward(value: float) -> str:
    kind = "bad" if value < 0 else "good"
    return f"<span class='{kind}'>{escape(number(value))}</span>"


def _chips(values: Mapping[str, Any], room: _Room) -> str:
    chips = [
        f"<span class='chip'>{room.text(name, 100)} <b>{room.text(number(value), 200)}</b></span>"
        for name, value in list(values.items())[:40]
    ]
    return f"<div>{''.join(chips)}</div>" if chips else ""


def _history(items: Sequence[Any], room: _Room) -> str:
    shown = [_message(item, room) for item in items[:MAX_MESSAGES] if not room.empty]
    if (more := len(items) - len(shown)) > 0:
        shown.append(f"<div class='dim'>{more} more messages</div>")
    return "".join(shown) or "<div class='dim'>no messages</div>"


def _message(item: Any, room: _Room) -> str:
    from art.trajectories import as_dict, is_choice

    data = as_dict(item)
    message, sampled = (data.get("message") or {}, " · sampled") if is_choice(item) else (data, "")
    role = str(message.get("role") or "assistant")
    kind = " assistant" if role == "assistant" else ""
    parts = [f"<div class='msg{kind}'><div class='role'>{room.text(role, 40)}{sampled}</div>"]
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        parts.append(f"<details><summary>reasoning</summary><pre>{room.text(reasoning)}</pre></details>")
    if (content := message.get("content")) not in (None, ""):
        parts.append(f"<pre>{room.text(_plain(content))}</pre>")
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        name, arguments = (function or {}).get("name", ""), (function or {}).get("arguments", "")
        parts.append(f"<pre>→ {room.text(name, 200)}({room.text(_plain(arguments))})</pre>")
    return "".join(parts) + "</div>"


def _plain(content: Any) -> str:
    """Text as it is; content parts one under the other; all else as JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
        return "\n".join(str(part["text"]) for part in content)
    return json.dumps(content, ensure_ascii=False, default=str)


def group_html(group: TrajectoryGroup) -> str:
    """A group: its rollouts by reward, each to be opened, and its exceptions."""
    room = _Room()
    rewards = [trajectory.reward for trajectory in group]
    low, high = (min(rewards), max(rewards)) if rewards else (0.0, 0.0)
    ordered = sorted(group, key=lambda trajectory: trajectory.reward, reverse=True)
    head = f"<h4>TrajectoryGroup <span class='dim'>{len(group)} rollouts"
    head += f", rewards {number(low)} to {number(high)}</span></h4>" if rewards else "</span></h4>"
    parts = [head, _chips(group.metadata, room), _chips(group.metrics, room)]
    if len(rewards) > 1 and low == high:
        parts.append("<div class='bad'>all rewards are equal: nothing can be learned from this group</div>")
    rows = []
    for trajectory in ordered[:MAX_ROWS]:
        if room.empty:
            break
        answer = room.text(_last_answer(trajectory), 160)
        inner = _page(_trajectory(trajectory, room), nested=True)
        rows.append(
            f"<tr><td class='n'>{_reward(trajectory.reward)}</td><td>{_bar(trajectory.reward, low, high)}</td>"
            f"<td><details><summary>{answer or 'no answer'}</summary>{inner}</details></td></tr>"
        )
    parts.append(_table(("reward", "", "last answer"), rows, len(ordered), numbers=1))
    for error in group.exceptions[:MAX_ROWS]:
        said = f"{room.text(error.type, 200)}: {room.text(error.message, 500)}"
        parts.append(
            f"<details><summary class='bad'>{said}</summary><pre>{room.text(error.traceback)}</pre></details>"
        )
    return _page("".join(parts))


def _last_answer(trajectory: Trajectory) -> str:
    from art.trajectories import as_dict, is_choice

    for item in reversed(trajectory.messages_and_choices):
        data = as_dict(item)
        message = data.get("message") or {} if is_choice(item) else data
        if is_choice(item) or message.get("role") == "assistant":
            return " ".join(_plain(message.get("content") or "").split())
    return ""


def _bar(value: float, low: float, high: float) -> str:
    share = 1.0 if high == low else (value - low) / (high - low)
    width = max(2.0, 80 * min(1.0, max(0.0, share)))
    return (
        f'<svg width="80" height="10" role="img" aria-label="{escape(number(value))}">'
        f'<rect width="{width:.1f}" height="10" rx="2" fill="currentColor"/></svg>'
    )


def _table(heads: Sequence[str], rows: Sequence[str], total: int, *, numbers: int = 0) -> str:
    """`numbers`: so many first columns are numbers."""
    head = "".join(
        f"<th{' class=n' if place < numbers else ''}>{escape(text)}</th>" for place, text in enumerate(heads)
    )
    more = f"<div class='dim'>{total - len(rows)} more</div>" if total > len(rows) else ""
    return f"<div class='wide'><table><tr>{head}</tr>{''.join(rows)}</table></div>{more}"


# -- runs


def line(values: Sequence[float], *, low: float | None = None, high: float | None = None) -> str:
    """A small chart of values in order; nothing for fewer than two."""
    points = [value for value in values if value == value and abs(value) != float("inf")]
    if len(points) < 2:
        return ""
    if len(points) > 400:
        points = [points[round(place * (len(points) - 1) / 399)] for place in range(400)]
    low = min(points) if low is None else low
    high = max(points) if high is None else high
    span = (high - low) or 1.0
    path = " ".join(
        f"{place * 300 / (len(points) - 1):.1f},{44 - 40 * ((value - low) / span):.1f}"
        for place, value in enumerate(points)
    )
    label = f"{number(points[0])} to {number(points[-1])}"
    return (
        f'<svg width="300" height="48" viewBox="0 0 300 48" role="img" aria-label="{escape(label)}">'
        f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )


def fit_html(result: FitResult) -> str:
    """A fit: its reward, and its batches."""
    room = _Room()
    rewards = [step.reward for step in result.steps if step.reward is not None]
    parts = [f"<h4>FitResult <span class='dim'>step {result.step}, batch {result.batch}</span></h4>"]
    if rewards:
        parts.append(f"<div>reward {_reward(rewards[0])} → {_reward(rewards[-1])}</div>{line(rewards)}")
    for text in (result.stopped_by, result.note):
        if text:
            parts.append(f"<div class='bad'>{room.text(text)}</div>")
    rows = []
    for step in result.steps[-MAX_ROWS:]:
        reward = (
            "" if step.reward is None else f"{number(step.reward)} ± {number(step.reward_std_dev or 0.0)}"
        )
        measured = "" if step.eval_reward is None else number(step.eval_reward)
        cells = [str(step.batch), str(step.step), reward, measured, f"{step.seconds:.1f} s"]
        rows.append(_cells(cells, room.text(step.reason, 300)))
    heads = ("batch", "step", "reward", "evaluation", "time", "")
    return _page("".join([*parts, _table(heads, rows, len(result.steps), numbers=5)]))


def _cells(numbers: Iterable[str], last: str) -> str:
    return (
        "<tr>" + "".join(f"<td class='n'>{escape(text)}</td>" for text in numbers) + f"<td>{last}</td></tr>"
    )


def train_html(result: TrainResult) -> str:
    """A train call: what became of it, and its figures with their meaning."""
    room = _Room()
    told = "published" if result.published else f"nothing published: {room.text(result.reason, 500)}"
    parts = [f"<h4>{type(result).__name__} <span class='dim'>step {result.step}, {told}</span></h4>"]
    return _page("".join([*parts, figures_table(result.metrics, room)]))


def figures_table(metrics: Mapping[str, float], room: _Room) -> str:
    """Figures with units and meanings."""
    rows = []
    for name, value in sorted(metrics.items())[:200]:
        known = info(name)
        unit = known.unit if known is not None and known.unit not in ("", "1") else ""
        meaning = escape(known.meaning) if known is not None else ""
        rows.append(
            f"<tr><td class='n'>{escape(number(value))} <span class='dim'>{escape(unit)}</span></td>"
            f"<td>{room.text(name, 200)} <span class='dim'>{meaning}</span></td></tr>"
        )
    return _table(("value", "figure"), rows, len(metrics), numbers=1)


def evaluation_html(result: EvalResult) -> str:
    """An evaluation: its mean with the interval, and its scenarios, worst first."""
    room = _Room()
    parts = [f"<h4>Evaluation <span class='dim'>of {room.text(result.model, 200)}</span></h4>"]
    if result.means:
        ends = result.ci95
        interval = (
            "" if ends is None else f" <span class='dim'>(95 % {number(ends[0])} to {number(ends[1])})</span>"
        )
        parts.append(f"<div>mean reward {_reward(result.mean)}{interval}, {len(result.runs)} runs</div>")
    judged = sorted(result.scenarios, key=lambda one: (one.mean is not None, one.mean or 0.0))
    rows = [
        _cells(["–" if one.mean is None else number(one.mean), str(len(one.runs))], room.text(one.id, 200))
        for one in judged[:MAX_ROWS]
    ]
    return _page("".join([*parts, _table(("reward", "runs", "scenario"), rows, len(judged), numbers=2)]))


def model_html(names: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """A model: its names, and what its history on this machine says."""
    room = _Room()
    title = room.text(names.get("name", ""), 200)
    chips = _chips({key: value for key, value in names.items() if key != "name"}, room)
    parts = [f"<h4>{title}</h4>", chips]
    for metric, label in (("train/reward", "training reward"), ("val/reward", "evaluation reward")):
        values = [row[metric] for row in rows if isinstance(row.get(metric), int | float)]
        if values:
            text = f"{label}: {number(values[0])} → {number(values[-1])} over {len(values)} rows"
            parts.append(f"<div>{escape(text)}</div>{line(values)}")
    return _page("".join(parts))
