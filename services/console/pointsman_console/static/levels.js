// Service levels: how many answers kept theirs, by class, tenant and model, from the recorder's sums.
import { ask, begin, content, tell } from "/static/frame.js";
import { compact, counted, duration, el, fill, number, percent, say, table, time } from "/static/dom.js";

const LOOK_MS = 2000;
const PATIENT = 20;
const NAMES = { service_class: "Class", tenant: "Tenant", model: "Model" };
const HEADS = [["Kept", 0], ["Requests", 1], ["Missed", 1], ["Unknown", 1], ["Refused", 1], ["Tokens a second kept", 1], ["Promised", 1], ["Predicted", 1], ["Got", 1]];

const choice = (name, options) => el("select", { name }, ...options.map(([value, label]) => el("option", { value }, label)));
const nodes = {
  span: choice("minutes", [["60", "the last hour"], ["1440", "the last day"]]),
  by: choice("by", [["service_class,tenant,model", "class, tenant and model"], ["service_class", "class"], ["tenant", "tenant"], ["model", "model"]]),
  state: el("p", { class: "soft", role: "status" }, "Asking the recorder …"),
  list: el("div"),
};
let asked = 0;
let next = null;

begin(() => {
  fill(
    content,
    el("section", { class: "panel" }, el("h2", {}, "Kept and missed"), el("div", { class: "bar" }, el("label", {}, "Time", nodes.span), el("label", {}, "By", nodes.by)), nodes.state, nodes.list),
  );
  nodes.span.addEventListener("input", look);
  nodes.by.addEventListener("input", look);
  look();
});

async function look() {
  clearTimeout(next);
  const own = ++asked;
  const began = performance.now();
  try {
    const found = await ask(`/api/levels?minutes=${nodes.span.value}&by=${nodes.by.value}`);
    if (own !== asked) return;
    tell("");
    draw(found);
  } catch (error) {
    if (own !== asked) return;
    tell(error.message);
    say(nodes.state, nodes.list.hasChildNodes() ? "The figures below are old." : "");
  }
  // A page takes at most a twentieth of the recorder's time.
  next = setTimeout(look, Math.max(LOOK_MS, PATIENT * (performance.now() - began)));
}

function draw({ rows, by, since_ms, until_ms, more, behind, lost }) {
  const covered = `${new Date(since_ms).toDateString() === new Date(until_ms).toDateString() ? "" : "yesterday "}${time(since_ms)} to ${time(until_ms)}`;
  const begun = until_ms - since_ms < (nodes.span.value - 1) * 60000 ? "; the recorder has no sums from before" : "";
  const notes = [
    `From ${covered}${begun}.`,
    rows.length ? "Times are means to the first token." : "No request with a service level ended in this time. Set one as slo of a profile, a model or a key: docs/service-levels.md.",
    rows.some((row) => row.unknown) ? "An answer is unknown where its engine didn't report its tokens, or its first token can't be seen." : "",
    more ? "There are more rows; those with the most missed answers are shown." : "",
    behind ? `The recorder is ${counted(behind, "event")} behind.` : "",
    lost ? `The ends of ${counted(lost, "request")} were lost, and aren't counted.` : "",
  ];
  say(nodes.state, notes.filter(Boolean).join(" "));
  if (!rows.length) return fill(nodes.list);
  const heads = [...by.map((name) => [NAMES[name], 0]), ...HEADS];
  fill(nodes.list, table("Service levels, the least kept first", heads, rows.map((row) => line(row, by))));
}

function line(row, by) {
  const names = by.map((name) => row[name] || (name === "service_class" ? "of the client alone" : "–"));
  const kept =
    row.share === null
      ? "–"
      : el("span", { class: "measure" }, el("progress", { max: "1", value: String(row.share), "aria-label": `kept of ${names.join(", ")}` }, percent(row.share)), el("span", {}, percent(row.share)));
  const figures = [number(row.kept + row.missed + row.unknown + row.refused), number(row.missed), number(row.unknown), number(row.refused), compact(row.tokens_a_second), duration(row.promised_ms), duration(row.predicted_ms), duration(row.got_ms)];
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, names[0]),
    ...names.slice(1).map((name) => el("td", {}, name)),
    el("td", {}, kept),
    ...figures.map((text) => el("td", { class: "number" }, text)),
  );
}
