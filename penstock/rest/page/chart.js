// A chart of the records per second of the sources and sinks, since the page was opened.

import { html, useEffect, useLayoutEffect, useRef } from "./vendor/htm-preact.js";
import { summary } from "./figures.js";
import { rate } from "./format.js";

const KEPT = 600;
// The points of each job, so that another tab does not lose them.
const histories = new Map();
const HEIGHT = 180;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function make(frame, data) {
  const [ink, grid] = [colour("--ink"), colour("--line")];
  const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
  const series = (label, name) => ({
    label,
    stroke: colour(name),
    width: 2,
    value: (_, value) => (value === null || value === undefined ? "–" : rate(value)),
  });
  return new globalThis.uPlot(
    {
      width: frame.clientWidth,
      height: HEIGHT,
      cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [axis, { ...axis, size: 70, values: (_, ticks) => ticks.map(rate) }],
      series: [{ label: "time" }, series("out of sources/s", "--first"), series("into sinks/s", "--second")],
    },
    data,
    frame,
  );
}

export function RateChart({ job, figures }) {
  const frame = useRef(null);
  const kept = useRef(histories.get(job.jid) ?? [[], [], []]);
  const chart = useRef(null);
  useLayoutEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const renew = () => {
      chart.current?.destroy();
      chart.current = make(frame.current, kept.current);
    };
    const resize = () => chart.current.setSize({ width: frame.current.clientWidth, height: HEIGHT });
    renew();
    dark.addEventListener("change", renew);
    addEventListener("resize", resize);
    return () => {
      dark.removeEventListener("change", renew);
      removeEventListener("resize", resize);
      chart.current.destroy();
    };
  }, []);
  useEffect(() => {
    if (!figures || kept.current[0].at(-1) === figures.now / 1000) return;
    const byId = Object.fromEntries(figures.vertices.map((one) => [one.id, summary(one)]));
    const total = (which, figure) =>
      job.plan.nodes.filter((node) => node[which]).reduce((sum, node) => sum + (byId[node.id]?.[figure] ?? 0), 0);
    const row = [figures.now / 1000, total("source", "out"), total("sink", "in")];
    kept.current = kept.current.map((column, index) => [...column, row[index]].slice(-KEPT));
    histories.set(job.jid, kept.current);
    chart.current.setData(kept.current);
  }, [figures]);
  return html`<div class="chart" ref=${frame} aria-label="Records per second" role="img"></div>`;
}
