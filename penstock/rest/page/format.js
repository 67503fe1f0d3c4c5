// Write numbers, sizes and times for people. A column of them keeps its width.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export const count = (value) => whole.format(value);

/** A rate per second: 0.3, 12, 3,400, 1.20 M. */
export function rate(value) {
  if (value >= 999_500) return `${(value / 1e6).toFixed(2)} M`;
  return value >= 10 || value === 0 ? whole.format(value) : value.toFixed(1);
}

export const percent = (share) => `${Math.round(share * 100)} %`;

export function bytes(value) {
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? whole.format(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** A length of time that is given in milliseconds. */
export function duration(ms) {
  if (ms < 0) return `−${duration(-ms)}`;
  if (ms < 1) return ms === 0 ? "0 ms" : `${ms.toFixed(2)} ms`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** A time that is given in milliseconds since the epoch, in the zone of the browser. */
export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return String(ms);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
