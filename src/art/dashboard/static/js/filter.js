// The field for the filter language: names are completed while they are typed, and what the server finds wrong is shown at
// its place. The language itself is the server's alone.

import { html, useEffect, useRef, useState } from "./lib.js";

/** What can be compared, with what it is. `metrics.` and `metadata.` go on with a name of their own. */
const NAMES = [
  ["reward", "number"],
  ["advantage", "of its group, when it was trained"],
  ["status", "such as trained, agent_error"],
  ["step", "at which it was sampled"],
  ["batch", "newest train call that took it"],
  ["purpose", "train or evaluate"],
  ["scenario_id", "text"],
  ["group_id", "text"],
  ["rollout_id", "text"],
  ["member", "number in its group, from 0"],
  ["calls", "of the model, count"],
  ["prompt_tokens", "of its longest prompt"],
  ["sampled_tokens", "tokens"],
  ["tool_calls", "count"],
  ["tool_errors", "count"],
  ["seconds", "how long it took"],
  ["age", "since it began, such as 2h"],
  ["created_at", "a date in quotes, in UTC"],
  ["flag", "good, bad or check"],
  ["reason", "why it has its status"],
  ["text", "words that were said, with ~"],
  ["metrics.", "a metric that was logged with it"],
  ["metadata.", "a value that was logged with it"],
];
const VALUES = {
  status: ["running", "finished", "evaluated", "trained", "stale", "zero_variance", "agent_error", "infra_error", "no_calls", "overlong"],
  purpose: ["train", "evaluate"],
  flag: ["good", "bad", "check"],
};
const WORDS = ["and", "or", "not"];
const OTHER_NAMES = ["scenario", "group", "id", "tokens"];
const EXAMPLES = ["reward < 0 and tool_errors > 0", "status = agent_error", "sampled_tokens > 500", 'scenario_id ~ "paris"', "flag = bad or flag = check"];
const SHOWN = 8; // suggestions at once

/** How a metric of the program is asked for: by its bare name where that is free. */
function asked(metric) {
  if (!/^[A-Za-z_][\w/.-]*$/.test(metric)) return `metrics."${metric}"`;
  return metric.includes(".") || OTHER_NAMES.includes(metric) || NAMES.some(([name]) => name === metric) ? `metrics.${metric}` : metric;
}

