// Where the workers of a job spend their time: their call stacks, sampled when somebody asks for it.

import { html, useMemo, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { percent, time } from "./format.js";
import { useAnswer } from "./live.js";

const [WIDTH, ROW] = [1200, 17];
const LETTER = 6.3;
// Narrower parts cannot be seen, and there may be thousands.
const NARROWEST = 0.8;
const SEARCH_MS = 1000;

const ENGINE = /[/\\](penstock|trio|outcome|site-packages)[/\\]|\(<|[/\\]lib[/\\]python/;

/** Add up the stacks into a tree: each part has its frame, its count and the parts that it has called. */
function tree({ frames, stacks }) {
  const root = { name: "all threads", count: 0, children: new Map() };
  for (const [count, ...stack] of stacks) {
    let part = root;
    part.count += count;
    for (const index of stack) {
      let next = part.children.get(index);
      if (!next) part.children.set(index, (next = { name: frames[index], count: 0, children: new Map() }));
      next.count += count;
      part = next;
    }
  }
  return root;
}

/** Place the parts below one part; `path` has the names from the root, which tell parts apart. */
function placed(part, x, width, depth, path, found) {
  if (width < NARROWEST) return found;
  found.push({ part, x, width, depth, path });
  let left = x;
  const children = [...part.children.entries()].sort(([, a], [, b]) => b.count - a.count);
  for (const [index, child] of children) {
    const wide = (width * child.count) / part.count;
    placed(child, left, wide, depth + 1, [...path, index], found);
    left += wide;
  }
  return found;
}

/** Follow a path of indices from the root. A path that newer samples do not have ends where they end. */
function follow(root, path) {
  let part = root;
  for (const index of path) {
    const next = part.children.get(index);
    if (!next) break;
    part = next;
  }
  return part;
}

/** Return the path to the part that nearly all samples have in common, such as the start of the process. */
function common(root) {
  const path = [];
  for (let part = root; ; ) {
    const [index, child] = [...part.children.entries()].find(([, one]) => one.count > 0.98 * part.count) ?? [];
    if (child === undefined) return path;
    path.push(index);
    part = child;
  }
}

const short = (name) => name.replace(/ \(.*[/\\]/, " (");

function Flames({ worker }) {
  const root = useMemo(() => tree(worker), [worker]);
  const [path, choose] = useState(() => common(root));
  const top = follow(root, path);
  const parts = placed(top, 0, WIDTH, 0, path, []);
  const depth = parts.reduce((most, one) => Math.max(most, one.depth), 0) + 1;
  const zoom = (target) => choose(target.length === path.length ? target.slice(0, -1) : target);
  const key = (event, target) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    zoom(target);
  };
  return html`<svg class="flames" id="flames" viewBox=${`0 0 ${WIDTH} ${depth * ROW}`} role="group" aria-label="Flame graph">
    ${parts.map(({ part, x, width, depth: row, path: target }) => {
      const text = `${part.name}: ${percent(part.count / root.count)} of the samples`;
      const letters = Math.floor((width - 6) / LETTER);
      const name = short(part.name);
      return html`<g
        key=${target.join("/")}
        tabindex="0"
        role="button"
        aria-label=${text}
        onClick=${() => zoom(target)}
        onKeyDown=${(event) => key(event, target)}
      >
        <title>${text}</title>
        <rect class=${target.length < 2 || ENGINE.test(part.name) ? "library" : "own"} x=${x} y=${row * ROW} width=${width} height=${ROW - 1} />
        ${letters > 3 &&
        html`<text x=${x + 3} y=${row * ROW + 12}>${name.length > letters ? `${name.slice(0, letters - 1)}…` : name}</text>`}
      </g>`;
    })}
  </svg>`;
}

export function FlameGraph({ path, config, figures }) {
  const [waiting, wait] = useState(null);
  const [error, tell] = useState(null);
  const [chosen, choose] = useState(null);
  const { value } = useAnswer(`${path}/flamegraph`, SEARCH_MS);
  const workers = value?.workers ?? [];
  const newest = Math.max(0, ...workers.map((one) => one["end-timestamp"]));
  const busy = waiting !== null && newest <= waiting;
  const worker = workers.find((one) => one.worker === chosen) ?? workers[0];
  // The answer is repeated each second, and the tree is made when there are new samples only.
  const stable = useMemo(() => worker, [worker?.worker, worker?.["end-timestamp"]]);
  const sample = async () => {
    tell(null);
    wait(newest);
    try {
      await ask(`${path}/flamegraph`, { method: "POST" });
    } catch (refused) {
      wait(null);
      tell(refused.message);
    }
  };
  const may = config?.features["web-cancel"] && figures?.state === "RUNNING";
  return html`<section>
    <div class="bar">
      <button id="sample" disabled=${!may || busy} onClick=${sample}>${busy ? "Sampling …" : "Sample for 5 s"}</button>
      ${workers.length > 1 &&
      html`<label>Worker
        ${" "}<select onChange=${(event) => choose(Number(event.target.value))}>
          ${workers.map((one) => html`<option key=${one.worker} value=${one.worker}>${one.worker} (pid ${one.pid})</option>`)}
        </select>
      </label>`}
      <span class="quiet">
        ${worker
          ? `${worker.samples} samples until ${time(worker["end-timestamp"])} · your functions are orange · choose a part to enlarge it, and again to go back`
          : "Nothing was sampled yet. Sampling takes a few percent of each worker for 5 s."}
      </span>
    </div>
    <p class="error" role="alert">${error ?? ""}</p>
    ${stable && html`<${Flames} key=${stable.worker} worker=${stable} />`}
  </section>`;
}
