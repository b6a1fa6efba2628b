// The tokens of one choice, coloured. Pages of tokens are asked for as they come into view and leave the document when they
// are far from it, so 30,000 tokens cost what is on the screen. Tokens are drawn by hand: a component for each would be slow.

import { api, path } from "./api.js";
import { count } from "./format.js";
import { html, useEffect, useRef } from "./lib.js";
import { withMarks } from "./pretty.js";
import { COLOURS, facts, legend, paint } from "./token_paint.js";

const PAGE = 1000; // tokens of a request and of a unit of drawing: some 10 ms of work
const NEAR = "900px"; // how far outside of the screen a page is drawn
const BOXED = 3000; // tokens from which on the view scrolls inside a box of its own
const LINE_HEIGHT = 22; // px, until a drawn page says what it really is
const GUESSED_PER_LINE = 14; // tokens

/** `choice`: `{rollout_id, call_id, index, total, prompt}`; `prompt`: prompt tokens to show too, 0 for none. */
export function Tokens({ choice, colour = "logprob", marks = false, onVersions }) {
  const element = useRef(null);
  const view = useRef(null);
  const { rollout_id: rollout, call_id: call, index, total, prompt = 0 } = choice;
  useEffect(() => {
    view.current = new TokenView(element.current, { rollout, call, index, total, prompt, colour, marks, onVersions });
    return () => view.current.end();
  }, [rollout, call, index, total, prompt]);
  useEffect(() => view.current.show({ colour, marks }), [colour, marks]);
  const shown = total + prompt;
  return html`<div class=${`tokens ${shown > BOXED ? "is-boxed" : ""}`} ref=${element} data-testid="token-view" tabindex="0" role="group"
    aria-label=${`${count(total)} tokens, coloured by ${COLOURS[colour].label.toLowerCase()}. Arrow keys read them one by one.`}></div>`;
}

/** What the colours mean, with the unit. */
export function TokenLegend({ colour, versions = [] }) {
  const parts = legend(colour, versions);
  if (parts.length === 0) return null;
  return html`<p class="token-legend" aria-label=${`Colours: ${COLOURS[colour].label}`} role="group">
    ${parts.map(([name, text]) => html`<span class="token-key" key=${name + text}><span class=${`token ${name}`} aria-hidden="true">ab</span>${text}</span>`)}
    ${COLOURS[colour].unit && html`<span class="muted">${COLOURS[colour].unit}</span>`}
  </p>`;
}

class TokenView {
  constructor(element, options) {
    this.element = element;
    this.options = options;
    this.aborter = new AbortController();
    this.versions = new Set();
    this.current = null; // position of the token that the keyboard reads
    this.perToken = LINE_HEIGHT / GUESSED_PER_LINE;
    this.pages = [];
    const { total, prompt } = options;
    const pages = document.createDocumentFragment();
    for (let start = -prompt; start < total; start += PAGE) {
      const page = { start, end: Math.min(start + PAGE, total), element: block("token-page"), data: null, tokens: [], drawn: false, height: 0, asked: null };
      this.pages.push(page);
      page.element.page = page;
      this.reserve(page);
      pages.append(page.element);
    }
    this.tip = block("token-tip");
    this.tip.hidden = true;
    this.said = block("visually-hidden");
    this.said.setAttribute("role", "status");
    element.replaceChildren(pages, this.tip, this.said);
    if (this.pages.length === 0) element.prepend(note("no tokens"));
    const root = element.classList.contains("is-boxed") ? element : null;
    this.observer = new IntersectionObserver((entries) => this.seen(entries), { root, rootMargin: `${NEAR} 0px` });
    for (const page of this.pages) this.observer.observe(page.element);
    this.bind();
  }

  bind() {
    const signal = this.aborter.signal;
    const on = (name, act) => this.element.addEventListener(name, act, { signal });
    on("mouseover", (event) => this.hover(event.target));
    on("click", (event) => this.hover(event.target));
    on("mouseleave", () => this.unhover());
    on("blur", () => this.unhover());
    on("focus", () => this.current !== null && this.tell(this.current));
    on("keydown", (event) => this.pressed(event));
    window.addEventListener("scroll", () => this.hideTip(), { signal, passive: true, capture: true });
  }

  end() {
    this.aborter.abort();
    this.observer.disconnect();
    this.element.replaceChildren();
  }

