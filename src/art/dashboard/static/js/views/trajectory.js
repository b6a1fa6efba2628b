// One rollout: what was said, along any path of its calls; each choice's fate; its tokens; what a person or a judge thinks of it.

import { path } from "../api.js";
import { Badge, CopyButton, Facts, PageHead, Resource, Status, useTitle } from "../components/index.js";
import { Call } from "../call.js";
import { lastCall, pathThrough, taken, treeOf } from "../branches.js";
import { FindBar } from "../find.js";
import { ago, clock, count, duration, number, reward, signed } from "../format.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { Stepper, useNeighbours } from "../neighbours.js";
import { Flag, NoteForm } from "../note.js";
import { Outline } from "../outline.js";
import { prettyJson } from "../pretty.js";
import { useResource } from "../resource.js";
import { rolloutHref, scenarioName, shortId } from "../rollout_columns.js";
import { href, parse, setQuery } from "../router.js";
import { COLOURS } from "../token_paint.js";
import { TokenLegend } from "../tokens.js";
import { Folded } from "../transcript.js";

const SETTLED_MS = 250; // after the last scroll, until the address says where one is
const DEFAULT_COLOUR = "logprob";

export function View({ route }) {
  const { rollout_id: id, project } = route.params;
  const mine = (event) => event.type === "resync" || event.id === id;
  const detail = useResource(path("views/rollouts", id), {}, { live: mine, keep: false });
  useTitle(`Rollout ${shortId(id)}`);
  return html`${!project && html`<${LooseHead} rollout=${detail.data?.rollout} id=${id} />`}
    <${Resource} of=${detail} what="the rollout">${(data) => html`<${Trajectory} key=${id} ...${{ data, route, reload: detail.reload }} />`}<//>`;
}

/** The head of a rollout that was opened by its id alone, outside of its run. */
function LooseHead({ rollout, id }) {
  const of = rollout && { project: rollout.project, name: rollout.model };
  const crumbs = [["Runs", href("runs")], ...(of ? [[of.name, href("run", of)], ["Rollouts", href("rollouts", of)]] : [])];
  return html`<${PageHead} crumbs=${crumbs} title=${shortId(id)} />`;
}

function Trajectory({ data, route, reload }) {
  const { rollout, calls } = data;
  const { query } = route;
  const tree = useMemo(() => treeOf(calls), [calls]);
  const asked = Number(query.call);
  const last = useMemo(() => lastCall(calls), [calls]);
  const chosen = query.call && tree.byNumber.has(asked) ? asked : last;
  const along = useMemo(() => (chosen === null ? [] : pathThrough(tree, chosen)), [tree, chosen]);
  const transcript = useRef(null);
  const [versions, setVersions] = useState([]);
  const seenVersions = (seen) => setVersions((old) => (seen.every((step) => old.includes(step)) ? old : [...new Set([...old, ...seen])].sort((a, b) => a - b)));
  const look = {
    tokens: query.as === "tokens", colour: COLOURS[query.colour] ? query.colour : DEFAULT_COLOUR, marks: query.ws === "1",
    prompt: query.prompt === "1", find: query.find ?? "",
  };
  useAnchor(transcript, query.at);
  return html`<${Head} ...${{ data, route }} />
    ${!query.call && along[0] && along.at(-1).branch !== firstBranch(tree) && html`<p class="why muted">Shown is branch ${along.at(-1).branch}, in which it ended: its history was rewritten or handed on. The calls on the left lead to its beginning.</p>`}
    <div class="trajectory">
      <aside class="outline-side" aria-label="Calls"><${Outline} tree=${tree} along=${along} hrefOf=${(call) => hrefOfCall(route, call)} onOpen=${(call) => jump(transcript.current, call.number)} /></aside>
      <div class="trajectory-main">
        <${Look} look=${look} versions=${versions} />
        ${look.find && html`<${FindBar} find=${look.find} root=${transcript} ready=${along} onClose=${() => setQuery({ find: "" })} />`}
        <div class="transcript" ref=${transcript} data-testid="transcript">
          ${calls.length === 0 && html`<p class="state">The agent has not called the model${rollout.status === "running" ? " yet" : ""}.</p>`}
          ${taken(along).map(({ call, choice }) => html`<${Call} key=${call.call_id} rolloutId=${rollout.rollout_id} call=${call} taken=${choice} look=${look} onVersions=${seenVersions} />`)}
          <${Elsewhere} ...${{ tree, along, last, route }} />
        </div>
      </div>
      <aside class="about-side" aria-label="About this rollout"><${About} data=${data} reload=${reload} /></aside>
    </div>`;
}

