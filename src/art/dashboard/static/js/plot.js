// The drawing of a chart, on uPlot. Colours are read from the style sheet, so a change of theme is a new drawing.

import uPlot from "../vendor/uPlot.js";
import { figure, number } from "./format.js";
import { extent } from "./series.js";

const FEW_POINTS = 12; // so few are drawn as points too: a line between them would look like more than was measured
const HEIGHT = 168; // px, as `.chart-plot` has it

/** The colours of the present theme, by the names of the custom properties. */
function colours(element, names) {
  const probe = document.createElement("span");
  element.append(probe);
  const found = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}

function faded(colour, share) {
  return `color-mix(in srgb, ${colour} ${Math.round(share * 100)}%, transparent)`;
}

/** Room above and below; a warning bound that the data comes near is in the picture, a far one must not flatten the line. */
function range(bounds, marks) {
  let [low, high] = bounds;
  const spread = high - low || Math.abs(high) || 1;
  for (const mark of marks) {
    if (mark === null || mark === undefined) continue;
    if (mark > high && mark - high < spread) high = mark;
    if (mark < low && low - mark < spread) low = mark;
  }
  const room = (high - low || spread) * 0.08;
  return [low - room, high + room];
}

/** From where to where a chart's axis goes. */
function axisRange(data, { warnAbove, warnBelow, zero }) {
  const bounds = extent(data.slice(1)) ?? [0, 1];
  if (zero) bounds[0] = Math.min(0, bounds[0]);
  return range(bounds, [warnAbove, warnBelow]);
}

/** Which warning bounds have their shading in the picture: `{above, below}`, each the bound or null. */
export function shaded(data, { warnAbove = null, warnBelow = null, zero = false }) {
  const [low, high] = axisRange(data, { warnAbove, warnBelow, zero });
  return { above: warnAbove !== null && high > warnAbove ? warnAbove : null, below: warnBelow !== null && low < warnBelow ? warnBelow : null };
}

function shade(plot, from, to, colour) {
  const { left, top, width, height } = plot.bbox;
  const clamp = (y) => Math.min(top + height, Math.max(top, y));
  const [a, b] = [from, to].map((value) => clamp(value === null ? 0 : plot.valToPos(value, "y", true)));
  if (Math.abs(a - b) < 1) return;
  plot.ctx.save();
  plot.ctx.fillStyle = colour;
  plot.ctx.fillRect(left, Math.min(a, b), width, Math.abs(a - b));
  plot.ctx.restore();
}

/** Shading of what is past a bound, drawn behind everything. */
function warningBand({ warnAbove, warnBelow }, colour) {
  return (plot) => {
    const { min, max } = plot.scales.y;
    if (warnAbove !== null && warnAbove !== undefined && max > warnAbove) shade(plot, Math.max(warnAbove, min), max, colour);
    if (warnBelow !== null && warnBelow !== undefined && min < warnBelow) shade(plot, min, Math.min(warnBelow, max), colour);
  };
}

function axisOf({ ink, grid, format, size, space, incrs }) {
  return {
    stroke: ink, font: "11px system-ui, sans-serif", grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 4 },
    values: (_plot, marks) => marks.map((mark) => (mark === null ? "" : format(mark))), size, space, gap: 3, ...(incrs && { incrs }),
  };
}

/**
 * Lines of a chart as columns and uPlot's series. A line gives: a band (two columns, when it has one), its raw points (faint,
 * when smoothed) and the line that is read. `plain` are the indices of the read lines, in the order of `lines`.
 */
function columnsOf(lines, ink) {
  const series = [{}];
  const bands = [];
  const plain = [];
  for (const line of lines) {
    const colour = ink[line.colour];
    const dots = { show: line.points <= FEW_POINTS, size: 5, fill: colour };
    if (line.band) {
      const edge = { stroke: "transparent", points: { show: false }, spanGaps: true };
      series.push(edge, { ...edge });
      bands.push({ series: [series.length - 1, series.length - 2], fill: faded(colour, 0.16) });
    }
    if (line.raw) series.push({ stroke: faded(colour, 0.32), width: 1, points: { show: false }, spanGaps: true });
    plain.push(series.length);
    series.push({ stroke: colour, width: 1.75, points: dots, spanGaps: true, dash: line.dash });
  }
  return { series, bands, plain };
}

/**
 * Draws into `element` and returns `{destroy, move(by)}`. `data` is uPlot's (`[x, ...columns]` in the order of columnsOf),
 * `onRead(index)` is told where the pointer is, null when it has left. `sync` names charts whose pointers move together.
 */
export function draw(element, { data, lines, axis, unit, warnAbove, warnBelow, sync, onRead, zero }) {
  const ink = colours(element, ["muted", "line", "warn-band", ...lines.map((line) => line.colour)]);
  const { series, bands, plain } = columnsOf(lines, ink);
  const reach = axisRange(data, { warnAbove, warnBelow, zero });
  const format = (value) => (unit === "s" || unit === "1" || unit === "USD" || unit === "bytes" ? figure(value, unit) : number(value));
  const options = {
    width: element.clientWidth || 320,
    height: HEIGHT,
    legend: { show: false },
    padding: [6, 10, 0, 0],
    scales: { x: { time: false, range: (_plot, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]) }, y: { range: () => reach } },
    series,
    bands,
    axes: [
      axisOf({ ink: ink.muted, grid: ink.line, format: axis === "time" ? clockMark : wholeOrNone, size: 22, space: 60, incrs: axis === "time" ? CLOCK_STEPS : undefined }),
      axisOf({ ink: ink.muted, grid: ink.line, format, size: 52, space: 34 }),
    ],
    cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false }, sync: sync ? { key: sync, scales: ["x", null] } : undefined },
    hooks: {
      drawClear: [warningBand({ warnAbove, warnBelow }, ink["warn-band"])],
      setCursor: [(plot) => onRead(plot.cursor.idx ?? null)],
    },
  };
  const plot = new uPlot(options, data, element);
  const resize = new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (width > 0 && width !== plot.width) plot.setSize({ width, height: HEIGHT });
  });
  resize.observe(element);
  return {
    plain,
    move: (by) => step(plot, by),
    destroy: () => {
      resize.disconnect();
      plot.destroy();
    },
  };
}

/** Steps between marks of time, in seconds: those that a clock has. */
const CLOCK_STEPS = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800];

/** A mark of a time axis: 30 s, 5 min, 1:30 h, 2 d. */
function clockMark(seconds) {
  if (seconds === 0) return "0";
  if (seconds % 86_400 === 0) return `${seconds / 86_400} d`;
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)}:${String(Math.round((seconds % 3600) / 60)).padStart(2, "0")} h`;
  return seconds % 60 === 0 ? `${seconds / 60} min` : `${seconds} s`;
}

function wholeOrNone(value) {
  return Number.isInteger(value) ? number(value) : "";
}

/** Moves the pointer by points, for the keyboard. */
function step(plot, by) {
  const [x] = plot.data;
  if (x.length === 0) return;
  const from = plot.cursor.idx ?? (by > 0 ? -1 : x.length);
  const to = Math.min(x.length - 1, Math.max(0, from + by));
  plot.setCursor({ left: plot.valToPos(x[to], "x"), top: 10 });
}
