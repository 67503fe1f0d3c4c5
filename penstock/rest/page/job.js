// One job: its state, the orders that it takes, and the tabs.

import { html, useEffect } from "./vendor/htm-preact.js";
import { Actions } from "./actions.js";
import { Exceptions } from "./exceptions.js";
import { count, duration, time } from "./format.js";
import { FlameGraph } from "./flame_graph.js";
import { GraphTab } from "./graph_tab.js";
import { State } from "./jobs.js";
import { useAnswer } from "./live.js";
import { Records } from "./records.js";
import { Snapshots } from "./snapshots.js";
import { StateSizes } from "./state_sizes.js";
import { Watermarks } from "./watermarks.js";

const TABS = [
  ["graph", "Graph", GraphTab],
  ["watermarks", "Watermarks", Watermarks],
  ["snapshots", "Snapshots", Snapshots],
  ["exceptions", "Exceptions", Exceptions],
  ["state", "State", StateSizes],
  ["records", "Records", Records],
  ["flamegraph", "Flame graph", FlameGraph],
];
const POLL_MS = 1000;

function Facts({ job, figures }) {
  const workers = job["worker-pids"].length;
  const [completed, failed] = figures?.snapshots ?? [0, 0];
  const facts = [
    ["Started", time(job["start-time"])],
    ["Duration", duration(figures?.duration ?? job.duration)],
    ["Restarts", count(figures?.restarts ?? job.restarts)],
    ["Snapshots", `${count(completed)}${failed ? ` · ${count(failed)} failed` : ""}`],
    ["JobManager", job.pid === null ? "–" : `pid ${job.pid}`],
    ["Workers", workers < job.slots ? `${count(workers)} of ${count(job.slots)}` : count(workers)],
  ];
  return html`<dl class="facts">
    ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

export function Job({ id, tab, chosen, config }) {
  const path = `/jobs/${encodeURIComponent(id)}`;
  const { value: figures } = useAnswer(`${path}/figures`, POLL_MS);
  // What changes seldom is asked for again when the figures show that it has changed.
  const shape = figures?.vertices.map((one) => one["records-in"].length).join();
  const version = figures && `${figures.state}/${figures.attempt}/${figures.restarts}/${figures.pid}/${shape}`;
  const { value: job, error } = useAnswer(path, null, version ?? "");
  useEffect(() => {
    document.title = job ? `${job.name} · Penstock` : "Penstock";
  }, [job?.name]);
  if (!job) {
    return html`<p class=${error ? "error" : "quiet"} role="status">${error?.message ?? "loading …"}</p>`;
  }
  const [name, , Tab] = TABS.find(([one]) => one === tab) ?? TABS[0];
  return html`<div class="title">
      <h1>${job.name}</h1>
      <${State} state=${figures?.state ?? job.state} />
      <span class="fill"></span>
      <${Actions} path=${path} job=${job} state=${figures?.state ?? job.state} config=${config} />
    </div>
    <${Facts} job=${job} figures=${figures} />
    <nav class="tabs">
      ${TABS.map(
        ([one, title]) =>
          html`<a key=${one} href=${`#${path}/${one}`} aria-current=${one === name ? "page" : undefined}>${title}</a>`,
      )}
    </nav>
    <${Tab} path=${path} job=${job} figures=${figures} chosen=${chosen} version=${version} config=${config} />`;
}
