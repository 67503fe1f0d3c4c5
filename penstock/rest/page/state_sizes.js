// How much state each vertex has in the newest snapshot, and what is in it.

import { html } from "./vendor/htm-preact.js";
import { bytes, percent, time } from "./format.js";
import { useAnswer } from "./live.js";
import { StateEntries } from "./state_entries.js";

export function StateSizes({ path, job, figures }) {
  const { value } = useAnswer(`${path}/checkpoints`, null, `${figures?.snapshots[0] ?? ""}`);
  const newest = value?.history.find((one) => one.status === "COMPLETED");
  const { value: details } = useAnswer(newest ? `${path}/checkpoints/details/${newest.id}` : null, null);
  if (!value) return html`<p class="quiet">loading …</p>`;
  if (!newest) return html`<p class="quiet">There is no snapshot yet.</p>`;
  const rows = job.vertices
    .map((vertex) => ({ vertex, found: details?.tasks[vertex.id] }))
    .sort((a, b) => (b.found?.state_size ?? 0) - (a.found?.state_size ?? 0));
  const total = Math.max(1, rows.reduce((sum, row) => sum + (row.found?.state_size ?? 0), 0));
  return html`<section>
    <p class="quiet">In snapshot ${newest.id}, of ${time(newest.trigger_timestamp)}, in bytes of its files.</p>
    <table id="state">
      <thead>
        <tr>
          <th>Vertex</th><th>Operators with state</th><th class="number">State</th><th class="number">Share</th>
          <th class="wide"></th><th class="number">New</th>
        </tr>
      </thead>
      <tbody>
        ${rows.map(({ vertex, found }) => {
          const size = found?.state_size ?? 0;
          return html`<tr key=${vertex.id} data-vertex=${vertex.id}>
            <td><a href=${`#${path}/graph/${vertex.id}`}>${vertex.name}</a></td>
            <td>${vertex.operators.filter((one) => one.stateful).map((one) => one.name).join(", ") || "–"}</td>
            <td class="number">${bytes(size)}</td>
            <td class="number">${percent(size / total)}</td>
            <td class="wide">
              <svg class="bar-of-lag" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
                <rect width=${(100 * size) / total} height="10" />
              </svg>
            </td>
            <td class="number">${bytes(found?.checkpointed_size ?? 0)}</td>
          </tr>`;
        })}
      </tbody>
    </table>
    <${StateEntries} path=${path} job=${job} snapshot=${newest.id} />
  </section>`;
}
