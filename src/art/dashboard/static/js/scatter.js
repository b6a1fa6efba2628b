// A cloud of rollouts as SVG: each point opens its trajectory, by the pointer or by the arrow keys and Enter.

import { html, useEffect, useMemo, useRef, useState } from "./lib.js";
import { number } from "./format.js";
import { ages, line } from "./statistics.js";

const HEIGHT = 260;
const PAD = { left: 52, right: 14, top: 10, bottom: 40 };
const NEAR = 14; // px within which the pointer means a point
const AGES = ["early steps", "middle", "late steps"];
const SHAPES = ["M0-4A4 4 0 1 0 0 4A4 4 0 1 0 0-4Z", "M-3.5-3.5H3.5V3.5H-3.5Z", "M0-4.6L4.4 3.4H-4.4Z"];

/** Round numbers between two bounds, about `wanted` of them. */
export function ticks(low, high, wanted = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

/** Whole numbers stand on top of one another: they are spread a little, always the same way. */
function spread(values) {
  return values.map((value, i) => value + ((((i * 2654435761) % 1000) / 1000) - 0.5) * 0.5);
}

/**
 * `x` and `y` as columns, `steps` for the colours. `told(i)` says what a point is, `open(i)` opens it. `whole`: x counts
 * something small.
 */
export function Scatter({ x, y, steps, xLabel, yLabel, told, open, trend = false, whole = false, label }) {
  const box = useRef(null);
  const [width, setWidth] = useState(480);
  const [at, setAt] = useState(null);
  useEffect(() => {
    const watcher = new ResizeObserver(([entry]) => setWidth(Math.max(240, Math.floor(entry.contentRect.width))));
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  const plot = useMemo(() => layOut({ x: whole ? spread(x) : x, y, steps, width, whole }), [x, y, steps, width, whole]);
  const nearest = (event, within = NEAR) => {
    const frame = event.currentTarget.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    let best = null;
    for (let i = 0; i < plot.px.length; i += 1) {
      const away = Math.hypot(plot.px[i] - px, plot.py[i] - py);
      if (away <= within && (best === null || away < best.away)) best = { i, away };
    }
    return best?.i ?? null;
  };
  const pressed = (event) => {
    const order = plot.order;
    const here = at === null ? -1 : order.indexOf(at);
    const to = { ArrowRight: here + 1, ArrowUp: here + 1, ArrowLeft: here - 1, ArrowDown: here - 1, Home: 0, End: order.length - 1 }[event.key];
    if (to !== undefined) setAt(order[Math.max(0, Math.min(order.length - 1, to))] ?? null);
    else if (event.key === "Enter" && at !== null) open(at);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const fit = trend && line(x, y);
  return html`<figure class="scatter" data-testid="extremes-scatter">
    <div ref=${box}><svg width=${width} height=${HEIGHT} viewBox=${`0 0 ${width} ${HEIGHT}`} tabindex="0" role="img" aria-label=${`${label}. A click opens a point; arrow keys read them, Enter opens one.`}
        onMouseMove=${(event) => setAt(nearest(event) ?? at)} onClick=${(event) => { const i = nearest(event, 2 * NEAR); if (i !== null) open(i); }} onKeyDown=${pressed} class=${at === null ? "" : "on-point"}>
      ${plot.yTicks.map(([value, py]) => html`<g key=${`y${value}`}><line class="grid" x1=${PAD.left} x2=${width - PAD.right} y1=${py} y2=${py} /><text class="tick" x=${PAD.left - 6} y=${py + 4} text-anchor="end">${number(value)}</text></g>`)}
      ${plot.xTicks.map(([value, px]) => html`<g key=${`x${value}`}><line class="grid" x1=${px} x2=${px} y1=${PAD.top} y2=${HEIGHT - PAD.bottom} /><text class="tick" x=${px} y=${HEIGHT - PAD.bottom + 16} text-anchor="middle">${number(value)}</text></g>`)}
      <text class="axis" x=${width - PAD.right} y=${HEIGHT - 6} text-anchor="end">${xLabel} →</text>
      <text class="axis" x="4" y=${HEIGHT - 6}>↑ ${yLabel}</text>
      <${Marks} plot=${plot} />
      ${fit && html`<line class="trend" x1=${plot.toX(plot.xLow)} y1=${plot.toY(plot.clampY(fit.slope * plot.xLow + fit.offset))} x2=${plot.toX(plot.xHigh)} y2=${plot.toY(plot.clampY(fit.slope * plot.xHigh + fit.offset))} />`}
      ${at !== null && html`<circle class="pointed" cx=${plot.px[at]} cy=${plot.py[at]} r="7" />`}
    </svg></div>
    <figcaption><p class="scatter-read" aria-live="polite">${at === null ? html`<span class="muted">Point at a rollout, or go through them with the arrow keys; a click or Enter opens it</span>` : html`${told(at)} <button type="button" class="button quiet" onClick=${() => open(at)}>Open</button>`}</p>
      <p class="legend small">${AGES.map((name, age) => html`<span class="inline" key=${name}><svg width="12" height="12" viewBox="-6 -6 12 12" aria-hidden="true"><path d=${SHAPES[age]} class=${`age${age}`} /></svg>${name}</span>`)}${fit && html`<span class="inline"><svg width="20" height="12" aria-hidden="true"><line class="trend" x1="0" x2="20" y1="6" y2="6" /></svg>line that fits best</span>`}</p></figcaption>
  </figure>`;
}

/** Drawn anew only when the plot changes, not with every move of the pointer. */
function Marks({ plot }) {
  return useMemo(
    () => plot.px.map((px, i) => html`<path key=${i} class=${`point age${plot.age[i]}`} d=${SHAPES[plot.age[i]]} transform=${`translate(${px.toFixed(1)} ${plot.py[i].toFixed(1)})`} data-index=${i} />`),
    [plot],
  );
}

function layOut({ x, y, steps, width, whole }) {
  const range = (values) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const margin = (high - low || Math.abs(high) || 1) * 0.05;
    return [low - margin, high + margin];
  };
  const [[xLow, xHigh], [yLow, yHigh]] = [range(x), range(y)];
  const toX = (value) => PAD.left + ((value - xLow) / (xHigh - xLow)) * (width - PAD.left - PAD.right);
  const toY = (value) => HEIGHT - PAD.bottom - ((value - yLow) / (yHigh - yLow)) * (HEIGHT - PAD.top - PAD.bottom);
  return {
    toX, toY, xLow, xHigh, clampY: (value) => Math.max(yLow, Math.min(yHigh, value)),
    px: x.map(toX), py: y.map(toY), age: ages(steps), order: x.map((_, i) => i).sort((a, b) => x[a] - x[b] || y[a] - y[b]),
    xTicks: ticks(xLow, xHigh, width < 400 ? 4 : 6).filter((value) => !whole || Number.isInteger(value)).map((value) => [value, toX(value)]),
    yTicks: ticks(yLow, yHigh).map((value) => [value, toY(value)]),
  };
}
