// One group: its rollouts side by side, best first, message beside message, and the place at which they part.

import { path } from "../api.js";
import { Facts, Resource, Status } from "../components/index.js";
import { count, duration, of, reward, signed } from "../format.js";
import { cls, html, useEffect, useMemo, useRef } from "../lib.js";
import { Stepper, useNeighbours } from "../neighbours.js";
import { Flag } from "../note.js";
import { ofRun, useResource } from "../resource.js";
import { rolloutHref, scenarioName, shortId } from "../rollout_columns.js";
import { href, setQuery } from "../router.js";
import { Message, placeIn } from "../transcript.js";

const FOLD = { lines: 24, characters: 2400 };
const SORTED = { sort: "reward", order: "desc" };

export function View({ route }) {
  const { project, name, group_id: id } = route.params;
  const detail = useResource(path("views/runs", project, name, "groups", id), {}, { live: ofRun(project, name, "rollout", "step") });
  return html`<${Resource} of=${detail} what="the group">${(data) => html`<${Group} ...${{ data, route }} />`}<//>`;
}

function Group({ data, route }) {
  const { group, members, divergence } = data;
  const { project, name } = route.params;
  const neighbours = useNeighbours(path("views/runs", project, name, "groups"), { step: group.step }, {
    field: "groups", keyOf: (line) => line.group_id, current: group.group_id,
  });
  const groupHref = (line) => line && href("group", { project, name, group_id: line.group_id });
  const chosen = Math.max(0, members.findIndex((member) => member.rollout.rollout_id === route.query.member));
  const memberHref = (at) => members[at] && href("group", route.params, { ...route.query, member: members[at].rollout.rollout_id });
  const marks = route.query.ws === "1";
  return html`<div class="toolbar"><h2>Group ${shortId(group.group_id)}</h2>
      <${Stepper} class="wide-group" what="group of this step" before=${groupHref(neighbours.before)} after=${groupHref(neighbours.after)} place=${neighbours.place} total=${neighbours.total} />
      <${Stepper} class="narrow-group" what="rollout of this group" before=${memberHref(chosen - 1)} after=${memberHref(chosen + 1)} place=${chosen + 1} total=${members.length} />
      <label class="inline"><input type="checkbox" checked=${marks} onChange=${(event) => setQuery({ ws: event.target.checked ? "1" : "" })} />White space</label>
    </div>
    <${Facts} facts=${[
      group.scenario_id && ["Scenario", html`<a class="clip" title=${group.scenario_id} href=${href("scenario", { project, name, scenario_id: group.scenario_id })}>${scenarioName(group)}</a>`],
      ["Sampled at", html`<a href=${href("groups", { project, name }, { step: group.step })}>step ${count(group.step)}</a>`, "The published step that served its first rollout"],
      group.batch !== null && group.batch !== undefined && ["Trained by", html`<a href=${href("groups", { project, name }, { batch: group.batch })}>batch ${count(group.batch)}</a>`, "The newest train call that took it"],
      ["Rollouts", count(group.size)],
      ["Reward", `${reward(group.reward_mean)} ± ${reward(group.reward_std_dev)}`, "Mean ± standard deviation"],
      ["From", `${reward(group.reward_min)} to ${reward(group.reward_max)}`],
      members.length > 1 && ["First difference", divergence ? `message ${divergence.message + 1}, character ${count(divergence.character + 1)}` : "none"],
    ]} />
    <${Columns} ...${{ members, divergence, chosen, marks, route }} />`;
}

