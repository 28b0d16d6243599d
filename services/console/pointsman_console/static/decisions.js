// The stream of decisions: an even sample that can be read, and how many there were.
import { begin, content, follow } from "/static/frame.js";
import { el, fill, duration, head, number, say, scrolling, time } from "/static/dom.js";
import { axis, chart, clock, colour, lately, moments } from "/static/chart.js";
import { filters } from "/static/filters.js";

const KEPT = 200;
const POINTS = 300;
const FIELDS = {
  pool: ["Pool", "every pool"],
  model: ["Model", "every model"],
  tenant: ["Tenant", "every tenant"],
  endpoint: ["Endpoint", "every endpoint"],
  reason: ["Reason", "a part of it"],
};
const HEADS = [
  ["Time", false], ["Request", false], ["Model", false], ["Endpoint", false], ["Why", false], ["Prompt", true],
  ["Cached", true], ["Waited", true], ["Result", false], ["First token", true], ["Whole", true], ["Tenant", false],
];

const filter = filters(FIELDS, 13, listenAnew);
const level = (filter.inputs.level = el(
  "select",
  { name: "level" },
  el("option", { value: "" }, "every level"),
  ...["full", "degraded", "static"].map((each) => el("option", { value: each }, each)),
));

const nodes = {
  pause: el("button", { type: "button", onclick: pause }, "Pause"),
  state: el("p", { class: "soft" }, "Listening …"),
  note: el("p", { class: "soft small" }),
  body: el("tbody"),
};
const lines = new Map();
const counts = { since: performance.now(), decisions: 0, impaired: 0, fitting: 0, shown: 0 };
const history = [[], [], []];
let stop = null;

const rate = chart(
  "Decisions a second over the last five minutes",
  () => ({
    cursor: { y: false },
    scales: { x: { time: true, range: lately }, y: { range: (_, low, high) => [0, Math.max(5, high * 1.1)] } },
    axes: [clock(), axis({ size: 56 })],
    series: [
      moments,
      { label: "decisions/s", stroke: colour(0), width: 2, fill: `${colour(0)}22` },
      { label: "not at the level full", stroke: colour(4), width: 2 },
    ],
  }),
  history,
  130,
);

begin(() => {
  const form = filter.form(el("label", {}, "Level", level), el("div", { class: "push" }, nodes.pause));
  level.addEventListener("input", filter.apply);
  fill(
    content,
    el("section", { class: "panel" }, el("h2", {}, "Filters"), form, nodes.note),
    el("section", { class: "panel" }, el("h2", {}, "Rate"), rate.node),
    el(
      "section",
      { class: "panel" },
      el("h2", {}, "Latest"),
      nodes.state,
      scrolling(
        "Decisions, the newest first",
        el("table", {}, head(HEADS), nodes.body),
      ),
    ),
  );
  listen();
});

function listen() {
  const asked = filter.wanted();
  say(
    nodes.note,
    asked.has("tenant")
      ? "Decisions don't say whose they are: with a tenant, rows come when requests end."
      : "Rows are decisions as they are made; results are added when requests end.",
  );
  stop = follow(`/api/decisions/stream?${asked}`, { decisions: receive });
  say(nodes.pause, "Pause");
}

function listenAnew() {
  if (stop) stop();
  lines.clear();
  fill(nodes.body);
  listen();
}

function pause() {
  if (stop) {
    stop();
    stop = null;
    say(nodes.pause, "Go on");
    say(nodes.state, "Paused. Nothing is read meanwhile.");
  } else listen();
}

function receive(batch) {
  for (const name of ["decisions", "impaired", "fitting", "shown"]) counts[name] += batch[name];
  for (const row of batch.rows) put(row);
  const passed = (performance.now() - counts.since) / 1000;
  if (passed < 1) return;
  const perSecond = (name) => Math.round(counts[name] / passed);
  const shown = perSecond("shown"), fitting = perSecond("fitting"), all = perSecond("decisions");
  const whole = counts.shown >= counts.fitting;
  const filtered = filter.wanted().size ? `, of ${number(all)} in all` : "";
  say(
    nodes.state,
    batch.missing
      ? `Nothing is heard: ${batch.missing}.`
      : fitting === 0
        ? `No decision in the last second${filtered ? ` that fits the filters; ${number(all)} a second in all` : ""}.`
        : whole
          ? `Showing every one of ${number(fitting)} a second${filtered}.`
          : `Showing ${number(shown)} of ${number(fitting)} a second${filtered}, an even sample.`,
  );
  [Date.now() / 1000, all, perSecond("impaired")].forEach((value, position) => history[position].push(value));
  if (history[0].length > POINTS) for (const series of history) series.shift();
  if (!document.hidden) rate.set(history, `Decisions a second over the last five minutes; now ${number(all)}, ${number(perSecond("impaired"))} of them not at the level full`);
  Object.assign(counts, { since: performance.now(), decisions: 0, impaired: 0, fitting: 0, shown: 0 });
}

function put(row) {
  const known = lines.get(row.key);
  if (known) {
    // The reason of the decision stays when the end comes.
    write(known.line, Object.assign(known.row, row, known.row.kind === "scheduled" ? { reason: known.row.reason } : {}));
    return;
  }
  const line = el(
    "tr",
    {},
    ...HEADS.map(([name, numeric], position) =>
      el(
        "td",
        { class: numeric ? "number" : name === "Why" ? "reason small" : null },
        position === 1 ? el("a", { class: "mono" }) : position === 8 ? el("span", { class: "tag" }) : "",
      ),
    ),
  );
  write(line, row);
  lines.set(row.key, { line, row });
  nodes.body.prepend(line);
  while (lines.size > KEPT) {
    const [oldest, entry] = lines.entries().next().value;
    entry.line.remove();
    lines.delete(oldest);
  }
}

function write(line, row) {
  const cells = line.cells;
  const link = cells[1].firstChild;
  say(link, row.id.length > 16 ? `…${row.id.slice(-14)}` : row.id);
  if (!link.href) {
    link.href = `/decision?id=${encodeURIComponent(row.id)}`;
    link.title = row.id;
  }
  const model = row.target && row.target !== row.model ? `${row.model} → ${row.target}` : (row.model ?? "–");
  const impaired = row.level && row.level !== "full" ? `${row.level}: ${row.degraded || "see the request"}. ` : "";
  const texts = {
    0: time(row.at_ms),
    2: model,
    3: row.endpoint || "–",
    4: impaired + (row.reason ?? row.problem ?? ""),
    5: number(row.prompt),
    6: number(row.cached),
    7: row.waited_ms ? duration(row.waited_ms) : "–",
    9: row.ttft_ms === undefined ? "" : duration(row.ttft_ms),
    10: row.duration_ms === undefined ? "" : duration(row.duration_ms),
    11: row.tenant || "–",
  };
  for (const [position, text] of Object.entries(texts)) say(cells[position], text);
  const tag = cells[8].firstChild;
  say(tag, row.outcome ? `${row.status} ${row.outcome}` : "open");
  tag.className = `tag ${!row.outcome ? "" : row.outcome === "ok" || row.outcome === "answered" ? "good" : row.outcome === "client_gone" || row.outcome === "rejected" ? "warn" : "bad"}`;
}
