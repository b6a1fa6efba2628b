// The server, now: what waits, what works, who has a key, who changed what.

import { api, path } from "../api.js";
import { Badge, Confirm, Empty, ErrorBox, Facts, Loading, PageHead, Resource, useTitle } from "../components/index.js";
import { Segmented } from "../components/chart_controls.js";
import { ago, bytes, clock, count, duration, number, words } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { ofAny, useResource } from "../resource.js";
import { useRights } from "../rights.js";
import { setQuery } from "../router.js";

const POLL_MS = 5000; // queues change without events
const AUDIT_ROWS = 100;
const ADMIN = "admin"; // the way back in, which nobody revokes over the network
const PARTS = [["now", "Now"], ["keys", "Keys"], ["audit", "Audit log"]];

export function View({ route }) {
  useTitle("Server");
  const part = PARTS.some(([key]) => key === route.query.part) ? route.query.part : "now";
  return html`<${PageHead} title="Server" actions=${html`<${Segmented} label="Part" choices=${PARTS} value=${part} onChoose=${(next) => setQuery({ part: next === "now" ? "" : next, before: "" }, { replace: false })} />`} />
    ${part === "now" && html`<${Now} />`}
    ${part === "keys" && html`<${Keys} />`}
    ${part === "audit" && html`<${Audit} before=${route.query.before} />`}`;
}

function Now() {
  const server = useResource("views/server");
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && server.reload(), POLL_MS);
    return () => clearInterval(timer);
  }, [server.reload]);
  return html`<${Resource} of=${server} what="the server's state">${(data) => html`
    ${data.read_only && html`<p class="panel">This is the dashboard of a folder that no server runs on (<code>art ui</code>): no engine, no trainer, nothing is sampled or changed.</p>`}
    <section aria-label="In short"><${Facts} facts=${[
      ["Sampling", data.sampled_tokens_per_second === null ? "–" : `${number(data.sampled_tokens_per_second)} tokens/s`, "Over the last minute"],
      ["Calls", data.calls_per_minute === null ? "–" : `${number(data.calls_per_minute)} / min`, "Over the last minute"],
      ["Refused", data.refused_per_minute === null ? "–" : `${number(data.refused_per_minute)} / min`, "Answered 429: a queue or a quota was full"],
      ["Memory", bytes(data.memory_bytes), "Of the gateway's process"],
      ["Store", bytes(data.store_bytes), "Database and token files"],
      ["Connections", data.open_connections === null ? "–" : count(data.open_connections)],
      ["Up for", duration(Date.now() / 1000 - data.started_at), clock(data.started_at)],
      ["Version", data.version],
    ]} /></section>
    <section aria-label="Queues"><div class="section-head"><h2>Queues</h2></div><${Queues} queues=${data.queues} /></section>
    <section aria-label="Workers"><div class="section-head"><h2>Workers</h2></div><${Workers} workers=${data.workers} /></section>`}<//>`;
}

function Queues({ queues }) {
  if (queues.length === 0) return html`<${Empty} title="No queue" />`;
  return html`<div class="table-box" tabindex="0" role="group" aria-label="Queues"><table class="table" data-testid="queues-table">
    <thead><tr><th scope="col">Queue</th><th scope="col" class="num">Running</th><th scope="col" class="num">Waiting</th><th scope="col" class="num">Bound</th><th scope="col">Full</th></tr></thead>
    <tbody>${queues.map((queue) => html`<tr key=${queue.name}><td>${queue.name}</td><td class="num" data-label="Running">${count(queue.running)}</td><td class="num" data-label="Waiting">${count(queue.waiting)}</td>
      <td class="num" data-label="Bound">${queue.limit === null ? "none" : count(queue.limit)}</td><td data-label="Full">${queue.limit ? html`<meter min="0" max=${queue.limit} high=${queue.limit * 0.8} value=${queue.waiting} aria-label=${`${queue.name}: ${queue.waiting} of ${queue.limit} waiting`}></meter>` : ""}</td></tr>`)}</tbody>
  </table></div>`;
}

function Workers({ workers }) {
  if (workers.length === 0) return html`<${Empty} title="No worker"><p>An engine is started with the first model, a trainer with the first train call.</p><//>`;
  return html`<div class="table-box" tabindex="0" role="group" aria-label="Workers"><table class="table" data-testid="workers-table">
    <thead><tr><th scope="col">Worker</th><th scope="col">State</th><th scope="col" class="num">Process</th><th scope="col" class="num">Restarts</th><th scope="col" class="num">Heartbeat</th><th scope="col">Figures</th></tr></thead>
    <tbody>${workers.map((worker) => html`<tr key=${worker.name}><td>${worker.name}</td>
      <td data-label="State">${worker.alive ? html`<${Badge} kind="ok">alive<//>` : worker.last_heartbeat_age === null ? html`<${Badge}>not started<//>` : html`<${Badge} kind="bad">gone<//>`}</td>
      <td class="num" data-label="Process">${worker.pid ?? "–"}</td><td class=${`num ${worker.restarts > 0 ? "warn" : ""}`} data-label="Restarts">${count(worker.restarts)}</td>
      <td class="num" data-label="Heartbeat">${worker.last_heartbeat_age === null ? "–" : `${duration(worker.last_heartbeat_age)} ago`}</td>
      <td class="small" data-label="Figures"><span class="stats">${Object.entries(worker.stats ?? {}).filter(([, value]) => typeof value !== "object" && value !== "").map(([name, value]) => html`<span key=${name} class="nowrap"><span class="muted">${words(name)}</span> ${typeof value === "number" ? number(value) : String(value)}</span>`)}</span></td></tr>`)}</tbody>
  </table></div>`;
}

