// The watermarks of all operators at once.

import { html } from "./vendor/htm-preact.js";
import { isBegin, isEnd, lag, summary } from "./figures.js";
import { duration, time } from "./format.js";
import { watermarkText } from "./vertex.js";

export function Watermarks({ job, figures, path }) {
  const now = figures?.now ?? job.now;
  const rows = job.vertices.map((vertex) => {
    const found = figures?.vertices.find((one) => one.id === vertex.id);
    const known = (found?.watermarks ?? []).map((one, subtask) => [one, subtask]).filter(([one]) => one !== null);
    known.sort((a, b) => a[0] - b[0]);
    return { vertex, low: summary(found).watermark, known };
  });
  const lags = rows.flatMap(({ known }) => known.map(([one]) => lag(one, now)).filter((one) => one !== null));
  const worst = Math.max(1, ...lags);
  return html`<section>
    <p class="quiet">
      The watermark of a vertex is the lowest of its subtasks. Its lag is how far it is behind the clock of the server.
    </p>
    <table id="watermarks">
      <thead>
        <tr>
          <th>Vertex</th><th>Watermark</th><th class="number">Lag</th><th class="wide"></th>
          <th>Last subtask</th><th class="number">Spread</th>
        </tr>
      </thead>
      <tbody>
        ${rows.map(({ vertex, low, known }) => {
          const behind = lag(low, now);
          const high = known.length ? known[known.length - 1][0] : null;
          const plain = low !== null && !isEnd(low) && !isBegin(low);
          return html`<tr key=${vertex.id} data-vertex=${vertex.id}>
            <td><a href=${`#${path}/graph/${vertex.id}`}>${vertex.name}</a></td>
            <td>${plain ? time(low) : watermarkText(low, now)}</td>
            <td class="number">${behind === null ? "–" : duration(behind)}</td>
            <td class="wide">
              <svg class="bar-of-lag" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
                <rect width=${behind === null ? 0 : (100 * Math.max(0, behind)) / worst} height="10" />
              </svg>
            </td>
            <td>${known.length ? known[0][1] : "–"}</td>
            <td class="number">${plain && high !== null && !isEnd(high) ? duration(high - low) : "–"}</td>
          </tr>`;
        })}
      </tbody>
    </table>
  </section>`;
}
