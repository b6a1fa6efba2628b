// The same prompt to two versions of a model, side by side.

import { path } from "../api.js";
import { Empty, ErrorBox, Loading } from "../components/index.js";
import { count, duration, number } from "../format.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { ofRun, useResource } from "../resource.js";
import { useRights } from "../rights.js";
import { setQuery } from "../router.js";
import { sample } from "../sample.js";

const MAX_TOKENS = 4096;
const SIDES = ["a", "b"];

export function View({ route }) {
  const rights = useRights();
  if (rights.key?.read_only) return html`<${Empty} title="Nothing can be sampled here"><p>${rights.refusal("infer")} <code>art serve --path FOLDER</code> starts one.</p><//>`;
  return html`<${Versions} route=${route} />`;
}

function Versions({ route }) {
  const { project, name } = route.params;
  const live = ofRun(project, name, "checkpoint");
  const model = useResource(path("models", project, name), {}, { live });
  const list = useResource(`${path("models", project, name)}/checkpoints`, {}, { live });
  const error = model.error ?? list.error;
  if (error) return html`<${ErrorBox} error=${error} retry=${() => { model.reload(); list.reload(); }} />`;
  if (!model.data || !list.data) return html`<${Loading} what="versions" />`;
  const steps = [...new Set([...list.data.checkpoints.map((one) => one.step), model.data.step])].sort((a, b) => b - a);
  return html`<${Bench} route=${route} steps=${steps} latest=${model.data.step} />`;
}

/** The step of a side: what the address says, else the latest on the left and the oldest on the right. */
function stepOf(side, query, steps, latest) {
  const asked = Number(query[side]);
  if (query[side] !== undefined && steps.includes(asked)) return asked;
  return side === "a" ? latest : steps[steps.length - 1];
}

function Bench({ route, steps, latest }) {
  const { project, name } = route.params;
  const rights = useRights();
  const refusal = rights.refusal("infer");
  const [prompt, setPrompt] = useState({ system: "", user: "", temperature: 1, maxTokens: 256 });
  const [runs, setRuns] = useState({ a: null, b: null });
  const control = useRef(null);
  useEffect(() => () => control.current?.abort(), []);
  const busy = SIDES.some((side) => runs[side]?.busy);
  const set = (changes) => setPrompt((old) => ({ ...old, ...changes }));

  const start = (event) => {
    event.preventDefault();
    if (busy || refusal || !prompt.user.trim()) return;
    const mine = (control.current = new AbortController());
    const messages = [...(prompt.system.trim() ? [{ role: "system", content: prompt.system }] : []), { role: "user", content: prompt.user }];
    const seed = Math.floor(Math.random() * 2 ** 31); // the same for both, so that the versions alone differ
    for (const side of SIDES) {
      const step = stepOf(side, route.query, steps, latest);
      const put = (changes) => setRuns((old) => ({ ...old, [side]: { ...old[side], ...changes } }));
      put({ step, busy: true, answer: null, error: null });
      sample({ model: `${project}/${name}@${step}`, messages, temperature: prompt.temperature, maxTokens: prompt.maxTokens, seed, signal: mine.signal }, (answer) => put({ answer })).then(
        () => put({ busy: false }),
        (error) => put({ busy: false, error: error.name === "AbortError" ? null : error, stopped: error.name === "AbortError" }),
      );
    }
  };
  const submitKey = (event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && start(event);
  return html`<form class="try" onSubmit=${start} onKeyDown=${submitKey}>
      <label for="try-system">System <span class="muted">(may be empty)</span></label>
      <textarea id="try-system" rows="2" value=${prompt.system} onInput=${(event) => set({ system: event.target.value })}></textarea>
      <label for="try-user">Prompt</label>
      <textarea id="try-user" data-filter rows="4" required value=${prompt.user} onInput=${(event) => set({ user: event.target.value })}></textarea>
      <div class="toolbar">
        <label class="inline">Temperature <input type="number" min="0" max="2" step="0.1" value=${prompt.temperature} onInput=${(event) => set({ temperature: Number(event.target.value) })} /></label>
        <label class="inline">At most <input type="number" min="1" max=${MAX_TOKENS} step="1" value=${prompt.maxTokens} onInput=${(event) => set({ maxTokens: Number(event.target.value) })} /> tokens</label>
        ${busy ? html`<button type="button" class="button" onClick=${() => control.current.abort()}>Stop</button>`
          : html`<button type="submit" class="button primary" disabled=${Boolean(refusal)} title=${refusal || "Ctrl+Enter"} aria-describedby=${refusal ? "try-refusal" : undefined}>Ask both</button>`}
        <span class="muted" id="try-refusal">${refusal || "Both get the same seed. The calls are recorded, and never trained."}</span>
      </div>
    </form>
    <div class="sides">${SIDES.map((side) => html`<${Side} key=${side} ...${{ side, steps, latest }} step=${stepOf(side, route.query, steps, latest)} run=${runs[side]} />`)}</div>`;
}

function Side({ side, steps, latest, step, run }) {
  const answer = run?.answer;
  const title = side === "a" ? "Left" : "Right";
  return html`<section class="panel side" aria-label=${`${title} version`} data-testid=${`side-${side}`}>
    <div class="section-head"><label class="inline">Version <select value=${step} onChange=${(event) => setQuery({ [side]: event.target.value })}>
      ${steps.map((one) => html`<option key=${one} value=${one}>step ${one}${one === latest ? " (latest)" : ""}</option>`)}</select></label>
      ${answer && html`<span class="muted">${told(answer, run)}</span>`}</div>
    <${ErrorBox} error=${run?.error} />
    ${run && run.step !== step && html`<p class="muted">This is of step ${run.step}; ask again for step ${step}.</p>`}
    ${answer?.reasoning && html`<details open><summary class="muted">Reasoning</summary><pre class="answer muted">${answer.reasoning}</pre></details>`}
    <pre class="answer" aria-live="polite" aria-busy=${Boolean(run?.busy)}>${answer?.text ?? ""}${run?.busy && html`<span class="caret" aria-hidden="true">▍</span>`}</pre>
    ${answer?.calls.map((call, index) => html`<pre key=${index} class="answer">${call.name}(${call.arguments})</pre>`)}
    ${!run && html`<p class="muted">Its answer appears here, as it is sampled.</p>`}
  </section>`;
}

function told(answer, run) {
  const rate = answer.first !== null && answer.seconds > answer.first ? `, ${number(answer.tokens / (answer.seconds - answer.first))} tokens/s` : "";
  const end = run.stopped ? "stopped" : answer.finish && `ended: ${answer.finish}`;
  return [`${count(answer.tokens)} tokens in ${duration(answer.seconds)}${rate}`, end].filter(Boolean).join(" · ");
}
