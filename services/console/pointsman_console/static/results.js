// Results of replays, simulations and regret: files that the commands write with --json.
import { ask, begin, content, tell } from "/static/frame.js";
import { compact, counted, el, fill, moment, number, scrolling } from "/static/dom.js";
import { axis, chart, colour, uPlot } from "/static/chart.js";

const nodes = { regret: el("div", {}, el("p", { class: "soft" }, "Asking the recorder …")), list: el("div"), shown: el("section", { class: "panel", hidden: true }) };
const MOST_ROWS = 500;
const MOST_COLUMNS = 14;
const DEEPEST = 4;
const NAMES = ["policy", "profile", "pool", "model", "reason", "name", "hour", "day", "worker", "percentile", "metric"];

begin(async () => {
  fill(content, el("section", { class: "panel" }, el("h2", {}, "Regret of each profile, shadows too"), nodes.regret), el("section", { class: "panel" }, el("h2", {}, "Saved results"), nodes.list), nodes.shown);
  regret();
  const files = await ask("/api/results");
  if (!files.length) return fill(nodes.list, ...nothing());
  fill(
    nodes.list,
    scrolling(
      "Saved results",
      el(
        "table",
        {},
        el("caption", {}, `${counted(files.length, "file")}, the newest first`),
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "File"), el("th", { scope: "col" }, "Written"), el("th", { scope: "col", class: "number" }, "Bytes"))),
        el("tbody", {}, ...files.map((file) => el("tr", {}, el("th", { scope: "row" }, el("a", { href: `?file=${encodeURIComponent(file.name)}`, onclick: (event) => { event.preventDefault(); window.history.replaceState(null, "", `?file=${encodeURIComponent(file.name)}`); open(file.name); } }, file.name)), el("td", {}, moment(file.at_ms)), el("td", { class: "number" }, compact(file.bytes))))),
      ),
    ),
  );
  const wanted = new URLSearchParams(location.search).get("file");
  await open(files.some((file) => file.name === wanted) ? wanted : files[0].name);
});

/** What each profile's choices cost beyond the best: the profile that decides, and the shadows that only say. */
async function regret() {
  try {
    const { rows } = await ask("/api/regret");
    if (!rows.length) return fill(nodes.regret, el("p", { class: "soft" }, "Nothing is judged yet. A recorder with POINTSMAN_JUDGE=true judges each request when it has ended."));
    const profiles = new Map();
    for (const row of rows) {
      if (row.reason.startsWith("filter:")) continue;
      const key = `${row.pool} ${row.profile}`;
      const sum = profiles.get(key) ?? { pool: row.pool, profile: row.profile, choices: 0, best_choices: 0, regret_ms: 0 };
      sum.choices += row.choices;
      sum.best_choices += row.reason === "the best choice" ? row.choices : 0;
      sum.regret_ms += row.regret_ms;
      profiles.set(key, sum);
    }
    const sums = [...profiles.values()].map((sum) => ({ profile: sum.profile, pool: sum.pool, mean_regret_ms: sum.choices ? sum.regret_ms / sum.choices : 0, regret_ms: sum.regret_ms, choices: sum.choices, best_choices: sum.best_choices }));
    fill(nodes.regret, ...table(sums, "Regret by profile"), el("details", {}, el("summary", {}, "By reason"), ...table(rows, "Regret by reason")));
  } catch (error) {
    fill(nodes.regret, el("p", { class: "soft" }, error.message));
  }
}

function nothing() {
  return [
    el("p", { class: "soft" }, "No result is saved here yet. Name a folder with POINTSMAN_RESULTS_DIR, and let commands write into it:"),
    el("pre", {}, "pointsman replay LOG --json > results/replay.json\npointsman simulate --from LOG --json > results/twin.json\npointsman regret --by profile,reason --json > results/regret.json"),
  ];
}

