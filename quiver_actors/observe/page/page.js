"use strict";
// Shows status.json and history.json, anew every 5 seconds. Everything that comes from the node is set as text, never as markup.

const INTERVAL_MS = 5000;
const WINDOW_NS = 15 * 60 * 1e9;
const GOOD = new Set(["ready"]);
const WARN = new Set(["degraded", "draining", "starting", "recovering", "restarting", "ended", "closed"]);

function withUnit(value, units, base) {
  let index = 0;
  while (value >= base && index < units.length - 1) { value /= base; index += 1; }
  const digits = value >= 100 || value === Math.round(value) ? 0 : 1;
  return value.toFixed(digits) + units[index];
}
const count = (value) => withUnit(value, ["", "k", "M", "G", "T"], 1000);
const bytes = (value) => withUnit(value, [" B", " KiB", " MiB", " GiB", " TiB"], 1024);
function seconds(value) {
  if (value === null || value === undefined) return "-";
  if (value < 1e-3) return (value * 1e6).toFixed(0) + " us";
  if (value < 1) return (value * 1e3).toFixed(1) + " ms";
  if (value < 120) return value.toFixed(1) + " s";
  if (value < 7200) return (value / 60).toFixed(0) + " min";
  return value < 172800 ? (value / 3600).toFixed(1) + " h" : (value / 86400).toFixed(1) + " d";
}
const nanoseconds = (value) => (value === null || value === undefined ? "-" : seconds(value * 1e-9));
const perSecond = (format) => (value) => format(value) + "/s";

const PLOTS = [
  ["Bundles in", "bundles_in_per_second", perSecond(count)],
  ["Bytes in", "bytes_in_per_second", perSecond(bytes)],
  ["Delivered", "delivered_per_second", perSecond(count)],
  ["Refused pushes", "refused_per_second", perSecond(count)],
  ["Lag, bundles", "lag_bundles", count],
  ["On disk", "disk_bytes", bytes],
  ["Slowest last sync", "sync_seconds", seconds],
  ["Processor, cores", "cpu_fraction", (value) => value.toFixed(2)],
  ["Pressure", "pressure", (value) => value.toFixed(2)],
];

const COLUMNS = {
  workers: [
    ["worker", (w) => "core_" + w.core], ["state", (w) => w.state, "state"], ["pid", (w) => w.pid ?? "-", "number"],
    ["cpu", (w) => (w.cpu_percent === null ? "-" : w.cpu_percent + " %"), "number"],
    ["restarts", (w) => w.restarts, "number"], ["up", (w) => nanoseconds(w.uptime_ns), "number"],
    ["figures", (w) => nanoseconds(w.figures_age_ns) + " old", "number"], ["clients", (w) => w.sessions, "number"],
    ["waiting pushes", (w) => w.pushes_waiting, "number"], ["longest turn", (w) => nanoseconds(w.loop_gap_ns_max), "number"],
    ["last exit", (w) => w.last_exit ?? "-"],
  ],
  engines: [
    ["topic", (e) => e.topic], ["core", (e) => e.core, "number"], ["state", (e) => e.state, "state"],
    ["bundles", (e) => count(e.bundles_in), "number"], ["rows", (e) => count(e.rows_in), "number"],
    ["bytes", (e) => bytes(e.bytes_in), "number"], ["log", (e) => bytes(e.wal_bytes), "number"],
    ["segments", (e) => e.segments, "number"], ["on disk", (e) => bytes(e.disk_bytes), "number"],
    ["last sync", (e) => nanoseconds(e.sync_ns_last), "number"], ["refused", (e) => count(e.refused), "number"],
    ["quarantined", (e) => e.quarantined, "number"],
  ],
  subscribers: [
    ["topic", (s) => s.topic], ["subscriber", (s) => s.subscriber], ["core", (s) => s.core, "number"],
    ["lag", (s) => count(s.lag_bundles), "number"], ["oldest", (s) => nanoseconds(s.oldest_age_ns), "number"],
    ["consumers", (s) => s.connections, "number"], ["claimed", (s) => count(s.claimed), "number"],
    ["delivered", (s) => count(s.delivered), "number"], ["acked", (s) => count(s.acked), "number"],
    ["redelivered", (s) => count(s.redelivered), "number"], ["dropped", (s) => count(s.dropped), "number"],
    ["gaps", (s) => s.gaps, "number"],
  ],
  errors: [
    ["core", (e) => e.core, "number"], ["ago", (e) => nanoseconds(e.age_ns), "number"],
    ["times", (e) => e.count, "number"], ["message", (e) => e.message, "message"],
  ],
};

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
const gradeOf = (state) => (GOOD.has(state) ? "good" : WARN.has(state) ? "warn" : "bad");

