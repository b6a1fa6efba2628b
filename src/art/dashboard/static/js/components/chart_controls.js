// What holds for all charts of a view, kept in the address: the axis, smoothing, further figures.

import { html } from "../lib.js";
import { infoOf, useMetricList } from "../metrics.js";
import { setQuery } from "../router.js";

export const MAX_SMOOTHING = 0.95;

/** `{axis, smoothing}` of the address. */
export function chartState(query) {
  const smoothing = Number(query.smooth);
  return {
    axis: query.axis === "time" ? "time" : "step",
    smoothing: smoothing > 0 && smoothing <= MAX_SMOOTHING ? smoothing : 0,
  };
}

export function Segmented({ label, choices, value, onChoose }) {
  return html`<span class="segmented" role="group" aria-label=${label}>${choices.map(([key, text]) => html`<button type="button" key=${key} aria-pressed=${value === key} onClick=${() => onChoose(key)}>${text}</button>`)}</span>`;
}

export function ChartControls({ axis, smoothing, more, onMore }) {
  const known = useMetricList();
  return html`<div class="toolbar">
    <${Segmented} label="Axis" value=${axis} choices=${[["step", "Step"], ["time", "Time"]]} onChoose=${(next) => setQuery({ axis: next === "step" ? "" : next })} />
    <label class="inline">Smoothing <input type="range" min="0" max=${MAX_SMOOTHING} step="0.05" value=${smoothing} aria-valuetext=${smoothing ? smoothing.toFixed(2) : "off"}
      onInput=${(event) => setQuery({ smooth: Number(event.target.value) || "" })} /> <span class="muted smooth-value">${smoothing ? smoothing.toFixed(2) : "off"}</span></label>
    ${more.length > 0 && html`<select aria-label="Add a chart" value="" onChange=${(event) => event.target.value && onMore(event.target.value)}>
      <option value="">Add a chart …</option>
      ${titled(more, known).map(([title, names]) => html`<optgroup key=${title} label=${title}>${names.map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}</optgroup>`)}
    </select>`}
  </div>`;
}

/** Sections in the server's order, with their titles, and their figures by what they are called: `[[title, [[name, label], ...]], ...]`. */
function titled(more, { metrics, sections }) {
  const order = Object.keys(sections);
  const place = ([section]) => (order.includes(section) ? order.indexOf(section) : order.length);
  return [...more].sort((a, b) => place(a) - place(b)).map(([section, names]) => [
    sections[section] ?? section,
    names.map((name) => [name, `${infoOf(metrics, name).title} · ${name}`]).sort((a, b) => a[1].localeCompare(b[1])),
  ]);
}
