// Dialogs on the browser's own <dialog>: focus is kept inside, Esc closes, the page behind is inert.

import { html, useEffect, useRef, useState } from "../lib.js";
import { ErrorBox } from "./states.js";

/** Shown as long as it is there; `onClose` is called when the person leaves it. */
export function Dialog({ title, onClose, children, testid }) {
  const element = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    return () => before?.focus?.();
  }, []);
  const outside = (event) => event.target === element.current && onClose();
  return html`<dialog ref=${element} class="dialog" aria-labelledby="dialog-title" data-testid=${testid} onClick=${outside}
      onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <div class="dialog-body">
      <header class="dialog-head"><h2 id="dialog-title">${title}</h2>
        <button type="button" class="button quiet" aria-label="Close" onClick=${onClose}>✕</button></header>
      ${children}
    </div>
  </dialog>`;
}

/** Asks before something is done. `act` may fail: the error is shown and the dialog stays. */
export function Confirm({ title, children, verb, danger = false, act, onClose, testid }) {
  const [state, setState] = useState({ busy: false, error: null });
  const confirm = async () => {
    setState({ busy: true, error: null });
    try {
      await act();
      onClose();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose} testid=${testid}>
    <div class="dialog-text">${children}</div>
    <${ErrorBox} error=${state.error} />
    <div class="dialog-buttons">
      <button type="button" class="button" onClick=${onClose}>Cancel</button>
      <button type="button" class=${`button ${danger ? "danger" : "primary"}`} disabled=${state.busy} onClick=${confirm}>${state.busy ? "…" : verb}</button>
    </div>
  <//>`;
}
