// A run at a glance: where it stands, what is past its band, how its figures went.

import { path } from "../api.js";
import { chartsOf, joined, others, ownCharts, shortName } from "../charts.js";
import { Chart } from "../components/chart.js";
import { ChartControls, chartState } from "../components/chart_controls.js";
import { Empty, ErrorBox, Facts, Loading, StatusBar } from "../components/index.js";
import { ago, clock, count, figure, number, reward, usd } from "../format.js";
import { html, useMemo } from "../lib.js";
import { infoOf, useMetrics } from "../metrics.js";
import { ofRun, useResource } from "../resource.js";
import { notesOf, RewardWarnings, useRewardCheck, warningsOf } from "../reward_check.js";
import { href, setQuery } from "../router.js";
import { firstTime } from "../series.js";

const MAX_POINTS = 500;

export function View({ route, run, runError }) {
  if (runError && !run) return html`<${ErrorBox} error=${runError} />`;
  if (!run) return html`<${Loading} what="the run" />`;
  return html`<${Overview} route=${route} detail=${run} />`;
}

function Overview({ route, detail }) {
  const { project, name } = route.params;
  const metrics = useMetrics();
  const names = useMemo(() => detail.figures.map((one) => one.name), [detail]);
  const added = (route.query.more ?? "").split(",").filter(Boolean);
  const own = useMemo(() => ownCharts(names, metrics), [names, metrics]);
  const general = useMemo(() => chartsOf(names, added, own), [names, own, route.query.more]);
  const charts = useMemo(() => [...general, ...own], [general, own]);
  const check = useRewardCheck(project, name);
  const wanted = charts.flatMap((chart) => chart.metrics);
  const series = useResource(
    wanted.length > 0 ? path("views/runs", project, name, "series") : null,
    { metric: wanted, max_points: MAX_POINTS },
    { live: ofRun(project, name, "step", "log", "checkpoint") },
  );
  const { axis, smoothing } = chartState(route.query);
  const start = useMemo(() => firstTime(Object.values(series.data?.series ?? {})), [series.data]);
  const setMore = (more) => setQuery({ more: more.join(",") });
  const shown = (some) => html`<div class="charts">${some.map((chart) => html`<${RunChart} key=${chart.key} ...${{ chart, metrics, axis, smoothing, start, detail }} set=${series.data.series}
        remove=${chart.added && (() => setMore(added.filter((one) => one !== chart.key)))} />`)}</div>`;
  return html`<${Now} detail=${detail} notes=${notesOf(check).map((one) => `${one.message} ${one.detail}`)} />
    <${Warnings} ...${{ detail, metrics, check }} steps=${href("steps", route.params)} rewards=${href("extremes", route.params)} />
    <section aria-label="Figures">
      <${ChartControls} axis=${axis} smoothing=${smoothing} more=${others(names, charts)} onMore=${(one) => setMore([...added, one])} />
      <${ErrorBox} error=${series.error} retry=${series.reload} />
      ${charts.length === 0 && html`<${NoFigures} route=${route} />`}
      ${charts.length > 0 && !series.data && !series.error && html`<${Loading} what="figures" />`}
      ${series.data && shown(general)}
    </section>
    ${series.data && own.length > 0 && html`<section class="own-metrics" aria-label="The program's own metrics" data-testid="own-metrics"><h2>The program's own metrics</h2>
      <p class="muted small">Where the reward rises and what the task is about does not, the reward pays for something else: <a href=${href("extremes", route.params)}>reward check</a>.</p>${shown(own)}</section>`}
    <${Fates} detail=${detail} route=${route} />`;
}

