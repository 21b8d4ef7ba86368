// The tables of the overview, of one topic and of one subscriber: from the status document to sections of the page.

import { ago, bytes, count, exact, isGood, nanoseconds, percent } from "./format.js";
import { bar, element, link, section, table } from "./draw.js";

const topicLink = (topic) => link(topic, "#/topics/" + encodeURIComponent(topic));
const subscriberLink = (each) =>
  link(each.subscriber, `#/topics/${encodeURIComponent(each.topic)}/subscribers/${encodeURIComponent(each.subscriber)}`);

const WORKERS = [
  ["worker", (w) => "core_" + w.core], ["state", (w) => w.state, "state"], ["pid", (w) => w.pid ?? "-", "number"],
  ["processor", (w) => (w.cpu_percent === null ? "-" : w.cpu_percent + " %"), "number"],
  ["restarts", (w) => w.restarts, "number"], ["running for", (w) => nanoseconds(w.uptime_ns), "number"],
  ["last heard", (w) => ago(w.figures_age_ns), "number"], ["clients", (w) => w.sessions, "number"],
  ["pushes waiting", (w) => w.pushes_waiting, "number"], ["last exit", (w) => w.last_exit ?? "-"],
];
const ROOM = [
  ["worker", (c) => "core_" + c.core], ["used", (c) => bytes(c.used_bytes), "number"],
  ["granted", (c) => (c.grant_bytes === null ? "no limit" : bytes(c.grant_bytes)), "number"],
  ["of the size cap", (c) => (c.cap_fraction === null ? "-" : percent(c.cap_fraction)), "number"],
  ["pressure", (c) => c.pressure.toFixed(2), "number"], ["0 to 1", (c) => bar(c.pressure)],
  ["what it does about it", (c) => c.steps.join(", ") || "nothing needed"],
];
const SHARES = [
  ["topic", (s) => topicLink(s.topic)], ["used", (s) => bytes(s.used_bytes), "number"], ["limit", (s) => bytes(s.limit_bytes), "number"],
  ["used of it", (s) => bar(s.limit_bytes ? s.used_bytes / s.limit_bytes : 0)],
  ["wanted by waiting pushes", (s) => bytes(s.wanted_bytes), "number"],
];
const LOSSES = [
  ["topic", (l) => topicLink(l.topic)], ["core", (l) => l.core, "number"], ["reason", (l) => l.reason],
  ["bundles", (l) => exact(l.bundles), "number"], ["rows", (l) => exact(l.rows), "number"],
  ["bytes", (l) => bytes(l.size_bytes), "number"],
];
const TOPICS = [
  ["topic", (t) => topicLink(t.topic)], ["state", (t) => t.state, "state"], ["on", (t) => t.where, "short"],
  ["bundles stored", (t) => count(t.stored_bundles), "number"], ["rows stored", (t) => count(t.stored_rows), "number"],
  ["on disk", (t) => bytes(t.disk_bytes), "number"], ["bundles in since start", (t) => count(t.bundles_in), "number"],
  ["pushes refused", (t) => count(t.refused), "number"],
];
const SUBSCRIBERS = [
  ["subscriber", subscriberLink], ["topic", (s) => topicLink(s.topic)],
  ["bundles behind", (s) => count(s.lag_bundles), "number"], ["oldest of them", (s) => nanoseconds(s.oldest_age_ns), "number"],
  ["consumers", (s) => s.connections || "nobody", "number"], ["held by consumers", (s) => count(s.claimed), "number"],
  ["blocked", (s) => count(s.blocked), "number"], ["acknowledged", (s) => count(s.acked), "number"],
  ["gap notices", (s) => s.gaps, "number"],
];
const ERRORS = [
  ["worker", (e) => "core_" + e.core], ["last", (e) => ago(e.age_ns), "number"],
  ["times", (e) => e.count, "number"], ["message", (e) => e.message, "message"],
];
const LATENCIES = [
  ["what", (l) => l.of], ["core", (l) => l.core, "number"], ["times", (l) => exact(l.times), "number"],
  ["mean", (l) => nanoseconds(l.times ? l.sum_ns / l.times : null), "number"],
];