  show({ colour, marks }) {
    const { colour: before, marks: had } = this.options;
    if (before === colour && had === marks) return;
    Object.assign(this.options, { colour, marks });
    this.hideTip();
    for (const page of this.pages) {
      if (!page.drawn) continue;
      if (had === marks) this.repaint(page);
      else this.draw(page);
    }
  }

  seen(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) this.enter(target.page);
      else this.leave(target.page);
    }
  }

  enter(page) {
    page.near = true;
    if (page.data) this.draw(page);
    else this.load(page);
  }

  /** Far away a page keeps its height and loses its tokens. */
  leave(page) {
    page.near = false;
    if (!page.drawn) return;
    page.height = page.element.offsetHeight;
    page.drawn = false;
    page.tokens = [];
    page.element.replaceChildren();
    this.reserve(page);
  }

  reserve(page) {
    const height = page.height || Math.ceil((page.end - page.start) * this.perToken);
    page.element.style.minHeight = `${height}px`;
  }

  async load(page) {
    page.asked ??= this.ask(page);
    try {
      await page.asked;
    } catch (error) {
      page.asked = null;
      if (error.name !== "AbortError") this.failed(page, error);
      return;
    }
    if (page.near && !page.drawn) this.draw(page);
  }

  async ask(page) {
    const { rollout, call, index } = this.options;
    const query = { call_id: call, choice: index, start: page.start, limit: page.end - page.start };
    page.data = await api.get(path("views/rollouts", rollout, "tokens"), query, { signal: this.aborter.signal });
    const known = this.versions.size;
    for (const version of page.data.version) if (version !== null) this.versions.add(version);
    if (this.versions.size !== known) this.options.onVersions?.([...this.versions].sort((a, b) => a - b));
  }

  failed(page, error) {
    const told = note(`${error.message}${error.hint ? ` (${error.hint})` : ""} `);
    const again = document.createElement("button");
    again.type = "button";
    again.className = "button";
    again.textContent = "Try again";
    again.addEventListener("click", () => this.load(page));
    told.append(again);
    page.element.replaceChildren(told);
  }

  draw(page) {
    const lines = document.createDocumentFragment();
    const { ids, text } = page.data;
    page.tokens = [];
    let line = null;
    for (let i = 0; i < ids.length; i += 1) {
      line ??= this.newLine(lines, page.start + i, i === 0 && this.inLine(page));
      const token = document.createElement("span");
      token.className = this.classOf(page, i);
      token.i = i;
      token.textContent = this.options.marks ? withMarks(text[i]) || "∅" : text[i];
      line.append(token);
      page.tokens.push(token);
      if (text[i].endsWith("\n")) line = null;
    }
    page.element.replaceChildren(lines);
    page.element.style.minHeight = "";
    page.drawn = true;
    this.learn(page);
  }

  /** Whether a page begins in the middle of a line. */
  inLine(page) {
    const before = this.pages[this.pages.indexOf(page) - 1];
    return Boolean(before?.data) && !before.data.text.at(-1)?.endsWith("\n");
  }

  newLine(lines, position, goesOn) {
    const line = block(goesOn ? "token-line goes-on" : "token-line");
    line.dataset.testid = "token-line";
    line.dataset.at = position;
    const at = document.createElement("span");
    at.className = "token-at";
    at.textContent = goesOn ? "↪" : position < 0 ? `−${-position}` : String(position);
    line.append(at);
    lines.append(line);
    return line;
  }

  classOf(page, i) {
    const empty = page.data.text[i] === "" ? " is-empty" : "";
    const asked = page.start + i < 0 ? " of-prompt" : "";
    const now = this.current === page.start + i ? " is-current" : "";
    return `token ${paint(this.options.colour, page.data, i)}${empty}${asked}${now}`;
  }

  repaint(page) {
    for (const token of page.tokens) token.className = this.classOf(page, token.i);
  }

  /** The first drawn page says how high a token is on average; pages that were never drawn go by it. */
  learn(page) {
    if (this.learned || page.data.ids.length === 0) return;
    this.learned = true;
    this.perToken = page.element.offsetHeight / page.data.ids.length;
    for (const other of this.pages) if (!other.drawn && !other.height) this.reserve(other);
  }

  hover(target) {
    if (!(target instanceof Element) || !target.matches(".token-line > .token")) return;
    this.point(target);
  }

  unhover() {
    this.hideTip();
  }

  hideTip() {
    this.tip.hidden = true;
  }

  point(token) {
    const { page } = token.closest(".token-page");
    const position = page.start + token.i;
    const rows = facts(page.data, token.i, { position }).flatMap(([name, text]) => [cell("dt", name), cell("dd", text)]);
    const list = document.createElement("dl");
    list.append(...rows);
    const shown = document.createElement("code");
    shown.textContent = withMarks(page.data.text[token.i]).replaceAll("\n", "") || "∅";
    this.tip.replaceChildren(shown, list);
    this.tip.hidden = false;
    const at = (token.getClientRects()[0] ?? token.getBoundingClientRect());
    const box = this.tip.getBoundingClientRect();
    const left = Math.max(4, Math.min(at.left, document.documentElement.clientWidth - box.width - 8));
    const below = at.bottom + 6 + box.height < window.innerHeight;
    this.tip.style.left = `${left}px`;
    this.tip.style.top = `${below ? at.bottom + 6 : Math.max(4, at.top - box.height - 6)}px`;
    return position;
  }

  // The keyboard

  pressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape" && !this.tip.hidden) {
      this.hideTip();
    } else {
      const to = this.target(event.key);
      if (to === null) return;
      this.tell(to);
    }
    event.preventDefault();
    event.stopPropagation();
  }

  /** Position that a key goes to, null for a key that is none of ours. */
  target(key) {
    const first = -this.options.prompt;
    const last = this.options.total - 1;
    if (last < first) return null;
    const here = this.current;
    const clamp = (position) => Math.min(last, Math.max(first, position));
    switch (key) {
      case "ArrowRight":
        return here === null ? first : clamp(here + 1);
      case "ArrowLeft":
        return here === null ? first : clamp(here - 1);
      case "ArrowDown":
      case "ArrowUp":
        return here === null ? first : clamp(this.acrossLines(here, key === "ArrowDown" ? 1 : -1));
      case "PageDown":
        return clamp((here ?? first) + PAGE / 4);
      case "PageUp":
        return clamp((here ?? first) - PAGE / 4);
      case "Home":
        return first;
      case "End":
        return last;
      default:
        return null;
    }
  }

  /** The token nearest below or above on the screen; the next page's first or last when there is none. */
  acrossLines(position, by) {
    const from = this.tokenAt(position);
    if (!from) return position + by;
    const at = from.getBoundingClientRect();
    const middle = at.left + at.width / 2;
    let best = null;
    for (let step = 1; step < 400; step += 1) {
      const other = this.tokenAt(position + by * step);
      if (!other) break;
      const rect = other.getBoundingClientRect();
      const away = by * (rect.top - at.top);
      if (away < 4) continue;
      if (best && Math.abs(rect.top - best.top) > 4) break;
      const distance = Math.abs(rect.left + rect.width / 2 - middle);
      if (!best || distance < best.distance) best = { top: rect.top, distance, position: position + by * step };
    }
    return best?.position ?? position + by;
  }

  pageAt(position) {
    return this.pages[Math.floor((position + this.options.prompt) / PAGE)];
  }

  tokenAt(position) {
    const page = this.pageAt(position);
    if (!page?.drawn) return null;
    return page.tokens[position - page.start] ?? null;
  }

  /** Goes to a token with the keyboard: scrolls there, marks it, shows and says what is known. */
  async tell(position) {
    this.tokenAt(this.current ?? position)?.classList.remove("is-current");
    this.current = position;
    const page = this.pageAt(position);
    if (!page.drawn) {
      page.element.scrollIntoView({ block: "nearest" });
      page.near = true;
      await this.load(page);
      if (page.data && !page.drawn) this.draw(page);
    }
    const token = this.tokenAt(position);
    if (!token || this.current !== position) return;
    token.classList.add("is-current");
    token.scrollIntoView({ block: "nearest" });
    requestAnimationFrame(() => this.current === position && document.activeElement === this.element && this.point(token));
    const known = facts(page.data, token.i, { position }).map(([name, text]) => `${name} ${text}`);
    this.said.textContent = `${withMarks(page.data.text[token.i]) || "empty"}: ${known.join(", ")}`;
  }
}

function block(name) {
  const element = document.createElement("div");
  element.className = name;
  return element;
}

function note(text) {
  const element = document.createElement("p");
  element.className = "state";
  element.textContent = text;
  return element;
}

function cell(kind, text) {
  const element = document.createElement(kind);
  element.textContent = text;
  return element;
}
