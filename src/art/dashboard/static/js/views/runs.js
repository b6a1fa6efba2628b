// All runs, the newest first: what they are at, and whether they got better.

import { Badge, Empty, ErrorBox, Loading, More, PageHead, Sparkline, Table, useTitle } from "../components/index.js";
import { ago, clock, count, number, reward, signed, usd } from "../format.js";
import { html, useMemo, useState } from "../lib.js";
import { ofAny, usePages } from "../resource.js";
import { href, setQuery } from "../router.js";

const LIMIT = 50;
export const MAX_COMPARED = 8; // as many as there are colours

const keyOf = (run) => `${run.project}/${run.name}`;

function columns(chosen, choose) {
  return [
    { key: "name", label: "Run", render: (run) => html`<span class="of-project">${run.project}/</span>${run.name}` },
    { key: "state", label: "State", render: (run) => html`<${Badge} kind=${{ training: "info", sampling: "ok" }[run.state]}>${run.state}<//>` },
    { key: "step", label: "Step", align: "right", title: "Published checkpoints", render: (run) => html`<a href=${href("steps", run)} title="Its steps">${count(run.step)}</a>` },
    { key: "line", label: "Reward by step", render: (run) => html`<${Sparkline} values=${run.rewards} label="Training reward" />` },
    { key: "reward", label: "Reward, first to newest", align: "right", title: "Mean training reward of the first and the newest step", render: (run) => html`<${Change} first=${run.reward_first} last=${run.reward_last} />` },
    { key: "val", label: "Evaluation", align: "right", title: "Mean reward of the newest evaluation", render: (run) => reward(run.val_reward_last) },
    { key: "rollouts", label: "Rollouts", align: "right", render: (run) => html`<span>${number(run.rollouts)}${run.running > 0 && html` <span class="good">+${count(run.running)} running</span>`}</span>` },
    { key: "tokens", label: "Sampled tokens", align: "right", render: (run) => number(run.sampled_tokens) },
    { key: "cost", label: "Cost", align: "right", render: (run) => usd(run.cost_usd) },
    { key: "updated", label: "Updated", align: "right", render: (run) => html`<time title=${clock(run.updated_at)}>${ago(run.updated_at)}</time>` },
    { key: "compare", label: "Compare", render: (run) => html`<input type="checkbox" aria-label=${`Compare ${keyOf(run)}`} checked=${chosen.includes(keyOf(run))}
        disabled=${!chosen.includes(keyOf(run)) && chosen.length >= MAX_COMPARED} onChange=${() => choose(keyOf(run))} />` },
  ];
}

function Change({ first, last }) {
  if (last === null || last === undefined) return "–";
  if (first === null || first === undefined) return reward(last);
  const change = last - first;
  return html`<span>${reward(first)} → <b>${reward(last)}</b> <span class="muted">${signed(change)}</span></span>`;
}

export function View({ route }) {
  useTitle("Runs");
  const { q = "", project } = route.query;
  const [chosen, setChosen] = useState([]);
  const list = usePages("views/runs", { limit: LIMIT, project }, {
    field: "runs", rowKey: keyOf, live: ofAny("rollout", "step", "checkpoint", "job", "log"), pages: Number(route.query.pages) || 1,
    onPages: (pages) => setQuery({ pages: pages > 1 ? pages : "" }),
  });
  const shown = useMemo(
    () => list.rows.filter((run) => `${keyOf(run)} ${run.base_model}`.toLowerCase().includes(q.toLowerCase())),
    [list.rows, q],
  );
  const choose = (run) => setChosen((old) => (old.includes(run) ? old.filter((one) => one !== run) : [...old, run]));
  return html`<${PageHead} title="Runs" actions=${html`<${Toolbar} ...${{ q, chosen, setChosen }} />`} />
    <${ErrorBox} error=${list.error} retry=${list.reload} />
    ${shown.length > 0 && html`<${Table} label="Runs" testid="runs-table" columns=${columns(chosen, choose)} rows=${shown} rowKey=${keyOf} link=${(run) => href("run", run)} />
      <${More} more=${list.more} loading=${list.loading} />`}
    ${shown.length === 0 && !list.error && (list.loading ? html`<${Loading} what="runs" />` : html`<${None} filtered=${list.rows.length > 0} />`)}`;
}

function Toolbar({ q, chosen, setChosen }) {
  return html`<input type="search" data-filter aria-label="Filter runs by name or base model" placeholder="Filter by name ( / )" value=${q} onInput=${(event) => setQuery({ q: event.target.value })} />
    ${chosen.length > 0 && html`<button type="button" class="button quiet" onClick=${() => setChosen([])}>Clear</button>`}
    ${chosen.length > 0 && html`<a class="button primary" data-testid="compare-chosen" href=${href("compare", {}, { runs: chosen.join(",") })}>Compare ${chosen.length}</a>`}`;
}

function None({ filtered }) {
  if (filtered) return html`<${Empty} title="No run has that in its name" />`;
  return html`<${Empty} title="No runs yet">
    <p>A run appears with its first registered model or rollout. <code>art demo</code> makes one in a few minutes; <code>art init NAME</code> writes a project of your own.</p>
  <//>`;
}
