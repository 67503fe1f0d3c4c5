// Place the vertices of a job: dagre places those and the edges of the graph without its back-edges, which are drawn
// around it afterwards, so that the direction of the flow stays the same.

import { Graph, layout } from "./vendor/dagre.js";

export const WIDTH = 252;
export const HEIGHT = 118;
const MARGIN = 16;

export function place(nodes) {
  const graph = new Graph({ multigraph: true });
  graph.setGraph({ rankdir: "LR", nodesep: 26, ranksep: 56, marginx: MARGIN, marginy: MARGIN });
  graph.setDefaultEdgeLabel(() => ({}));
  const back = [];
  for (const node of nodes) graph.setNode(node.id, { width: WIDTH, height: HEIGHT });
  for (const node of nodes) {
    for (const input of node.inputs) {
      if (input.back_edge) back.push([input.id, node.id]);
      else graph.setEdge(input.id, node.id, {}, String(input.num));
    }
  }
  layout(graph);
  const at = Object.fromEntries(nodes.map((node) => [node.id, graph.node(node.id)]));
  const edges = graph.edges().map((edge) => ({
    key: `${edge.v}-${edge.w}-${edge.name}`,
    from: edge.v,
    to: edge.w,
    d: smooth(graph.edge(edge).points),
  }));
  let { width, height } = graph.graph();
  const bottom = height;
  const loops = back.map(([from, to], index) => {
    const [a, b] = [at[from], at[to]];
    const depth = bottom + 12 + 14 * index;
    height = Math.max(height, depth + MARGIN);
    const [x, y] = [a.x + WIDTH / 4, a.y + HEIGHT / 2];
    const [u, v] = [b.x - WIDTH / 4, b.y + HEIGHT / 2 + 6];
    return {
      key: `back-${from}-${to}-${index}`,
      from,
      to,
      d: `M${x} ${y}C${x} ${depth + 4} ${x} ${depth} ${x - 24} ${depth}L${u + 24} ${depth}C${u} ${depth} ${u} ${depth} ${u} ${v}`,
    };
  });
  width = Number.isFinite(width) ? width : 2 * MARGIN;
  height = Number.isFinite(height) ? height : 2 * MARGIN;
  return { at, edges, loops, width, height };
}

/** A curve through points, whose corners are rounded. */
function smooth(points) {
  const round = (value) => Math.round(value * 10) / 10;
  const [first, ...rest] = points;
  let d = `M${round(first.x)} ${round(first.y)}`;
  for (let i = 0; i < rest.length - 1; i += 1) {
    const [one, next] = [rest[i], rest[i + 1]];
    d += `Q${round(one.x)} ${round(one.y)} ${round((one.x + next.x) / 2)} ${round((one.y + next.y) / 2)}`;
  }
  const last = rest[rest.length - 1];
  return `${d}L${round(last.x)} ${round(last.y)}`;
}