async function open(name) {
  try {
    const found = await ask(`/api/results/${encodeURIComponent(name)}`);
    tell("");
    nodes.shown.hidden = false;
    fill(nodes.shown, el("h2", {}, name), ...tell_of(found));
  } catch (error) {
    tell(error.message);
  }
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isRows = (value) => Array.isArray(value) && value.length > 0 && value.every(isObject);

/** The parts of any document: facts, tables with a chart where rows have a name and numbers, and what is inside. */
function tell_of(value, depth = 0, title = "") {
  if (isRows(value)) return table(value, title);
  if (!isObject(value)) return [el("pre", {}, JSON.stringify(value, null, 2))];
  const plain = Object.entries(value).filter(([, each]) => each === null || typeof each !== "object");
  const rows = isMapOfRows(value) ? Object.entries(value).map(([name, each]) => ({ name, ...each })) : null;
  if (rows) return table(rows, title);
  const parts = [];
  if (plain.length) parts.push(el("dl", { class: "facts" }, ...plain.flatMap(([name, each]) => [el("dt", {}, words(name)), el("dd", {}, text(each))])));
  for (const [name, each] of Object.entries(value)) {
    if (each === null || typeof each !== "object") continue;
    if (Array.isArray(each) && !isRows(each)) {
      if (each.length) parts.push(el("h3", {}, words(name)), el("p", {}, each.slice(0, 50).map(text).join(", ")));
      continue;
    }
    if (isObject(each) && !Object.keys(each).length) continue;
    parts.push(el(depth ? "h4" : "h3", {}, words(name)));
    parts.push(...(depth < DEEPEST ? tell_of(each, depth + 1, name) : [el("pre", {}, JSON.stringify(each, null, 2))]));
  }
  return parts;
}

/** `{"a": {"x": 1}, "b": {"x": 2}}`: rows by name. */
function isMapOfRows(value) {
  const each = Object.values(value);
  return each.length > 1 && each.every((one) => isObject(one) && Object.values(one).length > 0 && Object.values(one).every((cell) => cell === null || typeof cell !== "object"));
}

function table(rows, title) {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => rows.some((row) => row[name] === null || typeof row[name] !== "object" || Array.isArray(row[name]))).slice(0, MOST_COLUMNS);
  const numeric = columns.filter((name) => rows.every((row) => row[name] === undefined || row[name] === null || typeof row[name] === "number") && rows.some((row) => typeof row[name] === "number"));
  const shown = rows.slice(0, MOST_ROWS);
  const parts = [];
  const label = columns.find((name) => NAMES.includes(name) && !numeric.includes(name)) ?? columns.find((name) => !numeric.includes(name));
  if (label && numeric.length && rows.length > 1 && rows.length <= 24) parts.push(picture(rows, label, numeric));
  parts.push(
    scrolling(
      words(title) || "Rows",
      el(
        "table",
        {},
        el("caption", {}, rows.length > shown.length ? `The first ${number(shown.length)} of ${counted(rows.length, "row")}` : counted(rows.length, "row")),
        el("thead", {}, el("tr", {}, ...columns.map((name) => el("th", { scope: "col", class: numeric.includes(name) ? "number" : null }, words(name))))),
        el("tbody", {}, ...shown.map((row) => el("tr", {}, ...columns.map((name) => el("td", { class: numeric.includes(name) ? "number" : null }, text(row[name])))))),
      ),
    ),
  );
  return parts;
}

function picture(rows, label, numeric) {
  const choice = el("select", {}, ...numeric.map((name) => el("option", { value: name }, words(name))));
  const places = rows.map((_, position) => position);
  const names = rows.map((row) => String(row[label] ?? ""));
  const values = () => rows.map((row) => row[choice.value] ?? null);
  const said = () => `${words(choice.value)} by ${words(label)}: ${rows.map((row) => `${row[label]} ${text(row[choice.value])}`).join(", ")}`;
  const height = Math.max(120, 50 + 26 * rows.length);
  const bars = chart(
    said(),
    () => ({
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false, ori: 1, dir: -1, range: [-0.6, rows.length - 0.4] }, y: { ori: 0, dir: 1, range: (_, low, high) => [Math.min(0, low), high * 1.05 || 1] } },
      axes: [
        axis({ side: 3, scale: "x", size: 170, grid: { show: false }, ticks: { show: false }, splits: () => places, values: () => names.map((name) => (name.length > 22 ? `${name.slice(0, 21)}…` : name)) }),
        axis({ side: 2, scale: "y", space: 70, values: (_, ticks) => ticks.map(text) }),
      ],
      series: [{}, { fill: colour(0), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.6, 24] }) }],
    }),
    [places, values()],
    height,
  );
  choice.addEventListener("input", () => bars.set([places, values()], said()));
  return el("div", {}, el("div", { class: "bar" }, el("label", {}, "Chart of", choice)), bars.node);
}

const words = (name) => name.replaceAll("_", " ");

function text(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? number(value) : String(Number(value.toPrecision(5)));
  if (typeof value === "boolean") return value ? "yes" : "no";
  return Array.isArray(value) ? value.map(text).join(", ") : String(value);
}
