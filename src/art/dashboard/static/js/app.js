// The frame around every view: navigation, the key, help, the theme; and for the views of one run its head and tabs.

import { api, getKey, path, setKey } from "./api.js";
import { Badge, ErrorBox, Loading, PageHead, Tabs, useTitle } from "./components/index.js";
import { Help } from "./help.js";
import { KeyForm } from "./key_form.js";
import { bind } from "./keys.js";
import { cls, html, useEffect, useErrorBoundary, useRef, useState } from "./lib.js";
import * as live from "./live.js";
import { ofRun, useResource } from "./resource.js";
import { useRights } from "./rights.js";
import { go, href, useRoute } from "./router.js";

/** View name to its module; each is read when it is first shown. */
const VIEWS = {
  runs: () => import("./views/runs.js"),
  compare: () => import("./views/compare.js"),
  models: () => import("./views/models.js"),
  server: () => import("./views/server.js"),
  rollout: () => import("./views/trajectory.js"),
  run: () => import("./views/run.js"),
  steps: () => import("./views/steps.js"),
  groups: () => import("./views/groups.js"),
  group: () => import("./views/group.js"),
  rollouts: () => import("./views/rollouts.js"),
  trajectory: () => import("./views/trajectory.js"),
  scenarios: () => import("./views/scenarios.js"),
  scenario: () => import("./views/scenario.js"),
  extremes: () => import("./views/extremes.js"),
  checkpoints: () => import("./views/checkpoints.js"),
  config: () => import("./views/config.js"),
  try: () => import("./views/try.js"),
};

const TOP = [["runs", "Runs"], ["compare", "Compare"], ["models", "Models"], ["server", "Server"]];
const RUN_TABS = [
  ["run", "Overview"], ["steps", "Steps"], ["groups", "Groups"], ["rollouts", "Rollouts"], ["scenarios", "Scenarios"],
  ["extremes", "Reward check"], ["checkpoints", "Checkpoints"], ["try", "Try"], ["config", "Config"],
];
const TAB_OF = { group: "groups", trajectory: "rollouts", scenario: "scenarios" };
const THEMES = ["system", "light", "dark"];

export function App() {
  const route = useRoute();
  const [keyed, setKeyed] = useState(Boolean(getKey()));
  const [refusal, setRefusal] = useState(null);
  const [help, setHelp] = useState(false);
  const [theme, nextTheme] = useTheme();

  useEffect(() => bind({ help: () => setHelp(true), theme: nextTheme }), [nextTheme]);
  useEffect(() => {
    const refused = (event) => {
      setRefusal(event.detail);
      setKeyed(false);
    };
    const given = () => {
      setRefusal(null);
      setKeyed(true);
    };
    window.addEventListener("art-no-key", refused);
    window.addEventListener("art-key", given);
    return () => {
      window.removeEventListener("art-no-key", refused);
      window.removeEventListener("art-key", given);
    };
  }, []);
  useEffect(() => {
    if (!keyed) return undefined;
    live.start();
    return live.stop;
  }, [keyed]);

  const give = (key) => {
    setKey(key);
    setRefusal(null);
    setKeyed(true);
  };
  const forget = () => {
    setKey("");
    setKeyed(false);
  };
  return html`<a class="skip" href="#main" onClick=${skip}>To the content</a>
    <${Top} route=${route} theme=${theme} nextTheme=${nextTheme} help=${() => setHelp(true)} keyed=${keyed} forget=${forget} />
    <main id="main" tabindex="-1">${keyed ? html`<${Shown} route=${route} />` : html`<${KeyForm} refusal=${refusal} give=${give} />`}</main>
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}`;
}

function skip(event) {
  event.preventDefault(); // the address behind # is the view's
  document.getElementById("main").focus();
}

function useTheme() {
  const [theme, setTheme] = useState(() => document.documentElement.dataset.theme ?? "system");
  const held = useRef(null);
  held.current ??= () =>
    setTheme((old) => {
      const next = THEMES[(THEMES.indexOf(old) + 1) % THEMES.length];
      if (next === "system") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = next;
      try {
        if (next === "system") localStorage.removeItem("art-theme");
        else localStorage.setItem("art-theme", next);
      } catch {
        // No storage: the theme lasts as long as the page.
      }
      window.dispatchEvent(new CustomEvent("art-theme"));
      return next;
    });
  return [theme, held.current];
}

function Top({ route, theme, nextTheme, help, keyed, forget }) {
  const inRun = Boolean(route.params.project) || route.view === "rollout";
  const current = inRun ? "runs" : route.view;
  return html`<header class="top">
    <a class="brand" href=${href("runs")} aria-label="ART, all runs"><img src="assets/icon.svg" alt="" width="18" height="18" />ART</a>
    <nav class="top-nav" aria-label="Main">${TOP.map(([view, label]) => html`<a key=${view} href=${href(view)} aria-current=${current === view ? "page" : undefined}>${label}</a>`)}</nav>
    <div class="top-end">
      ${keyed && html`<${LiveMark} />`}
      <button type="button" class="button quiet" onClick=${nextTheme} title="Theme (d)" aria-label=${`Theme: ${theme}`}>${{ system: "◐", light: "☀", dark: "☾" }[theme]}</button>
      <button type="button" class="button quiet" onClick=${help} title="Keys and help (?)" aria-label="Help">?</button>
      ${keyed && html`<button type="button" class="button quiet wide-only" onClick=${forget} title="Forget the key in this tab">Sign out</button>`}
    </div>
  </header>`;
}