// --- the cores of a topic or subscriber as one row ---------------------------------------------------------------------

function grouped(rows, keyOf) {
  const groups = new Map();
  for (const row of rows) groups.set(keyOf(row), [...(groups.get(keyOf(row)) || []), row]);
  return [...groups.values()];
}
const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);
const largest = (rows, field) => rows.reduce((highest, row) => (row[field] > (highest ?? -1) ? row[field] : highest), null);

// Engines come worst first: the first of a group has its worst state.
function topicsOf(engines) {
  const topics = grouped(engines, (engine) => engine.topic).map((group) => {
    const state = group[0].state;
    const such = group.filter((engine) => engine.state === state);
    const isWhole = group.length > 1 && such.length === group.length && isGood(state);
    const where = isWhole ? group.length + " cores" : such.map((engine) => "core_" + engine.core).join(", ");
    const made = { topic: group[0].topic, state, where };
    for (const field of ["stored_bundles", "stored_rows", "bundles_in", "disk_bytes", "refused"]) made[field] = sum(group, field);
    return made;
  });
  const well = topics.filter((topic) => isGood(topic.state));
  well.sort((one, other) => other.disk_bytes - one.disk_bytes || other.bundles_in - one.bundles_in);
  return [...topics.filter((topic) => !isGood(topic.state)), ...well];
}

function subscribersOf(subscribers) {
  const found = grouped(subscribers, (each) => each.topic + "/" + each.subscriber).map((group) => {
    const made = { topic: group[0].topic, subscriber: group[0].subscriber, connections: largest(group, "connections"),
      oldest_age_ns: largest(group, "oldest_age_ns") };
    for (const field of ["lag_bundles", "claimed", "blocked", "acked", "gaps"]) made[field] = sum(group, field);
    return made;
  });
  return found.sort((one, other) => other.lag_bundles - one.lag_bundles);
}

// --- views -------------------------------------------------------------------------------------------------------------

export function overview(status) {
  const losses = status.losses.filter((loss) => loss.bundles);
  return [
    ...(status.errors.length ? [section("Last errors", table("errors", ERRORS, status.errors))] : []),
    section("Topics", table("topics", TOPICS, topicsOf(status.engines))),
    section("Subscribers", table("subscribers", SUBSCRIBERS, subscribersOf(status.subscribers))),
    section("Workers", table("workers", WORKERS, status.workers)),
    section("Disk and pressure", capLine(status.storage), table("room", ROOM, status.cores)),
    ...(status.shares.length ? [section("Topics with a part of the size cap", table("shares", SHARES, status.shares))] : []),
    ...(losses.length ? [section("Lost bundles", table("losses", LOSSES, losses))] : []),
  ];
}

function capLine(storage) {
  const line = element("p", undefined, "note");
  if (!storage.cap_bytes) line.append("No size cap is set (retention.size_cap = 0).");
  else line.append(bar(storage.used_bytes / storage.cap_bytes),
    ` ${bytes(storage.used_bytes)} of ${bytes(storage.cap_bytes)} used${storage.is_over ? ": over the soft limit" : ""}`);
  return line;
}

export function topicView(status, topic) {
  const engines = status.engines.filter((each) => each.topic === topic);
  if (!engines.length) return [missing(`topic ${topic}`)];
  const subscribers = subscribersOf(status.subscribers.filter((each) => each.topic === topic));
  const losses = status.losses.filter((each) => each.topic === topic && each.bundles);
  return [
    back(), section("Topic " + topic, perCore("topic_figures", ENGINE_FACTS, engines)),
    section("Subscribers of " + topic, table("subscribers", SUBSCRIBERS, subscribers)),
    section("Durations", table("latencies", LATENCIES, latenciesOf(status, topic))),
    ...(losses.length ? [section("Lost bundles", table("losses", LOSSES, losses))] : []),
  ];
}

