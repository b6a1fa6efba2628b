// Finds words in what is on the page, with the browser's own highlights: the document is not changed for it.

import { html, useEffect, useRef, useState } from "./lib.js";

const NAME = "find";
const MOST = 2000; // ranges that are marked

/** The words of a search: what stands in quotes is one. */
export function wordsOf(search) {
  return [...search.matchAll(/"([^"]+)"|(\S+)/g)].map(([, quoted, bare]) => quoted ?? bare).filter((word) => !/^(AND|OR|NOT)$/.test(word));
}

/** A word or phrase as the index finds it: whole words, whatever stands between those of a phrase; a star for any ending. */
function patternOf(word) {
  const parts = word.replace(/\*$/, "").match(/[\p{L}\p{N}]+/gu) ?? [];
  return parts.length > 0 ? `(?<![\\p{L}\\p{N}])${parts.join("[^\\p{L}\\p{N}]+")}${word.endsWith("*") ? "" : "(?![\\p{L}\\p{N}])"}` : "";
}

export function patternsOf(words) {
  return new RegExp(words.map(patternOf).filter(Boolean).join("|") || "(?!)", "giu");
}

function rangesIn(root, words) {
  const pattern = patternsOf(words);
  const ranges = [];
  const said = (node) => (node.parentElement.closest(".text, .tool-call-name") ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_REJECT);
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT, said);
  for (let node = walker.nextNode(); node && ranges.length < MOST; node = walker.nextNode()) {
    for (const found of node.data.matchAll(pattern)) {
      if (!found[0]) continue;
      const range = new Range();
      range.setStart(node, found.index);
      range.setEnd(node, found.index + found[0].length);
      ranges.push(range);
    }
  }
  return ranges;
}

/** Marks the words of `find` below `root` and steps through them; looks again when `ready` changes. */
export function FindBar({ find, root, ready, onClose }) {
  const [state, setState] = useState({ ranges: [], at: 0 });
  const shown = useRef(null);
  useEffect(() => {
    const words = wordsOf(find);
    const ranges = words.length > 0 && root.current ? rangesIn(root.current, words) : [];
    if (globalThis.CSS?.highlights && globalThis.Highlight) CSS.highlights.set(NAME, new Highlight(...ranges));
    setState({ ranges, at: 0 });
    if (ranges.length > 0 && shown.current !== find) show(ranges[0]);
    shown.current = find;
    return () => globalThis.CSS?.highlights?.delete(NAME);
  }, [find, ready]);
  const step = (by) => {
    const at = (state.at + by + state.ranges.length) % state.ranges.length;
    setState({ ...state, at });
    show(state.ranges[at]);
  };
  const { ranges, at } = state;
  return html`<p class="find-bar" role="status"><span>Found <b>${find}</b>: ${ranges.length === 0 ? "not in what is shown here; it may be on another branch" : `${at + 1} of ${ranges.length}${ranges.length === MOST ? " or more" : ""}`}</span>
    ${ranges.length > 1 && html`<button type="button" class="button quiet" onClick=${() => step(-1)}>‹ previous hit</button><button type="button" class="button quiet" onClick=${() => step(1)}>next hit ›</button>`}
    <button type="button" class="button quiet" onClick=${onClose}>Clear</button></p>`;
}

function show(range) {
  const element = range.startContainer.parentElement;
  const folded = element?.closest("details:not([open])");
  if (folded) folded.open = true;
  element?.scrollIntoView({ block: "center" });
}
