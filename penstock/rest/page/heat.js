// A scale of heat: shares of time as one of six classes, and strips with a cell for each subtask.

import { html } from "./vendor/htm-preact.js";

export const LEVELS = 6;

export const level = (share) => Math.max(0, Math.min(LEVELS - 1, Math.floor(share * LEVELS)));

/** A strip of cells. One path draws all cells of a level, so that thousands of subtasks are quick. */
export function Strip({ values, x, y, width, height, kind }) {
  const paths = Array(LEVELS).fill("");
  const cell = width / values.length;
  const gap = cell > 4 ? 1 : 0;
  values.forEach((value, index) => {
    const left = Math.round((x + index * cell) * 10) / 10;
    const wide = Math.round((cell - gap) * 10) / 10;
    paths[level(value)] += `M${left} ${y}h${wide}v${height}h${-wide}z`;
  });
  return paths.map((d, index) => d && html`<path key=${index} class=${`${kind} level-${index}`} d=${d} />`);
}

export function Legend() {
  const steps = Array.from({ length: LEVELS }, (_, index) => index);
  return html`<p class="legend quiet">
    ${["busy", "blocked"].map(
      (kind) => html`<span key=${kind}>
        ${kind}
        <svg width="96" height="12" aria-hidden="true">
          ${steps.map((i) => html`<rect key=${i} class=${`${kind} level-${i}`} x=${i * 16} width="15" height="12" />`)}
        </svg>
        0 to 100 %
      </span>`,
    )}
    <span>one cell for each subtask</span>
    <span><svg width="30" height="12" aria-hidden="true"><path class="back-edge" d="M0 6h30" /></svg> back-edge</span>
  </p>`;
}