/** `[{text, about, from}]` for what stands before the caret; `more` are names such as `turns` or `metrics.turns`. */
export function suggestions(text, caret, more = []) {
  const before = text.slice(0, caret);
  if ((before.match(/(?<!\\)"/g) ?? []).length % 2 === 1) return []; // inside a text
  const word = /[A-Za-z_][\w.]*$/.exec(before)?.[0] ?? "";
  const from = caret - word.length;
  const left = before.slice(0, from);
  const compared = /([A-Za-z_][\w.]*)\s*(?:=|!=|~|!~)\s*$/.exec(left)?.[1];
  if (compared) return (VALUES[compared] ?? []).filter((value) => value.startsWith(word) && value !== word).map((value) => ({ text: value, about: "", from }));
  if (/[<>=~]\s*$/.test(left)) return []; // a number or a text is due
  if (word === "" && before !== "" && !/[\s(]$/.test(before)) return [];
  const due = /(?:^|[(]|\band|\bor|\bnot)\s*$/.test(left);
  const logged = more.map((name) => [name, "logged with it"]);
  const bare = logged.filter(([name]) => !name.startsWith("metrics."));
  const names = due ? [NAMES[0], ...bare, ...NAMES.slice(1), ...logged.filter((name) => !bare.includes(name))] : [];
  const joins = due ? [["not", ""]] : WORDS.slice(0, 2).map((join) => [join, ""]);
  return [...names, ...joins]
    .filter(([name]) => name.startsWith(word) && name !== word)
    .slice(0, SHOWN)
    .map(([name, about]) => ({ text: name, about, from }));
}

/** Where in the filter the error lies (from 0), null where the server does not say. The server counts from 1. */
export function errorPosition(error) {
  const found = /\bcharacter (\d+):/.exec(error.message);
  return found ? Number(found[1]) - 1 : null;
}

/** `value` is the filter in force; `onApply` is called with another one on Enter, and when the field is left. */
export function FilterField({ value, onApply, error, metrics = [] }) {
  const more = [...new Set(metrics.flatMap((metric) => [asked(metric), `metrics.${metric}`]))].filter((name) => !/^metrics\.[^"]*[\s"]/.test(name));
  const [text, setText] = useState(value);
  const [list, setList] = useState({ open: false, items: [], at: -1 });
  const field = useRef(null);
  useEffect(() => setText(value), [value]);

  const suggest = (input) => {
    const items = suggestions(input.value, input.selectionStart, more);
    setList({ open: items.length > 0, items, at: -1 });
  };
  const close = () => setList({ open: false, items: [], at: -1 });
  const take = ({ text: name, from }) => {
    const input = field.current;
    const rest = input.value.slice(input.selectionStart);
    const put = name.endsWith(".") ? name : `${name} `;
    const next = input.value.slice(0, from) + put + rest.replace(/^ /, "");
    setText(next);
    input.value = next;
    input.setSelectionRange(from + put.length, from + put.length);
    input.focus();
    suggest(input);
  };
  const apply = (filter) => {
    close();
    if (filter.trim() !== value) onApply(filter.trim());
  };
  const pressed = (event) => {
    const { open, items, at } = list;
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by && open) setList({ open, items, at: (at + by + items.length + (at < 0 && by < 0 ? 1 : 0)) % items.length });
    else if (by) suggest(event.target);
    else if (event.key === "Enter" && open && at >= 0) take(items[at]);
    else if (event.key === "Tab" && open && !event.shiftKey && at >= 0) take(items[at]);
    else if (event.key === "Enter") apply(event.target.value);
    else if (event.key === "Escape" && open) close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const left = (event) => {
    if (event.currentTarget.contains(event.relatedTarget)) return;
    apply(field.current.value);
  };
  return html`<div class="filter" onFocusOut=${left}>
    <input ref=${field} type="text" class="mono" data-filter data-testid="filter-input" role="combobox" spellcheck=${false} autocomplete="off" autocapitalize="off"
      aria-label="Filter" aria-expanded=${list.open} aria-controls="filter-list" aria-autocomplete="list" aria-describedby="filter-error" aria-invalid=${Boolean(error)}
      aria-activedescendant=${list.at >= 0 ? `filter-item-${list.at}` : undefined}
      placeholder="Filter: reward < 0 and tool_errors > 0" value=${text}
      onInput=${(event) => { setText(event.target.value); suggest(event.target); }} onClick=${(event) => suggest(event.target)} onKeyDown=${pressed} />
    <ul id="filter-list" class="suggestions" role="listbox" aria-label="Names" hidden=${!list.open}>
      ${list.items.map((item, index) => html`<li key=${item.text} id=${`filter-item-${index}`} role="option" aria-selected=${index === list.at} onMouseDown=${(event) => { event.preventDefault(); take(item); }}>
        <code>${item.text}</code><span class="muted">${item.about}</span></li>`)}
    </ul>
    <div id="filter-error">${error && html`<${FilterError} error=${error} filter=${value} />`}</div>
  </div>`;
}

function FilterError({ error, filter }) {
  const at = errorPosition(error);
  return html`<div class="filter-error" role="alert" data-testid="filter-error">
    ${at !== null && html`<pre class="filter-place" aria-hidden="true">${filter}${"\n"}${" ".repeat(at)}<b>^</b></pre>`}
    <p><b>${error.message}</b>${error.cause && html` <span>${String(error.cause)}</span>`}</p>
    ${error.hint && html`<p class="muted">${error.hint}</p>`}
  </div>`;
}

/** Filters to begin with; those of `zeros`, metrics that are 0 somewhere, hold what is logged against what was paid. */
export function Examples({ onApply, zeros = [] }) {
  const own = zeros.slice(0, 2).map((metric) => `${asked(metric)} = 0 and reward > 0.5`);
  return html`<p class="examples"><span class="muted">For example</span>
    ${[...own, ...EXAMPLES].map((filter) => html`<button type="button" class="button quiet mono" key=${filter} onClick=${() => onApply(filter)}>${filter}</button>`)}</p>`;
}

/** A word search over what was said; applied on Enter, when the field is left, and when it is emptied. */
export function SearchField({ value, onApply, label = "Search in texts" }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  const apply = (given) => given.trim() !== value && onApply(given.trim());
  return html`<input type="search" class="search" data-testid="search-input" aria-label=${label} placeholder=${label} title='All the words, in any order; "words together" in quotation marks; a star for any ending' value=${text}
    onInput=${(event) => { setText(event.target.value); if (event.target.value === "") apply(""); }}
    onKeyDown=${(event) => { if (event.key === "Enter") apply(event.target.value); }} onBlur=${(event) => apply(event.target.value)} />`;
}