function Keys() {
  const keys = useResource("keys");
  const rights = useRights();
  const [asked, setAsked] = useState(null);
  const refusal = rights.refusal("admin");
  if (keys.error?.status === 403) return html`<${Empty} title="Keys are an administrator's">${keys.error.message}<//>`;
  return html`<${Resource} of=${keys} what="keys">${(data) => html`<div class="table-box" tabindex="0" role="group" aria-label="Keys"><table class="table" data-testid="keys-table">
    <thead><tr><th scope="col">Key</th><th scope="col">Label</th><th scope="col">Role</th><th scope="col">Project</th><th scope="col" class="num">Made</th><th scope="col" class="num">Ends</th><th scope="col">Quotas</th><th scope="col" class="num">Tokens today</th><th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
    <tbody>${data.keys.map((key) => html`<tr key=${key.key_id} class=${over(key) ? "is-over" : ""}><td class="mono">${key.key_id}</td><td data-label="Label">${key.label || "–"}</td><td data-label="Role"><${Badge} kind=${key.role === "admin" ? "warn" : ""}>${key.role}<//></td>
      <td data-label="Project">${key.project ?? "all"}</td><td class="num" data-label="Made"><time title=${clock(key.created_at)}>${ago(key.created_at)}</time></td><td class="num" data-label="Ends">${ending(key)}</td>
      <td class="small" data-label="Quotas">${quotas(key.quotas)}</td><td class="num" data-label="Tokens today">${key.quotas?.tokens_per_day ? number(key.tokens_today) : "–"}</td>
      <td class="num">${!over(key) && key.key_id !== ADMIN && html`<button type="button" class="button" disabled=${Boolean(refusal)} title=${refusal || undefined} onClick=${() => setAsked(key)}>Revoke …</button>`}</td></tr>`)}</tbody></table></div>
    <p class="muted below">Make one with <code>art key create --role rollout --project NAME</code>. Keys of single rollouts are not listed.</p>
    ${asked && html`<${Confirm} title=${`Revoke ${asked.key_id}?`} verb="Revoke" danger act=${async () => { await api.del(path("keys", asked.key_id)); keys.reload(); }} onClose=${() => setAsked(null)}>
      <p>${asked.label ? `“${asked.label}” ` : "The key "}(${asked.role}, ${asked.project ?? "all projects"}) ends at once, and with it the keys of the rollouts that it opened. This cannot be undone.</p><//>`}`}<//>`;
}

function over(key) {
  return key.revoked_at !== null || (key.expires_at !== null && key.expires_at < Date.now() / 1000);
}

function ending(key) {
  if (key.revoked_at !== null) return html`<time title=${clock(key.revoked_at)}>revoked ${ago(key.revoked_at)}</time>`;
  return key.expires_at === null ? "never" : html`<time title=${clock(key.expires_at)}>${ago(key.expires_at)}</time>`;
}

function quotas(given) {
  const set = Object.entries(given ?? {}).filter(([, value]) => value !== null);
  return set.length ? set.map(([name, value]) => `${words(name)} ${number(value)}`).join(", ") : "none";
}

function Audit({ before }) {
  const log = useResource("audit", { limit: AUDIT_ROWS, before }, { live: before ? undefined : ofAny("checkpoint", "job") });
  if (log.error?.status === 403) return html`<${Empty} title="The audit log is an administrator's">${log.error.message}<//>`;
  if (log.error) return html`<${ErrorBox} error=${log.error} retry=${log.reload} />`;
  if (!log.data) return html`<${Loading} what="the audit log" />`;
  const { entries } = log.data;
  if (entries.length === 0) return html`<${Empty} title=${before ? "Nothing older" : "Nothing was changed yet"} />`;
  return html`<div class="table-box" tabindex="0" role="group" aria-label="Audit log"><table class="table" data-testid="audit-table">
    <thead><tr><th scope="col">When</th><th scope="col">Key</th><th scope="col">What</th><th scope="col">Of</th><th scope="col">From</th></tr></thead>
    <tbody>${entries.map((entry) => html`<tr key=${entry.id}><td><time class="nowrap" title=${ago(entry.time)}>${clock(entry.time)}</time></td><td class="mono" data-label="Key">${entry.key_id ?? "the server"}</td>
      <td class="mono" data-label="What">${entry.action}</td><td data-label="Of">${entry.target}</td><td class="mono" data-label="From">${entry.detail?.from ?? "–"}</td></tr>`)}</tbody></table></div>
    <div class="more">${before && html`<button type="button" class="button" data-prev onClick=${() => setQuery({ before: "" }, { replace: false })}>Newest</button>`}
      ${entries.length === AUDIT_ROWS && html`<button type="button" class="button" data-next onClick=${() => setQuery({ before: entries[entries.length - 1].id }, { replace: false })}>Older</button>`}</div>`;
}
