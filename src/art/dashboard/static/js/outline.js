// The tree of a rollout's calls as a list to click through.

import { outline } from "./branches.js";
import { of, words } from "./format.js";
import { cls, html } from "./lib.js";

/** `along`: the calls whose conversation is shown. */
export function Outline({ tree, along, hrefOf, onOpen }) {
  const lists = outline(tree);
  const shown = new Set(along.map((call) => call.number));
  if (lists.length === 0) return null;
  return html`<details class="fold" open data-testid="outline"><summary>${of(tree.byNumber.size, "call")}${lists.length > 1 || tree.leaves.length > 1 ? `, ${of(tree.leaves.length, "branch", "branches")}` : ""}</summary>
    ${lists.map((list) => html`<${List} key=${list[0].call.number} ...${{ list, shown, hrefOf, onOpen }} />`)}</details>`;
}

function List({ list, shown, hrefOf, onOpen }) {
  const [{ call: first }] = list;
  const name = [first.auxiliary ? "on the side" : `branch ${first.branch}`, first.agent && `agent ${first.agent}`].filter(Boolean).join(", ");
  return html`<ol class="outline" aria-label=${name}>
    <li class="outline-name muted small" title=${first.auxiliary_reason || undefined}>${name}</li>
    ${list.map(({ call, forks }, index) => html`<li key=${call.number}>
      <${Line} ...${{ call, before: list[index - 1]?.call, current: shown.has(call.number), hrefOf, onOpen }} />
      ${forks.map((fork) => html`<${List} key=${fork[0].call.number} ...${{ list: fork, shown, hrefOf, onOpen }} />`)}
    </li>`)}
  </ol>`;
}

function Line({ call, before, current, hrefOf, onOpen }) {
  const fates = [...new Set(call.choices.map((choice) => choice.fate))];
  const tokens = call.choices.reduce((sum, choice) => sum + choice.token_count, 0);
  const changed = before && before.version !== call.version;
  const tools = call.choices.flatMap((choice) => choice.message.tool_calls ?? []).map((tool) => tool.name);
  return html`<a class=${cls("outline-call", current && "is-shown", call.auxiliary && "is-aside")} href=${hrefOf(call)} data-row aria-current=${current ? "true" : undefined}
      title=${fates.map(words).join(", ")} onClick=${() => setTimeout(() => onOpen(call), 0)}>
    <span class="outline-number">${call.number}</span>
    ${fates.map((fate) => html`<span key=${fate} class=${`dot s-${fate}`} aria-label=${words(fate)} role="img"></span>`)}
    <span class="outline-what">${tools.length > 0 ? `→ ${[...new Set(tools)].join(", ")}` : call.auxiliary ? "side call" : "answer"}</span>
    ${changed && html`<span class="badge" title="Another version than the call before">${stepOf(call.version)}</span>`}
    <span class="muted small">${of(tokens, "tok.", "tok.")}</span>
  </a>`;
}

/** `project/name@12` as `step 12`. */
export function stepOf(version) {
  const step = version.split("@")[1];
  return step === undefined ? version : `step ${step}`;
}
