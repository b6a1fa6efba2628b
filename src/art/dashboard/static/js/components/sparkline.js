// A line without axes, for a row of a table.

import { html } from "../lib.js";
import { reward } from "../format.js";

const WIDTH = 96;
const HEIGHT = 22;

export function Sparkline({ values, label }) {
  if (!values || values.length < 2) return html`<span class="muted">–</span>`;
  const low = Math.min(...values);
  const spread = Math.max(...values) - low || 1;
  const at = (value, index) =>
    `${((index / (values.length - 1)) * (WIDTH - 4) + 2).toFixed(1)},${(HEIGHT - 3 - ((value - low) / spread) * (HEIGHT - 6)).toFixed(1)}`;
  const [last] = values.slice(-1);
  const [x, y] = at(last, values.length - 1).split(",");
  const told = `${label}: from ${reward(values[0])} to ${reward(last)}, lowest ${reward(low)}, highest ${reward(low + (Math.max(...values) - low))}`;
  return html`<svg class="sparkline" width=${WIDTH} height=${HEIGHT} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${told}>
    <polyline points=${values.map(at).join(" ")} /><circle cx=${x} cy=${y} r="2" /></svg>`;
}
