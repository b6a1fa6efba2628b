// The one place that names the vendored libraries. All text goes through `html`, which sets it as text, never as markup:
// what a trajectory says is not to be trusted. No view has to think of characters that nobody sees, either: wherever a text
// becomes part of the document, they are made visible.

import { Component, Fragment, createContext, h, options, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";
import { seenIn } from "./unseen.js";

export {
  useCallback,
  useContext,
  useEffect,
  useErrorBoundary,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "../vendor/hooks.js";
export { Component, Fragment, createContext, h, render };
export const html = htm.bind(h);

options.vnode = seenIn; // called for each element and each text before it is drawn

/** Joins the class names that hold: `cls("row", open && "open")`. */
export function cls(...names) {
  return names.filter(Boolean).join(" ");
}
