// Saved views: addresses of this page under a name, for everybody in the project.

import { api, path } from "./api.js";
import { ErrorBox } from "./components/index.js";
import { html, useState } from "./lib.js";
import { useResource } from "./resource.js";
import { useRights } from "./rights.js";

const LONGEST_NAME = 100; // characters that the server takes

/** A menu: goes to a saved view, saves the present one, deletes one. */
export function Saved({ project }) {
  const [open, setOpen] = useState(false);
  return html`<details class="menu" open=${open} onToggle=${(event) => setOpen(event.target.open)} data-testid="saved-views">
    <summary class="button">Saved views</summary>
    ${open && html`<${Menu} project=${project} close=${() => setOpen(false)} />`}
  </details>`;
}

function Menu({ project, close }) {
  const refused = useRights().refusal("rollout");
  const list = useResource("views/saved", { project });
  const [name, setName] = useState("");
  const [error, setError] = useState(null);
  const where = path("views/saved", project);
  const act = async (doing) => {
    setError(null);
    try {
      await doing();
      await list.reload();
      return true;
    } catch (failed) {
      setError(failed);
      return false;
    }
  };
  const save = async (event) => {
    event.preventDefault();
    if (await act(() => api.put(where, { name: name.trim(), location: location.hash.slice(1) }))) setName("");
  };
  const pressed = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    close();
  };
  const views = list.data?.views ?? [];
  return html`<div class="menu-body" onKeyDown=${pressed}>
    <ul>${views.map((view) => html`<li key=${view.name}><a href=${`#${view.location.startsWith("/") ? view.location : "/"}`} onClick=${close}>${view.name}</a>
      <button type="button" class="button quiet" disabled=${Boolean(refused)} aria-label=${`Delete the view ${view.name}`} onClick=${() => act(() => api.del(where, undefined, { query: { name: view.name } }))}>✕</button></li>`)}</ul>
    ${list.data && views.length === 0 && html`<p class="muted">None yet. Filter and sort as you like, then save it here.</p>`}
    <form class="save-view" onSubmit=${save}>
      <input type="text" aria-label="Name of this view" placeholder="Name of this view" maxlength=${LONGEST_NAME} required value=${name} onInput=${(event) => setName(event.target.value)} />
      <button type="submit" class="button" disabled=${Boolean(refused) || name.trim() === ""} title=${refused || undefined}>Save</button>
    </form>
    <${ErrorBox} error=${error ?? list.error} />
  </div>`;
}
