// Hooks that read from the API and stay up to date: what is on the screen stays there until the new answer is in.

import { api } from "./api.js";
import { useCallback, useEffect, useRef, useState } from "./lib.js";
import { listen } from "./live.js";

const REFRESH_MS = 1000; // at most one refetch in this time, however many events come

/** Live events of one run, by type: `ofRun(project, name, "step", "log")`; every type where none is named. */
export function ofRun(project, name, ...types) {
  return (event) =>
    event.type === "resync" ||
    (event.project === project && event.name === name && (types.length === 0 || types.includes(event.type)));
}

/** Any event of these types. */
export function ofAny(...types) {
  return (event) => event.type === "resync" || types.length === 0 || types.includes(event.type);
}

/** Calls `act` soon after an event that `wanted` takes: at most once a second, and not while the page is hidden. */
export function useLive(wanted, act) {
  const held = useRef({});
  held.current = { wanted, act };
  useEffect(() => {
    let timer = null;
    let missed = false;
    const run = () => {
      timer = null;
      held.current.act();
    };
    const heard = (event) => {
      if (!held.current.wanted?.(event)) return;
      if (document.hidden) missed = true;
      else timer ??= setTimeout(run, REFRESH_MS);
    };
    const shown = () => {
      if (document.hidden || !missed) return;
      missed = false;
      timer ??= setTimeout(run, 0);
    };
    const end = listen(heard);
    document.addEventListener("visibilitychange", shown);
    return () => {
      end();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, []);
}

/**
 * One answer of the API: `{data, error, loading, reload}`. `where` null asks nothing. `live` is a predicate on events
 * (ofRun, ofAny) that has it asked for again. `keep`: data of the last question stays until the new answer is in.
 */
export function useResource(where, query = {}, { live, keep = true } = {}) {
  const asked = where === null ? null : JSON.stringify([where, query]);
  const [state, setState] = useState({ asked: null, data: null, error: null, loading: where !== null });
  const request = useRef(null);
  const load = useCallback(async () => {
    request.current?.abort();
    if (asked === null) return;
    const mine = (request.current = new AbortController());
    setState((old) => ({ ...old, loading: true }));
    try {
      const [path, parameters] = JSON.parse(asked);
      const data = await api.get(path, parameters, { signal: mine.signal });
      setState({ asked, data, error: null, loading: false });
    } catch (error) {
      if (error.name === "AbortError") return;
      setState((old) => ({ ...old, asked, data: old.asked === asked ? old.data : null, error, loading: false }));
    }
  }, [asked]);
  useEffect(() => {
    load();
    return () => request.current?.abort();
  }, [load]);
  useLive(asked === null ? null : live, load);
  const current = state.asked === asked;
  return {
    data: asked !== null && (current || keep) ? state.data : null,
    error: current ? state.error : null,
    loading: asked !== null && (state.loading || !current),
    stale: !current,
    reload: load,
  };
}

/**
 * A list in pages: `{rows, answer, error, loading, more, reload}`. `more` is null at the end. `field` names the list in the
 * answer, `pages` (from the address) how many to read at first; a live event reads the first page again and puts what is
 * new or changed into the rows, by `rowKey`.
 */
export function usePages(where, query, { field, rowKey, live, pages = 1, onPages } = {}) {
  const asked = where === null ? null : JSON.stringify([where, query]);
  const [state, setState] = useState({ asked: null, rows: [], next: null, answer: null, error: null, loading: true });
  const request = useRef(null);
  const count = useRef(1);

  const fetchPage = useCallback(
    (cursor, signal) => {
      const [path, parameters] = JSON.parse(asked);
      return api.get(path, { ...parameters, cursor }, { signal });
    },
    [asked],
  );

  const guarded = useCallback(
    async (act) => {
      request.current?.abort();
      const mine = (request.current = new AbortController());
      setState((old) => ({ ...old, loading: true }));
      try {
        await act(mine.signal);
      } catch (error) {
        if (error.name !== "AbortError") setState((old) => ({ ...old, asked, error, loading: false }));
      }
    },
    [asked],
  );

  const load = useCallback(
    () =>
      guarded(async (signal) => {
        let rows = [];
        let next = null;
        let answer = null;
        count.current = Math.max(1, pages);
        for (let page = 0; page < count.current && (page === 0 || next); page += 1) {
          answer = await fetchPage(next, signal);
          rows = rows.concat(answer[field]);
          next = answer.next;
        }
        setState({ asked, rows, next, answer, error: null, loading: false });
      }),
    [guarded, fetchPage],
  );

  const refresh = useCallback(
    () =>
      guarded(async (signal) => {
        const answer = await fetchPage(null, signal);
        setState((old) => {
          const first = answer[field];
          if (count.current === 1 || old.asked !== asked) {
            return { asked, rows: first, next: answer.next, answer, error: null, loading: false };
          }
          const known = new Set(first.map(rowKey));
          const rest = old.rows.filter((row) => !known.has(rowKey(row)));
          return { ...old, rows: first.concat(rest), answer, error: null, loading: false };
        });
      }),
    [guarded, fetchPage],
  );

  useEffect(() => {
    if (asked !== null) load();
    return () => request.current?.abort();
  }, [load]);
  useLive(asked === null ? null : live, refresh);

  const more = () =>
    guarded(async (signal) => {
      const answer = await fetchPage(state.next, signal);
      count.current += 1;
      onPages?.(count.current);
      setState((old) => {
        const known = new Set(old.rows.map(rowKey));
        const rows = old.rows.concat(answer[field].filter((row) => !known.has(rowKey(row))));
        return { asked, rows, next: answer.next, answer, error: null, loading: false };
      });
    });
  return {
    rows: state.rows,
    answer: state.answer,
    error: state.error,
    loading: state.loading || state.asked !== asked,
    more: state.next && state.asked === asked ? more : null,
    reload: load,
  };
}

/**
 * Several answers at once, for a list of questions `[[where, query], ...]` that may change: `{answers, loading, reload}` with
 * `{data, error}` for each question. One that fails leaves the others alone.
 */
export function useMany(questions, { live } = {}) {
  const asked = JSON.stringify(questions);
  const [state, setState] = useState({ asked: null, answers: [] });
  const request = useRef(null);
  const load = useCallback(async () => {
    request.current?.abort();
    const mine = (request.current = new AbortController());
    const settled = await Promise.allSettled(
      JSON.parse(asked).map(([where, query]) => api.get(where, query, { signal: mine.signal })),
    );
    if (mine.signal.aborted) return;
    const answers = settled.map((one) => ({ data: one.value ?? null, error: one.reason ?? null }));
    setState({ asked, answers });
  }, [asked]);
  useEffect(() => {
    load();
    return () => request.current?.abort();
  }, [load]);
  useLive(live, load);
  const current = state.asked === asked;
  return { answers: current ? state.answers : questions.map(() => ({ data: null, error: null })), loading: !current, reload: load };
}
