// A call in a transcript: what it added to the conversation, and its choices with their fates.

import { Badge, Status } from "./components/index.js";
import { clock, count, duration, of, reward, signed } from "./format.js";
import { cls, html } from "./lib.js";
import { stepOf } from "./outline.js";
import { prettyJson } from "./pretty.js";
import { Tokens } from "./tokens.js";
import { Message } from "./transcript.js";

const WHOLE = { lines: Infinity, characters: Infinity };

/** `taken` is the choice that the conversation goes on from; `look`: how it is drawn (see the trajectory's view). */
export function Call({ rolloutId, call, taken, look, onVersions }) {
  const others = call.choices.filter((choice) => choice !== taken);
  const fold = look.find ? WHOLE : undefined;
  const shared = { rolloutId, call, look, fold, onVersions };
  return html`<section class=${cls("call", call.auxiliary && "is-aside")} data-call=${call.number} aria-label=${`Call ${call.number}`}>
    <${Head} call=${call} />
    ${call.withheld && html`<p class="withheld">Its text is not shown: ${call.withheld}.</p>`}
    ${call.tail.map((message, index) => html`<${Message} key=${index} index=${index} message=${message} marks=${look.marks} fold=${fold} />`)}
    ${taken && html`<${Choice} ...${shared} choice=${taken} />`}
    ${others.length > 0 && html`<details class="fold siblings" open=${Boolean(look.find)}><summary>${of(others.length, "other choice", "other choices")} of this call</summary>
      ${others.map((choice) => html`<${Choice} key=${choice.index} ...${shared} choice=${choice} />`)}</details>`}
  </section>`;
}

function Head({ call }) {
  const timing = [call.seconds !== null && call.seconds !== undefined && `took ${duration(call.seconds)}`, call.seconds_to_first_token !== null && call.seconds_to_first_token !== undefined && `first token after ${duration(call.seconds_to_first_token)}`].filter(Boolean);
  return html`<header class="call-head">
    <h3>Call ${call.number}</h3>
    ${call.agent && html`<${Badge}>${call.agent}<//>`}
    ${call.auxiliary && html`<${Badge} kind="info" title=${call.auxiliary_reason}>on the side<//>`}
    <span class="muted small" title=${call.version}>${stepOf(call.version)}</span>
    <details class="fold call-more"><summary class="small">${count(call.prompt_tokens)} prompt tokens${timing.length > 0 && `, ${timing[0]}`}</summary>
      <dl class="pairs">
        <div><dt>Reused</dt><dd>${of(call.reused_tokens, "token")} of the prompt were known as they had been sampled</dd></div>
        ${timing.length > 0 && html`<div><dt>Time</dt><dd>${clock(call.started_at)}, ${timing.join(", ")}</dd></div>`}
        <div><dt>Asked by</dt><dd>${call.dialect}, branch ${call.branch}${call.parent !== null && call.parent !== undefined ? `, goes on from call ${call.parent}` : ""}</dd></div>
        <div><dt>Sampling</dt><dd><pre>${prettyJson(JSON.stringify(call.sampling)) ?? ""}</pre></dd></div>
        ${call.overrides.length > 0 && html`<div><dt>Not followed</dt><dd>${call.overrides.join("; ")}</dd></div>`}
        ${call.tools.length > 0 && html`<div><dt>Tools</dt><dd>${call.tools.join(", ")}</dd></div>`}
        ${call.auxiliary && html`<div><dt>On the side</dt><dd>${call.auxiliary_reason}</dd></div>`}
      </dl></details>
  </header>`;
}

function Choice({ rolloutId, call, choice, look, fold, onVersions }) {
  const tokens = look.tokens && !call.withheld;
  const shown = { rollout_id: rolloutId, call_id: call.call_id, index: choice.index, total: choice.token_count, prompt: look.prompt ? call.prompt_tokens : 0 };
  return html`<div class="choice" data-choice=${choice.index}>
    <${Message} message=${choice.message} index=${`choice-${choice.index}`} marks=${look.marks} fold=${fold}
      instead=${tokens ? html`<${Tokens} choice=${shown} colour=${look.colour} marks=${look.marks} onVersions=${onVersions} />` : undefined} />
    <p class="fate"><${Status} of=${choice.fate} />${choice.reason && html`<span>${choice.reason}</span>`}
      <span class="muted">${of(choice.token_count, "token")}, ended by ${choice.finish_reason}</span>
      ${choice.reward !== null && choice.reward !== undefined && html`<span class="muted">reward <b>${reward(choice.reward)}</b>${choice.reward_of && ` of the ${choice.reward_of}`}</span>`}
      ${choice.advantage !== null && choice.advantage !== undefined && html`<span class="muted">advantage <b>${signed(choice.advantage)}</b></span>`}
      ${choice.trained_step !== null && choice.trained_step !== undefined && html`<span class="muted">${of(choice.trained_tokens, "token")} trained, published as step ${count(choice.trained_step)}</span>`}
    </p>
  </div>`;
}
