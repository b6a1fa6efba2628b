// Figures over steps, made ready for a chart: smoothing, axes, several runs on one axis. No drawing, no asking.

/**
 * An exponential moving average that starts without bias, `weight` from 0 (none) to under 1.
 * m(n) = w m(n-1) + (1 - w) x(n), divided by 1 - w^n. Missing values stay missing and move nothing.
 */
export function smoothed(values, weight) {
  if (weight <= 0) return values;
  let mean = 0;
  let seen = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    seen += 1;
    mean = weight * mean + (1 - weight) * value;
    return mean / (1 - weight ** seen);
  });
}

/** x of each point: its step, or the seconds since the run's first point (`start`). */
export function xs(series, axis, start) {
  return axis === "time" ? series.time.map((time) => Math.max(0, time - start)) : series.step;
}

/** The earliest time of several series; 0 where there is none. */
export function firstTime(all) {
  const times = all.flatMap((series) => (series.time.length ? [series.time[0]] : []));
  return times.length ? Math.min(...times) : 0;
}

/**
 * Several lines on one axis: `lines` are `{x, columns: [[...], ...]}`; the answer is `[x, ...all columns]`, where a line has
 * null at the x of others. Two points of one line at the same x (a step that was trained twice after a rollback): the newest holds.
 */
export function aligned(lines) {
  const all = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const place = new Map(all.map((x, index) => [x, index]));
  const columns = lines.flatMap((line) =>
    line.columns.map((values) => {
      const column = new Array(all.length).fill(null);
      line.x.forEach((x, index) => {
        column[place.get(x)] = values[index] ?? null;
      });
      return column;
    }),
  );
  return [all, ...columns];
}

/** The smallest and the largest of some columns, `[low, high]`, or null where all are missing. */
export function extent(columns) {
  let low = Infinity;
  let high = -Infinity;
  for (const column of columns) {
    for (const value of column) {
      if (value === null || !Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}
