// Scenarios of a run: which got better over the steps, and which got worse.

import { path } from "../api.js";
import { Empty, ErrorBox, Loading, More, Table } from "../components/index.js";
import { count, reward, signed } from "../format.js";
import { html } from "../lib.js";
import { ofRun, usePages } from "../resource.js";
import { href, setQuery } from "../router.js";

const LIMIT = 50;
const SORTS = [["change", "Change"], ["reward_last", "Newest reward"], ["rollouts", "Rollouts"]];

const COLUMNS = [
  { key: "scenario", label: "Scenario", class: "scenario-cell", render: (line) => html`<span class="clip" title=${line.scenario_id}>${line.scenario_id}</span>` },
  { key: "rollouts", label: "Rollouts", align: "right", render: (line) => count(line.rollouts) },
  { key: "steps", label: "Steps", align: "right", title: "First and newest step that served it", render: (line) => html`<span class="nowrap">${count(line.first_step)} → ${count(line.last_step)}</span>` },
  { key: "first", label: "Reward first", align: "right", title: "Mean over the rollouts of its first step", render: (line) => reward(line.reward_first) },
  { key: "last", label: "Reward newest", align: "right", title: "Mean over the rollouts of its newest step", render: (line) => html`<b>${reward(line.reward_last)}</b>` },
  { key: "change", label: "Change", align: "right", render: (line) => html`<${Change} line=${line} />` },
  { key: "preview", label: "Asked", class: "preview-cell", render: (line) => html`<span class="preview" title=${line.preview}>${line.preview}</span>` },
];

function Change({ line }) {
  const { reward_first: first, reward_last: last } = line;
  if (first === null || first === undefined || last === null || last === undefined) return "–";
  const change = last - first;
  return html`<span class=${change > 0 ? "good" : change < 0 ? "bad" : "muted"}>${change > 0 ? "▲" : change < 0 ? "▼" : "="} ${signed(change)}</span>`;
}

export function View({ route }) {
  const { project, name } = route.params;
  const { sort = "change" } = route.query;
  const list = usePages(path("views/runs", project, name, "scenarios"), { sort, limit: LIMIT }, {
    field: "scenarios", rowKey: (line) => line.scenario_id, live: ofRun(project, name, "step"),
    pages: Number(route.query.pages) || 1, onPages: (pages) => setQuery({ pages: pages > 1 ? pages : "" }),
  });
  return html`<div class="toolbar"><h2>Scenarios</h2>
      <span class="segmented" role="group" aria-label="Sort by">${SORTS.map(([key, label]) => html`<button type="button" key=${key} aria-pressed=${sort === key} onClick=${() => setQuery({ sort: key === "change" ? "" : key, pages: "" })}>${label}</button>`)}</span>
    </div>
    <${ErrorBox} error=${list.error} retry=${list.reload} />
    ${list.rows.length > 0 && html`<${Table} label="Scenarios of this run" testid="scenarios-table" columns=${COLUMNS} rows=${list.rows} rowKey=${(line) => line.scenario_id} loading=${list.loading}
        link=${(line) => href("scenario", { ...route.params, scenario_id: line.scenario_id })} />
      <${More} more=${list.more} loading=${list.loading} shown=${count(list.rows.length)} />`}
    ${list.rows.length === 0 && !list.error && (list.loading ? html`<${Loading} what="scenarios" />` : html`<${Empty} title="No scenario has a name yet">
      <p>Give rollouts a <code>scenario_id</code>, and the same task can be compared before and after training.</p><//>`)}`;
}
