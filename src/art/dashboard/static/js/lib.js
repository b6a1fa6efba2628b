// The one place that names the vendored libraries. All text goes through `html`, which sets it as text, never as markup:
// what a trajectory says is not to be trusted.

import { Component, Fragment, createContext, h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

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

/** Joins the class names that hold: `cls("row", open && "open")`. */
export function cls(...names) {
  return names.filter(Boolean).join(" ");
}
