// The settings a run has, and who set each of them.

import { CopyButton, Empty, ErrorBox, Loading } from "../components/index.js";
import { flattened, written } from "../configs.js";
import { html } from "../lib.js";
import { setQuery } from "../router.js";

export function View({ route, run, runError }) {
  if (runError && !run) return html`<${ErrorBox} error=${runError} />`;
  if (!run) return html`<${Loading} what="the settings" />`;
  const { run: resolved, ...model } = run.config;
  const q = (route.query.q ?? "").toLowerCase();
  const keep = ([name, value]) => `${name} ${written(value)}`.toLowerCase().includes(q);
  return html`<div class="toolbar">
      <input type="search" data-filter aria-label="Filter settings" placeholder="Filter settings ( / )" value=${route.query.q ?? ""} onInput=${(event) => setQuery({ q: event.target.value })} />
      <${CopyButton} label="Copy as JSON" text=${() => JSON.stringify(run.config, null, 2)} />
    </div>
    ${resolved && html`<${Part} title="Of its newest art run" rows=${flattened(resolved).filter(keep)} origin=${run.config_origin} />`}
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