const LIVE_WORDS = {
  live: ["live", "What changes at the server appears here by itself"],
  connecting: ["connecting", "Asking the server for its events"],
  waiting: ["offline", "The server does not answer; the page tries again by itself"],
  off: ["not live", "This server or key gives no events: reload to see what is new"],
};

const FOLLOWING = ["read-only", "No server runs on this folder. What another process writes into it appears here by itself"];

function LiveMark() {
  const [state, setState] = useState("off");
  useEffect(() => live.watchState(setState), []);
  const { key } = useRights();
  const [word, title] = state === "live" && key?.read_only ? FOLLOWING : LIVE_WORDS[state];
  return html`<span class=${cls("live", `live-${state}`)} title=${title} role="status" data-testid="live">${word}</span>`;
}

/** The view of the route. The frame of a run stays while one moves between its views. */
function Shown({ route }) {
  const [loaded, setLoaded] = useState({ view: null, component: null });
  useEffect(() => {
    let current = true;
    const load = VIEWS[route.view];
    if (!load) return undefined;
    load().then(
      (module) => current && setLoaded({ view: route.view, component: module.View }),
      (error) => current && setLoaded({ view: route.view, component: notLoaded(error) }),
    );
    return () => {
      current = false;
    };
  }, [route.view]);
  useFocusOnArrival(route);
  if (!VIEWS[route.view]) return html`<${Lost} />`;
  const view = loaded.view === route.view ? loaded.component : Loading;
  if (!route.params.project) return html`<${Guarded} key=${route.view} view=${view} route=${route} />`;
  return html`<${RunFrame} key=${`${route.params.project}/${route.params.name}`} route=${route} view=${view} />`;
}

function notLoaded(error) {
  const told = { message: "this view could not be loaded", cause: error.message, hint: "reload the page; the server may have been upgraded" };
  return () => html`<${ErrorBox} error=${told} />`;
}

/** A screen reader goes on where the new view begins, and every view begins at its top. */
function useFocusOnArrival({ view, params }) {
  const first = useRef(true);
  const place = JSON.stringify([view, params]);
  useEffect(() => {
    if (first.current) {
      first.current = false;
      return;
    }
    window.scrollTo(0, 0);
    document.getElementById("main").focus({ preventScroll: true });
  }, [place]);
}

/** A fault in one view is told in its place, and leaves the rest of the page alone. */
function Guarded({ view: ViewOf, ...props }) {
  const [error, reset] = useErrorBoundary();
  if (error) return html`<${ErrorBox} error=${{ message: "this view failed", cause: error.message, hint: "please report it; the browser's console has the place" }} retry=${reset} />`;
  return html`<${ViewOf} ...${props} api=${api} go=${go} />`;
}

function Lost() {
  useTitle("Not found");
  return html`<${PageHead} crumbs=${[["Runs", href("runs")]]} title="Nothing here" /><p class="state">No view has this address.</p>`;
}

/** Head and tabs of a run; its RunDetail is read once here and given to the view as `run` (null until it is there). */
function RunFrame({ route, view }) {
  const { project, name } = route.params;
  const wanted = ofRun(project, name, "step", "checkpoint", "job", "log");
  const resource = useResource(path("views/runs", project, name), {}, { live: wanted });
  const active = TAB_OF[route.view] ?? route.view;
  const tabs = RUN_TABS.map(([key, label]) => ({ key, label, href: href(key, { project, name }) }));
  const label = RUN_TABS.find(([key]) => key === active)?.[1];
  useTitle(`${name} · ${label}`);
  const run = resource.data?.run;
  const missing = resource.error?.status === 404;
  return html`<${PageHead} crumbs=${[["Runs", href("runs")], ...deeper(route, active, label)]} title=${html`<span class="of-project">${project}/</span>${name}`}>
      ${run && html`<${Badge} kind=${{ training: "info", sampling: "ok" }[run.state]}>${run.state}<//><span class="muted">step ${run.step}</span>`}
    <//>
    ${missing ? html`<${ErrorBox} error=${resource.error} />` : html`<${Tabs} tabs=${tabs} active=${active} label="Of this run" />
      <${Guarded} key=${route.view} view=${view} route=${route} run=${resource.data} runError=${resource.error} />`}`;
}

/** Below a tab (a group, a rollout, a scenario) Esc goes to the tab; from a rollout to the list or group it was opened from. */
function deeper(route, active, label) {
  const { project, name } = route.params;
  if (route.view === "run") return [];
  if (route.view === active) return [[name, href("run", { project, name })]];
  const list = Object.fromEntries(new URLSearchParams(route.query.in ?? ""));
  const up = [[name, href("run", { project, name })], [label, href(active, { project, name }, route.view === "trajectory" ? list : {})]];
  if (route.view === "trajectory" && list.group) up.push(["Group", href("group", { project, name, group_id: list.group }, { member: route.params.rollout_id })]);
  return up;
}
