// How each task took part in one snapshot, on one axis of time.

import { html, useState } from "./vendor/htm-preact.js";
import { bytes, count, duration } from "./format.js";
import { useAnswer } from "./live.js";

const PHASES = [
  ["delay", "start delay"],
  ["alignment", "alignment"],
  ["capture", "capture"],
  ["write", "write"],
];
const WIDTH = 640;
const ROWS = 64;

const phases = (task) => [
  task.start_delay,
  task.alignment.duration,
  task.checkpoint.sync,
  task.checkpoint.async,
];

function Row({ task, scale, last }) {
  let x = 0;
  const parts = phases(task).map((ms, index) => {
    const part = { x, width: ms * scale, kind: PHASES[index][0] };
    x += part.width;
    return part;
  });
  const words = phases(task).map((ms, index) => `${PHASES[index][1]} ${duration(ms)}`).join(", ");
  return html`<tr class=${last ? "last" : ""} data-subtask=${task.index}>
    <td class="number">${task.index}${last ? html` <span class="tag">last</span>` : ""}</td>
    <td>
      <svg class="gantt" viewBox=${`0 0 ${WIDTH} 12`} preserveAspectRatio="none" role="img" aria-label=${words}>
        <title>${words}</title>
        ${parts.map((one) => html`<rect key=${one.kind} class=${one.kind} x=${one.x} width=${one.width} height="12" />`)}
      </svg>
    </td>
    <td class="number">${duration(task.end_to_end_duration)}</td>
    <td class="number">${bytes(task.checkpointed_size)}</td>
    <td class="number">${bytes(task.state_size)}</td>
    <td class="number">${count(task.alignment.persisted_records)}</td>
  </tr>`;
}

function VertexRows({ path, vertex, name, scale, last }) {
  const { value } = useAnswer(`${path}/subtasks/${vertex.id}`, null, vertex.status);
  const [all, show] = useState(false);
  const tasks = value?.subtasks ?? [];
  // The slowest come first if there are many, since these are looked for.
  const sorted = tasks.length > ROWS ? [...tasks].sort((a, b) => b.end_to_end_duration - a.end_to_end_duration) : tasks;
  const shown = all ? sorted : sorted.slice(0, ROWS);
  return html`<tbody data-vertex=${vertex.id}>
    <tr>
      <th colspan="2">${name} <span class="quiet">${vertex.num_acknowledged_subtasks} of ${vertex.num_subtasks}</span></th>
      <th class="number">${duration(vertex.end_to_end_duration)}</th>
      <th class="number">${bytes(vertex.checkpointed_size)}</th>
      <th class="number">${bytes(vertex.state_size)}</th>
      <th></th>
    </tr>
    ${shown.map((task) => html`<${Row} key=${task.index} task=${task} scale=${scale} last=${task.end_to_end_duration === last} />`)}
    ${shown.length < tasks.length &&
    html`<tr><td colspan="6"><button onClick=${() => show(true)}>Show all ${tasks.length} subtasks</button></td></tr>`}
  </tbody>`;
}

export function Gantt({ path, job, snapshot }) {
  const vertices = job.vertices.filter((vertex) => snapshot.tasks[vertex.id]);
  if (vertices.length === 0) return html`<p class="quiet">No task has acknowledged it.</p>`;
  const found = Object.values(snapshot.tasks);
  const longest = Math.max(0.001, ...found.map((one) => one.end_to_end_duration));
  const scale = WIDTH / longest;
  return html`<p class="legend quiet">
      ${PHASES.map(
        ([kind, title]) => html`<span key=${kind}>
          <svg class="gantt-key" width="14" height="12" aria-hidden="true"><rect class=${kind} width="14" height="12" /></svg>
          ${title}
        </span>`,
      )}
      <span>from 0 to ${duration(longest)} after the snapshot began</span>
    </p>
    <table id="gantt">
      <thead>
        <tr>
          <th class="number">Subtask</th><th class="wide"></th><th class="number">Acknowledged</th>
          <th class="number">New</th><th class="number">All</th><th class="number">In flight</th>
        </tr>
      </thead>
      ${vertices.map(
        (vertex) => html`<${VertexRows}
          key=${vertex.id}
          path=${path}
          vertex=${snapshot.tasks[vertex.id]}
          name=${vertex.name}
          scale=${scale}
          last=${longest}
        />`,
      )}
    </table>`;
}
