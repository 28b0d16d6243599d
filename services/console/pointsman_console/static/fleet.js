// Engines of all pools: a card for each pool, a square and a row for each engine.
import { begin, content, follow } from "/static/frame.js";
import { compact, counted, el, fill, number, percent, say, scrolling, time } from "/static/dom.js";
import { axis, chart, clock, colour, lately, moments } from "/static/chart.js";

const PAGE = 100;
const KEPT = 600;
// From so many engines on the squares of a pool are small.
const MANY = 300;
const STATES = {
  serving: "good", draining: "warn", asleep: "warn", ignored: "warn", not_ready: "warn", failing: "warn", lacking: "warn", unheeded: "warn",
  ejected: "bad", suspect: "bad", silent: "bad", unreachable: "bad",
};

const SHADES = {
  kv: ["KV cache in use", (row) => row.kv / 100, (row) => `${row.kv} % of the KV cache in use`],
  waiting: ["requests waiting", (row) => Math.min(1, row.waiting / 8), (row) => `${row.waiting} waiting`],
  running: ["requests running", (row) => Math.min(1, row.running / 64), (row) => `${row.running} running`],
  prefix: ["prefix tokens held", (row) => heatOf(row), (row) => `${number(row.prefix_tokens)} prefix tokens held`],
  slow: ["slower than its pool", (row) => Math.min(1, Math.max(0, (row.speed ?? 1) - 1)), (row) => speed(row)],
};

const COLUMNS = [
  ["worker", "Engine", false],
  ["pool", "Pool", false],
  ["state", "State", false],
  ["running", "Running", true],
  ["waiting", "Waiting", true],
  ["open", "On the books", true],
  ["kv", "KV cache", true],
  ["prefix_tokens", "Prefix tokens", true],
  ["speed", "Time of a pass", true],
  ["age_s", "Report's age", true],
  ["reason", "Why it is left out", false],
];

const rows = new Map();
let pools = [];
let columns = [];
let order = { column: "waiting", down: true };
let page = 0;
let most = 1;
const history = [[], [], [], []];

const nodes = {
  state: el("p", { class: "soft", role: "status" }, "Listening for the first reports …"),
  cards: el("ul", { class: "cards" }),
  shade: el("select", {}, ...Object.entries(SHADES).map(([name, [label]]) => el("option", { value: name }, label))),
  heat: el("div", { "aria-hidden": "true" }),
  scale: el("p", { class: "legend" }),
  search: el("input", { type: "search", placeholder: "engine, model, address" }),
  pool: el("select", {}, el("option", { value: "" }, "all pools")),
  filter: el(
    "select",
    {},
    el("option", { value: "" }, "all states"),
    ...Object.keys(STATES).map((state) => el("option", { value: state }, state)),
  ),
  caption: el("caption"),
  head: el("tr"),
  body: el("tbody"),
  back: el("button", { type: "button", onclick: () => turn(-1) }, "Previous"),
  on: el("button", { type: "button", onclick: () => turn(1) }, "Next"),
};

const load = chart(
  "Requests running and waiting over the last ten minutes",
  () => ({
    legend: { show: true },
    cursor: { y: false },
    scales: { x: { time: true, range: lately }, y: { range: (_, low, high) => [0, Math.max(5, high * 1.1)] } },
    axes: [clock(), axis({ size: 56, values: (_, ticks) => ticks.map(compact) })],
    series: [
      moments,
      { label: "running", stroke: colour(0), width: 2, fill: `${colour(0)}22` },
      { label: "waiting at engines", stroke: colour(1), width: 2 },
      { label: "waiting at schedulers", stroke: colour(4), width: 2 },
    ],
  }),
  history,
);

const heatOf = (row) => (row.prefix_tokens === null ? 0 : row.prefix_tokens / most);
const speed = (row) => (row.speed === null ? "not learnt" : `${row.speed.toFixed(2)} × the pool's`);

begin(() => {
  fill(
    content,
    nodes.state,
    nodes.cards,
    el(
      "div",
      { class: "columns" },
      el("section", { class: "panel" }, el("h2", {}, "Load since this page was opened"), load.node),
      el(
        "section",
        { class: "panel" },
        el("h2", {}, "Engines at a glance"),
        el("div", { class: "bar" }, el("label", {}, "Shade by", nodes.shade)),
        el("p", { class: "unseen" }, "One square for each engine; the table has the same figures."),
        nodes.heat,
        nodes.scale,
      ),
    ),
    el(
      "section",
      { class: "panel" },
      el("h2", {}, "Engines"),
      el(
        "div",
        { class: "bar" },
        el("label", {}, "Search", nodes.search),
        el("label", {}, "Pool", nodes.pool),
        el("label", {}, "State", nodes.filter),
        el("div", { class: "push" }, nodes.back, " ", nodes.on),
      ),
      scrolling("Engines", el("table", {}, nodes.caption, el("thead", {}, nodes.head), nodes.body)),
    ),
  );
  for (const node of [nodes.search, nodes.pool, nodes.filter]) {
    node.addEventListener("input", () => {
      page = 0;
      table();
    });
  }
  nodes.shade.addEventListener("input", () => heat());
  heads();
  follow("/api/fleet/stream", { fleet: receive });
});

