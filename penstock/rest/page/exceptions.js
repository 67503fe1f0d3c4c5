// The failures of a job by attempt, the user's traceback first.

import { html } from "./vendor/htm-preact.js";
import { time } from "./format.js";
import { useAnswer } from "./live.js";

export function Exceptions({ path, figures, version }) {
  const { value } = useAnswer(`${path}/exceptions`, null, version ?? "");
  if (!value) return html`<p class="quiet">loading …</p>`;
  const { entries, truncated } = value.exceptionHistory;
  return html`<section id="exceptions">
    ${entries.length === 0 && html`<p class="quiet">Nothing has failed.</p>`}
    ${entries.map(
      (one) => html`<article class="card" key=${`${one.timestamp}-${one.attempt}`}>
        <h2>
          Attempt ${one.attempt}${" "}
          <span class="quiet">${time(one.timestamp)}${one.region ? ` · only the region ${one.region}` : ""}</span>
        </h2>
        <pre class="traceback">${one.stacktrace}</pre>
        <dl class="facts">
          <div><dt>Operator</dt><dd>${one.taskName ?? "–"}</dd></div>
          <div><dt>Kind</dt><dd>${one.exceptionName}</dd></div>
        </dl>
        ${one.record !== null && html`<p>Record: <code class="record">${one.record}</code></p>`}
        ${one.message !== one.stacktrace && html`<p class="quiet">${one.message}</p>`}
      </article>`,
    )}
    ${truncated && html`<p class="quiet">Older failures are no longer kept.</p>`}
  </section>`;
}
