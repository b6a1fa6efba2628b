// What stands where data would stand: it is on its way, there is none, or it could not be had.

import { html } from "../lib.js";

export function Loading({ what = "" }) {
  return html`<p class="state" role="status">Loading${what ? ` ${what}` : ""} …</p>`;
}

/** Nothing there, and what a person can do to change that. */
export function Empty({ title, children }) {
  return html`<div class="state empty"><p class="state-title">${title}</p>${children && html`<div>${children}</div>`}</div>`;
}

/** `error` / `cause` / `hint`, as the server tells them. */
export function ErrorBox({ error, retry }) {
  if (!error) return null;
  return html`<div class="error-box" role="alert">
    <p class="error-title">${error.message}</p>
    ${error.cause && html`<p><span class="error-word">cause</span> ${String(error.cause)}</p>`}
    ${error.hint && html`<p><span class="error-word">hint</span> ${error.hint}</p>`}
    ${retry && html`<button type="button" class="button" onClick=${retry}>Try again</button>`}
  </div>`;
}

/** The usual order of the three around a resource: `<${Resource} of=${resource} what="runs">${(data) => ...}<//>`. */
export function Resource({ of: resource, what, children }) {
  const { data, error, loading, reload } = resource;
  return html`<div class="resource" aria-busy=${loading}>
    ${error && html`<${ErrorBox} error=${error} retry=${reload} />`}
    ${data ? children(data) : loading && !error && html`<${Loading} what=${what} />`}
  </div>`;
}
