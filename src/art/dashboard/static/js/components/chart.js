// A chart with its name, unit, one-line meaning, newest figure, read-out and the same figures as a table.

import { clock, duration, figure, number, unitLabel } from "../format.js";
import { cls, html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { draw, shaded } from "../plot.js";
import { aligned, smoothed, xs } from "../series.js";

const TABLE_ROWS = 200; // more are no use to a reader; the newest are shown

/** A line's columns, in the order in which plot.js expects them: low, high, raw, read. */
function prepared(line, axis, smoothing) {
  const { series } = line;
  const values = smoothed(series.value, smoothing);
  const columns = [];
  if (series.low && series.high) columns.push(series.low, series.high);
  if (smoothing > 0) columns.push(series.value);
  columns.push(values);
  return { x: xs(series, axis, line.start), columns };
}

/**
 * `info` is a MetricInfo; `lines` are `{label, colour: "c1", series: Series, start, dash}`; `extra` are lines' own words after the
 * figure. `warning`: the newest value is past its band. `sync` names the charts whose pointers move together.
 */
export function Chart({ info, lines, axis = "step", smoothing = 0, sync, warning = false, now, zero = false, actions }) {
  const [at, setAt] = useState(null);
  const [theme, setTheme] = useState(0);
  const [open, setOpen] = useState(false);
  const element = useRef(null);
  const drawing = useRef(null);
  const data = useMemo(() => aligned(lines.map((line) => prepared(line, axis, smoothing))), [lines, axis, smoothing]);

  useEffect(() => {
    const again = () => setTheme((count) => count + 1);
    const system = matchMedia("(prefers-color-scheme: dark)");
    window.addEventListener("art-theme", again);
    system.addEventListener("change", again);
    return () => {
      window.removeEventListener("art-theme", again);
      system.removeEventListener("change", again);
    };
  }, []);
  useEffect(() => {
    const drawn = lines.map((line) => ({
      colour: line.colour, dash: line.dash, band: Boolean(line.series.low && line.series.high), raw: smoothing > 0, points: line.series.value.length,
    }));
    drawing.current = draw(element.current, {
      data, lines: drawn, axis, unit: info.unit, warnAbove: info.warn_above, warnBelow: info.warn_below, sync, onRead: setAt, zero,
    });
    return () => drawing.current.destroy();
  }, [data, theme, info.unit, info.warn_above, info.warn_below]);

  const pressed = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    drawing.current.move(by);
  };
  const unit = unitLabel(info.unit);
  const { above, below } = shaded(data, { warnAbove: info.warn_above, warnBelow: info.warn_below, zero });
  const bounds = [above !== null && `above ${figure(above, info.unit)}`, below !== null && `below ${figure(below, info.unit)}`].filter(Boolean).join(" and ");
  return html`<figure class=${cls("chart", warning && "has-warning")} data-testid="chart" data-metric=${info.name}>
    <div class="chart-head"><h2 class="chart-title">${info.title}${unit && html` <span class="chart-unit">${unit}</span>`}</h2>
      <span class="inline"><span class="chart-now">${now}</span>${actions}</span></div>
    <p class="chart-meaning">${info.meaning}${bounds && html` <span class="bound">Yellow: ${bounds}</span>, where something may be wrong.`}</p>
    ${warning && html`<p class="chart-warning"><b>Warning.</b> ${info.warning || "past its band"}</p>`}
    <div class="chart-plot" ref=${element} tabindex="0" role="img" aria-label=${described(info, lines)} onKeyDown=${pressed}></div>
    <div class="chart-foot">
      <div class=${cls("chart-read", lines.length > 1 && "is-many")} aria-live="polite">${at !== null && html`<${ReadOut} ...${{ at, data, lines, axis, info, smoothing }} />`}</div>
      <details onToggle=${(event) => setOpen(event.target.open)}><summary>Data</summary></details>
    </div>
    ${open && html`<${DataTable} ...${{ lines, info }} />`}
  </figure>`;
}

function described(info, lines) {
  const parts = lines.map((line) => {
    const { step, value } = line.series;
    if (value.length === 0) return `${line.label}: no figures`;
    const [first, last] = [0, value.length - 1];
    return `${line.label}: ${figure(value[first], info.unit)} at step ${step[first]}, ${figure(value[last], info.unit)} at step ${step[last]}`;
  });
  return `${info.title}. ${parts.join("; ")}. Arrow keys read the points.`;
}

/** The figures under the pointer. */
function ReadOut({ at, data, lines, axis, info, smoothing }) {
  const x = data[0][at];
  let column = 1;
  const read = lines.map((line) => {
    const width = (line.series.low && line.series.high ? 2 : 0) + (smoothing > 0 ? 1 : 0) + 1;
    const mine = data.slice(column, column + width).map((values) => values[at]);
    column += width;
    const band = line.series.low && line.series.high && mine[0] !== null ? ` (${number(mine[0])} to ${number(mine[1])})` : "";
    return { line, value: mine[width - 1], band };
  });
  return html`<span>${axis === "time" ? `after ${duration(x)}` : `step ${x}`}</span>
    ${read.filter(({ value }) => value !== null && value !== undefined).map(({ line, value, band }) => html`<span key=${line.label} class="inline">${lines.length > 1 && html`<span class=${`swatch k${line.colour.slice(1)}`}></span>${line.label}`} <b>${figure(value, info.unit)}</b>${band}</span>`)}`;
}

function DataTable({ lines, info }) {
  const rows = lines.flatMap((line) =>
    line.series.step.map((step, index) => ({ line, step, time: line.series.time[index], value: line.series.value[index], low: line.series.low?.[index], high: line.series.high?.[index] })),
  );
  const shown = rows.slice(-TABLE_ROWS).reverse();
  return html`<div class="chart-data" tabindex="0" role="group" aria-label=${`${info.title}, as a table`}>
    <table class="plain"><thead><tr>${lines.length > 1 && html`<th scope="col">Run</th>`}<th scope="col" class="num">Step</th><th scope="col" class="num">Value</th><th scope="col" class="num">From</th><th scope="col" class="num">To</th><th scope="col">Time</th></tr></thead>
    <tbody>${shown.map((row, index) => html`<tr key=${index}>${lines.length > 1 && html`<td>${row.line.label}</td>`}<td class="num">${row.step}</td><td class="num">${figure(row.value, info.unit)}</td><td class="num">${figure(row.low, info.unit)}</td><td class="num">${figure(row.high, info.unit)}</td><td class="nowrap">${clock(row.time)}</td></tr>`)}</tbody></table>
  </div>`;
}
