// Look at some of the records that travel on an edge, for as long as somebody looks.

import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { count, time } from "./format.js";

// The tasks look for a second, so an answer comes as often.
const SECONDS = 1;
const LIMIT = 20;
const SHOWN = 100;

/** Return the edges between tasks, with the names of the operators at their ends. */
function edges(job) {
  const names = Object.fromEntries(job.vertices.flatMap((one) => one.operators).map((one) => [one.uid, one.name]));
  return job.plan.nodes
    .flatMap((node) => node.inputs)
    .map((one) => ({ number: one.edge, name: `${names[one.producer] ?? one.producer} → ${names[one.consumer] ?? one.consumer}` }))
    .sort((a, b) => a.number - b.number);
}

export function Records({ path, job, figures, config }) {
  const known = edges(job);
  const [edge, choose] = useState(known[0]?.number);
  const [looking, look] = useState(false);
  const [seen, tell] = useState(null);
  const [rows, show] = useState([]);
  const [problem, refuse] = useState("");
  useEffect(() => {
    if (!looking) return undefined;
    const over = new AbortController();
    const poll = async () => {
      while (!over.signal.aborted) {
        const body = { limit: LIMIT, seconds: SECONDS };
        const answer = await ask(`${path}/edges/${edge}/records`, { method: "POST", body, signal: over.signal });
        tell(answer.seen);
        show((before) => [...answer.records.reverse(), ...before].slice(0, SHOWN));
      }
    };
    poll().catch((error) => {
      if (over.signal.aborted) return;
      refuse(error.message);
      look(false);
    });
    return () => over.abort();
  }, [looking, edge, path]);
  if (known.length === 0) return html`<p class="quiet">The job has one task only, and no edge between tasks.</p>`;
  const may = config?.features["web-cancel"] && figures?.state === "RUNNING";
  const begin = (number) => {
    choose(number);
    tell(null);
    show([]);
    refuse("");
  };
  return html`<section class="card">
    <div class="bar">
      <label class="inline">Edge${" "}
        <select id="edges" value=${edge} onChange=${(event) => begin(Number(event.target.value))}>
          ${known.map((one) => html`<option key=${one.number} value=${one.number}>${one.name}</option>`)}
        </select>
      </label>
      <button id="look" disabled=${!may} onClick=${() => (refuse(""), look(!looking))}>${looking ? "Stop" : "Look"}</button>
      <span class="quiet" id="seen">
        ${seen === null ? "Some records are shown as they pass. Nothing is done for it while nobody looks." : `${count(seen)} records in the last second`}
      </span>
    </div>
    <p class="error" role="alert" id="records-problem">${problem}</p>
    <table id="records">
      <thead><tr><th>Time</th><th class="number">Subtask</th><th class="wide">Record</th></tr></thead>
      <tbody>
        ${rows.map(
          (one) => html`<tr>
            <td>${time(one.time)}</td>
            <td class="number">${one.subtask}</td>
            <td class="value"><code>${one.record}</code></td>
          </tr>`,
        )}
      </tbody>
    </table>
  </section>`;
}
