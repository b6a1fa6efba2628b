// Where a person gives the key. It stays in this tab.

import { ErrorBox } from "./components/states.js";
import { html, useEffect, useRef, useState } from "./lib.js";

export function KeyForm({ refusal, give }) {
  const [text, setText] = useState("");
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    if (text.trim()) give(text.trim());
  };
  return html`<form class="key-form" onSubmit=${submit}>
    <h1>A key, please</h1>
    <p>The server shows nothing without one. The admin key lies in <code>server/admin.key</code> in the server's folder;${" "}
      <code>art ui</code> opens this page with a key by itself, and <code>art key create --role rollout</code> makes one for somebody who only looks.</p>
    <${ErrorBox} error=${refusal} />
    <label for="key">Key</label>
    <div class="key-row">
      <input id="key" ref=${field} type="password" autocomplete="off" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)} />
      <button class="button primary" type="submit">Open</button>
    </div>
    <p class="muted">It is kept in this tab only, and forgotten when the tab is closed.</p>
  </form>`;
}
