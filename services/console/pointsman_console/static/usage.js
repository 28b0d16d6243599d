// Usage and cost from the ledger; limits and budgets as they stand.
import { ask, begin, content, tell } from "/static/frame.js";
import { compact, counted, el, fill, number, percent, table } from "/static/dom.js";
import { axis, chart, colour, uPlot } from "/static/chart.js";

const DAY_MS = 86400000;
const MOST_ROWS = 200;
const LOOK_MS = 5000;
const BARS = uPlot.paths.bars({ size: [0.7, 60], align: 0 });
const money = new Intl.NumberFormat("en", { style: "currency", currency: "USD", minimumFractionDigits: 2, maximumFractionDigits: 6 });

const nodes = {
  since: el("input", { type: "date", name: "since" }),
  by: el("select", { name: "by" }, ...[["tenant", "tenant"], ["tenant,model", "tenant and model"], ["model", "model"], ["tenant,key", "tenant and key"], ["subject", "subject"]].map(([value, label]) => el("option", { value }, label))),
  days: el("div"),
  usage: el("div"),
  limits: el("div", {}, el("p", { class: "soft" }, "Reading the counts …")),
};

begin(() => {
  nodes.since.value = new Date(Date.now() - 29 * DAY_MS).toISOString().slice(0, 10);
  fill(
    content,
    el("section", { class: "panel" }, el("h2", {}, "Limits and budgets now"), nodes.limits),
    el("section", { class: "panel" }, el("h2", {}, "Usage by day"), nodes.days),
    el(
      "section",
      { class: "panel" },
      el("h2", {}, "Usage"),
      el("div", { class: "bar" }, el("label", {}, "Since (UTC)", nodes.since), el("label", {}, "By", nodes.by)),
      nodes.usage,
    ),
  );
  nodes.since.addEventListener("change", usage);
  nodes.by.addEventListener("input", usage);
  usage();
  limits();
});

async function usage() {
  const since = nodes.since.value;
  const by = nodes.by.value.split(",");
  try {
    const [days, sums] = await Promise.all([
      ask(`/api/usage?by=day${since ? `&since=${since}` : ""}`),
      ask(`/api/usage?by=${by.join(",")}${since ? `&since=${since}` : ""}`),
    ]);
    tell("");
    drawDays(days.rows);
    drawSums(sums, by);
  } catch (error) {
    tell(error.message);
  }
}

function drawDays(rows) {
  if (!rows.length) return fill(nodes.days, el("p", { class: "soft" }, "The ledger has no request since that day."));
  // Every day has a place, one without requests too.
  const first = Date.parse(rows[0].day), last = Date.parse(rows.at(-1).day);
  const known = new Map(rows.map((row) => [row.day, row]));
  const days = [];
  for (let at = first; at <= last; at += DAY_MS) days.push(known.get(new Date(at).toISOString().slice(0, 10)) ?? { day: new Date(at).toISOString().slice(0, 10), requests: 0, failed: 0, cost: 0, prompt_tokens: 0, completion_tokens: 0 });
  const x = days.map((row) => Date.parse(row.day) / 1000);
  const picture = (label, column, values, ticks) => {
    const total = values.reduce((sum, value) => sum + value, 0);
    const data = [x, values];
    return chart(
      `${label} of each day: ${ticks(total)} in all, ${ticks(Math.max(...values))} at most`,
      () => ({
        title: label,
        legend: { show: false },
        cursor: { y: false },
        scales: { x: { time: true, range: [Math.min(x[0], x.at(-1) - 6 * (DAY_MS / 1000)) - DAY_MS / 2000, x.at(-1) + DAY_MS / 2000] }, y: { range: (_, low, high) => [0, high * 1.1 || 1] } },
        axes: [axis({ values: (_, splits) => splits.map((split) => new Date(split * 1000).toISOString().slice(5, 10)), incrs: [86400, 172800, 604800, 2592000] }), axis({ size: 64, values: (_, splits) => splits.map(ticks) })],
        series: [{}, { label, fill: colour(column), stroke: colour(column), width: 0, points: { show: false }, paths: BARS }],
      }),
      data,
      170,
    ).node;
  };
  fill(
    nodes.days,
    el(
      "div",
      { class: "trio" },
      picture("Requests", 0, days.map((row) => row.requests), compact),
      picture("Cost", 2, days.map((row) => row.cost), (value) => `$${value < 10 ? Number(value.toPrecision(2)) : compact(value)}`),
      picture("Tokens", 3, days.map((row) => row.prompt_tokens + row.completion_tokens), compact),
    ),
  );
}

