// What a cloud of rollouts says about its reward. Pure functions; null where there is nothing to say.

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Pearson's r; null where one of the two does not vary. */
export function correlation(xs, ys) {
  if (xs.length < 3) return null;
  const [mx, my] = [mean(xs), mean(ys)];
  let [xx, yy, xy] = [0, 0, 0];
  for (let i = 0; i < xs.length; i += 1) {
    const [dx, dy] = [xs[i] - mx, ys[i] - my];
    xx += dx * dx;
    yy += dy * dy;
    xy += dx * dy;
  }
  return xx > 0 && yy > 0 ? xy / Math.sqrt(xx * yy) : null;
}

/** Pearson's r of what is left when each step's own means are taken off: what training changed over time has no part in it. */
export function withinSteps(steps, xs, ys) {
  const byStep = new Map();
  steps.forEach((step, i) => byStep.set(step, [...(byStep.get(step) ?? []), i]));
  const [dx, dy] = [[], []];
  for (const places of byStep.values()) {
    if (places.length < 2) continue;
    const mx = mean(places.map((i) => xs[i]));
    const my = mean(places.map((i) => ys[i]));
    for (const i of places) {
      dx.push(xs[i] - mx);
      dy.push(ys[i] - my);
    }
  }
  return correlation(dx, dy);
}

/** Least squares: `{slope, offset}`; null where x does not vary. */
export function line(xs, ys) {
  const [mx, my] = [mean(xs), mean(ys)];
  let [xx, xy] = [0, 0];
  for (let i = 0; i < xs.length; i += 1) {
    xx += (xs[i] - mx) ** 2;
    xy += (xs[i] - mx) * (ys[i] - my);
  }
  return xx > 0 ? { slope: xy / xx, offset: my - (xy / xx) * mx } : null;
}

/** Means over the first and the last third of the steps: `{from, to}` of each; null with fewer than three steps. */
export function drift(steps, ...columns) {
  const known = [...new Set(steps)].sort((a, b) => a - b);
  if (known.length < 3) return null;
  const third = Math.floor(known.length / 3);
  const [early, late] = [known[third - 1], known[known.length - third]];
  const over = (column, wanted) => mean(column.filter((_, i) => wanted(steps[i])));
  return columns.map((column) => ({ from: over(column, (step) => step <= early), to: over(column, (step) => step >= late) }));
}

/** 0 for an early step, 1 for the middle, 2 for a late one. */
export function ages(steps) {
  const [low, high] = [Math.min(...steps), Math.max(...steps)];
  return steps.map((step) => (high === low ? 2 : Math.min(2, Math.floor(((step - low) / (high - low)) * 3))));
}

export function strength(r) {
  const size = Math.abs(r);
  return size >= 0.7 ? "strong" : size >= 0.4 ? "clear" : size >= 0.2 ? "weak" : "hardly any";
}
