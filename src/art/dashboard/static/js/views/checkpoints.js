// A model's published steps: which came from which, what they reached, which one is served; and making another one the latest.

import { api, path } from "../api.js";
import { LineageCell } from "../components/lineage.js";
import { Badge, Confirm, Empty, ErrorBox, Facts, Loading } from "../components/index.js";
import { ago, clock, count, number, reward, signed } from "../format.js";
import { html, useMemo, useState } from "../lib.js";
import { lanes, width } from "../lineage.js";
import { ofRun, useResource } from "../resource.js";
import { useRights } from "../rights.js";
import { href } from "../router.js";

const TRAINING = "train/reward";
const EVALUATION = "val/reward";

export function View({ route }) {
  const { project, name } = route.params;
  const live = ofRun(project, name, "checkpoint", "job", "step");
  const model = useResource(path("models", project, name), {}, { live });
  const list = useResource(`${path("models", project, name)}/checkpoints`, {}, { live });
  const measured = useResource(`${path("views/runs", project, name)}/series`, { metric: EVALUATION, max_points: 500 }, { live });
  const rights = useRights();
  const [asked, setAsked] = useState(null);
  const newest = useMemo(() => [...(list.data?.checkpoints ?? [])].sort((a, b) => b.step - a.step), [list.data]);
  const evaluated = useMemo(() => byStep(measured.data?.series[EVALUATION]), [measured.data]);
  const error = list.error ?? model.error;
  if (error && !list.data) return html`<${ErrorBox} error=${error} retry=${list.reload} />`;
  if (!list.data || !model.data) return html`<${Loading} what="checkpoints" />`;
  const reload = () => {
    list.reload();
    model.reload();
  };
  return html`<${ErrorBox} error=${error} retry=${reload} />
    <${About} model=${model.data} kept=${newest.length} />
    ${newest.length === 0 ? html`<${Empty} title="No step has been published yet"><p>Each train call that has a signal publishes one.</p><//>`
      : html`<${Tree} ...${{ newest, evaluated, route, latest: model.data.step, refusal: rights.refusal("train"), ask: rights.key?.read_only ? null : setAsked }} />`}
    ${asked !== null && html`<${Move} ...${{ project, name, from: model.data.step, to: asked, newest }} done=${reload} onClose=${() => setAsked(null)} />`}`;
}

function About({ model, kept }) {
  return html`<section aria-label="The model"><${Facts} facts=${[
    ["Latest", `step ${model.step}`, "What the bare name serves"],
    ["Batches", count(model.batch), "Train calls, also those that published nothing"],
    ["Kept", `${count(kept)} checkpoints`],
    ["Parameters", number(model.parameters)],
    ["Context", `${count(model.context_length)} tokens`],
    ["Base model", model.config.base_model.split("/").slice(-2).join("/"), model.config.base_model],
  ]} />${model.notes.length > 0 && html`<ul class="notes">${model.notes.map((note) => html`<li key=${note}>${note}</li>`)}</ul>`}</section>`;
}

/** An evaluation is logged after its step was published: it stands in the run's figures. */
function byStep(series) {
  return new Map((series?.step ?? []).map((step, index) => [step, series.value[index]]));
}

function Tree({ newest, evaluated, route, latest, refusal, ask }) {
  const rows = useMemo(() => lanes(newest), [newest]);
  const most = useMemo(() => width(rows), [rows]);
  return html`<section aria-label="Checkpoints">
    ${refusal && html`<p class="muted" id="no-right">${refusal}</p>`}
    <div class="table-box" tabindex="0" role="group" aria-label="Checkpoints"><table class="table checkpoints" data-testid="checkpoints-table">
    <thead><tr><th scope="col">Step</th><th scope="col">Trained from</th><th scope="col" class="num">Reward</th><th scope="col" class="num">Evaluation</th><th scope="col" class="num">Published</th><th scope="col">State</th><th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
    <tbody>${newest.map((one, index) => html`<${Line} key=${one.step} ...${{ one, evaluation: evaluated.get(one.step), row: rows[index], lanes: most, route, latest, refusal, ask }} />`)}</tbody>
  </table></div></section>`;
}

function Line({ one, evaluation, row, lanes: most, route, latest, refusal, ask }) {
  const training = one.metrics[TRAINING];
  const parent = one.parent_step;
  const from = parent === null || parent === undefined ? "the beginning" : `step ${parent}${row.orphan ? ", deleted" : ""}`;
  const isLatest = one.step === latest;
  return html`<tr class=${isLatest ? "is-marked" : ""}>
    <td><span class="inline"><${LineageCell} row=${row} lanes=${most} latest=${isLatest} label=${`step ${one.step}, from ${from}`} /><a class="row-link" data-row href=${href("try", route.params, { a: one.step, b: isLatest ? "" : latest })}>step ${one.step}</a></span></td>
    <td data-label="Trained from">${from}</td>
    <td class="num" data-label="Reward">${reward(training)}</td>
    <td class="num" data-label="Evaluation">${reward(evaluation)}</td>
    <td class="num" data-label="Published"><time title=${clock(one.created_at)}>${ago(one.created_at)}</time></td>
    <td data-label="State"><span class="badges">${isLatest && html`<${Badge} kind="info" title="The bare name serves it">latest<//>`}${one.leased && html`<${Badge} kind="ok" title="Open rollouts, running calls or a job use it: it is not deleted">in use<//>`}</span></td>
    <td class="num">${!isLatest && ask && html`<button type="button" class="button" disabled=${Boolean(refusal)} aria-describedby=${refusal ? "no-right" : undefined} title=${refusal || undefined} onClick=${() => ask(one.step)}>${one.step < latest ? "Roll back" : "Promote"} …</button>`}</td>
  </tr>`;
}

/** Says what will be different, then does it. */
function Move({ project, name, from, to, newest, done, onClose }) {
  const back = to < from;
  const of = (step) => newest.find((one) => one.step === step)?.metrics[TRAINING];
  const [now, then] = [of(from), of(to)];
  const change = now !== undefined && then !== undefined ? then - now : null;
  const act = async () => {
    await api.post(`${path("models", project, name)}/rollback`, { step: to });
    done();
  };
  return html`<${Confirm} title=${back ? `Roll back to step ${to}?` : `Promote step ${to}?`} verb=${back ? `Roll back to step ${to}` : `Promote step ${to}`} danger=${back} act=${act} onClose=${onClose} testid="move-dialog">
    <p><code>${project}/${name}</code> serves step ${from} now. From the next call on it will serve <b>step ${to}</b>; calls and rollouts that run keep their step.</p>
    <p>Training goes on from step ${to}: the next step that is published is numbered after the highest there is. Nothing is deleted, so this can be undone here.</p>
    ${change !== null && html`<p>Training reward: ${reward(now)} at step ${from}, ${reward(then)} at step ${to} (<span class=${change < 0 ? "bad" : "good"}>${signed(change)}</span>).</p>`}
    <p class="muted">It is refused while a training job of the model is open.</p>
  <//>`;
}
