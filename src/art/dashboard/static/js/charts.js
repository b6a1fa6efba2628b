// Which charts an overview has, and of which figures: what a person looks at first, in the order of the questions.

import { isOwn } from "./metrics.js";

const EVALUATION = /^(?!train\/|discarded\/)[^/]+\/reward$/;

/**
 * `{key, title?, wanted: [name, list of names or pattern, ...], together, band: what the shading is}`. Without `together` the first figure that the run has is shown (names of older
 * programs stand last); with it all of them are, in one chart.
 */
export const CHARTS = [
  { key: "reward", wanted: ["train/reward"], band: "Shaded: one standard deviation above and below, as far as rewards go." },
  { key: "evaluation", wanted: [EVALUATION], together: true, band: "Shaded: the 95 % interval." },
  { key: "loss", wanted: ["loss/train"] },
  { key: "kl", wanted: ["loss/kl_policy_ref", "loss/kl_div"] },
  { key: "entropy", wanted: ["loss/entropy"] },
  { key: "clip", wanted: ["loss/clip_fraction"] },
  { key: "parity", wanted: ["parity/mean"] },
  { key: "parity99", wanted: ["parity/p99"] },
  { key: "staleness", wanted: ["offpolicy/mean_steps", "train/steps_off_policy"] },
  { key: "speed", title: "Speed", wanted: [["throughput/step_actor_tok_per_s", "throughput/avg_actor_tok_per_s"], ["throughput/step_trainer_tok_per_s", "throughput/avg_trainer_tok_per_s"]], together: true },
  { key: "idle", title: "Idle share of engine and trainer", wanted: [["throughput/step_actor_idle_share"], ["throughput/step_trainer_idle_share"]], together: true },
  { key: "cost", wanted: ["costs/cum/all"] },
];

const MOST_OWN = 12; // charts of the program's metrics that are there without being asked for

/** One chart for each metric of the program, its splits as lines: `train/right` and `val/right` together. */
export function ownCharts(names, metrics) {
  const found = new Map();
  for (const name of names) {
    if (!isOwn(metrics, name) || /_(ci_low|ci_high|std_dev)$/.test(name)) continue;
    const own = name.slice(name.indexOf("/") + 1);
    found.set(own, [...(found.get(own) ?? []), name]);
  }
  return [...found].slice(0, MOST_OWN).map(([own, splits]) => {
    const [split] = splits.length === 1 ? splits[0].split("/") : [];
    return { key: `own ${own}`, title: `${own.replaceAll("_", " ")}${split ? `, ${split}` : ""}`, metrics: splits, meaning: "Mean over the rollouts that have it." };
  });
}

/** What each figure is called where several stand in one chart. */
const SHORT = {
  "throughput/step_actor_tok_per_s": "sampling",
  "throughput/step_trainer_tok_per_s": "trainer",
  "throughput/avg_actor_tok_per_s": "sampling",
  "throughput/avg_trainer_tok_per_s": "trainer",
  "throughput/step_actor_idle_share": "engine",
  "throughput/step_trainer_idle_share": "trainer",
};

export function shortName(metric) {
  return SHORT[metric] ?? (EVALUATION.test(metric) || /^(train|val|test)\//.test(metric) ? metric.split("/")[0] : metric);
}

/** The names that answer a wish: all that a pattern finds, the first of a list that is there, or the one. */
function held(want, names) {
  if (want instanceof RegExp) return names.filter((name) => want.test(name));
  const found = [want].flat().find((name) => names.includes(name));
  return found ? [found] : [];
}

/** The charts that a run with these figures can have: `[{key, title, metrics}]`, then one for each of `more` that `beside` lacks. */
export function chartsOf(names, more = [], beside = []) {
  const found = [];
  for (const { key, title, wanted, together, band } of CHARTS) {
    const metrics = wanted.flatMap((want) => held(want, names));
    if (metrics.length > 0) found.push({ key, title: metrics.length > 1 ? title : undefined, band, metrics: together ? metrics : [metrics[0]] });
  }
  const shown = new Set([...found, ...beside].flatMap((chart) => chart.metrics));
  for (const name of more) if (names.includes(name) && !shown.has(name)) found.push({ key: name, metrics: [name], added: true });
  return found;
}

/** One MetricInfo for a chart of several: the first one's unit, all their meanings, and a band only where it is everybody's. */
export function joined(infos, title) {
  const [first] = infos;
  if (infos.length === 1) return title ? { ...first, title } : first;
  const meanings = [...new Set(infos.map((info) => info.meaning))];
  const shared = (key) => (infos.every((info) => info[key] === first[key]) ? first[key] : null);
  return { ...first, title: title ?? first.title, meaning: meanings.join(" "), warn_above: shared("warn_above"), warn_below: shared("warn_below") };
}

/** Choices of "add a chart": sections with the names that are not shown yet. */
export function others(names, charts) {
  const shown = new Set(charts.flatMap((chart) => chart.metrics));
  const sections = new Map();
  for (const name of [...names].sort()) {
    if (shown.has(name)) continue;
    const section = name.split("/")[0];
    sections.set(section, [...(sections.get(section) ?? []), name]);
  }
  return [...sections];
}