const firstBranch = (tree) => tree.roots.find((call) => !call.auxiliary)?.branch;

/** Where the rollout's last answer is, when the path that is shown ends without it; which branches there are beside it. */
function Elsewhere({ tree, along, last, route }) {
  const end = tree.byNumber.get(last);
  if (!end || along.includes(end)) return null;
  return html`<p class="panel" data-testid="goes-on">This path ends here. The rollout's last answer is in <a href=${hrefOfCall(route, end)}>branch ${end.branch}, call ${end.number}</a>.</p>`;
}

const hrefOfCall = (route, call) => href(route.view, route.params, { ...route.query, call: call.number, at: call.number });

/** `[`, `]`, what happened to it, and its figures. */
function Head({ data, route }) {
  const { rollout } = data;
  const run = { project: rollout.project, name: rollout.model };
  const list = Object.fromEntries(new URLSearchParams(route.query.in ?? ""));
  const asked = Object.keys(list).length > 0 ? list : rollout.group_id ? { group: rollout.group_id } : {};
  const sorted = asked.group && !asked.sort ? { sort: "reward", order: "desc", ...asked } : asked;
  const { as, colour, ws } = route.query;
  const neighbours = useNeighbours(path("views/runs", run.project, run.name, "rollouts"), sorted, {
    field: "rollouts", keyOf: (row) => row.rollout_id, current: rollout.rollout_id,
  });
  const other = (row) => row && rolloutHref(row, list, { as, colour, ws });
  const tools = rollout.tool_calls > 0 && ["Tool calls", html`${count(rollout.tool_calls)}${rollout.tool_errors > 0 && html` <span class="bad small">${count(rollout.tool_errors)} failed</span>`}`];
  return html`<div class="toolbar"><h2>Rollout <span class="mono" title=${rollout.rollout_id}>${shortId(rollout.rollout_id)}</span></h2>
      <${Status} of=${rollout.status} /><${Badge}>${rollout.purpose}<//><${Flag} flag=${data.note.flag} />
      <${Stepper} what=${asked.group ? "rollout of its group" : "rollout of the list"} before=${other(neighbours.before)} after=${other(neighbours.after)} place=${neighbours.place} total=${neighbours.total} />
      <span class="actions"><${CopyButton} label="Copy link" text=${() => location.href} /><${CopyButton} label="Copy as JSON" text=${() => JSON.stringify(data, null, 2)} /></span>
    </div>
    ${(rollout.reason || data.next) && html`<p class="why">${rollout.reason}${rollout.reason && data.next ? ". " : ""}${data.next && html`<span class="muted">Next:</span> ${data.next}`}</p>`}
    <${Facts} facts=${[
      ["Reward", reward(rollout.reward)],
      ["Advantage", signed(rollout.advantage), "Of its group, as the newest step that trained it used it"],
      ["Sampled at", `step ${count(rollout.step)}`, "The published step that served it"],
      rollout.batch !== null && rollout.batch !== undefined && ["Trained by", html`<a href=${href("groups", run, { batch: rollout.batch })}>batch ${count(rollout.batch)}</a>`, "The newest train call that took it"],
      ["Sampled", `${number(rollout.sampled_tokens)} tokens`],
      ["Longest prompt", `${number(rollout.prompt_tokens)} tokens`],
      ["Calls", count(rollout.calls)],
      tools,
      ["Took", duration(rollout.seconds)],
      ["Begun", html`<time title=${clock(rollout.created_at)}>${ago(rollout.created_at)}</time>`],
      rollout.group_id && ["Group", html`<a href=${href("group", { ...run, group_id: rollout.group_id }, { member: rollout.rollout_id })}>${shortId(rollout.group_id)}</a>`],
      rollout.scenario_id && ["Scenario", html`<a class="clip" title=${rollout.scenario_id} href=${href("scenario", { ...run, scenario_id: rollout.scenario_id })}>${scenarioName(rollout)}</a>`],
    ]} />`;
}

