// What the server found suspicious about a run's reward, in words.

import { path } from "./api.js";
import { html } from "./lib.js";
import { ofRun, useResource } from "./resource.js";

export function useRewardCheck(project, name) {
  return useResource(path("views/runs", project, name, "reward-check"), {}, { live: ofRun(project, name, "step", "log") }).data;
}

/** That one judge scored both is a warning beside another one, and else something to know. */
export function warningsOf(check) {
  const found = check?.warnings ?? [];
  return found.some((one) => one.kind !== "same_judge") ? found : [];
}

export const notesOf = (check) => (warningsOf(check).length > 0 ? [] : check?.warnings ?? []);

/** `link`: where more is told, for the words of the warning. */
export function RewardWarnings({ check, link }) {
  return warningsOf(check).map((one) => html`<li key=${`${one.kind} ${one.name}`}><b class="warn">${link ? html`<a href=${link}>${one.message}</a>` : one.message}</b> ${one.detail}</li>`);
}

/** A name as RewardLink has it, for a person. */
export const linkTitle = (name) => ({ sampled_tokens: "length", tool_errors: "tool errors" })[name] ?? name.replace(/^metrics\./, "");
