// Small marks: a status in its colour, counts as a bar.

import { html } from "../lib.js";
import { count, words } from "../format.js";

/** Statuses of rollouts, then fates of choices, in the order in which bars show them. */
const ORDER = [
  "trained", "finished", "pending", "running", "evaluated", "evaluation", "zero_variance", "filtered", "auxiliary",
  "duplicate", "stale", "overlong", "no_calls", "agent_error", "infra_error",
];

/** A word in a frame. `kind`: ok, warn, bad, info, or nothing. */
export function Badge({ kind = "", title, children }) {
  return html`<span class=${`badge ${kind && `badge-${kind}`}`} title=${title}>${children}</span>`;
}

/** The status of a rollout or the fate of a choice: a dot in its colour and the word. */
export function Status({ of: name, title }) {
  return html`<span class=${`status s-${name}`} title=${title}><span class="dot" aria-hidden="true"></span>${words(name)}</span>`;
}

export function ordered(counts) {
  const known = ORDER.filter((name) => counts[name]);
  const other = Object.keys(counts).filter((name) => counts[name] && !ORDER.includes(name));
  return [...known, ...other.sort()].map((name) => [name, counts[name]]);
}

/** `{trained: 12, stale: 1}` as a bar; `legend` writes the counts under it. */
export function StatusBar({ counts, legend = false, noun = "rollouts" }) {
  const parts = ordered(counts);
  const total = parts.reduce((sum, [, value]) => sum + value, 0);
  const told = parts.map(([name, value]) => `${count(value)} ${words(name)}`).join(", ");
  return html`<span class="status-bar">
    <span class="bar" role="img" aria-label=${total ? `${noun}: ${told}` : `no ${noun}`} title=${told}>
      ${parts.map(([name, value]) => html`<span key=${name} class=${`bar-part s-${name}`} style=${{ flexGrow: value }}></span>`)}
    </span>
    ${legend && html`<span class="bar-legend">${parts.map(([name, value]) => html`<span key=${name} class="nowrap"><${Status} of=${name} /> <b>${count(value)}</b></span>`)}</span>`}
  </span>`;
}