/** How the transcript is drawn; all of it stands in the address. */
function Look({ look, versions }) {
  const as = (value) => setQuery({ as: value === "text" ? "" : value });
  const check = (name, on) => setQuery({ [name]: on ? "1" : "" });
  return html`<div class="look">
    <div class="look-row">
      <span class="segmented" role="group" aria-label="Shown as">${[["text", "Text"], ["tokens", "Tokens"]].map(([value, label]) => html`<button type="button" key=${value} aria-pressed=${look.tokens === (value === "tokens")} onClick=${() => as(value)}>${label}</button>`)}</span>
      ${look.tokens && html`<label class="inline">Colour <select data-testid="token-colour" value=${look.colour} onChange=${(event) => setQuery({ colour: event.target.value === DEFAULT_COLOUR ? "" : event.target.value })}>
        ${Object.entries(COLOURS).map(([value, { label }]) => html`<option key=${value} value=${value} selected=${value === look.colour}>${label}</option>`)}</select></label>
        <label class="inline"><input type="checkbox" checked=${look.prompt} onChange=${(event) => check("prompt", event.target.checked)} />Prompt tokens</label>`}
      <label class="inline"><input type="checkbox" checked=${look.marks} onChange=${(event) => check("ws", event.target.checked)} />White space</label>
    </div>
    ${look.tokens && html`<${TokenLegend} colour=${look.colour} versions=${versions} />`}
  </div>`;
}

function About({ data, reload }) {
  const { rollout, note, explanation, logs, metadata, agent_rewards: agents, limits, upstream_calls: upstream } = data;
  const facts = { ...rollout.metrics };
  return html`<section class="panel"><h3>Your judgement</h3><${NoteForm} rolloutId=${rollout.rollout_id} note=${note} onSaved=${reload} /></section>
    ${explanation && html`<section class="panel" data-testid="explanation"><h3>The judge's explanation</h3><${Folded} text=${explanation} /></section>`}
    ${Object.keys(agents).length > 0 && html`<section class="panel"><h3>Rewards by agent</h3><${Pairs} of=${agents} show=${reward} /></section>`}
    ${Object.keys(facts).length > 0 && html`<section class="panel"><h3>Metrics</h3><${Pairs} of=${facts} show=${number} /></section>`}
    ${Object.keys(metadata).length > 0 && html`<section class="panel"><h3>Metadata</h3><${Pairs} of=${metadata} show=${plain} /></section>`}
    ${logs.length > 0 && html`<section class="panel"><h3>Log</h3><${Folded} text=${logs.join("\n")} code fold=${{ lines: 20, characters: 3000 }} /></section>`}
    ${(upstream > 0 || Object.values(limits).some((limit) => limit !== null)) && html`<section class="panel"><h3>Also</h3>
      <${Pairs} of=${{ ...(upstream > 0 ? { "calls of other models": count(upstream) } : {}), ...Object.fromEntries(Object.entries(limits).filter(([, limit]) => limit !== null).map(([name, limit]) => [`limit: ${name.replaceAll("_", " ")}`, number(limit)])) }} show=${plain} /></section>`}`;
}

const plain = (value) => (typeof value === "string" ? value : prettyJson(JSON.stringify(value)) ?? JSON.stringify(value));

function Pairs({ of: pairs, show }) {
  return html`<dl class="pairs">${Object.entries(pairs).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${show(value)}</dd></div>`)}</dl>`;
}

function jump(root, call) {
  root?.querySelector(`[data-call="${call}"]`)?.scrollIntoView({ block: "start" });
}

/** The address says which call stands at the top of the screen, and a link that says so goes there. */
function useAnchor(root, at) {
  const going = useRef(at);
  useEffect(() => {
    if (going.current === undefined) return;
    const timer = setTimeout(() => jump(root.current, Number(going.current)), 0); // after the view begins at its top
    return () => clearTimeout(timer);
  }, []);
  useEffect(() => {
    let timer = null;
    const settled = () => {
      const calls = [...(root.current?.querySelectorAll("[data-call]") ?? [])];
      const top = calls.filter((call) => call.getBoundingClientRect().top < window.innerHeight / 3).at(-1);
      const now = window.scrollY < 8 ? undefined : top?.dataset.call;
      const { view, params, query } = parse(location.hash);
      if (params.rollout_id === undefined || (query.at ?? undefined) === now) return;
      history.replaceState(null, "", href(view, params, { ...query, at: now })); // nothing is to be drawn anew for it
    };
    const scrolled = () => {
      clearTimeout(timer);
      timer = setTimeout(settled, SETTLED_MS);
    };
    window.addEventListener("scroll", scrolled, { passive: true });
    return () => {
      clearTimeout(timer);
      window.removeEventListener("scroll", scrolled);
    };
  }, []);
}
