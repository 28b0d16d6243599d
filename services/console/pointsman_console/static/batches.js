// Batches: how far each is, and when it will have ended at the pace so far.
import { ask, begin, content } from "/static/frame.js";
import { counted, el, fill, moment, number, percent, table } from "/static/dom.js";

const LOOK_MS = 2000;
const nodes = { list: el("div", {}, el("p", { class: "soft" }, "Reading the batches …")) };

begin(() => {
  fill(content, el("section", { class: "panel" }, el("h2", {}, "Batches"), nodes.list));
  look();
});

async function look() {
  try {
    draw(await ask("/api/batches"));
  } catch (error) {
    fill(nodes.list, el("p", { class: "note" }, error.message));
  }
  setTimeout(look, LOOK_MS);
}

function draw({ rows, count, running }) {
  if (!rows.length) return fill(nodes.list, el("p", { class: "soft" }, "No batch is kept. Clients make them at /v1/batches and /v1/messages/batches, once the service batch runs: pointsman up --replicas batch=1."));
  const heads = [["Batch", 0], ["Progress", 0], ["Ends", 0], ["Lines", 1], ["Failed", 1], ["Status", 0], ["Of", 0], ["Made", 0]];
  const caption = `${counted(running, "batch").replace("batchs", "batches")} not ended, ${number(count)} in all${rows.length < count ? `; the first ${number(rows.length)} are shown` : ""}`;
  fill(nodes.list, table("Batches", heads, rows.map(row), caption));
}

function row(batch) {
  const progress =
    batch.share === null
      ? "–"
      : el("span", { class: "measure" }, el("progress", { max: "1", value: String(batch.share), "aria-label": `done of ${batch.id}` }, percent(batch.share)), el("span", {}, percent(batch.share)));
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, batch.id),
    el("td", {}, progress),
    el("td", {}, ...end(batch)),
    el("td", { class: "number" }, batch.total ? `${number(batch.done)} / ${number(batch.total)}` : "–"),
    el("td", { class: "number" }, number(batch.failed)),
    el("td", {}, batch.status.replace("_", " "), batch.problem ? el("p", { class: "soft small" }, batch.problem) : null),
    el("td", {}, batch.owner || "–"),
    el("td", {}, moment(batch.created_ms)),
  );
}

function end(batch) {
  if (batch.ended_ms !== null) return [moment(batch.ended_ms)];
  if (batch.ends_ms === null) return [`by ${moment(batch.expires_ms)}`];
  return batch.late ? [`about ${moment(batch.ends_ms)}`, el("p", { class: "small" }, `after its window, which ends ${moment(batch.expires_ms)}`)] : [`about ${moment(batch.ends_ms)}`];
}
