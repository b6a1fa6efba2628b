// The frame of a view: where one is, what it is called, what can be done.

import { html, useEffect, useState } from "../lib.js";
import { seen } from "../unseen.js";

/** What the browser calls the page. */
export function useTitle(title) {
  useEffect(() => {
    document.title = title ? `${seen(title)} · ART` : "ART";
  }, [title]);
}

/** `crumbs`: `[[text, address], ...]` from the root; the last one before the title is where Esc goes. */
export function PageHead({ crumbs = [], title, children, actions }) {
  return html`<header class="page-head">
    ${crumbs.length > 0 && html`<nav class="crumbs" aria-label="Where you are"><ol>${crumbs.map(([text, address], index) => html`<li key=${address}><a href=${address} data-up=${index === crumbs.length - 1 ? "" : undefined}>${text}</a></li>`)}</ol></nav>`}
    <div class="page-title"><h1>${title}</h1>${children}${actions && html`<span class="actions">${actions}</span>`}</div>
  </header>`;
}

/** `tabs`: `[{key, label, href}]`. They are links: each has an address. */
export function Tabs({ tabs, active, label }) {
  return html`<nav class="tabs" aria-label=${label}>${tabs.map((tab) => html`<a key=${tab.key} href=${tab.href} aria-current=${tab.key === active ? "page" : undefined}>${tab.label}</a>`)}</nav>`;
}

/** Figures side by side: `[[label, text, title?]]`. */
export function Facts({ facts }) {
  return html`<dl class="facts">${facts.filter(Boolean).map(([label, text, title]) => html`<div key=${label} title=${title}><dt>${label}</dt><dd>${text}</dd></div>`)}</dl>`;
}

/** Copies what `text()` gives, and says so. */
export function CopyButton({ text, label = "Copy" }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      setSaid("Copied");
    } catch {
      setSaid("The browser forbids copying");
    }
    setTimeout(() => setSaid(""), 1500);
  };
  return html`<button type="button" class="button quiet" onClick=${copy}><span aria-live="polite">${said || label}</span></button>`;
}
