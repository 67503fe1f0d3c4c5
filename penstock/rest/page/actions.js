// Orders to a job. They are disabled if the token or the server does not allow them.

import { html, useRef, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";

const ENDED = ["FINISHED", "FAILED", "CANCELED"];
const POLL_MS = 300;
const pause = () => new Promise((resolve) => setTimeout(resolve, POLL_MS));

/** Wait until a requested snapshot is complete, and return where it is. */
async function snapshotOf(path, request) {
  for (;;) {
    const { status, operation } = await ask(`${path}/savepoints/${request}`);
    if (status.id === "COMPLETED") {
      if (operation.location) return operation.location;
      throw new Error(operation["failure-cause"]["stack-trace"]);
    }
    await pause();
  }
}

const orders = {
  savepoint: async (path) => {
    const { "request-id": id } = await ask(`${path}/savepoints`, { method: "POST", body: {} });
    return `savepoint: ${await snapshotOf(path, id)}`;
  },
  stop: async (path) => {
    const { "request-id": id } = await ask(`${path}/stop`, { method: "POST", body: {} });
    return `stopped with ${await snapshotOf(path, id)}`;
  },
  cancel: async (path) => {
    await ask(path, { method: "PATCH" });
    return "the job is being cancelled";
  },
  rescale: async (path, form) => {
    const parallelism = form.elements.parallelism.valueAsNumber;
    await ask(`${path}/rescale`, { method: "POST", body: { parallelism } });
    return `the job continues with parallelism ${parallelism}`;
  },
  restart: async (path) => {
    await ask(`${path}/restart`, { method: "POST" });
    return "the job starts again from its newest snapshot";
  },
};

const QUESTIONS = {
  savepoint: "Take a savepoint? The job goes on.",
  stop: "Stop the job with a last snapshot, from which it can start again?",
  cancel: "Cancel the job at once, without a last snapshot? What came after the newest snapshot is not committed.",
  rescale: "Continue the job with another parallelism? It stops with a snapshot and starts from it.",
  restart: "Start the job again from its newest snapshot?",
};

export function Actions({ path, job, state, config }) {
  const dialog = useRef(null);
  const [order, choose] = useState(null);
  const [message, tell] = useState({ text: "", error: false });
  const ended = ENDED.includes(state);
  const may = config?.features ?? {};
  const reasons = (name) => {
    if (!may["web-cancel"]) return "the token is only for reading";
    if ((name === "rescale" || name === "restart") && !may["web-rescale"]) {
      return "the job belongs to the program that runs it";
    }
    if (name === "restart") return ended ? null : "the job runs";
    return ended ? "the job has ended" : null;
  };
  const open = (name) => {
    choose(name);
    dialog.current.showModal();
  };
  const submit = async (event) => {
    event.preventDefault();
    dialog.current.close();
    tell({ text: `${order} …`, error: false });
    try {
      tell({ text: await orders[order](path, event.target), error: false });
    } catch (error) {
      tell({ text: error.message, error: true });
    }
  };
  return html`<div class="actions">
    <p class=${message.error ? "error" : "quiet"} id="order-result" role="status" title=${message.text}>${message.text}</p>
    ${Object.keys(orders).map((name) => {
      const reason = reasons(name);
      return html`<button
        key=${name}
        data-order=${name}
        disabled=${reason !== null}
        title=${reason ?? ""}
        onClick=${() => open(name)}
      >
        ${name}
      </button>`;
    })}
    <dialog ref=${dialog} aria-label=${order ?? "order"}>
      <form onSubmit=${submit}>
        <p>${QUESTIONS[order] ?? ""}</p>
        ${order === "rescale" &&
        html`<label>
          Parallelism
          <input name="parallelism" type="number" min="1" max=${job.maxParallelism || 32768} required
            defaultValue=${Math.max(1, ...job.vertices.map((one) => one.parallelism))} />
        </label>`}
        <div class="bar">
          <span class="fill"></span>
          <button type="button" onClick=${() => dialog.current.close()}>No</button>
          <button data-confirm class="strong">${order}</button>
        </div>
      </form>
    </dialog>
  </div>`;
}