/** What all members say stands once, above; from the first difference on each has a column, and row by row the same message. */
function Columns({ members, divergence, chosen, marks, route }) {
  const element = useRef(null);
  const speaking = members.filter((member) => member.messages.length > 0); // who says nothing is compared with nobody
  const shared = speaking.length === 0 ? 0 : divergence ? divergence.message : Math.min(...speaking.map((member) => member.messages.length));
  const rows = Math.max(0, ...members.map((member) => member.messages.length)) - shared;
  const places = useMemo(() => members.map((member) => placeOf(member, divergence)), [members, divergence]);
  const first = useRef(true);
  useEffect(() => {
    if (!first.current || members.length === 0) return;
    first.current = false;
    const mark = element.current.querySelector(".is-chosen .here") ?? element.current.querySelector("[data-testid=divergence]");
    mark?.scrollIntoView({ block: "center", inline: "nearest" });
  }, [members]);
  useEffect(() => {
    if (route.query.member) element.current.querySelector(".is-chosen")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [route.query.member]);
  const pad = (member) => Array.from({ length: rows }, (_, row) => member.messages[shared + row] ?? null);
  return html`${shared > 0 && html`<${Shared} messages=${speaking[0].messages.slice(0, shared)} alone=${speaking.length === 1} marks=${marks} />`}
    <div class="group-columns" ref=${element} data-testid="group-columns" data-scrolls tabindex="0" role="region" aria-label="Rollouts side by side"
        style=${{ gridTemplateRows: `auto repeat(${rows}, auto)` }}>
      ${members.map((member, column) => html`
        <${Head} key=${member.rollout.rollout_id} ...${{ member, chosen: column === chosen, route }} />
        ${pad(member).map((message, row) => html`<div key=${`${member.rollout.rollout_id}-${row}`} class=${cls("group-cell", column === chosen && "is-chosen", divergence && row === 0 && "is-parting")}
            data-testid=${divergence && row === 0 ? "divergence" : undefined}>
          ${message ? html`<${Message} message=${message} index=${shared + row} marks=${marks} fold=${FOLD} at=${row === 0 ? places[column] : null} />` : html`<p class="muted ended">${row === 0 || member.messages[shared + row - 1] ? "(ended)" : ""}</p>`}
        </div>`)}`)}
    </div>`;
}

function placeOf(member, divergence) {
  const message = divergence && member.messages[divergence.message];
  return message ? placeIn(message, divergence.character) : null;
}

function Shared({ messages, alone, marks }) {
  const told = alone ? of(messages.length, "message") : `The first ${messages.length === 1 ? "message is" : `${messages.length} messages are`} the same in all of them`;
  return html`<details class="fold shared" open=${alone}><summary>${told}</summary>
    ${messages.map((message, index) => html`<${Message} key=${index} message=${message} index=${index} marks=${marks} fold=${FOLD} />`)}</details>`;
}

function Head({ member, chosen, route }) {
  const { rollout } = member;
  const list = { group: rollout.group_id, ...SORTED };
  return html`<header class=${cls("group-head", chosen && "is-chosen")}>
    <p class="group-reward"><a href=${rolloutHref(rollout, list)} data-row title="Open the trajectory"><b>${reward(rollout.reward)}</b> <span class="mono small">${shortId(rollout.rollout_id)}</span></a>
      <button type="button" class="button quiet" aria-pressed=${chosen} title="Mark this column in the address" onClick=${() => setQuery({ member: rollout.rollout_id })}>${chosen ? "◉" : "○"}<span class="visually-hidden">choose</span></button></p>
    <p class="small"><span class="muted">advantage</span> <b class=${rollout.advantage > 0 ? "good" : rollout.advantage < 0 ? "bad" : ""}>${signed(rollout.advantage)}</b></p>
    <p class="small inline"><${Status} of=${rollout.status} title=${rollout.reason || undefined} /><${Flag} flag=${rollout.flag} /></p>
    <p class="small muted">${of(rollout.sampled_tokens, "token")} · ${of(rollout.calls, "call")}${rollout.tool_errors > 0 && html` · <span class="bad">${of(rollout.tool_errors, "tool error")}</span>`} · ${duration(rollout.seconds)}</p>
    ${member.explanation && html`<p class="small judge" data-testid="explanation"><span class="muted">judge</span> ${member.explanation}</p>`}
    ${member.branches > 1 && html`<p class="small muted" title="Its history was rewritten or handed on; the trajectory shows all branches">its last answer is in branch ${member.branch}, of ${count(member.branches)} branches</p>`}
  </header>`;
}
