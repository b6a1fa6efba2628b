// All rollouts of a run: filtered, searched, sorted; and such questions kept under a name.

import { path } from "../api.js";
import { Empty, ErrorBox, Loading, More, Table } from "../components/index.js";
import { count, reward } from "../format.js";
import { Examples, FilterField, SearchField } from "../filter.js";
import { html, useMemo } from "../lib.js";
import { ofRun, usePages } from "../resource.js";
import { metricColumn, rolloutColumns, rolloutHref } from "../rollout_columns.js";
import { href, setQuery } from "../router.js";
import { Saved } from "../saved.js";

const LIMIT = 50;
const SORT = "created_at";
const NAMED = { step: "step", group: "group", scenario: "scenario", status: "status" };
const MOST_METRICS = 3; // columns for what the program logs
const NONE = "-";
const columnsOf = (metrics) => [
  ...rolloutColumns("id", "status", "reward"), ...metrics.map(metricColumn),
  ...rolloutColumns("advantage", "step", "scenario", "calls", "tokens", "tools", "errors", "seconds", "created", "answer", "preview"),
];

/** The metrics that have a column: those of the address, else the first ones. */
function chosenOf(asked, names) {
  if (asked === NONE) return [];
  const wanted = asked ? asked.split(",").map(decodeURIComponent).filter((name) => names.includes(name)) : names;
  return wanted.slice(0, MOST_METRICS);
}

/** What is asked of the server, from the address. */
function question({ filter, search, step, group, scenario, status, sort = SORT, order = "desc" }) {
  return { filter, search, step, group, scenario, status, sort, order };
}

export function View({ route }) {
  const { project, name } = route.params;
  const asked = question(route.query);
  const list = usePages(path("views/runs", project, name, "rollouts"), { ...asked, limit: LIMIT }, {
    field: "rollouts", rowKey: (row) => row.rollout_id, live: ofRun(project, name, "rollout", "step"),
    pages: Number(route.query.pages) || 1, onPages: (pages) => setQuery({ pages: pages > 1 ? pages : "" }),
  });
  const metrics = list.answer?.metrics ?? [];
  const chosen = chosenOf(route.query.cols, metrics);
  const zeros = metrics.filter((metric) => list.rows.some((row) => row.metrics?.[metric] === 0));
  const columns = useMemo(() => columnsOf(chosen), [chosen.join()]);
  const narrow = (changes) => setQuery({ ...changes, pages: "" }, { replace: false });
  const wrong = list.error && list.error.status === 400 && asked.filter ? list.error : null;
  const listed = { ...asked, sort: asked.sort === SORT ? "" : asked.sort, order: asked.order === "desc" ? "" : asked.order };
  return html`<div class="toolbar rollout-tools">
      <${FilterField} value=${asked.filter ?? ""} error=${wrong} metrics=${metrics} onApply=${(filter) => narrow({ filter })} />
      <${SearchField} value=${asked.search ?? ""} onApply=${(search) => narrow({ search })} />
      ${metrics.length > 0 && html`<${Chooser} ...${{ metrics, chosen }} />`}
      <${Saved} project=${project} />
    </div>
    <${Narrowed} query=${route.query} />
    ${!wrong && html`<${ErrorBox} error=${list.error} retry=${list.reload} />`}
    ${!asked.filter && !asked.search && html`<${Examples} zeros=${zeros} onApply=${(filter) => narrow({ filter })} />`}
    ${list.answer && !list.error && html`<p class="muted small" role="status">${total(list.answer)}</p>`}
    ${list.rows.length > 0 && html`<${Table} label="Rollouts of this run" testid="rollouts-table" columns=${columns} rows=${list.rows} rowKey=${(row) => row.rollout_id} loading=${list.loading}
        sort=${asked.sort} order=${asked.order} onSort=${(sort, order) => narrow({ sort: sort === SORT ? "" : sort, order: order === "desc" ? "" : order })}
        link=${(row) => rolloutHref(row, listed, { find: asked.search })} />
      <${More} more=${list.more} loading=${list.loading} shown=${count(list.rows.length)} />`}
    ${list.rows.length === 0 && !list.error && (list.loading ? html`<${Loading} what="rollouts" />` : html`<${None} ...${{ route, narrowed: list.answer && Object.keys(route.query).length > 0 }} />`)}`;
}

function total({ total: found, more, reward_mean: mean }) {
  const known = mean !== null && mean !== undefined;
  return `${more ? "more than " : ""}${count(found)} ${found === 1 ? "rollout" : "rollouts"}${known ? `, mean reward ${reward(mean)}` : ""}`;
}

/** Which of the program's metrics have a column. */
function Chooser({ metrics, chosen }) {
  const toggle = (name) => {
    const next = chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name];
    setQuery({ cols: next.map(encodeURIComponent).join(",") || NONE });
  };
  return html`<details class="menu" data-testid="metric-columns"><summary class="button">Metrics</summary>
    <div class="menu-body"><p class="muted small">Columns for what the program logs with its rollouts, at most ${MOST_METRICS}.</p>
      <ul>${metrics.map((name) => html`<li key=${name}><label class="inline"><input type="checkbox" checked=${chosen.includes(name)} disabled=${!chosen.includes(name) && chosen.length >= MOST_METRICS} onChange=${() => toggle(name)} />${name}</label></li>`)}</ul></div>
  </details>`;
}

/** What an address narrows by without the filter, each with a way to lift it. */
function Narrowed({ query }) {
  const given = Object.keys(NAMED).filter((name) => query[name]);
  if (given.length === 0) return null;
  return html`<p class="narrowed">${given.map((name) => html`<button type="button" class="button quiet" key=${name} title="Lift this" onClick=${() => setQuery({ [name]: "", pages: "" }, { replace: false })}>${NAMED[name]} ${query[name]} <span aria-hidden="true">✕</span></button>`)}</p>`;
}

function None({ route, narrowed }) {
  if (narrowed) return html`<${Empty} title="No rollout matches"><p><a href=${href("rollouts", route.params)}>Show all rollouts</a></p><//>`;
  return html`<${Empty} title="No rollouts yet"><p>One appears here as soon as an agent opens a session of this model, and fills while the agent runs.</p><//>`;
}
