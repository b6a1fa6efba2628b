// The newest best and worst rollouts, and what reward goes with: length, tool errors, the program's metrics. Where a reward pays for the wrong
// thing, it shows here first.

import { path } from "../api.js";
import { Badge, Empty, Resource, Table } from "../components/index.js";
import { count, number, of, reward, signed } from "../format.js";
import { html, useMemo } from "../lib.js";
import { ofRun, useResource } from "../resource.js";
import { linkTitle, notesOf, RewardWarnings, useRewardCheck, warningsOf } from "../reward_check.js";
import { rolloutColumns, rolloutHref, shortId } from "../rollout_columns.js";
import { goTo, setQuery } from "../router.js";
import { Scatter } from "../scatter.js";
import { drift, strength, withinSteps } from "../statistics.js";

const LIMIT = 20;
const CLEAR = 0.4; // |r| from which a correlation is worth a person's time
const COLUMNS = rolloutColumns("id", "reward", "step", "tokens", "errors", "preview");
const SPLITS = [["train", "Training"], ["evaluate", "Evaluation"]];

export function View({ route }) {
  const { project, name } = route.params;
  const { split = "train" } = route.query;
  const detail = useResource(path("views/runs", project, name, "extremes"), { limit: LIMIT, split }, { live: ofRun(project, name, "rollout", "step") });
  const check = useRewardCheck(project, name);
  return html`<div class="toolbar"><h2>Reward check</h2>
      <span class="segmented" role="group" aria-label="Rollouts of">${SPLITS.map(([key, label]) => html`<button type="button" key=${key} aria-pressed=${split === key} onClick=${() => setQuery({ split: key === "train" ? "" : key })}>${label}</button>`)}</span></div>
    ${warningsOf(check).length > 0 && html`<section class="warnings check-warnings" aria-label="Warnings" data-testid="reward-warnings"><ul><${RewardWarnings} check=${check} /></ul></section>`}
    ${notesOf(check).map((one) => html`<p key=${one.name} class="reading muted">${one.message} ${one.detail}</p>`)}
    <${Resource} of=${detail} what="rewards">${(data) => html`<${Extremes} ...${{ data, route, split }} />`}<//>`;
}

function Extremes({ data, route, split }) {
  const { best, worst, points } = data;
  if (best.length === 0 && worst.length === 0) {
    return html`<${Empty} title=${split === "train" ? "No rollout of this run has a reward yet" : "Nothing was evaluated yet"}><p>Rewards come with the end of a rollout, or later.</p><//>`;
  }
  return html`<${Clouds} ...${{ data, points, route }} />
    <div class="two-columns">
      <section><h3>Newest best</h3><${List} rows=${best} label="Newest best rollouts" sort=${{ sort: "reward", order: "desc" }} /></section>
      <section><h3 title="One rollout stands for a group whose rewards are all equal">Newest worst</h3><${List} rows=${worst} label="Newest worst rollouts" sort=${{ sort: "reward", order: "asc" }} /></section>
    </div>`;
}

function List({ rows, label, sort }) {
  return html`<${Table} label=${label} columns=${COLUMNS} rows=${rows} rowKey=${(row) => row.rollout_id} link=${(row) => rolloutHref(row, sort)} />`;
}

function Clouds({ data, points, route }) {
  const { project, name } = route.params;
  const ids = points.rollout_id;
  const open = (i) => goTo(rolloutHref({ project, model: name, rollout_id: ids[i] }));
  const told = (i) => html`<b>${reward(points.reward[i])}</b> reward, ${of(points.sampled_tokens[i], "token")}, ${of(points.tool_errors[i], "tool error")}, step ${count(points.step[i])}, rollout <span class="mono">${shortId(ids[i])}</span>`;
  const within = useMemo(() => withinSteps(points.step, points.sampled_tokens, points.reward), [points]);
  if (ids.length === 0) return null;
  const shared = { y: points.reward, steps: points.step, yLabel: "reward", told, open };
  const { links, correlation_tokens: tokens, correlation_tool_errors: errors } = data;
  const metrics = links.filter((link) => link.name.startsWith("metrics."));
  return html`<div class="two-columns clouds">
    <section class="panel"><div class="section-head"><h3>Reward against length</h3><${Correlation} r=${tokens} warn=${tokens >= CLEAR} /></div>
      <${Length} r=${tokens} within=${within} points=${points} />
      <${Scatter} ...${shared} x=${points.sampled_tokens} xLabel="sampled tokens" trend=${Math.abs(tokens ?? 0) >= CLEAR} label=${`Reward against sampled tokens of ${of(ids.length, "rollout")}, correlation ${figure(tokens)}`} /></section>
    <section class="panel"><div class="section-head"><h3>Reward against tool errors</h3><${Correlation} r=${errors} warn=${errors >= CLEAR / 2} /></div>
      <${Errors} r=${errors} />
      <${Scatter} ...${shared} x=${points.tool_errors} whole xLabel="tool errors" trend=${Math.abs(errors ?? 0) >= CLEAR} label=${`Reward against tool errors of ${of(ids.length, "rollout")}, correlation ${figure(errors)}`} /></section>
    ${metrics.map((link) => html`<${OfMetric} key=${link.name} ...${{ link, points, told, open }} />`)}
  </div>`;
}

