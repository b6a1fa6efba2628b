// One scenario over the steps: its rewards, and what two versions of the model said to it, side by side.

import { path } from "../api.js";
import { conversation, lastCall, pathThrough, treeOf } from "../branches.js";
import { Chart } from "../components/chart.js";
import { Empty, Resource, Status } from "../components/index.js";
import { duration, number, of, reward, signed } from "../format.js";
import { html, useMemo } from "../lib.js";
import { ofRun, useResource } from "../resource.js";
import { rolloutHref, shortId } from "../rollout_columns.js";
import { href, setQuery } from "../router.js";
import { Message } from "../transcript.js";

const INFO = { name: "scenario/reward", title: "Reward of this scenario", unit: "", meaning: "Mean over its rollouts of each step; the band is from the lowest to the highest." };
const FOLD = { lines: 30, characters: 3000 };

const keyOf = (item) => `${item.step}${item.purpose === "evaluate" ? "e" : ""}`;
const labelOf = (item) => `step ${item.step}${item.purpose === "evaluate" ? ", evaluation" : ""}`;

export function View({ route }) {
  const { project, name, scenario_id: id } = route.params;
  const detail = useResource(path("views/runs", project, name, "scenarios", id), {}, { live: ofRun(project, name, "rollout", "step") });
  return html`<div class="toolbar"><h2 class="clip" title=${id}>Scenario ${detail.data?.scenario_label || id}</h2>
      <a href=${href("rollouts", { project, name }, { scenario: id })}>its rollouts</a> <a href=${href("groups", { project, name }, { scenario: id })}>its groups</a></div>
    <${Resource} of=${detail} what="the scenario">${(data) => (data.steps.length === 0 ? html`<${Empty} title="No rollout has this scenario" />` : html`<${Scenario} steps=${data.steps} route=${route} />`)}<//>`;
}

function Scenario({ steps, route }) {
  const { a, b } = route.query;
  const [first, last] = ends(steps);
  const before = steps.find((item) => keyOf(item) === a) ?? first;
  const after = steps.find((item) => keyOf(item) === b) ?? last;
  const at = steps.indexOf(after);
  const to = (item) => item && href("scenario", route.params, { ...route.query, b: keyOf(item), rb: "" });
  const [earlier, later] = [to(steps[at - 1]), to(steps[at + 1])];
  const change = before.reward_mean !== null && after.reward_mean !== null ? after.reward_mean - before.reward_mean : null;
  return html`<${Rewards} steps=${steps} />
    <div class="toolbar"><h3>Before and after</h3>
      ${change !== null && html`<span>${reward(before.reward_mean)} → <b>${reward(after.reward_mean)}</b> (${signed(change)})</span>`}
      ${metricChanges(before, after).map(([name, from, to]) => html`<span key=${name} class="muted">${name} ${number(from)} → ${number(to)}</span>`)}
      ${before.purpose !== after.purpose && html`<span class="warn">training beside evaluation: they are sampled differently</span>`}
      <span class="stepper">${earlier && html`<a class="button quiet" data-prev href=${earlier} title="Earlier step on the right ( [ )">‹ earlier</a>`}${later && html`<a class="button quiet" data-next href=${later} title="Later step on the right ( ] )">later ›</a>`}</span></div>
    <div class="two-columns before-after">
      <${Side} label="Before" ...${{ steps, item: before, rollout: route.query.ra }} onStep=${(key) => setQuery({ a: key, ra: "" })} onRollout=${(id) => setQuery({ ra: id })} />
      <${Side} label="After" ...${{ steps, item: after, rollout: route.query.rb }} onStep=${(key) => setQuery({ b: key, rb: "" })} onRollout=${(id) => setQuery({ rb: id })} />
    </div>`;
}

/** The first and the newest step of one purpose: of the one that has more steps, training where both have as many. */
function ends(steps) {
  const [train, evaluate] = ["train", "evaluate"].map((purpose) => steps.filter((item) => item.purpose === purpose));
  const compared = evaluate.length > train.length ? evaluate : train;
  return [compared[0], compared.at(-1)];
}