export function subscriberView(status, topic, subscriber) {
  const cores = status.subscribers.filter((each) => each.topic === topic && each.subscriber === subscriber);
  if (!cores.length) return [missing(`subscriber ${subscriber} of topic ${topic}`)];
  const title = element("p", undefined, "note");
  title.append("of topic ", topicLink(topic));
  return [back(), section("Subscriber " + subscriber, title, perCore("subscriber_figures", SUBSCRIBER_FACTS, cores))];
}

function back() {
  return element("p", link("all topics and subscribers", "#/"), "note");
}

function missing(what) {
  const made = section("Not found", element("p", `There is no ${what} on this node.`));
  made.append(back());
  return made;
}

function latenciesOf(status, topic) {
  const found = status.latencies.filter((each) => each.topic === topic);
  return found.map((each) => ({ ...each, times: each.counts.reduce((total, value) => total + value, 0) }));
}

// A line for each figure, a column for each core.
function perCore(id, facts, cores) {
  const sorted = [...cores].sort((one, other) => one.core - other.core);
  const columns = [["", (fact) => fact[0]], ...sorted.map((each) => ["core_" + each.core, (fact) => fact[1](each), "number"])];
  return table(id, columns, facts);
}

const ENGINE_FACTS = [
  ["state", (e) => e.state], ["bundles stored", (e) => exact(e.stored_bundles)], ["rows stored", (e) => exact(e.stored_rows)],
  ["bytes stored", (e) => bytes(e.stored_bytes)], ["on disk", (e) => bytes(e.disk_bytes)], ["sealed segments", (e) => exact(e.segments)],
  ["bundles in the open segment", (e) => exact(e.open_segment_bundles)], ["bytes in logs", (e) => bytes(e.wal_bytes)],
  ["bundles in since the worker started", (e) => exact(e.bundles_in)], ["rows in since then", (e) => exact(e.rows_in)],
  ["bytes in since then", (e) => bytes(e.bytes_in)], ["pushes refused", (e) => exact(e.refused)],
  ["limit that keeps pushes out", (e) => e.limit_name || "none"], ["last sync took", (e) => (e.sync_ns_last ? nanoseconds(e.sync_ns_last) : "-")],
  ["last seal took", (e) => (e.seal_ns_last ? nanoseconds(e.seal_ns_last) : "-")], ["segments deleted", (e) => exact(e.segments_deleted)],
  ["files in quarantine", (e) => exact(e.quarantined)], ["compactions", (e) => exact(e.compactions)],
  ["oldest check", (e) => ago(e.last_scrub_age_ns)], ["staged, waiting for a decision", (e) => exact(e.prepared_stages)],
  ["last heard", (e) => ago(e.figures_age_ns)],
];
const SUBSCRIBER_FACTS = [
  ["bundles behind", (s) => exact(s.lag_bundles)], ["oldest of them", (s) => nanoseconds(s.oldest_age_ns)],
  ["consumers", (s) => s.connections || "nobody"], ["without a consumer for", (s) => nanoseconds(s.detached_ns)],
  ["can be claimed now", (s) => exact(s.pending)], ["held by consumers", (s) => exact(s.claimed)],
  ["deferred, waiting", (s) => exact(s.waiting)], ["blocked", (s) => exact(s.blocked)], ["delivered", (s) => exact(s.delivered)],
  ["delivered again", (s) => exact(s.redelivered)], ["acknowledged", (s) => exact(s.acked)], ["rejected", (s) => exact(s.rejected)],
  ["leases run out", (s) => exact(s.expired)], ["dead letters", (s) => exact(s.dead_lettered)], ["dropped", (s) => exact(s.dropped)],
  ["gap notices to come", (s) => exact(s.gaps)], ["last heard", (s) => ago(s.figures_age_ns)],
];
