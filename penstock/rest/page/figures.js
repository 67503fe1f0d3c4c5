// Sum up the figures of a vertex over its subtasks.

const EMPTY = { in: 0, out: 0, busy: 0, maxBusy: 0, blocked: 0, maxBlocked: 0, queued: 0, skew: 0, watermark: null };

const sum = (values) => values.reduce((a, b) => a + b, 0);
const most = (values) => values.reduce((a, b) => (b > a ? b : a), 0);

/** Flink's skew: the mean distance from the mean in percent of the mean, and at most 100. */
export function skew(values) {
  const mean = sum(values) / values.length;
  if (!mean) return 0;
  return Math.min(100, (100 * sum(values.map((value) => Math.abs(value - mean)))) / values.length / mean);
}

export function summary(vertex) {
  if (!vertex || vertex["records-in"].length === 0) return EMPTY;
  const { busy, blocked } = vertex;
  const received = vertex["records-in"];
  const known = vertex.watermarks.filter((one) => one !== null);
  return {
    in: sum(received),
    out: sum(vertex["records-out"]),
    busy: sum(busy) / busy.length,
    maxBusy: most(busy),
    blocked: sum(blocked) / blocked.length,
    maxBlocked: most(blocked),
    queued: sum(vertex.queued),
    // A source receives nothing from other tasks, so what it emits is compared.
    skew: skew(sum(received) ? received : vertex["records-out"]),
    watermark: known.length === 0 ? null : known.reduce((a, b) => Math.min(a, b)),
  };
}

/** The watermark after the end of the input; it is too large for a date. */
export const isEnd = (watermark) => watermark > 8.64e15;
export const isBegin = (watermark) => watermark < -8.64e15;

/** How far a watermark is behind the clock, in milliseconds; null if it says nothing. */
export function lag(watermark, now) {
  return watermark === null || isEnd(watermark) || isBegin(watermark) ? null : now - watermark;
}