/** `[name, before, after]` for the program's metrics that both have. */
function metricChanges(before, after) {
  const means = (item) => {
    const found = {};
    for (const { metrics } of item.rollouts) for (const [name, value] of Object.entries(metrics)) (found[name] ??= []).push(value);
    return Object.fromEntries(Object.entries(found).map(([name, values]) => [name, values.reduce((sum, value) => sum + value, 0) / values.length]));
  };
  const [one, other] = [means(before), means(after)];
  return Object.keys(one).filter((name) => name in other).sort().map((name) => [name, one[name], other[name]]);
}

function Rewards({ steps }) {
  const lines = useMemo(
    () => [["train", "training", "c1"], ["evaluate", "evaluation", "c2"]].map(([purpose, label, colour]) => ({ label, colour, series: series(steps.filter((item) => item.purpose === purpose)) })).filter((line) => line.series.step.length > 0),
    [steps],
  );
  if (lines.length === 0) return null;
  const now = lines.map((line) => html`<span key=${line.label} class="inline"><span class=${`swatch k${line.colour.slice(1)}`}></span><span class="muted small">${line.label}</span>${reward(line.series.value.at(-1))}</span>`);
  return html`<${Chart} info=${INFO} lines=${lines} now=${html`<span class="chart-nows">${now}</span>`} />`;
}

function series(items) {
  const known = items.filter((item) => item.reward_mean !== null && item.reward_mean !== undefined);
  const rewards = (item) => item.rollouts.map((rollout) => rollout.reward).filter((value) => value !== null && value !== undefined);
  return {
    step: known.map((item) => item.step),
    time: known.map((item) => item.rollouts[0]?.created_at ?? 0),
    value: known.map((item) => item.reward_mean),
    low: known.map((item) => Math.min(item.reward_mean, ...rewards(item))),
    high: known.map((item) => Math.max(item.reward_mean, ...rewards(item))),
  };
}

/** One step's rollouts, and the messages of one of them. */
function Side({ label, steps, item, rollout: wanted, onStep, onRollout }) {
  const sorted = useMemo(() => [...item.rollouts].sort((one, other) => (other.reward ?? -Infinity) - (one.reward ?? -Infinity)), [item]);
  const shown = sorted.find((row) => row.rollout_id === wanted) ?? sorted[0];
  const detail = useResource(shown ? path("views/rollouts", shown.rollout_id) : null, {}, { keep: false });
  return html`<section class="panel side" aria-label=${label} data-testid=${`side-${label.toLowerCase()}`}>
    <div class="section-head"><label class="inline"><b>${label}</b>
        <select value=${keyOf(item)} onChange=${(event) => onStep(event.target.value)}>${steps.map((one) => html`<option key=${keyOf(one)} value=${keyOf(one)} selected=${one === item}>${labelOf(one)}</option>`)}</select></label>
      <span class="muted">mean ${reward(item.reward_mean)} over ${of(item.rollouts.length, "rollout")}</span></div>
    <p class="members" role="group" aria-label="Rollouts of this step">${sorted.map((row) => html`<button type="button" key=${row.rollout_id} class="chip" aria-pressed=${row === shown} title=${row.rollout_id} onClick=${() => onRollout(row.rollout_id)}>${reward(row.reward)}</button>`)}</p>
    ${shown && html`<p class="small inline side-facts"><a href=${rolloutHref(shown, { scenario: shown.scenario_id, sort: "created_at" })} data-row>rollout <span class="mono">${shortId(shown.rollout_id)}</span></a><${Status} of=${shown.status} />
      <span class="muted">${of(shown.sampled_tokens, "token")} · ${duration(shown.seconds)} · ${of(shown.tool_errors, "tool error")}</span></p>
      <${Resource} of=${detail} what="its messages">${(data) => html`<${Messages} data=${data} />`}<//>`}
  </section>`;
}

function Messages({ data }) {
  const messages = useMemo(() => {
    const call = lastCall(data.calls);
    return call === null ? [] : conversation(pathThrough(treeOf(data.calls), call));
  }, [data]);
  const withheld = data.calls.find((call) => call.withheld)?.withheld;
  return html`${withheld && html`<p class="withheld">Its text is not shown: ${withheld}.</p>`}
    ${messages.length === 0 && html`<p class="state">The agent did not call the model.</p>`}
    ${messages.map((message, index) => html`<${Message} key=${index} index=${index} message=${message} fold=${FOLD} />`)}`;
}
