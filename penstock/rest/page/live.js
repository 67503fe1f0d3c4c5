// Keep what the page shows up to date: ask again and again, while somebody can see it.

import { useEffect, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";

const listeners = new Set();
let problem = null;

/** Record how the newest request ended: with an error, or null. */
export function report(error) {
  if ((error?.message ?? null) === (problem?.message ?? null)) return;
  problem = error;
  for (const listener of listeners) listener(error);
}

/** Return why the newest request failed; null if it did not. */
export function useProblem() {
  const [found, set] = useState(problem);
  useEffect(() => {
    listeners.add(set);
    set(problem);
    return () => listeners.delete(set);
  }, []);
  return found;
}

const visible = () =>
  new Promise((resolve) => {
    if (!document.hidden) return resolve();
    document.addEventListener("visibilitychange", resolve, { once: true });
  });

/**
 * Return the newest answer to a request, and null before the first one.
 *
 * It is asked for again `every` milliseconds, or only when `key` changes if `every` is null. If the server does not
 * answer, the last answer stays, and the request is repeated.
 */
export function useAnswer(path, every, key = "") {
  const [found, set] = useState({ path: null, value: null, error: null });
  useEffect(() => {
    if (path === null) return undefined;
    const ending = new AbortController();
    const { signal } = ending;
    const follow = async () => {
      while (!signal.aborted) {
        let wait = every;
        try {
          const value = await ask(path, { signal });
          report(null);
          set({ path, value, error: null });
        } catch (error) {
          if (signal.aborted) return;
          if (error.status === 0 || error.status === 401) report(error);
          else report(null);
          set((old) => ({ path, value: old.path === path ? old.value : null, error }));
          wait = every ?? (error.status === 0 ? 1000 : null);
        }
        if (wait === null) return;
        await new Promise((resolve) => setTimeout(resolve, wait));
        await visible();
      }
    };
    follow();
    return () => ending.abort();
  }, [path, every, key]);
  return found.path === path ? found : { path, value: null, error: null };
}
