"use strict";
// Shows status.json and history.json, anew every 5 seconds. Everything that comes from the node is set as text, never as markup.

const INTERVAL_MS = 5000;
const WINDOW_NS_MAX = 15 * 60 * 1e9;
const WINDOW_NS_MIN = 60 * 1e9;
const ROWS_SHOWN = 40;
const PROBLEMS_SHOWN = 8;
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

const percent = (value) => (value * 100).toFixed(value < 0.1 ? 1 : 0) + " %";

// [title, text or node of a row, kind]
const COLUMNS = {
  workers: [
    ["worker", (w) => "core_" + w.core], ["state", (w) => w.state, "state"], ["pid", (w) => w.pid ?? "-", "number"],
    ["cpu", (w) => (w.cpu_percent === null ? "-" : w.cpu_percent + " %"), "number"],
    ["restarts", (w) => w.restarts, "number"], ["up", (w) => nanoseconds(w.uptime_ns), "number"],
    ["figures", (w) => nanoseconds(w.figures_age_ns) + " old", "number"], ["clients", (w) => w.sessions, "number"],
    ["waiting pushes", (w) => w.pushes_waiting, "number"], ["longest turn", (w) => nanoseconds(w.loop_gap_ns_max), "number"],
    ["last exit", (w) => w.last_exit ?? "-"],
  ],
  room: [
    ["worker", (c) => "core_" + c.core], ["used", (c) => bytes(c.used_bytes), "number"],
    ["may have", (c) => (c.grant_bytes === null ? "no limit" : bytes(c.grant_bytes)), "number"],
    ["of the cap", (c) => (c.cap_fraction === null ? "-" : percent(c.cap_fraction)), "number"],
    ["pressure", (c) => c.pressure.toFixed(2), "number"], ["", (c) => bar(c.pressure)],
    ["eases it by", (c) => c.steps.join(", ") || "-"],
  ],
  shares: [
    ["topic", (s) => s.topic], ["used", (s) => bytes(s.used_bytes), "number"], ["may have", (s) => bytes(s.limit_bytes), "number"],
    ["", (s) => bar(s.limit_bytes ? s.used_bytes / s.limit_bytes : 0)], ["pushes wait for", (s) => bytes(s.wanted_bytes), "number"],
  ],
  losses: [
    ["topic", (l) => l.topic], ["core", (l) => l.core, "number"], ["reason", (l) => l.reason],
    ["bundles", (l) => count(l.bundles), "number"], ["rows", (l) => count(l.rows), "number"],
    ["bytes", (l) => bytes(l.size_bytes), "number"],
  ],
  topics: [
    ["topic", (t) => t.topic], ["state", (t) => t.state, "state"], ["on", (t) => t.where],
    ["bundles", (t) => count(t.bundles_in), "number"], ["rows", (t) => count(t.rows_in), "number"],
    ["bytes", (t) => bytes(t.bytes_in), "number"], ["log", (t) => bytes(t.wal_bytes), "number"],
    ["segments", (t) => t.segments, "number"], ["on disk", (t) => bytes(t.disk_bytes), "number"],
    ["last sync", (t) => (t.sync_ns_last ? nanoseconds(t.sync_ns_last) : "-"), "number"],
    ["refused", (t) => count(t.refused), "number"], ["quarantined", (t) => t.quarantined, "number"],
  ],
  subscribers: [
    ["subscriber", (s) => s.subscriber], ["topic", (s) => s.topic],
    ["lag", (s) => count(s.lag_bundles), "number"], ["oldest", (s) => nanoseconds(s.oldest_age_ns), "number"],
    ["consumers", (s) => s.connections || "nobody", "number"], ["claimed", (s) => count(s.claimed), "number"],
    ["blocked", (s) => count(s.blocked), "number"], ["delivered", (s) => count(s.delivered), "number"],
    ["acked", (s) => count(s.acked), "number"], ["redelivered", (s) => count(s.redelivered), "number"],
    ["dropped", (s) => count(s.dropped), "number"], ["gaps", (s) => s.gaps, "number"],
  ],
  errors: [
    ["worker", (e) => "core_" + e.core], ["ago", (e) => nanoseconds(e.age_ns), "number"],
    ["times", (e) => e.count, "number"], ["message", (e) => e.message, "message"],
  ],
};

