// One row of the tree of checkpoints, drawn beside its line of the table.

import { html } from "../lib.js";

const STEP = 16; // px between lanes
const HEIGHT = 36;
const MIDDLE = HEIGHT / 2;

const x = (lane) => lane * STEP + STEP / 2;

export function LineageCell({ row, lanes, latest, label }) {
  const width = Math.max(1, lanes) * STEP;
  return html`<svg class="lineage" width=${width} height=${HEIGHT} viewBox=${`0 0 ${width} ${HEIGHT}`} role="img" aria-label=${label}>
    ${row.through.map((lane) => html`<path key=${`t${lane}`} d=${`M${x(lane)} -1V${HEIGHT + 1}`} />`)}
    ${row.from.map((lane) => html`<path key=${`f${lane}`} d=${`M${x(lane)} -1C${x(lane)} ${MIDDLE * 0.7} ${x(row.lane)} ${MIDDLE * 0.3} ${x(row.lane)} ${MIDDLE}`} />`)}
    ${row.to !== null && html`<path d=${`M${x(row.lane)} ${MIDDLE}V${HEIGHT + 1}`} />`}
    ${row.orphan && html`<path class="gone" d=${`M${x(row.lane)} ${MIDDLE}V${HEIGHT + 1}`} />`}
    <circle cx=${x(row.lane)} cy=${MIDDLE} r=${latest ? 5.5 : 4} class=${latest ? "latest" : ""} />
  </svg>`;
}
