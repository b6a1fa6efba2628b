// The settings a run has, and who set each of them.

import { CopyButton, Empty, ErrorBox, Loading } from "../components/index.js";
import { flattened, written } from "../configs.js";
import { html } from "../lib.js";
import { setQuery } from "../router.js";

const CALL = "train_call.";

export function View({ route, run, runError }) {
  if (runError && !run) return html`<${ErrorBox} error=${runError} />`;
  if (!run) return html`<${Loading} what="the settings" />`;
  const { run: resolved, train_call: call, ...model } = run.config;
  const who = Object.fromEntries(Object.entries(run.config_origin).filter(([name]) => name.startsWith(CALL)).map(([name, by]) => [name.slice(CALL.length), by]));
  const given = ([name]) => who[name] !== "default";
  const options = flattened(call);
  const q = (route.query.q ?? "").toLowerCase();
  const keep = ([name, value]) => `${name} ${written(value)}`.toLowerCase().includes(q);
  return html`<div class="toolbar">
      <input type="search" data-filter aria-label="Filter settings" placeholder="Filter settings ( / )" value=${route.query.q ?? ""} onInput=${(event) => setQuery({ q: event.target.value })} />
      <${CopyButton} label="Copy as JSON" text=${() => JSON.stringify(run.config, null, 2)} />
    </div>
    ${!resolved && html`<p class="muted">Judge, reward and scenarios are the program's: it keeps them to itself, unless it is an <code>art run</code>, whose settings stand here too.</p>`}
    ${resolved && html`<${Part} title="Of its newest art run" rows=${flattened(resolved).filter(keep)} origin=${run.config_origin} />`}
    ${call && html`<${Part} title="Of its newest train call" rows=${[...options.filter(given), ...options.filter((option) => !given(option))].filter(keep)} origin=${who} />`}
    <${Part} title="Of the model" rows=${flattened(model).filter(keep)} />`;
}

function Part({ title, rows, origin }) {
  return html`<section aria-label=${title}><div class="section-head"><h2>${title}</h2></div>
    ${rows.length === 0 ? html`<${Empty} title="No setting" />` : html`<div class="table-box" tabindex="0" role="group" aria-label=${title}><table class="table">
      <thead><tr><th scope="col">Setting</th><th scope="col">Value</th>${origin && html`<th scope="col">Set by</th>`}</tr></thead>
      <tbody>${rows.map(([name, value]) => html`<tr key=${name}><td class="mono">${name}</td><td class="mono" data-label="Value">${written(value)}</td>
        ${origin && html`<td data-label="Set by" class=${origin[name] && origin[name] !== "default" ? "" : "muted"}>${origin[name] ?? ""}</td>`}</tr>`)}</tbody>
    </table></div>`}</section>`;
}