// --- the cores of a topic or subscriber as one row ---------------------------------------------------------------------

function grouped(rows, keyOf) {
  const groups = new Map();
  for (const row of rows) groups.set(keyOf(row), [...(groups.get(keyOf(row)) || []), row]);
  return [...groups.values()];
}
const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);
const most = (rows, field) => rows.reduce((highest, row) => (row[field] > (highest ?? -1) ? row[field] : highest), null);

// Engines come worst first: the first of a group has its worst state.
function topicsOf(engines) {
  const topics = grouped(engines, (engine) => engine.topic).map((group) => {
    const state = group[0].state;
    const such = group.filter((engine) => engine.state === state);
    const isWhole = group.length > 1 && such.length === group.length && GOOD.has(state);
    const where = isWhole ? group.length + " cores" : such.map((engine) => "core_" + engine.core).join(", ");
    const made = { topic: group[0].topic, state, where, sync_ns_last: most(group, "sync_ns_last") };
    for (const field of ["bundles_in", "rows_in", "bytes_in", "wal_bytes", "segments", "disk_bytes", "refused", "quarantined"])
      made[field] = sum(group, field);
    return made;
  });
  const well = topics.filter((topic) => GOOD.has(topic.state));
  well.sort((one, other) => other.disk_bytes - one.disk_bytes || other.bundles_in - one.bundles_in);
  return [...topics.filter((topic) => !GOOD.has(topic.state)), ...well];
}

function subscribersOf(subscribers) {
  const found = grouped(subscribers, (each) => each.topic + "/" + each.subscriber).map((group) => {
    const made = { topic: group[0].topic, subscriber: group[0].subscriber, connections: most(group, "connections"),
      oldest_age_ns: most(group, "oldest_age_ns") };
    for (const field of ["lag_bundles", "claimed", "blocked", "delivered", "acked", "redelivered", "dropped", "gaps"])
      made[field] = sum(group, field);
    return made;
  });
  return found.sort((one, other) => other.lag_bundles - one.lag_bundles);
}

// --- drawing -----------------------------------------------------------------------------------------------------------

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
const gradeOf = (state) => (GOOD.has(state) ? "good" : WARN.has(state) ? "warn" : "bad");

const shownWhole = new Set();

function fillTable(id, rows) {
  const columns = COLUMNS[id];
  const head = element("tr");
  for (const [title, , kind] of columns) head.append(element("th", title, kind === "number" ? "number" : ""));
  const body = (shownWhole.has(id) ? rows : rows.slice(0, ROWS_SHOWN)).map((row) => {
    const line = element("tr");
    for (const [, read, kind] of columns) {
      const value = read(row);
      const cell = element("td", undefined, kind === "state" ? gradeOf(value) : kind);
      cell.append(value instanceof Node ? value : String(value));
      line.append(cell);
    }
    return line;
  });
  if (!rows.length) body.push(wideLine(columns, "none"));
  if (body.length < rows.length) body.push(moreLine(id, columns, rows));
  document.getElementById(id).replaceChildren(head, ...body);
}

function wideLine(columns, content) {
  const cell = element("td", undefined, "none");
  cell.colSpan = columns.length;
  cell.append(content);
  const line = element("tr");
  line.append(cell);
  return line;
}

function moreLine(id, columns, rows) {
  const button = element("button", `and ${rows.length - ROWS_SHOWN} more`);
  button.addEventListener("click", () => { shownWhole.add(id); fillTable(id, rows); });
  return wideLine(columns, button);
}

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function bar(fraction) {
  const svg = shape("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", class: "bar" });
  const grade = fraction >= 0.95 ? "bad" : fraction >= 0.75 ? "warn" : "good";
  svg.append(shape("rect", { width: 100, height: 8 }), shape("rect", { width: 100 * Math.min(1, fraction), height: 8, class: grade }));
  return svg;
}

