// The snapshots of a job: a strip of the last ones, and one of them in full.

import { html } from "./vendor/htm-preact.js";
import { bytes, count, duration, time } from "./format.js";
import { Gantt } from "./gantt.js";
import { useAnswer } from "./live.js";

const SHOWN = 60;
const [BAR, GAP, TALL] = [14, 3, 90];

function Bars({ history, chosen, path }) {
  const shown = history.slice(0, SHOWN).reverse();
  const longest = Math.max(1, ...shown.map((one) => one.end_to_end_duration));
  return html`<svg id="strip" class="snapshots" width=${SHOWN * (BAR + GAP)} height=${TALL + 14} role="group"
    aria-label=${`the last ${SHOWN} snapshots, as high as they took time`}>
    <line class="base" x1="0" x2=${SHOWN * (BAR + GAP)} y1=${TALL + 0.5} y2=${TALL + 0.5} />
    ${shown.map((one, index) => {
      const failed = one.status === "FAILED";
      const height = failed ? TALL : Math.max(4, (TALL * one.end_to_end_duration) / longest);
      const what = `snapshot ${one.id}: ${failed ? one.failure_message : duration(one.end_to_end_duration)}`;
      return html`<a
        key=${one.id}
        href=${`#${path}/snapshots/${one.id}`}
        aria-label=${what}
        data-snapshot=${one.id}
        class=${`${one.status.toLowerCase()} ${String(one.id) === chosen ? "chosen" : ""} ${one.is_savepoint ? "savepoint" : ""}`}
      >
        <title>${what}</title>
        <rect class="room" x=${index * (BAR + GAP)} width=${BAR} height=${TALL + 14} />
        <rect class="bar" x=${index * (BAR + GAP)} y=${TALL - height} width=${BAR} height=${height} rx="2" />
        ${one.is_savepoint && html`<circle class="mark" cx=${index * (BAR + GAP) + BAR / 2} cy=${TALL + 8} r="3" />`}
      </a>`;
    })}
  </svg>`;
}

const FACTS = [
  ["Status", (one) => one.status.toLowerCase().replace("_", " ")],
  ["Kind", (one) => one.checkpoint_type.toLowerCase()],
  ["Began", (one) => time(one.trigger_timestamp)],
  ["Duration", (one) => duration(one.end_to_end_duration)],
  ["Longest alignment", (one) => duration(one.alignment)],
  ["New bytes", (one) => bytes(one.checkpointed_size)],
  ["All bytes", (one) => bytes(one.state_size)],
  ["In flight", (one) => `${count(one.persisted_records)} records, ${bytes(one.persisted_data)}`],
  ["Acknowledged", (one) => `${count(one.num_acknowledged_subtasks)} of ${count(one.num_subtasks)} tasks`],
];

function Details({ path, id, job, status }) {
  const { value, error } = useAnswer(`${path}/checkpoints/details/${id}`, null, status);
  if (!value) return html`<p class=${error ? "error" : "quiet"}>${error?.message ?? "loading …"}</p>`;
  return html`<section class="card" id="snapshot" data-snapshot=${value.id}>
    <h2>Snapshot ${value.id}</h2>
    <dl class="facts">
      ${FACTS.map(([name, of]) => html`<div key=${name}><dt>${name}</dt><dd>${of(value)}</dd></div>`)}
    </dl>
    ${value.failure_message && html`<p class="error">${value.failure_message}</p>`}
    ${value.external_path && html`<p class="quiet"><code>${value.external_path}</code></p>`}
    <${Gantt} path=${`${path}/checkpoints/details/${id}`} job=${job} snapshot=${value} />
  </section>`;
}

export function Snapshots({ path, job, figures, chosen }) {
  const key = `${figures?.snapshots.join() ?? ""}`;
  const { value } = useAnswer(`${path}/checkpoints`, null, key);
  if (!value) return html`<p class="quiet">loading …</p>`;
  const { history, counts, latest } = value;
  const newest = history.find((one) => one.status === "COMPLETED");
  const id = chosen ?? (newest ? String(newest.id) : null);
  const found = history.find((one) => String(one.id) === id);
  return html`<section>
    <p class="quiet" id="counts">
      ${count(counts.completed)} complete · ${count(counts.failed)} failed · ${count(counts.in_progress)} in progress ·
      ${" "}${latest.restored ? `restored from ${latest.restored.id}` : "not restored"} · each bar is one of the last
      ${" "}${SHOWN} snapshots, a dot marks a savepoint
    </p>
    <div class="frame"><${Bars} history=${history} chosen=${id} path=${path} /></div>
    ${id === null
      ? html`<p class="quiet">There is no snapshot yet.</p>`
      : html`<${Details} key=${id} path=${path} id=${id} job=${job} status=${found?.status ?? ""} />`}
  </section>`;
}
