// Service levels: how many answers kept theirs since the page was opened, by class, tenant and model.
import { begin, content, follow } from "/static/frame.js";
import { compact, duration, el, fill, number, percent, say, table } from "/static/dom.js";

const opened = Date.now();
const nodes = { state: el("p", { class: "soft" }, "Waiting for requests …"), list: el("div") };
const HEADS = [["Class", 0], ["Tenant", 0], ["Model", 0], ["Kept", 0], ["Answers", 1], ["Missed", 1], ["Unknown", 1], ["Refused", 1], ["Tokens a second kept", 1], ["Promised", 1], ["Predicted", 1], ["Got", 1]];

begin(() => {
  fill(content, el("section", { class: "panel" }, el("h2", {}, "Kept and missed"), nodes.state, nodes.list));
  follow("/api/levels/stream", { levels: draw });
});

function draw({ rows, missing }) {
  const passed = Math.max(1, Math.round((Date.now() - opened) / 1000));
  say(
    nodes.state,
    missing
      ? `Nothing is heard: ${missing}.`
      : rows.length
        ? `Since this page was opened, ${number(passed)} seconds ago; times are means to the first token of streams.`
        : "No request with a service level has ended since this page was opened. Set one as slo of a profile, a model or a key: docs/service-levels.md.",
  );
  if (!rows.length) return fill(nodes.list);
  fill(
    nodes.list,
    table(
      "Service levels, the least kept first",
      HEADS,
      rows.map((row) => line(row, passed)),
    ),
  );
}

function line(row, passed) {
  const kept =
    row.share === null
      ? "–"
      : el("span", { class: "measure" }, el("progress", { max: "1", value: String(row.share), "aria-label": `kept of ${row.class || "refused"}` }, percent(row.share)), el("span", {}, percent(row.share)));
  const figures = [number(row.kept + row.missed + row.unknown), number(row.missed), number(row.unknown), number(row.refused), compact(row.tokens / passed), duration(row.promised_ms), duration(row.predicted_ms), duration(row.got_ms)];
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, row.class || (row.refused ? "refused, of any class" : "of the client alone")),
    el("td", {}, row.tenant || "–"),
    el("td", {}, row.model || "–"),
    el("td", {}, kept),
    ...figures.map((text) => el("td", { class: "number" }, text)),
  );
}
