// The train calls of a run, the newest first: what each was given, what came of it, and why one published nothing.

import { path } from "../api.js";
import { Badge, Empty, ErrorBox, Loading, More, StatusBar, Table } from "../components/index.js";
import { ago, clock, count, duration, figure, reward, words } from "../format.js";
import { html } from "../lib.js";
import { infoOf, useMetrics } from "../metrics.js";
import { ofRun, usePages } from "../resource.js";
import { href, setQuery } from "../router.js";

const LIMIT = 50;

function columns(metrics) {
  return [
    { key: "batch", label: "Batch", render: (line) => html`<span>Batch ${count(line.batch)}</span>` },
    { key: "step", label: "Published as", title: "The step it published, or why it published none; what it trained was sampled at the step before, or earlier", render: (line) => html`<${Published} line=${line} />` },
    { key: "reward", label: "Reward", align: "right", title: "Mean over its rollouts ± standard deviation", render: (line) => html`<span class="nowrap"><b>${reward(line.reward)}</b> <span class="muted">± ${reward(line.reward_std_dev)}</span></span>` },
    { key: "groups", label: "Groups", align: "right", render: (line) => count(line.groups) },
    { key: "rollouts", label: "Rollouts", align: "right", render: (line) => count(line.rollouts) },
    { key: "statuses", label: "What became of them", class: "bar-cell", render: (line) => html`<${StatusBar} counts=${line.statuses} />` },
    { key: "warnings", label: "Warnings", class: "warnings-cell", render: (line) => line.warnings.length > 0 && html`<span class="badges">${line.warnings.map((name) => html`<${Warning} key=${name} ...${{ name, line, info: infoOf(metrics, name) }} />`)}</span>` },
    { key: "seconds", label: "Took", align: "right", render: (line) => html`<span class="nowrap">${duration(line.seconds)}</span>` },
    { key: "time", label: "When", align: "right", render: (line) => html`<time class="nowrap" title=${clock(line.time)}>${ago(line.time)}</time>` },
  ];
}

function Published({ line }) {
  if (line.published) return html`<span class="nowrap">step ${count(line.step)}</span>`;
  return html`<span class="unpublished"><${Badge} kind="warn">nothing<//> <span class="small">${words(line.reason)}</span></span>`;
}

function Warning({ name, line, info }) {
  const told = [line.metrics[name] !== undefined && figure(line.metrics[name], info.unit), info.warning].filter(Boolean).join(": ");
  return html`<${Badge} kind="warn" title=${told}>${info.title}<//>`;
}

export function View({ route }) {
  const { project, name } = route.params;
  const list = usePages(path("views/runs", project, name, "steps"), { limit: LIMIT }, {
    field: "steps", rowKey: (line) => line.batch, live: ofRun(project, name, "step", "job", "log"),
    pages: Number(route.query.pages) || 1, onPages: (pages) => setQuery({ pages: pages > 1 ? pages : "" }),
  });
  const metrics = useMetrics();
  return html`<${ErrorBox} error=${list.error} retry=${list.reload} />
    ${list.rows.length > 0 && html`<${Table} label="Steps of this run" testid="steps-table" columns=${columns(metrics)} rows=${list.rows} rowKey=${(line) => line.batch} loading=${list.loading}
        link=${(line) => href("groups", route.params, { batch: line.batch })} />
      <${More} more=${list.more} loading=${list.loading} shown=${count(list.rows.length)} />`}
    ${list.rows.length === 0 && !list.error && (list.loading ? html`<${Loading} what="steps" />` : html`<${Empty} title="Nothing was trained yet">
      <p>A step appears here with the first train call. The run's <a href=${href("rollouts", route.params)}>rollouts</a> are there before.</p><//>`)}`;
}
