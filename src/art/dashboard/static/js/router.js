// Addresses. Everything that a person would want to send to another one stands behind `#`: the view, what it shows
// (path) and how (query). `#/run/shop/agent/rollouts?filter=reward+%3C+0&sort=reward`.

import { useEffect, useState } from "./lib.js";

const RUN = "/run/:project/:name";

/** View name to path. A part that begins with `:` is a parameter. */
export const PATHS = {
  runs: "/",
  compare: "/compare",
  models: "/models",
  server: "/server",
  rollout: "/rollout/:rollout_id",
  run: RUN,
  steps: `${RUN}/steps`,
  groups: `${RUN}/groups`,
  group: `${RUN}/groups/:group_id`,
  rollouts: `${RUN}/rollouts`,
  trajectory: `${RUN}/rollouts/:rollout_id`,
  scenarios: `${RUN}/scenarios`,
  scenario: `${RUN}/scenarios/:scenario_id`,
  extremes: `${RUN}/extremes`,
  checkpoints: `${RUN}/checkpoints`,
  config: `${RUN}/config`,
  try: `${RUN}/try`,
};

function parts(path) {
  return path.split("/").filter((part) => part !== "");
}

function match(pattern, path) {
  const names = parts(pattern);
  const given = parts(path);
  if (names.length !== given.length) return null;
  const params = {};
  for (const [index, name] of names.entries()) {
    if (name.startsWith(":")) params[name.slice(1)] = decoded(given[index]);
    else if (name !== given[index]) return null;
  }
  return params;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a lone % that somebody typed
  }
}

/** `{view, params, query}` of an address such as `#/run/a/b?x=1`; view is "" where nothing matches. */
export function parse(hash) {
  const text = hash.replace(/^#/, "") || "/";
  const cut = text.indexOf("?");
  const path = cut < 0 ? text : text.slice(0, cut);
  const query = Object.fromEntries(new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1)));
  for (const [view, pattern] of Object.entries(PATHS)) {
    const params = match(pattern, path);
    if (params) return { view, params, query };
  }
  return { view: "", params: {}, query };
}

/** The address of a view, `#` and all. What is null, undefined or "" is left out of the query. */
export function href(view, params = {}, query = {}) {
  const path = parts(PATHS[view]).map((part) =>
    part.startsWith(":") ? encodeURIComponent(params[part.slice(1)]) : part,
  );
  const kept = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
  return `#/${path.join("/")}${text ? `?${text}` : ""}`;
}

/** Goes to a view; `replace` leaves no step in the browser's history (a slider, a field that is typed into). */
export function go(view, params = {}, query = {}, { replace = false } = {}) {
  goTo(href(view, params, query), { replace });
}

export function goTo(address, { replace = false } = {}) {
  if (replace) {
    history.replaceState(null, "", address);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address;
  }
}

/** Changes some of the query of the present address and keeps the rest. */
export function setQuery(changes, { replace = true } = {}) {
  const { view, params, query } = parse(location.hash);
  go(view, params, { ...query, ...changes }, { replace });
}

/** The present route; the component is drawn anew when it changes. */
export function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parse(location.hash));
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return route;
}