function drawSums(sums, by) {
  const rows = [...sums.rows].sort((one, other) => other.cost - one.cost || other.requests - one.requests);
  const notes = [];
  if (sums.more) notes.push("There are more rows than an answer takes; choose a later day.");
  if (sums.behind) notes.push(`The recorder is ${counted(sums.behind, "event")} behind.`);
  if (sums.unpriced_models.length) notes.push(`Without a price: ${sums.unpriced_models.join(", ")}.`);
  const shown = rows.slice(0, MOST_ROWS);
  const heads = [...by.map((name) => [name[0].toUpperCase() + name.slice(1), false]), ["Requests", true], ["Failed", true], ["Prompt tokens", true], ["of them reported as cached", true], ["Output tokens", true], ["Cost", true]];
  fill(
    nodes.usage,
    rows.length
      ? table(
          "Usage",
          heads,
          shown.map((row) => el("tr", {}, ...by.map((name, position) => el(position ? "td" : "th", position ? {} : { scope: "row" }, row[name] || "–")), ...[number(row.requests), number(row.failed), number(row.prompt_tokens), row.cached_tokens ? percent(row.cached_tokens / row.prompt_tokens) : "none", number(row.completion_tokens), money.format(row.cost)].map((text) => el("td", { class: "number" }, text)))),
          `${counted(rows.length, "row")}, the most expensive first${shown.length < rows.length ? `; the first ${MOST_ROWS} are shown` : ""}`,
        )
      : el("p", { class: "soft" }, "The ledger has no request since that day."),
    ...notes.map((note) => el("p", { class: "soft small" }, note)),
  );
}

async function limits() {
  try {
    draw(await ask("/api/limits"));
  } catch (error) {
    fill(nodes.limits, el("p", { class: "note" }, error.message));
  }
  setTimeout(limits, LOOK_MS);
}

function draw({ rows, count }) {
  if (!rows.length) return fill(nodes.limits, el("p", { class: "soft" }, "Nothing is counted: the configuration has no limits or budgets, or no request has met them yet."));
  const amount = (row, value) => (value === null ? "its own amount" : row.unit === "dollars" ? money.format(value) : compact(value));
  const lines = rows.map((row) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, row.limit),
      el("td", {}, Object.entries(row.scope).map(([name, value]) => `${name} ${value || "–"}`).join(", ") || "the whole gateway"),
      el("td", { class: "number" }, amount(row, row.used)),
      el("td", { class: "number" }, `${amount(row, row.amount)}${row.period ? ` / ${row.period}` : ""}${row.unit === "dollars" ? "" : ` ${row.unit}`}`),
      el(
        "td",
        {},
        row.amount === null
          ? "–"
          : el("span", { class: "measure" }, el("meter", { min: "0", max: "1", high: "0.95", optimum: "0", low: "0.8", value: String(Math.min(1, row.share)), "aria-label": `used of ${row.limit}` }, percent(row.share)), el("span", {}, percent(row.share))),
      ),
    ),
  );
  fill(
    nodes.limits,
    table(
      "Limits and budgets",
      [["Limit", 0], ["Of", 0], ["Used", 1], ["Allowed", 1], ["Part", 0]],
      lines,
      `${rows.length < count ? `The fullest ${number(rows.length)} of ${number(count)}` : counted(count, "count")}; saved twice a second while they change. An identity's own amount (a claim) isn't among the counts.`,
    ),
  );
}
