// Messages as a person reads them. Whatever they say is set as text.

import { Badge } from "./components/index.js";
import { count, of } from "./format.js";
import { cls, html, useState } from "./lib.js";
import { beginning, hasHidden, inParts, prettyJson, withMarks } from "./pretty.js";

const FOLD_TEXT = { lines: 80, characters: 12_000 };
const FOLD_DATA = { lines: 14, characters: 1500 };

/**
 * One message. `marks` shows white space and control characters; `at` is where it first differs from its siblings
 * (placeIn); `head` stands in its first line, `instead` in the place of what it says (its tokens).
 */
export function Message({ message, index, marks = false, at = null, head, instead, fold = FOLD_TEXT }) {
  const { role, text, reasoning, tool_calls: calls = [], error } = message;
  const data = role === "tool" ? prettyJson(text) : null;
  const silent = !text && !reasoning && calls.length === 0;
  return html`<article class=${cls("message", `role-${role}`, error && "is-error", at && "is-different")} data-message=${index}>
    <header class="message-head">
      <span class="role">${role}</span>
      ${message.name && html`<code class="message-name">${message.name}</code>`}
      ${error && html`<${Badge} kind="bad">error<//>`}
      ${!marks && hasHidden(reasoning + text) && html`<${Badge} kind="warn" title="Control characters, or ones that join, split or turn text unseen: switch on White space">unseen characters<//>`}
      ${head}
    </header>
    ${instead ?? html`
      ${reasoning && html`<${Reasoning} text=${reasoning} marks=${marks} at=${at?.part === "reasoning" ? at.offset : null} />`}
      ${data !== null
        ? html`<${Folded} text=${marks ? text : data} marks=${marks} fold=${FOLD_DATA} code />`
        : text && html`<${Folded} text=${text} marks=${marks} fold=${role === "tool" ? FOLD_DATA : fold} at=${at?.part === "text" ? at.offset : null} code=${role === "tool"} />`}
      ${calls.map((call, number) => html`<${ToolCall} key=${call.id ?? number} call=${call} marks=${marks} different=${at?.part === "call" && at.index === number} />`)}
      ${at?.part === "end" && html`<${Here} />`}
      ${silent && html`<p class="muted">(says nothing)</p>`}
    `}
  </article>`;
}

function Reasoning({ text, marks, at }) {
  return html`<details class="fold reasoning" open=${at !== null}>
    <summary>Reasoning <span class="muted">${of(text.length, "character")}</span></summary>
    <${Folded} text=${text} marks=${marks} at=${at} />
  </details>`;
}

function ToolCall({ call, marks, different }) {
  const given = call.arguments ?? "";
  const text = typeof given === "string" ? given : JSON.stringify(given);
  return html`<div class=${cls("tool-call", different && "is-different")}>
    <p class="tool-call-name"><span class="muted" aria-hidden="true">→ </span><code>${call.name}</code>${different && html`<${Here} />`}</p>
    <${Folded} text=${marks ? text : prettyJson(text) ?? text} marks=${marks} fold=${FOLD_DATA} code />
  </div>`;
}

/** A text; a long one begins folded, unless it holds the place that is looked for. */
export function Folded({ text, marks = false, at = null, fold = FOLD_TEXT, code = false }) {
  const [open, setOpen] = useState(false);
  const start = beginning(text, fold);
  const long = start.length < text.length * 0.8;
  const whole = !long || open || (at !== null && at > start.length);
  const shown = whole ? text : start;
  return html`<div class=${cls("text", code && "is-code")}>
    <${Said} text=${shown} marks=${marks} at=${at} />
    ${long && html`<button type="button" class="button quiet unfold" aria-expanded=${whole} onClick=${() => setOpen(!whole)}>
      ${whole ? "Show less" : `Show all ${count(text.length)} characters`}</button>`}
  </div>`;
}

function Said({ text, marks, at }) {
  const drawn = (part) => (marks ? withMarks(part) : part);
  if (at !== null) {
    return html`<div class="text-part">${drawn(text.slice(0, at))}<${Here} /><span class="from-here">${drawn(text.slice(at))}</span></div>`;
  }
  return inParts(text).map((part, index) => html`<div class="text-part" key=${index}>${drawn(part)}</div>`);
}

function Here() {
  return html`<mark class="here" title="From here on the rollouts of this group differ" aria-label="first difference">▸</mark>`;
}

/**
 * Where a character of a message lies, counted in characters over its reasoning, text and tool calls, one below the other:
 * `{part: "reasoning" | "text" | "call" | "end", offset, index}`. The parts that are empty take no line.
 */
export function placeIn(message, character) {
  let rest = unitsOf(message, character);
  for (const part of ["reasoning", "text"]) {
    const length = message[part].length;
    if (!length) continue;
    if (rest <= length) return { part, offset: rest };
    rest -= length + 1;
  }
  const calls = message.tool_calls ?? [];
  for (const [index, call] of calls.entries()) {
    const length = toolLine(call).length;
    if (rest <= length) return { part: "call", index, offset: rest };
    rest -= length + 1;
  }
  return { part: "end", offset: 0 };
}

/** The server counts characters; a text here counts UTF-16 units, of which some characters take two. */
function unitsOf(message, characters) {
  const said = [message.reasoning, message.text, ...(message.tool_calls ?? []).map(toolLine)].filter(Boolean).join("\n");
  let at = 0;
  for (let count = 0; count < characters && at < said.length; count += 1) at += said.codePointAt(at) > 0xffff ? 2 : 1;
  return at;
}

function toolLine(call) {
  return `${call.name}(${typeof call.arguments === "string" ? call.arguments : JSON.stringify(call.arguments ?? "")})`;
}
