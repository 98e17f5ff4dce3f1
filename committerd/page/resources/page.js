"use strict";
// Every text from the API goes into the page as text, never as HTML.

const REFRESH_MS = 2000;
const byId = (id) => document.getElementById(id);
const chosen = new URLSearchParams(location.search).get("dataset");
const query = chosen === null ? "" : `?dataset=${encodeURIComponent(chosen)}`;
const shown = new Map();

function element(name, text, classes) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (classes) made.className = classes;
  return made;
}

/** Put a value into the page only if it is another one, so that neither focus, selection nor screen readers are disturbed. */
function changed(id, value) {
  const text = JSON.stringify(value);
  if (shown.get(id) === text) return false;
  shown.set(id, text);
  return true;
}

function duration(milliseconds) {
  const seconds = Math.max(milliseconds, 0) / 1000;
  if (seconds < 1) return `${Math.round(milliseconds)} ms`;
  if (seconds < 90) return `${seconds.toFixed(1)} s`;
  if (seconds < 5400) return `${(seconds / 60).toFixed(1)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

const time = (milliseconds) => new Date(milliseconds).toISOString().replace("T", " ").slice(0, 19) + "Z";
const number = (value) => (value === null || value === undefined ? "unknown" : value.toLocaleString("en"));

function facts(id, entries) {
  if (!changed(id, entries)) return;
  byId(id).replaceChildren(...entries.map(([name, value]) => {
    const box = element("div");
    box.append(element("dt", name), element("dd", value));
    return box;
  }));
}

function fill(id, columns, rows) {
  const head = element("thead"), line = element("tr"), body = element("tbody");
  for (const name of columns) {
    const cell = element("th", name);
    cell.scope = "col";
    line.append(cell);
  }
  head.append(line);
  for (const cells of rows) {
    const row = element("tr");
    row.append(...cells.map((cell) => (cell instanceof Node ? cell : element("td", cell.text, cell.class))));
    body.append(row);
  }
  byId(id).replaceChildren(head, body);
}

function plot(id, series, text) {
  if (!changed(id, [series, text])) return;
  const svg = byId(id), most = Math.max(1, ...series.map(([first, second]) => first + second));
  const bars = [];
  const rectangle = (at, from, value, name) => {
    const height = (value / most) * 112;
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, attribute] of Object.entries({ x: at * 10 + 1, y: 116 - from - height, width: 8, height, class: name })) {
      bar.setAttribute(key, String(attribute));
    }
    bars.push(bar);
    return height;
  };
  series.forEach(([first, second], at) => {
    const below = first ? rectangle(at, 0, first, "first") : 0;
    if (second) rectangle(at, below, second, "second");
  });
  const base = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [key, value] of Object.entries({ x1: 0, x2: 600, y1: 117, y2: 117, class: "base" })) base.setAttribute(key, String(value));
  svg.replaceChildren(...bars, base);
  byId(`${id}-text`).textContent = text;
}

function showProcess(status) {
  const up = duration(status.time_ms - status.started_ms);
  byId("process").textContent = `${status.committerd} at ${status.host}, runs for ${up}`;
  byId("fleet").hidden = status.datasets.length < 2;
  if (status.datasets.length < 2 || !changed("datasets", status.datasets.map((one) => [one.name, one.state, one.version, one.lag]))) return;
  const rows = status.datasets.map((one) => {
    const name = element("td"), link = element("a", one.name);
    link.href = `?dataset=${encodeURIComponent(one.name)}`;
    if (status.dataset && one.name === status.dataset.name) link.setAttribute("aria-current", "page");
    name.append(link);
    return [name, { text: one.state, class: one.well ? "good" : "bad" }, { text: number(one.version), class: "number" },
      { text: one.lag === null ? "" : number(one.lag), class: "number" }, { text: one.uri }];
  });
  fill("datasets", ["dataset", "state", "version", "waiting", "table"], rows);
}

function showDataset(one, now) {
  document.title = `${one.name}: ${one.state} - committerd`;
  if (changed("state", [one.name, one.text, one.well])) {
    byId("state").textContent = `${one.name}: ${one.text}`;
    byId("state").className = one.well ? "good" : "bad";
  }
  facts("facts", [
    ["State", `${one.state}, since ${time(one.since_ms)}`],
    ["Member of the group", one.member || "not yet"],
    ["Version", number(one.version)],
    ["Position (next offset)", number(one.position)],
    ["Records that wait", one.lag === null ? "the active member knows" : number(one.lag)],
    ["Oldest waiting", one.oldest_waits_ms === null ? "none" : duration(one.oldest_waits_ms)],
    ["Most waiting records", one.most_waiting.map((most) => `${most.producer}: ${number(most.records)}`).join(", ") || "none"],
    ["Table", one.uri],
  ]);
  const minutes = one.minutes;
  const total = minutes.reduce((sum, m) => sum + m.committed + m.others, 0);
  const others = minutes.reduce((sum, m) => sum + m.others, 0);
  const most = Math.max(0, ...minutes.map((m) => m.committed + m.others));
  plot("rate", minutes.map((m) => [m.committed, m.others]), `${number(total)} outcomes, ${number(others)} of them not committed; at most ${number(most)} in a minute`);
  const slowest = Math.max(0, ...minutes.map((m) => m.latency_ms_max ?? 0));
  const means = minutes.map((m) => m.latency_ms_mean ?? 0);
  plot("latency", minutes.map((m, at) => [means[at], Math.max((m.latency_ms_max ?? 0) - means[at], 0)]), `mean and, above it, slowest of each minute; slowest of all ${duration(slowest)}`);
  showConflicts(one.conflicts);
  showMaintenance(one.maintenance, now);
}

function showConflicts(conflicts) {
  byId("no-conflicts").hidden = conflicts.length > 0;
  if (!changed("conflict-values", conflicts)) return;
  if (!conflicts.length) {
    byId("conflicts").replaceChildren();
    return;
  }
  const ours = [...new Set(conflicts.map((c) => c.operation))].sort();
  const theirs = [...new Set(conflicts.map((c) => c.over))].sort();
  const counts = new Map(conflicts.map((c) => [`${c.operation} ${c.over}`, c.count]));
  const rows = ours.map((name) => {
    const head = element("th", name);
    head.scope = "row";
    return [head, ...theirs.map((over) => ({ text: number(counts.get(`${name} ${over}`) ?? 0), class: "number" }))];
  });
  fill("conflicts", ["could not pass", ...theirs], rows);
}

function showMaintenance(found, now) {
  const entries = [];
  const cleanup = found.cleanup;
  if (cleanup) {
    entries.push(["Last cleanup", `${duration(now - cleanup.time_ms)} ago`], ["Fragments", number(cleanup.fragments)],
      ["Unindexed rows", number(cleanup.unindexed_rows)], ["Bytes that nothing needs", number(cleanup.unneeded_bytes)]);
  } else {
    entries.push(["Last cleanup", found.problem || "none yet"]);
  }
  for (const one of found.left_alone) entries.push([one.index ? `Index ${one.index} left alone` : `${one.fragments} fragments left alone`, one.why]);
  facts("maintenance", entries);
}

function showTransactions(found) {
  byId("count").textContent = found.length ? `${found.length} of this member, newest first` : "None since this member began.";
  if (!changed("transaction-values", found)) return;
  const rows = found.map((one) => [
    { text: time(one.time_ms) },
    { text: one.producer },
    { text: one.operation },
    { text: one.status, class: one.status === "COMMITTED" || one.status === "DUPLICATE" ? "good" : "bad" },
    { text: one.reason + (one.conflicting_version ? ` over ${one.conflicting_operation} in version ${one.conflicting_version}` : "") },
    { text: one.version ? number(one.version) : "", class: "number" },
    { text: number(one.queued_ms), class: "number" },
    { text: number(one.commit_ms), class: "number" },
    { text: one.uuid, class: "uuid" },
    { text: one.message, class: "long" },
  ]);
  fill("transactions", ["answered", "producer", "operation", "outcome", "rule", "version", "waited, ms", "committed in, ms", "transaction", "message"], rows);
}

async function get(path) {
  const response = await fetch(path + query, { cache: "no-store" });
  if (!response.ok) throw new Error(`${path} answered ${response.status}`);
  return response.json();
}

async function refresh() {
  try {
    const [status, last] = await Promise.all([get("/api/status"), get("/api/transactions")]);
    showProcess(status);
    if (status.dataset) showDataset(status.dataset, status.time_ms);
    showTransactions(last.transactions);
    byId("problem").hidden = true;
    document.body.dataset.shown = "yes";
  } catch (error) {
    byId("problem").textContent = `The member does not answer: ${error.message}. What you see is old.`;
    byId("problem").hidden = false;
  }
  setTimeout(refresh, REFRESH_MS);
}

refresh();