function fillTable(id, rows) {
  const table = document.getElementById(id);
  const columns = COLUMNS[id];
  const head = element("tr");
  for (const [title, , kind] of columns) head.append(element("th", title, kind === "number" ? "number" : ""));
  const body = rows.map((row) => {
    const line = element("tr");
    for (const [, read, kind] of columns) {
      const text = String(read(row));
      line.append(element("td", text, kind === "state" ? gradeOf(text) : kind));
    }
    return line;
  });
  if (!rows.length) {
    const line = element("tr");
    const cell = element("td", "none", "none");
    cell.colSpan = columns.length;
    line.append(cell);
    body.push(line);
  }
  table.replaceChildren(head, ...body);
}

function drawing(samples, field, top) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("viewBox", "0 0 300 48");
  svg.setAttribute("preserveAspectRatio", "none");
  const end = samples.length ? samples[samples.length - 1].unix_ns : 0;
  const x = (sample) => (300 * (1 - (end - sample.unix_ns) / WINDOW_NS)).toFixed(1);
  const y = (sample) => (46 - 44 * (sample[field] / top)).toFixed(1);
  const pieces = [];
  let piece = [];
  for (const sample of samples) {
    if (sample.running) piece.push(sample);
    else if (piece.length) { pieces.push(piece); piece = []; }
  }
  if (piece.length) pieces.push(piece);
  for (const points of pieces) {
    const line = points.map((sample) => x(sample) + " " + y(sample)).join(" L ");
    for (const [kind, d] of [["area", `M ${x(points[0])} 46 L ${line} L ${x(points[points.length - 1])} 46 Z`], ["line", "M " + line]]) {
      const path = document.createElementNS(ns, "path");
      path.setAttribute("d", d);
      path.setAttribute("class", kind);
      svg.append(path);
    }
  }
  return svg;
}

function fillPlots(samples) {
  const last = samples[samples.length - 1];
  const cards = PLOTS.filter(([, field]) => samples.some((sample) => field in sample)).map(([title, field, format]) => {
    const most = Math.max(0, ...samples.map((sample) => sample[field] || 0));
    const card = element("div", undefined, "plot");
    card.append(element("h3", title), element("span", "most " + format(most), "most"));
    card.append(element("span", last ? format(last[field]) : "-", "now"), drawing(samples, field, most || 1));
    return card;
  });
  document.getElementById("plots").replaceChildren(...cards);
}

function fillHead(status) {
  const state = document.getElementById("state");
  state.textContent = status.node.state;
  state.className = "state " + gradeOf(status.node.state);
  document.title = `quiver ${status.node.state}`;
  const node = status.node;
  const facts = [`pid ${node.pid}`, `up ${nanoseconds(node.uptime_ns)}`, `data ${node.data_dir}`, `run ${node.run_dir}`,
    `shared memory ${bytes(status.shared_memory.total_bytes)}`];
  document.getElementById("facts").textContent = facts.join("  ·  ");
  fillProblems(node.problems);
}

function fillProblems(problems) {
  const list = document.getElementById("problems");
  list.hidden = problems.length === 0;
  list.replaceChildren(...problems.map((problem) => element("li", problem)));
}

function showAbsence(reason) {
  const state = document.getElementById("state");
  state.textContent = "not running";
  state.className = "state bad";
  document.title = "quiver not running";
  fillProblems([reason]);
}

async function refresh() {
  try {
    const [status, history] = await Promise.all([fetch("status.json"), fetch("history.json")]);
    fillPlots(await history.json());
    const document_ = await status.json();
    if (!status.ok) { showAbsence(document_.error); return; }
    fillHead(document_);
    for (const id of ["workers", "engines", "subscribers", "errors"]) fillTable(id, document_[id]);
    document.getElementById("errors_section").hidden = document_.errors.length === 0;
  } catch (error) {
    showAbsence("this page cannot reach the metrics server: " + error.message);
  }
}

refresh();
setInterval(refresh, INTERVAL_MS);
