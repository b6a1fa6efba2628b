// Scenarios of a run: which got better over the steps, and which got worse.

import { path } from "../api.js";
import { Empty, ErrorBox, Loading, More, Table } from "../components/index.js";
import { count, number, reward, signed } from "../format.js";
import { html, useMemo } from "../lib.js";
import { ofRun, usePages } from "../resource.js";
import { scenarioName } from "../rollout_columns.js";
import { href, setQuery } from "../router.js";

const LIMIT = 50;
const SORTS = [["change", "Change"], ["reward_last", "Newest reward"], ["rollouts", "Rollouts"]];

const COLUMNS = [
  { key: "scenario", label: "Scenario", class: "scenario-cell", render: (line) => html`<span class="clip" title=${line.scenario_id}>${scenarioName(line)}</span>` },
  { key: "rollouts", label: "Rollouts", align: "right", render: (line) => count(line.rollouts) },
  { key: "steps", label: "Steps", align: "right", title: "First and newest step of the rollouts that are compared", render: (line) => html`<span class="nowrap">${count(line.first_step)} → ${count(line.last_step)}</span>` },
  { key: "purpose", label: "Compared", title: "Rollouts of one purpose: what was sampled to be trained is not compared with evaluation", render: (line) => (line.purpose === "train" ? "training" : "evaluation") },
  { key: "first", label: "Reward first", align: "right", title: "Mean over the rollouts of its first step, and how many they are", render: (line) => html`<${Mean} value=${line.reward_first} over=${line.rollouts_first} />` },
  { key: "last", label: "Reward newest", align: "right", title: "Mean over the rollouts of its newest step, and how many they are", render: (line) => html`<${Mean} value=${line.reward_last} over=${line.rollouts_last} strong />` },
  { key: "change", label: "Change of reward", align: "right", render: (line) => html`<${Change} line=${line} />` },
  { key: "preview", label: "Asked", class: "preview-cell", render: (line) => html`<span class="preview" title=${line.preview}>${line.preview}</span>` },
];

function Change({ line }) {
  const { reward_first: first, reward_last: last } = line;
  if (first === null || first === undefined || last === null || last === undefined) return "–";
  const change = last - first;
  return html`<span class="nowrap">${change > 0 ? "▲" : change < 0 ? "▼" : "="} ${signed(change)}</span>`;
}

function Mean({ value, over, strong = false }) {
  return html`<span class="nowrap">${strong ? html`<b>${reward(value)}</b>` : reward(value)} <span class="muted small">of ${count(over)}</span></span>`;
}

const MOST_METRICS = 3;

/** Columns for the program's metrics that the most scenarios have and in which something changed. */
function metricColumns(rows) {
  const counts = new Map();
  for (const { metrics_first: first, metrics_last: last } of rows) {
    for (const name of Object.keys(last)) if (name in first && first[name] !== last[name]) counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const names = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, MOST_METRICS);
  return names.map(([name]) => ({
    key: `metric ${name}`, label: name, align: "right", title: `Mean of the program's metric ${name} at the first and the newest step`,
    render: ({ metrics_first: first, metrics_last: last }) => (name in first && name in last ? html`<span class="nowrap">${number(first[name])} → ${number(last[name])}</span>` : "–"),
  }));
}

export function View({ route }) {
  const { project, name } = route.params;
  const { sort = "change" } = route.query;
  const list = usePages(path("views/runs", project, name, "scenarios"), { sort, limit: LIMIT }, {
    field: "scenarios", rowKey: (line) => line.scenario_id, live: ofRun(project, name, "step"),
    pages: Number(route.query.pages) || 1, onPages: (pages) => setQuery({ pages: pages > 1 ? pages : "" }),
  });
  const columns = useMemo(() => [...COLUMNS.slice(0, -1), ...metricColumns(list.rows), COLUMNS.at(-1)], [list.rows]);
  return html`<div class="toolbar"><h2>Scenarios</h2>
      <span class="segmented" role="group" aria-label="Sort by">${SORTS.map(([key, label]) => html`<button type="button" key=${key} aria-pressed=${sort === key} onClick=${() => setQuery({ sort: key === "change" ? "" : key, pages: "" })}>${label}</button>`)}</span>
    </div>
    <${ErrorBox} error=${list.error} retry=${list.reload} />
    ${list.rows.length > 0 && html`<${Table} label="Scenarios of this run" testid="scenarios-table" columns=${columns} rows=${list.rows} rowKey=${(line) => line.scenario_id} loading=${list.loading}
        link=${(line) => href("scenario", { ...route.params, scenario_id: line.scenario_id })} />
      <${More} more=${list.more} loading=${list.loading} shown=${count(list.rows.length)} />`}
    ${list.rows.length === 0 && !list.error && (list.loading ? html`<${Loading} what="scenarios" />` : html`<${Empty} title="No scenario has a name yet">
      <p>Give rollouts a <code>scenario_id</code>, and the same task can be compared before and after training.</p><//>`)}`;
}
