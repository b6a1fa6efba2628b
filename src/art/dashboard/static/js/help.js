import { Dialog } from "./components/dialog.js";
import { KEYS } from "./keys.js";
import { html } from "./lib.js";

export function Help({ onClose }) {
  return html`<${Dialog} title="Keys" onClose=${onClose} testid="help">
    <table class="keys"><tbody>${KEYS.map(([keys, meaning]) => html`<tr key=${keys}><th scope="row">${keys.split(/( \/ | then )/).map((part) => (/^ /.test(part) ? html`<span class="muted">${part}</span>` : html`<kbd>${part}</kbd>`))}</th><td>${meaning}</td></tr>`)}</tbody></table>
    <p class="muted">Every address holds what you see: copy it to send somebody to the same view. The reader needs a key of their own.</p>
  <//>`;
}