function receive(changes) {
  if (changes.columns) {
    columns = changes.columns;
    rows.clear();
  }
  for (const values of changes.rows) {
    const row = Object.fromEntries(columns.map((name, position) => [name, values[position]]));
    rows.set(`${row.pool}\n${row.worker}`, row);
  }
  for (const [pool, worker] of changes.gone) rows.delete(`${pool}\n${worker}`);
  pools = changes.pools;
  most = 1;
  for (const row of rows.values()) most = Math.max(most, row.prefix_tokens ?? 0);
  const now = Date.now();
  say(nodes.state, `${counted(rows.size, "engine")} in ${counted(pools.length, "pool")}. Every engine is shown; figures are of ${time(now)}.`);
  remember(now);
  if (document.hidden) return;
  cards();
  heat();
  table();
}

function remember(now) {
  let running = 0, waiting = 0, held = 0;
  for (const row of rows.values()) {
    running += row.running;
    waiting += row.waiting;
  }
  for (const pool of pools) held += (pool.queued ?? 0) + (pool.unbound ?? 0);
  [now / 1000, running, waiting, held].forEach((value, position) => history[position].push(value));
  if (history[0].length > KEPT) for (const series of history) series.shift();
  if (!document.hidden) load.set(history, `Requests over the last ten minutes; now ${number(running)} running, ${number(waiting)} waiting at engines, ${number(held)} at schedulers`);
}

function cards() {
  const sums = new Map(pools.map((pool) => [pool.pool, { states: {}, running: 0, waiting: 0, kv: 0, prefix: 0, count: 0 }]));
  for (const row of rows.values()) {
    const sum = sums.get(row.pool);
    if (!sum) continue;
    sum.count += 1;
    sum.states[row.state] = (sum.states[row.state] ?? 0) + 1;
    sum.running += row.running;
    sum.waiting += row.waiting;
    sum.kv += row.kv;
    sum.prefix += row.prefix_tokens ?? 0;
  }
  fill(nodes.cards, ...pools.map((pool) => card(pool, sums.get(pool.pool))));
  const known = [...nodes.pool.options].slice(1).map((option) => option.value);
  if (known.join("\n") !== pools.map((pool) => pool.pool).join("\n")) {
    const chosen = nodes.pool.value;
    fill(nodes.pool, el("option", { value: "" }, "all pools"), ...pools.map((pool) => el("option", { value: pool.pool }, pool.pool)));
    nodes.pool.value = chosen;
  }
}

