// The server's API. The key is in this tab's storage only: given once behind `#key=`, or typed in.

const STORED = "art-key";
const ROOT = new URL("api/v1/", document.baseURI);

/** What the server (or the network) says went wrong, in words for a person. */
export class ApiError extends Error {
  constructor(status, { code = "", message = "", cause = "", hint = "" } = {}) {
    super(message || "the request failed");
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.cause = cause;
    this.hint = hint;
  }
}

/** Takes the key out of `#key=KEY&/where`, if it stands there, so that no copied link holds it. */
export function takeKey() {
  const found = /^#key=([^&]+)(?:&(.*))?$/.exec(location.hash);
  if (!found) return;
  setKey(unquoted(found[1]));
  history.replaceState(null, "", `#${found[2]?.startsWith("/") ? found[2] : "/"}`);
  window.dispatchEvent(new CustomEvent("art-key"));
}

function unquoted(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand, with a % of its own
  }
}

let key = null;

export function getKey() {
  if (key === null) {
    try {
      key = sessionStorage.getItem(STORED) || "";
    } catch {
      key = ""; // storage is switched off: the key lasts as long as the page
    }
  }
  return key;
}

export function setKey(value) {
  key = value;
  try {
    if (value) sessionStorage.setItem(STORED, value);
    else sessionStorage.removeItem(STORED);
  } catch {
    // As above.
  }
}

/** `views/runs` and a query as an address; lists repeat their name, empty values are left out. */
export function address(path, query = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") url.searchParams.append(name, String(one));
    }
  }
  return url;
}

/** A path from parts that may hold anything: `path("views/runs", project, name)`. */
export function path(first, ...rest) {
  return [first, ...rest.map((part) => encodeURIComponent(part))].join("/");
}

async function failure(response) {
  let told = {};
  try {
    const body = await response.json();
    told = body.error ?? {};
  } catch (error) {
    if (error.name === "AbortError") throw error; // nobody waits for it any more
    told = { message: `the server answered ${response.status} ${response.statusText}` };
  }
  return new ApiError(response.status, told);
}

/** fetch with the key; throws ApiError, or AbortError when `signal` ended it. */
export async function ask(url, { method = "GET", body, signal, headers = {} } = {}) {
  const asked = { method, signal, headers: { Authorization: `Bearer ${getKey()}`, ...headers } };
  if (body !== undefined) {
    asked.body = JSON.stringify(body);
    asked.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(url, asked);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, {
      message: "the server does not answer",
      cause: error.message,
      hint: "is it still running? The page tries again by itself",
    });
  }
  if (!response.ok) {
    const error = await failure(response);
    if (error.status === 401) window.dispatchEvent(new CustomEvent("art-no-key", { detail: error }));
    throw error;
  }
  return response;
}

async function json(url, options) {
  const response = await ask(url, options);
  return response.status === 204 ? null : response.json();
}

export const api = {
  get: (where, query = {}, { signal } = {}) => json(address(where, query), { signal }),
  post: (where, body, { signal, query } = {}) => json(address(where, query), { method: "POST", body, signal }),
  put: (where, body, { signal, query } = {}) => json(address(where, query), { method: "PUT", body, signal }),
  del: (where, body, { signal, query } = {}) => json(address(where, query), { method: "DELETE", body, signal }),
};

/** Reads server-sent events from a response until it ends; calls `each({event, data})`. */
export async function readEvents(response, each) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const told = { event: "message", data: "" };
      for (const line of block.split(/\r?\n/)) {
        const cut = line.indexOf(":");
        if (cut < 1) continue; // a comment keeps the line open
        const [name, text] = [line.slice(0, cut), line.slice(cut + 1).replace(/^ /, "")];
        if (name === "event") told.event = text;
        if (name === "data") told.data += (told.data ? "\n" : "") + text;
      }
      if (told.data) each(told);
    }
  }
}
