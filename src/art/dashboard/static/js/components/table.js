// A table whose rows open something. On a narrow screen each row is a card, its cells labelled by their columns.

import { cls, html } from "../lib.js";

/**
 * columns: `{key, label, title?, align?: "right", sort?: name to sort by, wide?: hidden on cards when empty, render(row)}`.
 * `link(row)` is the address a row opens; the first column's content becomes its link (so `render` gives no link there).
 * `sort`, `order`, `onSort(name, order)`: which column the list is sorted by, and what a click on a head does.
 */
export function Table({ columns, rows, rowKey, link, label, testid, sort, order, onSort, marked, loading }) {
  return html`<div class="table-box" tabindex="0" role="group" aria-label=${label}>
    <table class=${cls("table", loading && "is-loading")} role="table" data-testid=${testid} aria-label=${label} aria-busy=${Boolean(loading)}>
      <thead role="rowgroup"><tr role="row">${columns.map((column) => html`<${Head} key=${column.key} ...${{ column, sort, order, onSort }} />`)}</tr></thead>
      <tbody role="rowgroup">
        ${rows.map((row) => html`<tr key=${rowKey(row)} role="row" class=${cls(link && "opens", marked?.(row) && "is-marked")} onClick=${link && ((event) => opened(event))}>
          ${columns.map((column, index) => html`<td key=${column.key} role="cell" data-label=${column.label} class=${cls(column.align === "right" && "num", column.class)}>
            ${index === 0 && link ? html`<a class="row-link" href=${link(row)} data-row>${column.render(row)}</a>` : column.render(row)}
          </td>`)}
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}

/** A click anywhere in a row follows its link, unless it hit something that does more, or selected text. */
function opened(event) {
  if (event.target.closest("a, button, input, label, summary") || String(getSelection()) !== "") return;
  event.currentTarget.querySelector("a.row-link")?.click();
}

function Head({ column, sort, order, onSort }) {
  const shared = { scope: "col", role: "columnheader", title: column.title, class: cls(column.align === "right" && "num") };
  if (!column.sort || !onSort) return html`<th ...${shared}>${column.label}</th>`;
  const active = sort === column.sort;
  const next = active && order === "desc" ? "asc" : "desc";
  const state = active ? (order === "asc" ? "ascending" : "descending") : "none";
  return html`<th ...${shared} aria-sort=${state}>
    <button type="button" class="sort" onClick=${() => onSort(column.sort, next)}>${column.label}<span class="sort-mark" aria-hidden="true">${active ? (order === "asc" ? "▲" : "▼") : ""}</span></button>
  </th>`;
}

/** "More" under a list that has another page. */
export function More({ more, loading, shown, total }) {
  return html`<div class="more">
    ${more && html`<button type="button" class="button" onClick=${more} disabled=${loading}>${loading ? "Loading …" : "Show more"}</button>`}
    ${shown !== undefined && html`<span class="muted">${shown}${total !== undefined ? ` of ${total}` : ""} shown</span>`}
  </div>`;
}