function card(pool, sum) {
  const unreached = Object.entries(pool.unreached);
  const facts = [
    ["Running", number(sum.running)],
    ["Waiting at engines", number(sum.waiting)],
    ["In the queue", number(pool.queued)],
    ["Held for an engine", number(pool.unbound)],
    ["KV cache", `${sum.count ? Math.round(sum.kv / sum.count) : 0} % on average`],
    ["Saturation", percent(pool.saturation)],
    ["Prefix tokens held", compact(sum.prefix)],
    ["Prefill, learnt", pool.prefill_tokens_s ? `${compact(pool.prefill_tokens_s)} tokens/s` : "not known yet"],
    ["Decode step, learnt", pool.step_ms ? `${pool.step_ms} ms` : "not known yet"],
  ];
  return el(
    "li",
    { class: "panel" },
    el("h2", {}, pool.pool),
    el("ul", { class: "tags" }, ...Object.entries(sum.states).sort().map(([state, count]) => el("li", { class: `tag ${STATES[state] ?? ""}` }, `${number(count)} ${state}`))),
    el("p", { class: "small soft" }, pool.models.slice(0, 6).join(", ") + (pool.models.length > 6 ? ` and ${pool.models.length - 6} more` : "")),
    el("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    pool.problem ? el("p", { class: "note small" }, pool.problem) : null,
    ...unreached.slice(0, 3).map(([worker, why]) => el("p", { class: "note small" }, `${worker} has never answered: ${why}`)),
  );
}

function heat() {
  const [label, shade, words] = SHADES[nodes.shade.value];
  const groups = new Map(pools.map((pool) => [pool.pool, []]));
  for (const row of rows.values()) groups.get(row.pool)?.push(row);
  if (nodes.heat.children.length !== groups.size) {
    fill(nodes.heat, ...[...groups.keys()].map((pool) => el("div", {}, el("h3", {}, pool), el("div", { class: "heat" }))));
  }
  [...groups.entries()].forEach(([pool, members], position) => {
    const [name, grid] = nodes.heat.children[position].children;
    say(name, pool);
    const kind = members.length > MANY ? "heat many" : "heat";
    if (grid.className !== kind) grid.className = kind;
    while (grid.children.length > members.length) grid.lastChild.remove();
    while (grid.children.length < members.length) grid.append(document.createElement("i"));
    members.forEach((row, place) => {
      const square = grid.children[place];
      const level = Math.min(7, Math.floor(8 * shade(row)));
      const kind = row.state === "serving" ? `h${level}` : STATES[row.state] === "bad" ? "bad" : "gone";
      if (square.className !== kind) square.className = kind;
      const title = `${row.worker}: ${row.state}, ${words(row)}`;
      if (square.title !== title) square.title = title;
    });
  });
  const squares = (kind) => el("span", { class: "heat" }, el("i", { class: kind }));
  if (nodes.scale.dataset.of !== label) {
    nodes.scale.dataset.of = label;
    fill(
      nodes.scale,
      el("span", {}, "little ", el("span", { class: "heat" }, ...[0, 1, 2, 3, 4, 5, 6, 7].map((level) => el("i", { class: `h${level}` }))), ` much: ${label}`),
      el("span", {}, squares("gone"), "left out"),
      el("span", {}, squares("bad"), "silent or unreachable"),
    );
  }
}

function heads() {
  fill(
    nodes.head,
    ...COLUMNS.map(([name, label, numeric]) => {
      const sorted = order.column === name ? (order.down ? "descending" : "ascending") : "none";
      const arrow = sorted === "none" ? "" : order.down ? " ↓" : " ↑";
      return el(
        "th",
        { scope: "col", class: numeric ? "number" : null, "aria-sort": sorted },
        el("button", { type: "button", class: "plain", onclick: () => sort(name, numeric) }, label, el("span", { "aria-hidden": "true" }, arrow)),
      );
    }),
  );
}

function sort(name, numeric) {
  order = { column: name, down: order.column === name ? !order.down : numeric };
  page = 0;
  heads();
  [...nodes.head.querySelectorAll("button")][COLUMNS.findIndex(([each]) => each === name)].focus();
  table();
}

function turn(by) {
  page += by;
  table();
}

function wanted() {
  const text = nodes.search.value.trim().toLowerCase();
  const found = [];
  const models = new Map(pools.map((pool) => [pool.pool, pool.models.join(" ").toLowerCase()]));
  for (const row of rows.values()) {
    if (nodes.pool.value && row.pool !== nodes.pool.value) continue;
    if (nodes.filter.value && row.state !== nodes.filter.value) continue;
    if (text && !`${row.worker} ${row.url} ${models.get(row.pool)}`.toLowerCase().includes(text)) continue;
    found.push(row);
  }
  const { column, down } = order;
  const compare = (one, other) => {
    const a = one[column] ?? -1, b = other[column] ?? -1;
    return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  };
  const names = (one, other) => one.worker.localeCompare(other.worker, "en", { numeric: true });
  return found.sort((one, other) => (down ? -1 : 1) * compare(one, other) || names(one, other));
}

function table() {
  const found = wanted();
  const last = Math.max(0, Math.ceil(found.length / PAGE) - 1);
  page = Math.min(Math.max(page, 0), last);
  const shown = found.slice(page * PAGE, (page + 1) * PAGE);
  say(nodes.caption, found.length ? `Rows ${number(page * PAGE + 1)} to ${number(page * PAGE + shown.length)} of ${counted(found.length, "engine")}` : "No engine fits.");
  nodes.back.disabled = page === 0;
  nodes.on.disabled = page >= last;
  while (nodes.body.rows.length > shown.length) nodes.body.deleteRow(-1);
  while (nodes.body.rows.length < shown.length) nodes.body.append(blank());
  shown.forEach((row, position) => write(nodes.body.rows[position], row));
}

function blank() {
  return el(
    "tr",
    {},
    el("th", { scope: "row" }),
    ...COLUMNS.slice(1).map(([name, , numeric]) => el("td", { class: numeric ? "number" : name === "reason" ? "reason small" : null }, name === "state" ? el("span", { class: "tag" }) : "")),
  );
}

function write(line, row) {
  const texts = [
    row.worker,
    row.pool,
    row.state,
    row.opaque ? "–" : number(row.running),
    row.opaque ? "–" : number(row.waiting),
    number(row.open),
    row.opaque ? "–" : `${row.kv} %`,
    compact(row.prefix_tokens),
    row.speed === null ? "–" : `${row.speed.toFixed(2)} ×`,
    row.age_s < 0 ? "none" : row.age_s === 0 ? "fresh" : `${number(row.age_s)} s`,
    row.reason,
  ];
  texts.forEach((text, position) => {
    const cell = line.cells[position];
    if (position === 2) {
      const tag = cell.firstChild;
      say(tag, text);
      const kind = `tag ${STATES[text] ?? ""}`;
      if (tag.className !== kind) tag.className = kind;
    } else say(cell, text);
  });
}
