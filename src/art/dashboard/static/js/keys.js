// The keyboard. Views say what keys find by attributes, so that none has to register anything:
//   data-row    on the link or button of each row: j and k move the focus over them, Enter opens (it is a link)
//   data-prev, data-next   on links: [ and ] follow them
//   data-filter on the field that / goes to
//   data-up     on the link that Esc follows when nothing else is to be closed

import { parse, href, goTo } from "./router.js";

/** What the help shows, and the only list of keys. */
export const KEYS = [
  ["j / k", "next, previous row"],
  ["Enter", "open the row"],
  ["[ / ]", "previous, next step, group or rollout"],
  ["/", "to the filter or search field"],
  ["Esc", "close, leave the field, or one level up"],
  ["g then r", "runs"],
  ["g then m", "models and checkpoints"],
  ["g then c", "compare"],
  ["g then s", "server"],
  ["g then o", "overview of this run"],
  ["g then t", "its steps"],
  ["g then g", "its groups"],
  ["g then l", "its rollouts"],
  ["g then n", "its scenarios"],
  ["g then x", "its reward check"],
  ["g then p", "try a prompt on it"],
  ["← / →", "on a chart, a cloud of points or tokens: read them one by one"],
  ["d", "light, dark or the system's theme"],
  ["?", "this help"],
];

const ANYWHERE = { r: "runs", m: "models", c: "compare", s: "server" };
const OF_RUN = { o: "run", t: "steps", g: "groups", l: "rollouts", n: "scenarios", x: "extremes", p: "try" };
const CHORD_MS = 1500;
/** When g was last pressed, if it was not. The clock begins with the page, so that 0 is a moment ago in its first second. */
const NEVER = -Infinity;

function visible(selector) {
  const modal = document.querySelector("dialog[open]");
  const root = modal ?? document;
  return [...root.querySelectorAll(selector)].filter((element) => element.getClientRects().length > 0);
}

/** Moves the focus by `by` rows from the focused row, or to the first one. */
function move(by) {
  const rows = visible("[data-row]");
  if (rows.length === 0) return false;
  const active = document.activeElement;
  const at = rows.findIndex((row) => row === active || row.contains(active) || row.closest("tr, li, article")?.contains(active));
  const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by));
  rows[next].focus();
  rows[next].scrollIntoView({ block: "nearest" });
  return true;
}

function click(selector) {
  const [found] = visible(selector);
  found?.click();
  return Boolean(found);
}

function typing(target) {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable=true]") !== null;
}

function textField(target) {
  return typing(target) && !target.matches("input[type=checkbox], input[type=radio], input[type=range]");
}

function travel(key) {
  const { params } = parse(location.hash);
  if (ANYWHERE[key]) goTo(href(ANYWHERE[key]));
  else if (OF_RUN[key] && params.project) goTo(href(OF_RUN[key], params));
  else return false;
  return true;
}

/** Starts listening; `help` and `theme` are called for ? and d. Returns what ends it. */
export function bind({ help, theme }) {
  let chord = NEVER;
  const act = (event) => {
    const chorded = performance.now() - chord < CHORD_MS;
    chord = NEVER;
    if (chorded && travel(event.key)) return true;
    switch (event.key) {
      case "g":
        chord = performance.now();
        return true;
      case "j":
        return move(1);
      case "k":
        return move(-1);
      case "[":
        return click("[data-prev]");
      case "]":
        return click("[data-next]");
      case "/": {
        const [field] = visible("[data-filter]");
        field?.focus();
        field?.select?.();
        return Boolean(field);
      }
      case "?":
        help();
        return true;
      case "d":
        theme();
        return true;
      default:
        return false;
    }
  };
  const pressed = (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (document.querySelector("dialog[open]")) return; // the dialog closes itself
      if (typing(event.target)) event.target.blur();
      else click("[data-up]");
      return;
    }
    if (textField(event.target) || document.querySelector("dialog[open]")) return;
    if (act(event)) event.preventDefault();
  };
  document.addEventListener("keydown", pressed);
  return () => document.removeEventListener("keydown", pressed);
}
