import { Dialog } from "./components/dialog.js";
import { KEYS } from "./keys.js";
import { html } from "./lib.js";

/** What the words mean that one meets on every page. */
const WORDS = [
  ["step", "a published checkpoint, counted from 0. What was sampled at step 28 is usually trained into step 29."],
  ["batch", "one train call; it publishes the next step, or none where there was nothing to learn."],
  ["rollout", "one run of the agent on one scenario. It gets one reward."],
  ["group", "rollouts of the same scenario, compared with one another."],
  ["advantage", "how much better a rollout was than its group, and what its tokens' loss is multiplied with. All equal: 0, nothing is learned."],
  ["branch", "a path through a rollout's calls. A new one begins where the history was rewritten, shortened, or handed to another agent."],
  ["auxiliary", "a call on the side, such as one for a title: shown, and not trained."],
  ["fate", "what became of an answer: trained, or not and why."],
  ["parity gap", "how far the trainer's log-probabilities are from those that were recorded when the tokens were served, in nats. Near 0: what is trained is what was served."],
  ["staleness", "published steps between sampling and training."],
  ["KL", "how far the model is from its reference, in nats per token."],
];

export function Help({ onClose }) {
  return html`<${Dialog} title="Keys and words" onClose=${onClose} testid="help">
    <table class="keys"><tbody>${KEYS.map(([keys, meaning]) => html`<tr key=${keys}><th scope="row">${keys.split(/( \/ | then )/).map((part) => (/^ /.test(part) ? html`<span class="muted">${part}</span>` : html`<kbd>${part}</kbd>`))}</th><td>${meaning}</td></tr>`)}</tbody></table>
    <h3>Words</h3>
    <dl class="pairs words">${WORDS.map(([word, meaning]) => html`<div key=${word}><dt>${word}</dt><dd>${meaning}</dd></div>`)}</dl>
    <p class="muted">Every address holds what you see: copy it to send somebody to the same view. The reader needs a key of their own.</p>
  <//>`;
}
