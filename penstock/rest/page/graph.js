// Draw the graph of a job, with the figures of each vertex in its node.

import { html, useMemo } from "./vendor/htm-preact.js";
import { summary, lag } from "./figures.js";
import { duration, percent, rate } from "./format.js";
import { HEIGHT, WIDTH, place } from "./graph_layout.js";
import { Strip, level } from "./heat.js";

const PADDING = 10;
const LETTERS = 29;

const short = (text) => (text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text);

function Node({ node, at, figures, now, path, chosen }) {
  const found = summary(figures);
  const late = lag(found.watermark, now);
  const [left, top] = [at.x - WIDTH / 2, at.y - HEIGHT / 2];
  const inner = WIDTH - 2 * PADDING;
  const figuresOf = figures ?? { busy: [0], blocked: [0] };
  const pressed = found.maxBlocked > 0.5 ? "high" : found.maxBlocked > 0.1 ? "low" : "ok";
  return html`<a
    href=${chosen ? `#${path}/graph` : `#${path}/graph/${node.id}`}
    class=${`node ${chosen ? "chosen" : ""} pressed-${pressed}`}
    data-vertex=${node.id}
    aria-label=${`${node.description}, parallelism ${node.parallelism}`}
    transform=${`translate(${left} ${top})`}
  >
    <title>${node.description}</title>
    <rect class=${`body busy level-${level(found.maxBusy)}`} width=${WIDTH} height=${HEIGHT} rx="6" />
    <rect class="paper" x="3" y="3" width=${WIDTH - 6} height=${HEIGHT - 6} rx="4" />
    <text class="name" x=${PADDING} y="21">${short(node.description)}</text>
    <text x=${PADDING} y="40"><tspan class="rate">${rate(found.in)}</tspan> in/s · <tspan>${rate(found.out)}</tspan> out/s</text>
    <text class="parallelism" x=${WIDTH - PADDING} y="40" text-anchor="end">×${node.parallelism}</text>
    <text x=${PADDING} y="57">busy ${percent(found.busy)} (max ${percent(found.maxBusy)}) · blocked ${percent(found.blocked)}</text>
    <text x=${PADDING} y="74">skew ${Math.round(found.skew)} % · ${late === null ? "no watermark" : `lag ${duration(late)}`}</text>
    <${Strip} kind="busy" values=${figuresOf.busy} x=${PADDING} y=${82} width=${inner} height=${12} />
    <${Strip} kind="blocked" values=${figuresOf.blocked} x=${PADDING} y=${97} width=${inner} height=${10} />
  </a>`;
}

export function Graph({ job, figures, path, chosen, zoom }) {
  const { nodes } = job.plan;
  const shape = JSON.stringify(nodes.map((node) => [node.id, node.inputs.map((one) => [one.id, one.back_edge])]));
  const { at, edges, loops, width, height } = useMemo(() => place(nodes), [shape]);
  const byId = Object.fromEntries((figures?.vertices ?? []).map((one) => [one.id, one]));
  return html`<svg
    id="graph"
    width=${width * zoom}
    height=${height * zoom}
    viewBox=${`0 0 ${width} ${height}`}
    role="group"
    aria-label="Graph of the job"
  >
    <defs>
      <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
        <path class="head" d="M0 0L8 4L0 8z" />
      </marker>
    </defs>
    ${edges.map((edge) => html`<path key=${edge.key} class="edge" d=${edge.d} marker-end="url(#arrow)" />`)}
    ${loops.map((edge) => html`<path key=${edge.key} class="back-edge" d=${edge.d} marker-end="url(#arrow)" />`)}
    ${nodes.map(
      (node) => html`<${Node}
        key=${node.id}
        node=${node}
        at=${at[node.id]}
        figures=${byId[node.id]}
        now=${figures?.now ?? job.now}
        path=${path}
        chosen=${chosen === node.id}
      />`,
    )}
  </svg>`;
}
