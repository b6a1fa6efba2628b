// Which colour a token has. Colours are classes (token_paint in detail.css), so that the page's policy forbids no style and
// both themes have their own; each scale also has a legend with its unit.

import { signed } from "./format.js";

/** Log-probability in nats, from the upper end of a band down: what is sure has no colour. */
const SURE = [-0.05, -0.2, -0.5, -1, -2, -3, -5];
const ADVANTAGE = [0, 0.25, 0.75, 1.5];
/** Nats between what the engine recorded and what the trainer computed. */
const GAP = [0.02, 0.06, 0.2, 0.5];
const VERSIONS = 8;

export const COLOURS = {
  none: { label: "No colour" },
  logprob: { label: "Log-probability", unit: "nats" },
  advantage: { label: "Advantage", unit: "standard deviations of the group" },
  mask: { label: "Trained or not", unit: "" },
  version: { label: "Version", unit: "step that sampled it" },
  gap: { label: "Served against trained", unit: "nats" },
};

const band = (size, bounds) => bounds.filter((bound) => size > bound).length;

/** The class of token `i` of a TokenPage; "" for no colour. */
export function paint(colour, page, i) {
  switch (colour) {
    case "logprob": {
      const value = page.logprob[i];
      if (value === null) return "t-none";
      const level = SURE.filter((bound) => value <= bound).length;
      return level ? `t-l${level}` : "";
    }
    case "advantage":
      if (!page.mask[i] || page.advantage === null || page.advantage === undefined) return "t-none";
      return twoSided(page.advantage, ADVANTAGE);
    case "mask":
      return page.mask[i] ? "t-in" : "t-out";
    case "version":
      return page.version[i] === null ? "t-none" : `t-v${page.version[i] % VERSIONS}`;
    case "gap": {
      const value = gap(page, i);
      return value === null ? "t-none" : twoSided(value, GAP);
    }
    default:
      return "";
  }
}

function twoSided(value, bounds) {
  const level = band(Math.abs(value), bounds);
  return level ? `t-${value > 0 ? "p" : "m"}${level}` : "";
}

/** Trainer's log-probability minus the recorded one; null where one of them is missing. */
export function gap(page, i) {
  const trained = page.trained_logprob?.[i] ?? null;
  const served = page.logprob[i];
  return trained === null || served === null ? null : trained - served;
}

/** `[[class, what it stands for], ...]` of a colouring; `versions`: the steps that were seen. */
export function legend(colour, versions = []) {
  switch (colour) {
    case "logprob":
      return [
        ["", `above ${figure(SURE[0])}`],
        ...SURE.map((bound, index) => [`t-l${index + 1}`, SURE[index + 1] === undefined ? `≤ ${figure(bound)}` : figure(bound)]),
        ["t-none", "prompt"],
      ];
    case "advantage":
      return [...sides(ADVANTAGE, ">"), ["t-none", "not trained"]];
    case "mask":
      return [["t-in", "trained, or will be"], ["t-out", "not trained"]];
    case "version":
      return [...versions.map((step) => [`t-v${step % VERSIONS}`, `step ${step}`]), ["t-none", "prompt"]];
    case "gap":
      return [...sides(GAP, "beyond"), ["t-none", "not computed"]];
    default:
      return [];
  }
}

const figure = (value) => String(value).replace("-", "−");

function sides(bounds, word) {
  const minus = bounds.map((bound, index) => [`t-m${index + 1}`, `${word === ">" && bound === 0 ? "< 0" : signed(-bound, decimals(bound))}`]).reverse();
  const plus = bounds.map((bound, index) => [`t-p${index + 1}`, `${word === ">" && bound === 0 ? "> 0" : signed(bound, decimals(bound))}`]);
  return [...minus, ["", "0"], ...plus];
}

const decimals = (bound) => (Number.isInteger(bound) ? 0 : String(bound).split(".")[1].length);

/** What is known of a token, as `[[name, text], ...]`. */
export function facts(page, i, { position }) {
  const served = page.logprob[i];
  const trained = page.trained_logprob?.[i] ?? null;
  const told = [["token", position < 0 ? `${position} (prompt)`.replace("-", "−") : String(position)], ["id", String(page.ids[i])]];
  if (served !== null) told.push(["log-prob.", `${nats(served)} (${chance(served)})`]);
  if (trained !== null) told.push(["trainer's", `${nats(trained)}`]);
  if (trained !== null && served !== null) told.push(["gap", `${signed(trained - served, 4)} nats`]);
  told.push(["trained", page.mask[i] ? "yes" : "no"]);
  if (page.mask[i] && page.advantage !== null && page.advantage !== undefined) told.push(["advantage", signed(page.advantage)]);
  if (page.version[i] !== null) told.push(["version", `step ${page.version[i]}`]);
  return told;
}

const nats = (value) => `${value.toFixed(3).replace("-", "−")} nats`;

function chance(logprob) {
  const p = Math.exp(logprob) * 100;
  return p >= 0.1 ? `${p.toFixed(1)} %` : `${p.toExponential(0).replace("-", "−")} %`;
}