function Now({ detail, notes }) {
  const { run } = detail;
  return html`<section aria-label="In short"><${Facts} facts=${[
    ["Reward, newest", reward(run.reward_last), "Mean training reward of the newest step"],
    ["Reward, first", reward(run.reward_first), "Mean training reward of the first step"],
    ["Evaluation", reward(run.val_reward_last), "Mean reward of the newest evaluation"],
    ["Step", count(run.step), "Published checkpoints"],
    ["Batches", count(run.batch), "Train calls, also those that published nothing"],
    ["Rollouts", run.running ? `${number(run.rollouts)}, ${count(run.running)} running` : number(run.rollouts)],
    ["Sampled", figure(run.sampled_tokens, "tokens")],
    ["Cost", usd(run.cost_usd), "What was counted under costs/"],
    ["Base model", run.base_model.split("/").slice(-2).join("/"), run.base_model],
    ["Updated", ago(run.updated_at), clock(run.updated_at)],
  ]} />
  ${detail.notes.length + notes.length > 0 && html`<ul class="notes">${[...detail.notes, ...notes].map((note) => html`<li key=${note}>${note}</li>`)}</ul>`}</section>`;
}

/** What is suspicious about the reward; figures whose newest value is past their band, each with what is likely wrong. */
function Warnings({ detail, metrics, steps, check, rewards }) {
  const past = detail.figures.filter((one) => one.state === "warning");
  if (past.length + warningsOf(check).length === 0) return null;
  return html`<section class="warnings" aria-label="Warnings" data-testid="warnings"><ul><${RewardWarnings} check=${check} link=${rewards} />${past.map((one) => {
    const info = infoOf(metrics, one.name);
    return html`<li key=${one.name}><b class="warn">${info.title} ${figure(one.last, info.unit)}</b> at <a href=${steps}>step ${one.last_step}</a>. ${info.warning}</li>`;
  })}</ul></section>`;
}

function RunChart({ chart, metrics, set, axis, smoothing, start, detail, remove }) {
  const shown = chart.metrics.filter((metric) => set[metric]);
  const lines = useMemo(
    () => shown.map((metric, index) => ({ label: shown.length > 1 ? shortName(metric) : "this run", colour: `c${index + 1}`, series: set[metric], start })),
    [set, start, chart.metrics.join()],
  );
  const info = useMemo(() => joined(chart.metrics.map((metric) => infoOf(metrics, metric)), chart.title), [metrics, chart.metrics.join()]);
  if (shown.length === 0) return null;
  const figures = shown.map((metric) => detail.figures.find((one) => one.name === metric)).filter(Boolean);
  const warning = figures.find((one) => one.state === "warning");
  const banded = chart.band && lines.some((line) => line.series.low);
  const meaning = chart.meaning ?? info.meaning;
  const told = { ...info, meaning: banded ? `${meaning} ${chart.band}` : meaning, warning: warning ? infoOf(metrics, warning.name).warning : "" };
  const now = figures.map((one, index) => html`<span key=${one.name} class="inline">${figures.length > 1 && html`<span class=${`swatch k${index + 1}`}></span><span class="muted small">${shortName(one.name)}</span>`}${figure(one.last, info.unit)}</span>`);
  const actions = remove && html`<button type="button" class="button quiet" aria-label=${`Remove the chart ${info.title}`} onClick=${remove}>✕</button>`;
  return html`<${Chart} info=${told} lines=${lines} axis=${axis} smoothing=${smoothing} sync=${`run-${axis}`} warning=${Boolean(warning)} now=${html`<span class="chart-nows">${now}</span>`} actions=${actions} />`;
}

function NoFigures({ route }) {
  const link = href("rollouts", route.params);
  return html`<${Empty} title="No step has been logged yet">
    <p>Charts begin with the first train call or <code>model.log</code>. What runs already is under <a href=${link}>Rollouts</a>.</p>
  <//>`;
}

function Fates({ detail, route }) {
  const rollouts = Object.keys(detail.statuses).length > 0;
  const choices = Object.keys(detail.fates).length > 0;
  if (!rollouts && !choices) return null;
  return html`<section aria-label="Fates" class="fates">
    ${rollouts && html`<div class="panel"><h2 class="chart-title"><a href=${href("rollouts", route.params)}>Rollouts by status</a></h2>
      <p class="chart-meaning">How each run of the agent ended.</p><${StatusBar} counts=${detail.statuses} legend noun="rollouts" /></div>`}
    ${choices && html`<div class="panel"><h2 class="chart-title">Answers by fate</h2>
      <p class="chart-meaning">What became of each sampled answer: trained, or not and why.</p><${StatusBar} counts=${detail.fates} legend noun="answers" /></div>`}
  </section>`;
}