/** The reward against a metric of the program. Rollouts that lack it are not in the cloud. */
function OfMetric({ link, points, told, open }) {
  const name = linkTitle(link.name);
  const { places, x, y, steps } = useMemo(() => {
    const values = points.metrics[name] ?? [];
    const known = values.map((_, i) => i).filter((i) => values[i] !== null);
    return { places: known, x: known.map((i) => values[i]), y: known.map((i) => points.reward[i]), steps: known.map((i) => points.step[i]) };
  }, [points, name]);
  if (places.length === 0) return null;
  const few = new Set(x).size <= 12 && x.every(Number.isInteger);
  return html`<section class="panel" data-testid="cloud-metric"><div class="section-head"><h3>Reward against ${name}</h3><${Correlation} r=${link.r} /></div>
    <${OwnMetric} name=${name} link=${link} x=${x} y=${y} steps=${steps} />
    <${Scatter} ...${{ x, y, steps }} whole=${few} xLabel=${name} yLabel="reward" trend=${Math.abs(link.r ?? 0) >= CLEAR} told=${(i) => html`${told(places[i])}, ${name} ${number(x[i])}`} open=${(i) => open(places[i])}
      label=${`Reward against ${name} of ${of(places.length, "rollout")}, correlation ${figure(link.r)}`} /></section>`;
}

function OwnMetric({ name, link, x, y, steps }) {
  const changes = drift(steps, x, y);
  const said = Math.abs(link.r ?? 0) >= CLEAR
    ? html`Reward ${link.r > 0 ? "rises" : "falls"} with ${name}.`
    : x.every((value) => value >= 0 && value <= 1)
      ? html`<b>Reward and ${name} hardly go together.</b> If ${name} is what the task is about, they should.`
      : html`Reward and ${name} hardly go together.`;
  return html`<p class="reading">${said}${link.within !== null && html` Within single steps r = ${signed(link.within, 2)}.`}${changes && html` From the first third of the steps to the last, ${name} went from ${number(changes[0].from)} to ${number(changes[0].to)}, the reward from ${reward(changes[1].from)} to ${reward(changes[1].to)}.`}</p>`;
}

const figure = (r) => (r === null || r === undefined ? "not defined" : signed(r, 2));

function Correlation({ r, warn }) {
  if (r === null || r === undefined) return html`<span class="muted small">no correlation: one of the two does not vary</span>`;
  return html`<${Badge} kind=${warn ? "warn" : ""} title="Pearson's correlation over the points, from −1 to +1">r = ${signed(r, 2)}, ${strength(r)}<//>`;
}

function Length({ r, within, points }) {
  if (r === null || r === undefined) return null;
  const changes = drift(points.step, points.sampled_tokens, points.reward);
  const over = changes && html` From the first third of the steps to the last, the mean length went from ${number(changes[0].from)} to ${number(changes[0].to)} tokens and the mean reward from ${reward(changes[1].from)} to ${reward(changes[1].to)}.`;
  const inside = within !== null && html` Within single steps r = ${signed(within, 2)}.`;
  const said = r >= CLEAR
    ? html`<b>Longer rollouts earn more.</b> If the task does not ask for length, the reward may pay for length itself: read the best ones below and see whether they are more right, or only longer. Usual causes are a judge that likes long answers, a check that counts words, and a reward given for every turn.`
    : r <= -CLEAR
      ? html`<b>Shorter rollouts earn more.</b> That can be what the task wants. It can also be a penalty that outweighs the task, answers cut off at the token limit, or giving up early: read the shortest of the best below.`
      : html`Length and reward hardly go together, which is what a reward for the task itself usually looks like.`;
  return html`<p class="reading" data-testid="reading-length">${said}${inside}${over}</p>`;
}

function Errors({ r }) {
  if (r === null || r === undefined) return html`<p class="reading">Either no tool failed, or all rewards are the same.</p>`;
  const said = r >= CLEAR / 2
    ? html`<b>Rollouts with more tool errors earn more.</b> The reward may count calls whether they work or not, or take an error's text for an answer: open the points on the upper right.`
    : r <= -CLEAR / 2
      ? html`Rollouts with more tool errors earn less, as one would wish.`
      : html`Tool errors and reward hardly go together. If an error should cost reward, it does not.`;
  return html`<p class="reading">${said}</p>`;
}
