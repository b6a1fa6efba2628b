// The tokens of one choice, coloured. Tokens are asked for and drawn as they come into view and leave the document when they
// are far from it, so 30,000 tokens cost what is on the screen. They are drawn by hand: a component for each would be slow.

import { api, path } from "./api.js";
import { count } from "./format.js";
import { html, useEffect, useRef } from "./lib.js";
import { withMarks } from "./pretty.js";
import { seen } from "./unseen.js";
import { COLOURS, facts, legend, paint } from "./token_paint.js";

const PAGE = 1000; // tokens of a request
const BLOCK = 250; // tokens that are drawn at once: a few ms of work, so that scrolling stays smooth. Divides PAGE
const NEAR = "700px"; // how far outside of the screen a block is drawn
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
  return html`<div class=${`tokens ${shown > BOXED ? "is-boxed" : ""}`} ref=${element} data-testid="token-view" data-scrolls tabindex="0" role="group"
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
    this.blocks = [];
    const { total, prompt } = options;
    const drawn = document.createDocumentFragment();
    let page = null;
    for (let start = -prompt; start < total; start += BLOCK) {
      if (!page || start >= page.end) page = { start, end: Math.min(start + PAGE, total), data: null, asked: null };
      const one = { page, start, end: Math.min(start + BLOCK, total), element: part("token-block"), tokens: [], drawn: false, near: false, height: 0 };
      this.blocks.push(one);
      one.element.block = one;
      this.reserve(one);
      drawn.append(one.element);
    }
    this.tip = part("token-tip");
    this.tip.hidden = true;
    this.said = part("visually-hidden");
    this.said.setAttribute("role", "status");
    element.replaceChildren(drawn, this.tip, this.said);
    if (this.blocks.length === 0) element.prepend(note("no tokens"));
    const root = element.classList.contains("is-boxed") ? element : null;
    this.observer = new IntersectionObserver((entries) => this.seen(entries), { root, rootMargin: `${NEAR} 0px` });
    for (const one of this.blocks) this.observer.observe(one.element);
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
    for (const one of this.blocks) {
      if (!one.drawn) continue;
      if (had === marks) this.repaint(one);
      else this.draw(one);
    }
  }

  seen(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) this.enter(target.block);
      else this.leave(target.block);
    }
  }

  enter(one) {
    one.near = true;
    if (one.page.data) this.draw(one);
    else this.load(one);
  }

  /** Far away a block keeps its height and loses its tokens. */
  leave(one) {
    one.near = false;
    if (!one.drawn) return;
    one.height = one.element.offsetHeight;
    one.drawn = false;
    one.tokens = [];
    one.element.replaceChildren();
    this.reserve(one);
  }

  reserve(one) {
    const height = one.height || Math.ceil((one.end - one.start) * this.perToken);
    one.element.style.minHeight = `${height}px`;
  }

  async load(one) {
    const { page } = one;
    page.asked ??= this.ask(page);
    try {
      await page.asked;
    } catch (error) {
      page.asked = null;
      if (error.name !== "AbortError") this.failed(one, error);
      return;
    }
    if (one.near && !one.drawn) this.draw(one);
  }

  async ask(page) {
    const { rollout, call, index } = this.options;
    const query = { call_id: call, choice: index, start: page.start, limit: page.end - page.start };
    page.data = await api.get(path("views/rollouts", rollout, "tokens"), query, { signal: this.aborter.signal });
    const known = this.versions.size;
    for (const version of page.data.version) if (version !== null) this.versions.add(version);
    if (this.versions.size !== known) this.options.onVersions?.([...this.versions].sort((a, b) => a - b));
  }

  failed(one, error) {
    const told = note(`${error.message}${error.hint ? ` (${error.hint})` : ""} `);
    const again = document.createElement("button");
    again.type = "button";
    again.className = "button";
    again.textContent = "Try again";
    again.addEventListener("click", () => this.load(one));
    told.append(again);
    one.element.replaceChildren(told);
  }

  draw(one) {
    const { page } = one;
    const { ids, text, withheld } = page.data;
    const lines = document.createDocumentFragment();
    const [from, end] = [lineStart(page, one.start), lineStart(page, one.end)];
    one.tokens = [];
    let line = null;
    for (let i = from; i < end; i += 1) {
      line ??= this.newLine(lines, page.start + i, one.tokens.length === 0 && this.goesOn(page, i));
      const token = document.createElement("span");
      token.className = this.classOf(page, i);
      token.i = i;
      token.textContent = this.options.marks ? withMarks(text[i]) || "∅" : seen(text[i]);
      line.append(token);
      one.tokens.push(token);
      if (text[i].endsWith("\n")) line = null;
    }
    if (ids.length === 0 && one.start === page.start) lines.append(note(withheld || "no tokens were recorded here"));
    one.element.replaceChildren(lines);
    one.element.style.minHeight = "";
    one.drawn = true;
    this.learn(one);
  }

  /** Whether token `i` of a page goes on with the line of the token before it, as far as that one is known. */
  goesOn(page, i) {
    const before = i > 0 ? page : this.blocks[this.blocks.findIndex((one) => one.page === page) - 1]?.page;
    const text = i > 0 ? page.data.text[i - 1] : before?.data?.text.at(-1);
    return text !== undefined && !text.endsWith("\n");
  }

  newLine(lines, position, goesOn) {
    const line = part(goesOn ? "token-line goes-on" : "token-line");
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

  repaint(one) {
    for (const token of one.tokens) token.className = this.classOf(one.page, token.i);
  }

  /** The first drawn block says how high a token is on average; blocks that were never drawn go by it. */
  learn(one) {
    if (this.learned || one.tokens.length === 0) return;
    this.learned = true;
    this.perToken = one.element.offsetHeight / one.tokens.length;
    for (const other of this.blocks) if (!other.drawn && !other.height) this.reserve(other);
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
    const { page } = token.closest(".token-block").block;
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

  /** The token nearest below or above on the screen; the next one where nothing is drawn there. */
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

  blockAt(position) {
    const place = Math.floor((position + this.options.prompt) / BLOCK);
    const one = this.blocks[place];
    if (!one?.page.data || position - one.page.start >= lineStart(one.page, one.start)) return one;
    return this.blocks[place - 1];
  }

  tokenAt(position) {
    const one = this.blockAt(position);
    return one?.drawn ? (one.tokens[position - one.page.start - lineStart(one.page, one.start)] ?? null) : null;
  }

  /** Goes to a token with the keyboard: scrolls there, marks it, shows and says what is known. */
  async tell(position) {
    this.tokenAt(this.current ?? position)?.classList.remove("is-current");
    this.current = position;
    const one = this.blockAt(position);
    if (!one.drawn) {
      one.element.scrollIntoView({ block: "nearest" });
      one.near = true;
      await this.load(one);
    }
    const token = this.tokenAt(position);
    if (!token || this.current !== position) return;
    token.classList.add("is-current");
    token.scrollIntoView({ block: "nearest" });
    requestAnimationFrame(() => this.current === position && document.activeElement === this.element && this.point(token));
    const known = facts(one.page.data, token.i, { position }).map(([name, text]) => `${name} ${text}`);
    this.said.textContent = `${withMarks(one.page.data.text[token.i]) || "empty"}: ${known.join(", ")}`;
  }
}

/**
 * Where the block that begins at `position` is drawn from, as a place in its page: the first line start from there on, so
 * that a line is not torn; the place itself where a line is longer than a block.
 */
function lineStart(page, position) {
  const { text } = page.data;
  const place = Math.min(position - page.start, text.length);
  if (place === 0 || place === text.length || text[place - 1].endsWith("\n")) return place;
  for (let i = place; i < Math.min(place + BLOCK, text.length); i += 1) if (text[i].endsWith("\n")) return i + 1;
  return place;
}

function part(name) {
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
