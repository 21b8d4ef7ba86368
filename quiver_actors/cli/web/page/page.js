// Shows status.json and history.json, anew every 5 seconds. The part behind # chooses the view: all, one topic, one subscriber.

import { bytes, gradeOf, nanoseconds } from "./format.js";
import { NODE_PLOTS, SUBSCRIBER_PLOTS, TOPIC_PLOTS, element, fillPlots } from "./draw.js";
import { overview, subscriberView, topicView } from "./tables.js";

const INTERVAL_MS = 5000;
const PROBLEMS_SHOWN = 8;

function fillState(state) {
  const shown = document.getElementById("state");
  shown.textContent = state;
  shown.className = "state " + gradeOf(state);
  document.title = `quiver ${state}`;
}

function fillFacts(status) {
  const node = status.node;
  const facts = [`pid ${node.pid}`, `up ${nanoseconds(node.uptime_ns)}`, `data ${node.data_dir}`, `run ${node.run_dir}`,
    `shared memory ${bytes(status.shared_memory.total_bytes)}`];
  document.getElementById("facts").textContent = facts.join("  ·  ");
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

// What is shown: the tables of a status document, where the samples of its plots are, and which plots.
function viewNow() {
  const [, kind, topic, , subscriber] = location.hash.split("/").map(decodeURIComponent);
  if (kind !== "topics") return { tables: overview, samples: "history.json", plots: NODE_PLOTS };
  const of = "history/" + encodeURIComponent(topic);
  return subscriber === undefined
    ? { tables: (status) => topicView(status, topic), samples: of + ".json", plots: TOPIC_PLOTS }
    : { tables: (status) => subscriberView(status, topic, subscriber), samples: `${of}/${encodeURIComponent(subscriber)}.json`,
        plots: SUBSCRIBER_PLOTS };
}

function showNode(status, tables) {
  document.getElementById("absence").hidden = true;
  fillState(status.node.state);
  fillFacts(status);
  fillProblems(status.node.problems, status.node.warnings, status.node.advice);
  document.getElementById("main").replaceChildren(...tables(status));
}

// What a dead node said last is no longer true: it is not shown, but for when it was said.
function showAbsence(reason, node) {
  fillState(node ? "dead" : "not running");
  const last = node && node.figures_age_ns !== null ? [`last heard ${nanoseconds(node.figures_age_ns)} ago`] : [];
  document.getElementById("facts").textContent = node ? [...last, `data ${node.data_dir}`, `run ${node.run_dir}`].join("  ·  ") : "";
  fillProblems([reason]);
  const where = node ? ` --data-dir ${node.data_dir} --run-dir ${node.run_dir}` : "";
  document.getElementById("start").textContent = `quiver up${where}`;
  document.getElementById("absence").hidden = false;
  document.getElementById("main").replaceChildren();
}

async function refresh() {
  const view = viewNow();
  try {
    const [answer, history] = await Promise.all([fetch("status.json"), fetch(view.samples)]);
    const status = await answer.json();
    const samples = history.ok ? await history.json() : [];
    if (viewNow().samples !== view.samples) return;
    const isRunning = answer.ok && status.node.running;
    fillPlots(view.plots, samples, isRunning);
    document.getElementById("content").className = isRunning ? "" : "alone";
    if (!answer.ok) showAbsence(status.error);
    else if (!isRunning) showAbsence(`the supervisor (pid ${status.node.pid}) is dead`, status.node);
    else showNode(status, view.tables);
  } catch (error) {
    fillProblems(["this page cannot reach the metrics server: " + error.message]);
    fillState("unknown");
    document.getElementById("main").replaceChildren();
  }
}

refresh();
setInterval(refresh, INTERVAL_MS);
addEventListener("hashchange", refresh);
