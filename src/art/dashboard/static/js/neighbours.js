// What stands before and after something in the list that it was opened from.

import { api } from "./api.js";
import { html, useEffect, useState } from "./lib.js";

const PAGE = 100;
const LARGEST = 500; // rows that are asked for at once
const ROWS = 10_000; // as far as lists are counted; a place further down is not looked for

/**
 * `{before, after, place, total}` of the row whose `keyOf` is `current` in the answer's list `field`; `{}` while it is looked
 * for, or when it is not there. `where` null asks nothing.
 */
export function useNeighbours(where, query, { field, keyOf, current }) {
  const asked = where === null ? null : JSON.stringify([where, query, current]);
  const [state, setState] = useState({ asked: null });
  useEffect(() => {
    if (asked === null) return undefined;
    const aborter = new AbortController();
    find(where, query, { field, keyOf, current, signal: aborter.signal }).then(
      (found) => setState({ asked, ...found }),
      (error) => error.name !== "AbortError" && setState({ asked }), // a list that cannot be had leaves the links out
    );
    return () => aborter.abort();
  }, [asked]);
  return state.asked === asked ? state : {};
}

async function find(where, query, { field, keyOf, current, signal }) {
  let rows = [];
  let cursor = null;
  for (let limit = PAGE; rows.length < ROWS; limit = Math.min(2 * limit, LARGEST)) {
    const answer = await api.get(where, { ...query, limit, cursor }, { signal });
    rows = rows.concat(answer[field]);
    cursor = answer.next;
    const at = rows.findIndex((row) => keyOf(row) === current);
    if (at >= 0 && (at < rows.length - 1 || !cursor)) {
      return { before: rows[at - 1] ?? null, after: rows[at + 1] ?? null, place: at + 1, total: answer.total ?? (cursor ? null : rows.length) };
    }
    if (!cursor) return {};
  }
  return {};
}

/** Links that [ and ] follow. */
export function Stepper({ before, after, what, place, total, class: name = "" }) {
  return html`<span class=${`stepper ${name}`}>
    ${before ? html`<a class="button quiet" data-prev href=${before} title=${`Previous ${what} ( [ )`}>‹ previous</a>` : html`<span class="button quiet" aria-disabled="true">‹ previous</span>`}
    ${place && html`<span class="muted small nowrap">${place}${total ? ` of ${total}` : ""}</span>`}
    ${after ? html`<a class="button quiet" data-next href=${after} title=${`Next ${what} ( ] )`}>next ›</a>` : html`<span class="button quiet" aria-disabled="true">next ›</span>`}
  </span>`;
}
