// Groups: rollouts of one scenario that were compared with one another. Each row shows every reward of its group.

import { path } from "../api.js";
import { Empty, ErrorBox, Loading, More, StatusBar, Table } from "../components/index.js";
import { ago, clock, count, reward, words } from "../format.js";
import { html } from "../lib.js";
import { ofRun, usePages, useResource } from "../resource.js";
import { scenarioName, shortId } from "../rollout_columns.js";
import { href, setQuery } from "../router.js";

const LIMIT = 50;

function columns(params) {
  return [
    { key: "scenario", label: "Scenario", class: "scenario-cell", render: (group) => html`<span class="clip" title=${group.scenario_id ?? group.group_id}>${scenarioName(group) ?? shortId(group.group_id)}</span>` },
    { key: "step", label: "Sampled at step", align: "right", title: "The published step that served its first rollout", render: (group) => count(group.step) },
    { key: "size", label: "Size", align: "right", render: (group) => count(group.size) },
    { key: "members", label: "Rewards, highest first", class: "members-cell", render: (group) => html`<${Members} ...${{ group, params }} />` },
    { key: "mean", label: "Mean", align: "right", title: "Mean reward ± standard deviation", render: (group) => html`<span class="nowrap"><b>${reward(group.reward_mean)}</b> <span class="muted">± ${reward(group.reward_std_dev)}</span></span>` },
    { key: "statuses", label: "Statuses", class: "bar-cell", render: (group) => html`<${StatusBar} counts=${group.statuses} />` },
    { key: "created", label: "Begun", align: "right", render: (group) => html`<time class="nowrap" title=${clock(group.created_at)}>${ago(group.created_at)}</time>` },
    { key: "preview", label: "Asked", class: "preview-cell", render: (group) => html`<span class="preview" title=${group.preview}>${group.preview}</span>` },
  ];
}

/** A chip for each rollout of a group; its ground says where in the group's spread its reward lies. */
function Members({ group, params }) {
  const { reward_min: low, reward_max: high, members = [] } = group;
  if (members.length === 0) return html`<span class="muted">${reward(low)} to ${reward(high)}</span>`;
  return html`<span class="members">${members.map((member) => html`<a key=${member.rollout_id} class=${`chip-${place(member.reward, low, high)} chip`}
      href=${href("trajectory", { ...params, rollout_id: member.rollout_id }, { in: `group=${encodeURIComponent(group.group_id)}` })}
      title=${`${words(member.status)}, reward ${reward(member.reward)}: open the trajectory`}>${member.reward === null || member.reward === undefined ? "–" : short(member.reward)}</a>`)}
    ${group.size > members.length && html`<span class="muted">+${count(group.size - members.length)}</span>`}</span>`;
}

const short = (value) => (Math.abs(value) >= 100 ? reward(value) : value.toFixed(2).replace("-", "−"));

/** 0 (lowest of the group) to 4 (highest); "none" without a reward or without a spread. */
function place(value, low, high) {
  if (value === null || value === undefined || !(high > low)) return "none";
  return Math.round(((value - low) / (high - low)) * 4);
}

export function View({ route, run }) {
  const { project, name } = route.params;
  const { step, batch, scenario } = route.query;
  const narrowed = step !== undefined || batch !== undefined || scenario !== undefined;
  const list = usePages(path("views/runs", project, name, "groups"), { step, batch, scenario, limit: LIMIT }, {
    field: "groups", rowKey: (group) => group.group_id, live: ofRun(project, name, "rollout", "step"),
    pages: Number(route.query.pages) || 1, onPages: (pages) => setQuery({ pages: pages > 1 ? pages : "" }),
  });
  return html`<div class="toolbar">
      <h2>${batch !== undefined ? `Groups of batch ${batch}` : step !== undefined ? `Groups sampled at step ${step}` : "All groups"}</h2>
      ${batch !== undefined ? html`<${Steps} ...${{ route, by: "batch", at: Number(batch), first: 1, last: run?.run.batch }} /><${Batch} ...${{ project, name, batch }} />` : step !== undefined && html`<${Steps} ...${{ route, by: "step", at: Number(step), first: 0, last: run?.run.step }} />`}
      ${scenario && html`<span class="badge">scenario ${scenario}</span>`}
      ${narrowed && html`<a href=${href("groups", route.params)}>all groups</a>`}
    </div>
    <${ErrorBox} error=${list.error} retry=${list.reload} />
    ${list.rows.length > 0 && html`<${Table} label="Groups of this run" testid="groups-table" columns=${columns(route.params)} rows=${list.rows} rowKey=${(group) => group.group_id} loading=${list.loading}
        link=${(group) => href("group", { ...route.params, group_id: group.group_id })} />
      <${More} more=${list.more} loading=${list.loading} shown=${count(list.rows.length)} />`}
    ${list.rows.length === 0 && !list.error && (list.loading ? html`<${Loading} what="groups" />` : html`<${Empty} title=${narrowed ? "No group here" : "No groups yet"}>
      <p>${narrowed ? "A batch may hold no groups, and a step may have served none." : "Rollouts that name a group, or a scenario, are compared with one another."} All <a href=${href("rollouts", route.params)}>rollouts</a> of the run.</p><//>`)}`;
}

/** A batch is a train call: it takes what was sampled at one step, and publishes the next one, or none. */
function Batch({ project, name, batch }) {
  const found = useResource(path("views/runs", project, name, "steps"), { batch }, { live: ofRun(project, name, "step", "job") });
  const [line] = found.data?.steps ?? [];
  if (!line) return null;
  return html`<span class="muted" data-testid="batch-steps">trained on top of step ${count(line.parent_step)}, ${line.published ? `published as step ${count(line.step)}` : `published nothing: ${words(line.reason)}`}</span>`;
}

/** Previous and next batch or step, for [ and ]; `last` is the newest there is. */
function Steps({ route, by, at, first, last }) {
  const to = (other) => href("groups", route.params, { [by]: other });
  return html`<span class="stepper">
    ${at > first && html`<a class="button quiet" data-prev href=${to(at - 1)} title=${`Previous ${by} ( [ )`}>‹ ${by} ${at - 1}</a>`}
    ${at < last && html`<a class="button quiet" data-next href=${to(at + 1)} title=${`Next ${by} ( ] )`}>${by} ${at + 1} ›</a>`}
  </span>`;
}
