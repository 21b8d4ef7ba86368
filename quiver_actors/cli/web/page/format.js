// Numbers as people read them. Pure.

function withUnit(value, units, base) {
  let index = 0;
  while (value >= base && index < units.length - 1) { value /= base; index += 1; }
  const digits = value >= 100 || value === Math.round(value) ? 0 : 1;
  return value.toFixed(digits) + units[index];
}
export const count = (value) => withUnit(value, ["", "k", "M", "G", "T"], 1000);
export const exact = (value) => value.toLocaleString("en-US");
export const bytes = (value) => withUnit(value, [" B", " KiB", " MiB", " GiB", " TiB"], 1024);
export const percent = (value) => (value * 100).toFixed(value < 0.1 ? 1 : 0) + " %";
export const perSecond = (format) => (value) => format(value) + "/s";

export function seconds(value) {
  if (value === null || value === undefined) return "-";
  if (value < 1e-3) return (value * 1e6).toFixed(0) + " us";
  if (value < 1) return (value * 1e3).toFixed(value < 0.01 ? 1 : 0) + " ms";
  if (value < 120) return value.toFixed(1) + " s";
  if (value < 7200) return (value / 60).toFixed(0) + " min";
  return value < 172800 ? (value / 3600).toFixed(1) + " h" : (value / 86400).toFixed(1) + " d";
}
export const nanoseconds = (value) => (value === null || value === undefined ? "-" : seconds(value * 1e-9));
export const ago = (value) => (value === null || value === undefined ? "-" : nanoseconds(value) + " ago");

const GOOD = new Set(["ready"]);
const WARN = new Set(["degraded", "throttled", "draining", "starting", "recovering", "restarting", "ended", "closed"]);
export const isGood = (state) => GOOD.has(state);
export const gradeOf = (state) => (GOOD.has(state) ? "good" : WARN.has(state) ? "warn" : "bad");
