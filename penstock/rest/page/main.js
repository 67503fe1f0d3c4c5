// The page: what is in the address decides what is shown.

import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { hasToken, setToken, takeToken } from "./api.js";
import { Job } from "./job.js";
import { Jobs } from "./jobs.js";
import { report, useAnswer, useProblem } from "./live.js";

function useAddress() {
  const parts = () => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  const [found, set] = useState(parts);
  useEffect(() => {
    const changed = () => {
      takeToken();
      set(parts());
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return found;
}

function TokenForm({ problem, done }) {
  const submit = (event) => {
    event.preventDefault();
    setToken(event.target.elements.token.value.trim());
    done();
  };
  return html`<main class="narrow">
    <form class="card" onSubmit=${submit}>
      <h1>Token</h1>
      <p>
        Each request needs a token. <code>penstock</code> prints an address with a token in it when the server starts,
        and the name of the file that has it.
      </p>
      <label>Token <input name="token" type="password" autocomplete="off" autofocus required /></label>
      <button>Use it</button>
      <p class="error" role="alert" id="token-problem">${problem ?? ""}</p>
    </form>
  </main>`;
}

function Header({ config, problem, leave }) {
  return html`<header>
    <a class="brand" href="#/">Penstock</a>
    <span class="quiet">${config?.["penstock-version"] ?? ""}</span>
    <span id="connection" class=${problem ? "error" : "quiet"} role="status">
      ${problem ? `${problem.message} Trying again …` : config ? "live" : "connecting …"}
    </span>
    <span class="fill"></span>
    <span class="quiet" id="rights">${config && !config.features["web-cancel"] ? "read-only token" : ""}</span>
    <button class="plain" onClick=${leave}>Forget the token</button>
  </header>`;
}

function Content({ leave }) {
  const address = useAddress();
  const problem = useProblem();
  const { value: config } = useAnswer("/config", 10_000);
  useEffect(() => {
    if (problem?.status === 401) leave(problem.message);
  }, [problem]);
  const [first, id, ...rest] = address;
  return html`<${Header} config=${config} problem=${problem} leave=${() => leave(null)} />
    <main>
      ${first === "jobs" && id
        ? html`<${Job} key=${id} id=${id} tab=${rest[0] ?? "graph"} chosen=${rest[1] ?? null} config=${config} />`
        : html`<${Jobs} />`}
    </main>`;
}

function Page() {
  const [state, set] = useState({ ready: hasToken(), problem: null });
  const leave = (problem) => {
    setToken(null);
    report(null);
    set({ ready: false, problem });
  };
  return state.ready
    ? html`<${Content} leave=${leave} />`
    : html`<${TokenForm} problem=${state.problem} done=${() => set({ ready: true, problem: null })} />`;
}

takeToken();
render(html`<${Page} />`, document.body);
