// Columns of a table of rollouts, for every view that has one.

import { Status } from "./components/index.js";
import { ago, clock, count, duration, number, reward, signed } from "./format.js";
import { html } from "./lib.js";
import { Flag } from "./note.js";
import { href } from "./router.js";

/** The end of an id: its beginning is the same for all that are of one age. */
export const shortId = (id) => (id.length > 16 ? `…${id.slice(-8)}` : id);

/** What a scenario is shown as: its id, or what it asks where its id is a digest; links go by the id. */
export const scenarioName = (line) => line.scenario_label || line.scenario_id;

/** The address of a rollout; `list` is the question whose answer it stands in, for [ and ]. */
export function rolloutHref(rollout, list = {}, query = {}) {
  const from = new URLSearchParams(Object.entries(list).filter(([, value]) => value !== undefined && value !== null && value !== "")).toString();
  return href("trajectory", { project: rollout.project, name: rollout.model, rollout_id: rollout.rollout_id }, { in: from, ...query });
}

const COLUMNS = {
  id: { label: "Rollout", render: (row) => html`<span class="mono nowrap" title=${row.rollout_id}>${shortId(row.rollout_id)}</span>` },
  status: { label: "Status", render: (row) => html`<span class="inline"><${Status} of=${row.status} title=${row.reason || undefined} /><${Flag} flag=${row.flag} /></span>` },
  reward: { label: "Reward", align: "right", sort: "reward", render: (row) => html`<b>${reward(row.reward)}</b>` },
  advantage: { label: "Advantage", align: "right", title: "Against its group, as the newest step that trained it used it", render: (row) => signed(row.advantage) },
  step: { label: "Sampled at step", align: "right", title: "The published step that served it", render: (row) => count(row.step) },
  scenario: {
    label: "Scenario",
    render: (row) => row.scenario_id && html`<a class="clip" title=${row.scenario_id} href=${href("scenario", { project: row.project, name: row.model, scenario_id: row.scenario_id })}>${scenarioName(row)}</a>`,
  },
  calls: { label: "Calls", align: "right", title: "Of the model", render: (row) => count(row.calls) },
  tokens: { label: "Sampled tokens", align: "right", sort: "sampled_tokens", render: (row) => count(row.sampled_tokens) },
  tools: { label: "Tool calls", align: "right", render: (row) => count(row.tool_calls) },
  errors: { label: "Tool errors", align: "right", sort: "tool_errors", render: (row) => html`<span class=${row.tool_errors ? "bad" : "muted"}>${count(row.tool_errors)}</span>` },
  seconds: { label: "Took", align: "right", sort: "seconds", render: (row) => duration(row.seconds) },
  created: { label: "Begun", align: "right", sort: "created_at", render: (row) => html`<time class="nowrap" title=${clock(row.created_at)}>${ago(row.created_at)}</time>` },
  answer: { label: "Answer tokens", align: "right", title: "Of its last answer, reasoning included", render: (row) => count(row.answer_tokens) },
  preview: { label: "Last answer", class: "preview-cell", render: (row) => (row.hit ? html`<${Hit} text=${row.hit} />` : html`<span class="preview" title=${row.preview}>${row.preview}</span>`) },
};

/** Where a search found it: what matched stands between U+0002 and U+0003. */
function Hit({ text }) {
  const parts = text.split(/[\u0002\u0003]/);
  return html`<span class="preview hit">${parts.map((part, index) => (index % 2 ? html`<mark key=${index}>${part}</mark>` : part))}</span>`;
}

/** A column for something that the program logs with its rollouts. */
export function metricColumn(name) {
  return { key: `metrics.${name}`, label: name, align: "right", title: "Logged by the program", render: (row) => number(row.metrics?.[name]) };
}

/** Columns by name, in this order. */
export function rolloutColumns(...names) {
  return names.map((key) => ({ key, ...COLUMNS[key] }));
}
