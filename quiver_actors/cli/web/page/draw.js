// Elements, tables and plots. Everything that comes from the node is set as text, never as markup.

import { count, bytes, seconds, perSecond, gradeOf } from "./format.js";

const WINDOW_NS_MAX = 15 * 60 * 1e9;
const WINDOW_NS_MIN = 60 * 1e9;
const ROWS_SHOWN = 40;

export const NODE_PLOTS = [
  ["Bundles in", "bundles_in_per_second", perSecond(count)],
  ["Bytes in", "bytes_in_per_second", perSecond(bytes)],
  ["Bundles delivered", "delivered_per_second", perSecond(count)],
  ["Pushes refused", "refused_per_second", perSecond(count)],
  ["Bundles not yet processed", "lag_bundles", count],
  ["On disk", "disk_bytes", bytes],
  ["Slowest last sync", "sync_seconds", seconds],
  ["Processor cores in use", "cpu_fraction", (value) => value.toFixed(2)],
  ["Pressure (1 = full)", "pressure", (value) => value.toFixed(2)],
];
export const TOPIC_PLOTS = [
  ["Bundles in", "bundles_in_per_second", perSecond(count)],
  ["Bytes in", "bytes_in_per_second", perSecond(bytes)],
  ["Pushes refused", "refused_per_second", perSecond(count)],
  ["Bundles stored", "stored_bundles", count],
  ["On disk", "disk_bytes", bytes],
];
export const SUBSCRIBER_PLOTS = [
  ["Bundles delivered", "delivered_per_second", perSecond(count)],
  ["Bundles acknowledged", "acked_per_second", perSecond(count)],
  ["Bundles behind", "lag_bundles", count],
  ["Held by consumers", "claimed", count],
  ["Oldest bundle behind", "oldest_seconds", seconds],
];

export function element(name, content, className) {
  const made = document.createElement(name);
  if (content !== undefined) made.append(content instanceof Node ? content : String(content));
  if (className) made.className = className;
  return made;
}

export function link(text, target) {
  const made = element("a", text);
  made.href = target;
  return made;
}

export function section(title, ...content) {
  const made = element("section");
  made.append(element("h2", title), ...content);
  return made;
}

// --- tables: columns are [title, text or node of a row, kind] ----------------------------------------------------------

const shownWhole = new Set();

export function table(id, columns, rows) {
  const made = element("table");
  made.id = id;
  fill(made, columns, rows);
  return made;
}

function fill(made, columns, rows) {
  const head = element("tr", undefined, "head");
  for (const [title, , kind] of columns) head.append(element("th", title, kind === "number" ? "number" : ""));
  const body = (shownWhole.has(made.id) ? rows : rows.slice(0, ROWS_SHOWN)).map((row) => line(columns, row));
  if (!rows.length) body.push(wide(columns, "none"));
  if (body.length < rows.length) body.push(wide(columns, more(made, columns, rows)));
  made.replaceChildren(head, ...body);
}

function line(columns, row) {
  const made = element("tr");
  for (const [title, read, kind] of columns) {
    const value = read(row);
    const cell = element("td", value, kind === "state" ? "state-cell " + gradeOf(value) : kind);
    if (title) cell.dataset.label = title;
    made.append(cell);
  }
  return made;
}

function wide(columns, content) {
  const cell = element("td", content, "none");
  cell.colSpan = columns.length;
  return element("tr", cell);
}

function more(made, columns, rows) {
  const button = element("button", `and ${rows.length - ROWS_SHOWN} more`);
  button.addEventListener("click", () => { shownWhole.add(made.id); fill(made, columns, rows); });
  return button;
}

// --- drawings ----------------------------------------------------------------------------------------------------------

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

export function bar(fraction) {
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
    const path = [...points, points[points.length - 1]].map((sample) => x(sample) + " " + y(sample)).join(" L ");
    const area = `M ${x(points[0])} 46 L ${path} L ${x(points[points.length - 1])} 46 Z`;
    svg.append(shape("path", { d: area, class: "area" }), shape("path", { d: "M " + path, class: "line" }));
  }
  return svg;
}

export function fillPlots(plots, samples, isRunning) {
  const last = samples[samples.length - 1];
  const minutes = windowOf(samples) / 6e10;
  document.getElementById("window").textContent = minutes < 1.5 ? "Last minute" : `Last ${minutes.toFixed(0)} minutes`;
  const cards = plots.map(([title, field, format]) => {
    const highest = Math.max(0, ...samples.map((sample) => sample[field]));
    const card = element("div", undefined, "plot");
    card.append(element("h3", title), element("span", "highest " + format(highest), "highest"));
    card.append(element("span", last && last.running && isRunning ? format(last[field]) : "-", "now"), drawing(samples, field, highest || 1));
    return card;
  });
  document.getElementById("plots").replaceChildren(...cards);
}
