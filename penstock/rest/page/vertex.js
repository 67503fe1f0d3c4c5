// One vertex: its operators, and a heat strip and a row for each subtask.

import { html } from "./vendor/htm-preact.js";
import { isBegin, isEnd, lag, summary } from "./figures.js";
import { count, duration, percent, rate } from "./format.js";
import { Strip } from "./heat.js";

const STRIP = 960;

export function watermarkText(watermark, now) {
  if (watermark === null || isBegin(watermark)) return "–";
  if (isEnd(watermark)) return "end of the input";
  return `${duration(lag(watermark, now))} behind`;
}

function Subtasks({ figures, now }) {
  return html`<table id="subtasks">
    <thead>
      <tr>
        <th class="number">Subtask</th><th class="number">In/s</th><th class="number">Out/s</th>
        <th class="number">Busy</th><th class="number">Blocked</th><th class="number">Idle</th>
        <th class="number">Queued</th><th>Watermark</th>
      </tr>
    </thead>
    <tbody>
      ${figures.busy.map(
        (busy, index) => html`<tr key=${index}>
          <td class="number">${index}</td>
          <td class="number">${rate(figures["records-in"][index])}</td>
          <td class="number">${rate(figures["records-out"][index])}</td>
          <td class="number">${percent(busy)}</td>
          <td class="number">${percent(figures.blocked[index])}</td>
          <td class="number">${percent(Math.max(0, 1 - busy - figures.blocked[index]))}</td>
          <td class="number">${count(figures.queued[index])}</td>
          <td>${watermarkText(figures.watermarks[index], now)}</td>
        </tr>`,
      )}
    </tbody>
  </table>`;
}

export function Vertex({ vertex, figures }) {
  const found = figures?.vertices.find((one) => one.id === vertex.id);
  const total = summary(found);
  return html`<section class="card" id="vertex" data-vertex=${vertex.id}>
    <h2>${vertex.name}</h2>
    <p class="quiet">
      vertex ${vertex.id} · parallelism ${vertex.parallelism} of at most ${vertex.maxParallelism} · skew
      ${" "}${Math.round(total.skew)} % · ${count(total.queued)} batches queued
    </p>
    ${found &&
    html`<svg class="strip" viewBox=${`0 0 ${STRIP} 38`} preserveAspectRatio="none" role="img"
        aria-label="busy and blocked share of each subtask">
        <${Strip} kind="busy" values=${found.busy} x=${0} y=${0} width=${STRIP} height=${20} />
        <${Strip} kind="blocked" values=${found.blocked} x=${0} y=${23} width=${STRIP} height=${15} />
      </svg>
      <div class="columns">
        <${Subtasks} figures=${found} now=${figures.now} />
        <table>
          <thead>
            <tr><th>Operator</th><th>Uid</th><th class="number">In/s</th><th class="number">Out/s</th></tr>
          </thead>
          <tbody>
            ${vertex.operators.map(
              (one, index) => html`<tr key=${one.uid}>
                <td>${one.name}${one.stateful ? html` <span class="quiet">with state</span>` : ""}</td>
                <td><code>${one.uid}</code></td>
                <td class="number">${rate(found.operators[index]?.[0] ?? 0)}</td>
                <td class="number">${rate(found.operators[index]?.[1] ?? 0)}</td>
              </tr>`,
            )}
          </tbody>
        </table>
      </div>`}
  </section>`;
}
