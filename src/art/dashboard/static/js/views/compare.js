// Several runs on the same charts, and where their settings differ.

import { path } from "../api.js";
import { chartsOf, others } from "../charts.js";
import { Chart } from "../components/chart.js";
import { ChartControls, chartState } from "../components/chart_controls.js";
import { Empty, ErrorBox, Loading, PageHead, useTitle } from "../components/index.js";
import { differences, written } from "../configs.js";
import { count, figure, number, reward, usd } from "../format.js";
import { html, useMemo } from "../lib.js";
import { infoOf, useMetrics } from "../metrics.js";
import { ofAny, useMany, useResource } from "../resource.js";
import { href, setQuery } from "../router.js";
import { firstTime } from "../series.js";
import { MAX_COMPARED } from "./runs.js";

const MAX_POINTS = 500;
const MAX_BANDS = 3; // runs; more of them only hide one another

/** Runs of the address, `project/name` each; what is no such name is left out. */
function chosenOf(query) {
  const all = (query.runs ?? "").split(",").filter((run) => /^[^/]+\/[^/]+$/.test(run));
  return [...new Set(all)].slice(0, MAX_COMPARED);
}

export function View({ route }) {
  useTitle("Compare");
  const runs = chosenOf(route.query);
  const choose = (next) => setQuery({ runs: next.join(",") });
  return html`<${PageHead} title="Compare runs" />
    <${Picker} runs=${runs} choose=${choose} />
    ${runs.length === 0
      ? html`<${Empty} title="No run is chosen"><p>Add runs above, or mark them in the <a href=${href("runs")}>list of runs</a>.</p><//>`
      : html`<${Comparison} key="comparison" runs=${runs} query=${route.query} choose=${choose} />`}`;
}

function Picker({ runs, choose }) {
  const list = useResource("views/runs", { limit: 200 });
  const free = (list.data?.runs ?? []).map((run) => `${run.project}/${run.name}`).filter((run) => !runs.includes(run));
  return html`<div class="toolbar">
    <select data-filter aria-label="Add a run" value="" disabled=${runs.length >= MAX_COMPARED} onChange=${(event) => event.target.value && choose([...runs, event.target.value])}>
      <option value="">${runs.length >= MAX_COMPARED ? `At most ${MAX_COMPARED} runs` : "Add a run …"}</option>
      ${free.map((run) => html`<option key=${run} value=${run}>${run}</option>`)}
    </select>
  </div><${ErrorBox} error=${list.error} />`;
}

function Comparison({ runs, query, choose }) {
  const wanted = (event) => event.type === "resync" || (ofAny("step", "log")(event) && runs.includes(`${event.project}/${event.name}`));
  const details = useMany(runs.map((run) => [path("views/runs", ...run.split("/")), {}]), { live: wanted });
  if (details.loading) return html`<${Loading} what="runs" />`;
  const found = runs.flatMap((run, index) => (details.answers[index]?.data ? [{ run, detail: details.answers[index].data, colour: index + 1 }] : []));
  return html`<${Lines} ...${{ runs, answers: details.answers, choose }} />
    ${found.length > 0 && html`<${Figures} found=${found} query=${query} wanted=${wanted} />`}
    ${found.length > 1 && html`<${Settings} found=${found} />`}`;
}

/** The runs, one a row: this is the legend of the charts too. */
function Lines({ runs, answers, choose }) {
  return html`<div class="table-box" tabindex="0" role="group" aria-label="Chosen runs"><table class="table" data-testid="compare-table">
    <thead><tr><th scope="col">Run</th><th scope="col">Base model</th><th scope="col" class="num">Step</th><th scope="col" class="num">Reward, first</th><th scope="col" class="num">Newest</th>
      <th scope="col" class="num">Evaluation</th><th scope="col" class="num">Sampled tokens</th><th scope="col" class="num">Cost</th><th scope="col"><span class="visually-hidden">Remove</span></th></tr></thead>
    <tbody>${runs.map((run, index) => html`<${Line} key=${run} ...${{ run, index, answer: answers[index] }} remove=${() => choose(runs.filter((one) => one !== run))} />`)}</tbody>
  </table></div>`;
}

function Line({ run, index, answer, remove }) {
  const [project, name] = run.split("/");
  const line = answer?.data?.run;
  const figures = line
    ? [["Base model", line.base_model.split("/").pop()], ["Step", count(line.step)], ["Reward, first", reward(line.reward_first)], ["Newest", reward(line.reward_last)],
       ["Evaluation", reward(line.val_reward_last)], ["Sampled tokens", number(line.sampled_tokens)], ["Cost", usd(line.cost_usd)]]
    : null;
  return html`<tr><td><span class="inline"><span class=${`swatch k${index + 1}`}></span><a class="row-link" data-row href=${href("run", { project, name })}>${run}</a></span></td>
    ${figures ? figures.map(([label, text], column) => html`<td key=${label} data-label=${label} class=${column > 0 && "num"}>${text}</td>`) : html`<td colspan="7" class="bad">${answer?.error?.message ?? ""}</td>`}
    <td class="num"><button type="button" class="button quiet" aria-label=${`Remove ${run}`} onClick=${remove}>✕</button></td></tr>`;
}

function Figures({ found, query, wanted }) {
  const metrics = useMetrics();
  const { axis, smoothing } = chartState(query);
  const names = useMemo(() => [...new Set(found.flatMap(({ detail }) => detail.figures.map((one) => one.name)))], [found]);
  const added = (query.more ?? "").split(",").filter(Boolean);
  // One figure a chart: a line is a run here.
  const charts = chartsOf(names, added).flatMap((chart) => chart.metrics.map((metric) => ({ key: metric, metrics: [metric], added: chart.added })));
  const asked = charts.map((chart) => chart.key);
  const series = useMany(found.map(({ run }) => [path("views/runs", ...run.split("/"), "series"), { metric: asked, max_points: MAX_POINTS }]), { live: wanted });
  const setMore = (more) => setQuery({ more: more.join(",") });
  return html`<section aria-label="Figures">
    <${ChartControls} axis=${axis} smoothing=${smoothing} more=${others(names, charts)} onMore=${(one) => setMore([...added, one])} />
    ${series.answers.map(({ error }, index) => html`<${ErrorBox} key=${found[index]?.run} error=${error} retry=${series.reload} />`)}
    ${series.loading ? html`<${Loading} what="figures" />` : html`<div class="charts">${charts.map((chart) => html`<${RunsChart} key=${chart.key} metric=${chart.key} ...${{ found, metrics, axis, smoothing }} answers=${series.answers}
      remove=${chart.added && (() => setMore(added.filter((one) => one !== chart.key)))} />`)}</div>`}
  </section>`;
}

function RunsChart({ metric, found, metrics, answers, axis, smoothing, remove }) {
  const info = useMemo(() => infoOf(metrics, metric), [metrics, metric]);
  const lines = useMemo(
    () => found.flatMap(({ run, colour }, index) => {
      const series = answers[index]?.data?.series[metric];
      // Time is counted from each run's own beginning, so that runs of different days lie over one another.
      return series ? [{ label: run, colour: `c${colour}`, series: found.length > MAX_BANDS ? { ...series, low: null, high: null } : series, start: firstTime(Object.values(answers[index].data.series)) }] : [];
    }),
    [found, answers, metric],
  );
  if (lines.length === 0) return null;
  const actions = remove && html`<button type="button" class="button quiet" aria-label=${`Remove the chart ${info.title}`} onClick=${remove}>✕</button>`;
  return html`<${Chart} info=${info} lines=${lines} axis=${axis} smoothing=${smoothing} sync=${`compare-${axis}`} actions=${actions} now="" />`;
}

function Settings({ found }) {
  const rows = differences(found.map(({ detail }) => detail.config));
  if (rows.length === 0) return html`<section><h2>Settings</h2><p class="muted">All settings that the server keeps are the same.</p></section>`;
  return html`<section aria-label="Settings that differ"><div class="section-head"><h2>Settings that differ</h2><span class="muted">of ${figure(found.length)} runs</span></div>
    <div class="table-box" tabindex="0" role="group" aria-label="Settings that differ"><table class="table">
      <thead><tr><th scope="col">Setting</th>${found.map(({ run, colour }) => html`<th key=${run} scope="col"><span class="inline"><span class=${`swatch k${colour}`}></span>${run}</span></th>`)}</tr></thead>
      <tbody>${rows.map(([name, values]) => html`<tr key=${name}><td class="mono">${name}</td>${values.map((value, index) => html`<td key=${index} class="mono" data-label=${found[index].run}>${written(value)}</td>`)}</tr>`)}</tbody>
    </table></div></section>`;
}
