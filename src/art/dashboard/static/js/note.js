// What a person thinks of a rollout: a flag and a note, with who set them and when.

import { api, path } from "./api.js";
import { ErrorBox } from "./components/index.js";
import { ago, clock } from "./format.js";
import { html, useEffect, useState } from "./lib.js";
import { useRights } from "./rights.js";

export const FLAGS = { good: ["✓", "good"], bad: ["✗", "bad"], check: ["?", "look at it again"] };
const LONGEST = 4000; // characters that the server takes

export function Flag({ flag }) {
  if (!flag) return null;
  const [sign, word] = FLAGS[flag] ?? ["•", flag];
  return html`<span class=${`flag flag-${flag}`} title=${`Flagged: ${word}`}><span aria-hidden="true">${sign}</span> ${flag}</span>`;
}

/** `note` as the server has it; what is being typed is kept when a newer one arrives. */
export function NoteForm({ rolloutId, note, onSaved }) {
  const refused = useRights().refusal("rollout");
  const [draft, setDraft] = useState(null); // null: nothing typed since the last save
  const [state, setState] = useState({ busy: false, error: null, saved: false });
  useEffect(() => {
    setDraft(null);
    setState({ busy: false, error: null, saved: false });
  }, [rolloutId]);
  const { flag = null, note: text = "" } = draft ?? note;
  const change = (changes) => {
    setDraft({ flag, note: text, ...changes });
    setState({ busy: false, error: null, saved: false });
  };
  const save = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null, saved: false });
    try {
      const kept = await api.put(path("rollouts", rolloutId, "note"), { flag, note: text });
      setDraft(null);
      setState({ busy: false, error: null, saved: true });
      onSaved?.(kept);
    } catch (error) {
      setState({ busy: false, error, saved: false });
    }
  };
  const kinds = [[null, "none"], ...Object.keys(FLAGS).map((name) => [name, name])];
  return html`<form class="note-form" onSubmit=${save} data-testid="note-form">
    <fieldset class="flags" disabled=${Boolean(refused)}><legend>Flag</legend>
      ${kinds.map(([value, label]) => html`<label class="inline" key=${label}><input type="radio" name=${`flag-${rolloutId}`} checked=${(flag ?? null) === value} onChange=${() => change({ flag: value })} />${label}</label>`)}
    </fieldset>
    <label class="note-label" for="note-text">Note</label>
    <textarea id="note-text" rows="3" maxlength=${LONGEST} disabled=${Boolean(refused)} value=${text} onInput=${(event) => change({ note: event.target.value })}></textarea>
    <div class="note-end">
      <button type="submit" class="button" disabled=${Boolean(refused) || state.busy || draft === null} title=${refused || undefined}>Save</button>
      <span class="muted small" role="status">${refused || (state.saved ? "Saved. " : "")}${note.time && !draft ? html`<span title=${clock(note.time)}>set ${ago(note.time)}${note.by ? ` with key ${note.by}` : ""}</span>` : ""}</span>
    </div>
    <${ErrorBox} error=${state.error} />
  </form>`;
}
