"""`art explain`: what becomes of every call of a rollout, and why."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from art.cli._output import print_json
from art.cli._served import AsJson, Key, ReadPath, Url
from art.cli._usage import WrongUsage
from art.cli._views import Views, read
from art.types.explain import ExplainedCall, ExplainedChoice, Explanation
from art.utils.visible import clean

JSON = "art.types.explain:Explanation"
OPEN, CLOSE = "⟦", "⟧"
"""Around tokens that are or were trained."""
WILL_BE = {"trainable": "will be trained", "trained": "was trained"}


def command(
    rollout: Annotated[str, typer.Argument(help="A rollout's id.", metavar="ROLLOUT")],
    *,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show the text, trained tokens in ⟦ ⟧.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    key: Key = None,
    path: ReadPath = None,
) -> None:
    """Every call of a rollout: its branch, tokens and version, and whether it will be trained, was, or why not.

    Examples:

      art explain ro-5d41402abc4b2a76b9719d911017c592 --path runs/weather

      art explain ro-5d41402abc4b2a76b9719d911017c592 --tokens --url http://gpu:7999
    """
    if "/" in rollout:
        raise WrongUsage(
            f"{rollout!r} is no rollout's id",
            cause="project/name is a model",
            hint="a run and `art rollout` print the ids of their rollouts; they begin with ro-",
        )
    told = read(lambda views: _ask(views, rollout, tokens=tokens), url, key, path)
    if as_json:
        print_json(told)
        return
    typer.echo(clean("\n".join(lines(told)), lines=True))


async def _ask(views: Views, rollout: str, *, tokens: bool) -> Explanation:
    route = f"/api/v1/rollouts/{quote(rollout, safe='')}/explain"
    return await views.get(Explanation, route, tokens="true" if tokens else None)


def lines(told: Explanation) -> list[str]:
    """An explanation for a person."""
    why = f" ({told.reason})" if told.reason else ""
    reward = "no reward yet" if told.reward is None else f"reward {told.reward:g}"
    out = [f"{told.rollout_id}  {told.model}  {told.purpose.value}  {told.status.value}{why}  {reward}"]
    out += [f"  agent {label}: reward {value:g}" for label, value in told.agent_rewards.items()]
    choices = [choice for call in told.calls for choice in call.choices]
    counts = {words: sum(choice.fate == fate for choice in choices) for fate, words in WILL_BE.items()}
    found = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    sampled = sum(choice.token_count for choice in choices)
    out.append(f"  {_many(len(told.calls), 'call')}, {sampled} tokens sampled; {found or 'nothing to train'}")
    if told.upstream_calls:
        out.append(f"  {_many(told.upstream_calls, 'call')} to other models, passed on and never trained")
    if told.next:
        out.append(f"  waits for {told.next}")
    for call in told.calls:
        out += ["", *_call_lines(call)]
    return out


def _call_lines(call: ExplainedCall) -> list[str]:
    start = "" if call.parent is None else f" after #{call.parent}"
    agent = f"  agent {call.agent}" if call.agent else ""
    side = f"  on the side: {call.auxiliary_reason}" if call.auxiliary else ""
    out = [f"#{call.number}{start}  branch {call.branch}{agent}  {call.dialect}  {call.version}{side}"]
    new = call.prompt_tokens - call.reused_tokens
    tools = f", {_many(call.tool_count, 'tool')}" if call.tool_count else ""
    out.append(f"   prompt {call.prompt_tokens} tokens: {call.reused_tokens} from memory, {new} new{tools}")
    used = ", ".join(f"{name} {value}" for name, value in call.sampling_used.items())
    out.append(f"   sampled with {used or 'temperature 1.0'}")
    out += [f"   overruled: {override}" for override in call.overrides]
    asked = {name: call.sampling_asked.get(name, "none") for name in ("response_schema", "tool_choice")}
    forms = [name for name, value in asked.items() if value != "none"]
    out += (
        [f"   followed a grammar ({', '.join(forms)}); tokens that it forced are not trained"]
        if forms
        else []
    )
    if call.withheld:
        out.append(f"   not shown: {call.withheld}")
    if call.prompt_tail is not None:
        out += _text(call.prompt_tail, "   < ")
    for choice in call.choices:
        out += _choice_lines(choice, several=len(call.choices) > 1)
    return out


def _choice_lines(choice: ExplainedChoice, *, several: bool) -> list[str]:
    name = f"choice {choice.index}: " if several else ""
    fate = WILL_BE.get(choice.fate, choice.fate)
    if choice.trained_step is not None:
        fate += f" into step {choice.trained_step}, {choice.trained_tokens} tokens"
    if choice.reward is not None:
        fate += f", reward {choice.reward:g} (the {choice.reward_of}'s)"
    why = f": {choice.reason}" if choice.reason else ""
    out = [f"   {name}{choice.token_count} tokens, {choice.finish_reason}  ->  {fate}{why}"]
    return out + (_text(_marked(choice), "   > ") if choice.tokens is not None else [])


def _marked(choice: ExplainedChoice) -> str:
    """The text with its trained tokens in marks."""
    text, inside = "", False
    for token in choice.tokens or ():
        trained = choice.fate in WILL_BE and token.trainable
        if trained != inside:
            text += OPEN if trained else CLOSE
            inside = trained
        text += token.text
    return text + (CLOSE if inside else "")


def _text(text: str, start: str) -> list[str]:
    return [start + line for line in text.split("\n")]


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
