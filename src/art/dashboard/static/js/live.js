// What changes at the server, as it changes: one stream for the whole page, read with fetch because EventSource can send no
// key. Whoever listens asks again for what it shows; the events themselves carry names only.

import { address, ask, readEvents } from "./api.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;

const listeners = new Set();
const watchers = new Set();
let state = "off"; // off, connecting, live, waiting
let running = null;

function become(next) {
  state = next;
  for (const watcher of watchers) watcher(state);
}

/** Calls `listener({type, project, name, id, status, step})`; returns what ends it. After a gap `type` is "resync". */
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function watchState(watcher) {
  watchers.add(watcher);
  watcher(state);
  return () => watchers.delete(watcher);
}

function tell(event) {
  for (const listener of [...listeners]) listener(event);
}

function told({ event, data }) {
  try {
    tell({ ...JSON.parse(data), type: event });
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error; // a line cut by a proxy
  }
}

async function follow(signal) {
  let wait = FIRST_WAIT_MS;
  let gap = false;
  while (!signal.aborted) {
    become("connecting");
    try {
      const response = await ask(address("views/events"), { signal });
      become("live");
      wait = FIRST_WAIT_MS;
      if (gap) tell({ type: "resync" });
      await readEvents(response, told);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 401 || error.status === 403) return become("off");
    }
    gap = true;
    become("waiting");
    await new Promise((resolve) => setTimeout(resolve, wait * (0.75 + Math.random() / 2)));
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }
}

export function start() {
  stop();
  running = new AbortController();
  follow(running.signal);
}

export function stop() {
  running?.abort();
  running = null;
  become("off");
}