// Stretches of samples while the node ran: nothing is drawn where it did not.
function stretches(samples) {
  const found = [];
  let was = false;
  for (const sample of samples) {
    if (sample.running && was) found[found.length - 1].push(sample);
    else if (sample.running) found.push([sample]);
    was = sample.running;
  }
  return found;
}

function windowOf(samples) {
  const span = samples.length ? samples[samples.length - 1].unix_ns - samples[0].unix_ns : 0;
  return Math.min(WINDOW_NS_MAX, Math.max(WINDOW_NS_MIN, span));
}

function drawing(samples, field, top) {
  const svg = shape("svg", { viewBox: "0 0 300 48", preserveAspectRatio: "none" });
  const end = samples.length ? samples[samples.length - 1].unix_ns : 0;
  const x = (sample) => (300 * (1 - (end - sample.unix_ns) / windowOf(samples))).toFixed(1);
  const y = (sample) => (46 - 44 * (sample[field] / top)).toFixed(1);
  svg.append(shape("path", { d: "M 0 47 H 300", class: "ground" }));
  for (const points of stretches(samples)) {
    const line = [...points, points[points.length - 1]].map((sample) => x(sample) + " " + y(sample)).join(" L ");
    const area = `M ${x(points[0])} 46 L ${line} L ${x(points[points.length - 1])} 46 Z`;
    svg.append(shape("path", { d: area, class: "area" }), shape("path", { d: "M " + line, class: "line" }));
  }
  return svg;
}

function fillPlots(samples) {
  const last = samples[samples.length - 1];
  const minutes = windowOf(samples) / 6e10;
  document.getElementById("window").textContent = minutes < 1.5 ? "Last minute" : `Last ${minutes.toFixed(0)} minutes`;
  const cards = PLOTS.map(([title, field, format]) => {
    const highest = Math.max(0, ...samples.map((sample) => sample[field]));
    const card = element("div", undefined, "plot");
    card.append(element("h3", title), element("span", "most " + format(highest), "most"));
    card.append(element("span", last ? format(last[field]) : "-", "now"), drawing(samples, field, highest || 1));
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
  fillProblems(node.problems, node.warnings, node.advice);
}

function fillProblems(problems, warnings = [], advice = []) {
  const shown = problems.slice(0, PROBLEMS_SHOWN);
  if (problems.length > shown.length) shown.push(`and ${problems.length - shown.length} more`);
  const list = document.getElementById("problems");
  list.hidden = !problems.length && !warnings.length;
  list.className = problems.length ? "bad" : "warn";
  const lines = [...shown, ...warnings].map((line) => element("li", line));
  list.replaceChildren(...lines, ...advice.map((line) => element("li", line, "advice")));
}

function fillCap(status) {
  const { cap_bytes: cap, used_bytes: used, is_over: isOver } = status.storage;
  const line = document.getElementById("cap");
  if (!cap) line.textContent = "No cap on the disk (retention.size_cap = 0).";
  else line.replaceChildren(bar(used / cap), ` ${bytes(used)} of ${bytes(cap)} used${isOver ? ": over its soft limit" : ""}`);
}

function fillTables(status) {
  const tables = { workers: status.workers, room: status.cores, topics: topicsOf(status.engines), errors: status.errors,
    shares: status.shares, losses: status.losses.filter((loss) => loss.bundles), subscribers: subscribersOf(status.subscribers) };
  for (const [id, rows] of Object.entries(tables)) fillTable(id, rows);
  for (const id of ["shares", "losses", "errors"]) document.getElementById(id + "_section").hidden = tables[id].length === 0;
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
    fillCap(document_);
    fillTables(document_);
  } catch (error) {
    showAbsence("this page cannot reach the metrics server: " + error.message);
  }
}

refresh();
setInterval(refresh, INTERVAL_MS);
