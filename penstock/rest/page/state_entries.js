// Look into a state of the newest snapshot: its largest entries, or those of one key.

import { html, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { duration } from "./format.js";
import { useAnswer } from "./live.js";

const SHOWN = 20;

/** Return the largest entries; any entries, with the reason, if the values have no order. */
async function largest(address) {
  try {
    return { title: `The ${SHOWN} largest`, answer: await ask(`${address}?top=${SHOWN}`) };
  } catch (error) {
    if (error.status !== 400) throw error;
    return { title: `Any ${SHOWN} (${error.message})`, answer: await ask(`${address}?limit=${SHOWN}`) };
  }
}

const shown = (value) => (value === null || value === undefined ? "" : JSON.stringify(value));

function Entries({ title, answer }) {
  const from = answer.live ? "from the running tasks" : `in snapshot ${answer.snapshot}, ${duration(answer.age_seconds * 1000)} old`;
  return html`<p class="quiet">${title}, ${from}.</p>
    <table id="entries">
      <thead>
        <tr><th>Key</th><th>Part</th><th class="wide">Value</th><th class="number">Subtask</th></tr>
      </thead>
      <tbody>
        ${answer.entries.map(
          (one, index) => html`<tr key=${index}>
            <td><code>${shown(one.key)}</code></td>
            <td><code>${shown(one.part)}</code></td>
            <td class="value"><code>${shown(one.value)}</code></td>
            <td class="number">${one.subtask}</td>
          </tr>`,
        )}
        ${answer.entries.length === 0 && html`<tr><td colspan="4" class="quiet">There are no such entries.</td></tr>`}
      </tbody>
    </table>`;
}

export function StateEntries({ path, job, snapshot }) {
  const { value, error } = useAnswer(`${path}/state`, null, String(snapshot));
  const [chosen, choose] = useState(0);
  const [found, show] = useState(null);
  const [problem, tell] = useState("");
  const states = value?.states ?? [];
  if (error) return html`<p class="quiet" id="no-entries">${error.message}</p>`;
  if (states.length === 0) return html`<p class="quiet">${value ? "No state can be queried." : "loading …"}</p>`;
  const names = Object.fromEntries(job.vertices.flatMap((one) => one.operators).map((one) => [one.uid, one.name]));
  const state = states[Math.min(chosen, states.length - 1)];
  const address = `${path}/state/${encodeURIComponent(state.operator)}/${encodeURIComponent(state.name)}`;
  const query = async (request) => {
    tell("");
    try {
      show(await request());
    } catch (refused) {
      show(null);
      tell(refused.message);
    }
  };
  const find = (event) => {
    event.preventDefault();
    const key = event.target.elements.key.value;
    query(async () => ({ title: `Key ${key}`, answer: await ask(`${address}?key=${encodeURIComponent(key)}`) }));
  };
  return html`<section class="card">
    <h2>Entries</h2>
    <form class="bar" onSubmit=${find}>
      <label class="inline">State${" "}
        <select id="states" onChange=${(event) => choose(Number(event.target.value))}>
          ${states.map(
            (one, index) => html`<option key=${index} value=${index}>${names[one.operator] ?? one.operator}: ${one.name} (${one.kind})</option>`,
          )}
        </select>
      </label>
      <button type="button" id="largest" onClick=${() => query(() => largest(address))}>Largest values</button>
      <label class="inline">Key as JSON${" "}<input name="key" placeholder='"ada"' required /></label>
      <button id="find">Find</button>
    </form>
    <p class="error" role="alert" id="query-problem">${problem}</p>
    ${found && html`<${Entries} ...${found} />`}
  </section>`;
}
