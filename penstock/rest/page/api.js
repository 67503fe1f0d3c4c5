// Ask the HTTP API. The token comes with the address (`#token=…`) or from its user, and stays in this tab.

const KEY = "penstock-token";

/** A request that the server has refused, or that did not reach it (`status` 0). */
export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** Take the token out of the address, so that it stays neither there nor in the history. */
export function takeToken() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEY, decodeURIComponent(found[1]));
    history.replaceState(null, "", location.pathname);
  }
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;

export function setToken(token) {
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
}

/** Return the answer to a request below `/v1`: parsed JSON, or text. */
export async function ask(path, { method = "GET", body, signal } = {}) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    const data = body === undefined ? undefined : JSON.stringify(body);
    answer = await fetch(`/v1${path}`, { method, headers, body: data, signal, cache: "no-store" });
    const json = (answer.headers.get("content-type") ?? "").startsWith("application/json");
    const value = json ? await answer.json() : await answer.text();
    if (answer.ok) return value;
    throw new Refused(answer.status, value.errors?.join("; ") ?? `${answer.status}: ${value}`);
  } catch (error) {
    if (error instanceof Refused || error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer.");
  }
}
