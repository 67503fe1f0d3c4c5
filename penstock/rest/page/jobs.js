// The table of all jobs.

import { html } from "./vendor/htm-preact.js";
import { count, duration, time } from "./format.js";
import { useAnswer } from "./live.js";

export const State = ({ state }) => html`<span class=${`state ${state.toLowerCase()}`}>${state.toLowerCase()}</span>`;

export function Jobs() {
  const { value } = useAnswer("/jobs/overview", 2000);
  const { value: overview } = useAnswer("/overview", 2000);
  const jobs = value?.jobs.slice().reverse() ?? [];
  return html`<section>
    <h1>Jobs</h1>
    <p class="quiet" id="overview">
      ${overview
        ? `${overview["jobs-running"]} running · ${overview["jobs-finished"]} finished · ` +
          `${overview["jobs-cancelled"]} cancelled · ${overview["jobs-failed"]} failed · ` +
          `${overview.taskmanagers} workers` +
          (overview["slots-total"] > overview.taskmanagers ? ` of ${overview["slots-total"]} slots` : "")
        : " "}
    </p>
    <table id="jobs">
      <thead>
        <tr>
          <th>Job</th><th>Id</th><th>State</th><th>Started</th>
          <th class="number">Duration</th><th class="number">Tasks</th><th class="number">Restarts</th>
        </tr>
      </thead>
      <tbody>
        ${jobs.map(
          (job) => html`<tr key=${job.jid} data-job=${job.jid}>
            <td><a href=${`#/jobs/${encodeURIComponent(job.jid)}`}>${job.name || "(no name)"}</a></td>
            <td><code>${job.jid.slice(0, 8)}</code></td>
            <td><${State} state=${job.state} /></td>
            <td>${time(job["start-time"])}</td>
            <td class="number">${duration(job.duration)}</td>
            <td class="number">${count(job.tasks.total)}</td>
            <td class="number">${count(job.restarts)}</td>
          </tr>`,
        )}
        ${value && jobs.length === 0 && html`<tr><td colspan="7" class="quiet">There are no jobs.</td></tr>`}
      </tbody>
    </table>
  </section>`;
}
