// The graph of a job, and the figures of the vertex that is chosen.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { RateChart } from "./chart.js";
import { Graph } from "./graph.js";
import { Legend } from "./heat.js";
import { Vertex } from "./vertex.js";

const ZOOMS = [0.25, 0.35, 0.5, 0.7, 1];

export function GraphTab({ job, figures, path, chosen }) {
  const [zoom, set] = useState(job.plan.nodes.length > 40 ? 2 : 4);
  const frame = useRef(null);
  const vertex = job.vertices.find((one) => one.id === chosen);
  useEffect(() => {
    const escape = (event) => {
      if (event.key === "Escape" && chosen !== null) location.hash = `#${path}/graph`;
    };
    addEventListener("keydown", escape);
    return () => removeEventListener("keydown", escape);
  }, [chosen, path]);
  return html`<section>
    <div class="bar">
      <${Legend} />
      <span class="fill"></span>
      <button aria-label="smaller" disabled=${zoom === 0} onClick=${() => set(zoom - 1)}>−</button>
      <button aria-label="larger" disabled=${zoom === ZOOMS.length - 1} onClick=${() => set(zoom + 1)}>+</button>
    </div>
    <div class="frame" ref=${frame}>
      <${Graph} job=${job} figures=${figures} path=${path} chosen=${chosen} zoom=${ZOOMS[zoom]} />
    </div>
    <div class="below">
      ${vertex
        ? html`<${Vertex} key=${vertex.id} vertex=${vertex} figures=${figures} />`
        : html`<p class="quiet">Choose a vertex to see its subtasks and operators.</p>`}
    </div>
    <${RateChart} job=${job} figures=${figures} />
  </section>`;
}
