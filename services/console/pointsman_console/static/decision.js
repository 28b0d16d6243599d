// One request: why it went where it did, how long each part took, how it ended.
import { ask, begin, content, tell } from "/static/frame.js";
import { el, fill, duration, moment, number, percent, table } from "/static/dom.js";
import { axis, chart, colour, ink, uPlot } from "/static/chart.js";

const AGAIN_MS = 1500;
const TRIES = 8;
const address = new URLSearchParams(location.search);
const id = address.get("id") ?? "";
const trace = address.get("trace") ?? "";
// In the order of the colours of charts and of the style's swatches.
const KINDS = ["stage", "wait", "answer", "engine", "gap", "other"];
const KIND_WORDS = { stage: "stage", wait: "wait at the scheduler", other: "bus and edge", engine: "engine, until the first token", answer: "answer" };

begin(async () => {
  fill(content, search(), el("p", { class: "soft", role: "status" }, id || trace ? "Asking the recorder …" : "Type a request's id, or the id of a trace."));
  if (id || trace) await look(TRIES);
});

function search() {
  const input = el("input", { name: "id", value: id || trace, size: "40", autocomplete: "off", spellcheck: "false" });
  return el(
    "form",
    {
      class: "bar",
      onsubmit: (event) => {
        event.preventDefault();
        const text = input.value.trim();
        location.assign(`/decision?${/^[0-9a-f]{32}$/.test(text) ? "trace" : "id"}=${encodeURIComponent(text)}`);
      },
    },
    el("label", {}, "Request or trace", input),
    el("button", { type: "submit" }, "Look"),
  );
}

async function look(tries) {
  const asked = id ? `id=${encodeURIComponent(id)}` : `trace=${encodeURIComponent(trace)}`;
  let found;
  try {
    found = await ask(`/api/decision?${asked}`);
  } catch (error) {
    // The recorder reads events a moment after they were published.
    if (tries > 0 && error.message.includes("no event")) return void setTimeout(() => look(tries - 1).catch((again) => tell(again.message)), AGAIN_MS);
    fill(content, search());
    throw error;
  }
  tell("");
  fill(
    content,
    search(),
    found.more ? el("p", { class: "note" }, "The oldest events are missing: there are more than one answer takes.") : null,
    ...found.requests.flatMap((request) => whole(request, found.requests.length > 1)),
  );
  if (tries > 0 && found.requests.some((request) => !request.over)) setTimeout(() => look(tries - 1).catch(() => {}), AGAIN_MS);
}

function whole(request, several) {
  const last = request.decisions.at(-1) ?? null;
  return [
    el("h2", { class: "mono" }, several ? `${request.id} at ${request.edge}` : request.id),
    el("div", { class: "columns" }, summary(request, last), timeline(request)),
    ...request.decisions.flatMap((decision) => decision.runs.map((run) => candidates(decision, run, request.decisions.length > 1))),
    el("div", { class: "columns" }, stages(request, last), end(request)),
    events(request),
  ];
}

function facts(pairs) {
  return el("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function tag(text, kind) {
  return el("span", { class: `tag ${kind}` }, text);
}

function summary(request, decision) {
  if (!decision) {
    const given = request.given;
    return el(
      "section",
      { class: "panel" },
      el("h2", {}, "Decision"),
      el("p", {}, given ? `${given.stage} ${given.rejected ? "rejected" : "answered"} it with ${given.status}. ${given.reason}` : "No scheduler decided about it."),
    );
  }
  return el(
    "section",
    { class: "panel" },
    el("h2", {}, "Decision"),
    el("p", {}, el("strong", {}, decision.endpoints[0] ?? "no endpoint"), ` — ${decision.short}`),
    facts([
      ["Model", decision.target === decision.model ? decision.model : `${decision.model} → ${decision.target}`],
      ["Pool", decision.provider ? `provider ${decision.provider}` : decision.pool],
      ["Profile", decision.profile],
      ["Prompt", `${number(decision.prompt_tokens)} tokens, ${number(decision.cached_tokens)} believed cached${decision.prefix ? ` (${decision.prefix})` : ""}`],
      ["Waited", decision.queued_ms || decision.unbound_ms ? `${duration(decision.queued_ms)} in the queue, ${duration(decision.unbound_ms)} for its engine${decision.bound_because ? ` (${decision.bound_because})` : ""}` : "not at all"],
      ...(decision.prompt ? [["Two engines", decision.prompt]] : []),
      ...(decision.prelude ? [["First", decision.prelude]] : []),
      ...(decision.session.length ? [["Session", decision.session.join("; ")]] : []),
      ["Decided", `in ${Math.round(decision.decided_us)} µs by ${decision.scheduler}`],
      ["Next choices", decision.endpoints.slice(1, 4).join(", ")],
      ["Configuration", `revision ${decision.revision}, policy ${decision.policy}`],
      ["Level", decision.level === "full" ? tag("full", "good") : el("span", {}, tag(decision.level, "warn"), ` ${decision.degraded.join("; ")}`)],
      ["At", moment(decision.at_ms)],
    ]),
  );
}

function timeline(request) {
  const spans = request.timeline;
  const panel = el("section", { class: "panel" }, el("h2", {}, "Timeline"));
  if (!spans.length) {
    panel.append(el("p", { class: "soft" }, "No stage has reported yet."));
    return panel;
  }
  const before = spans.filter((span) => span.kind !== "answer");
  const kinds = KINDS.filter((kind) => spans.some((span) => span.kind === kind));
  // An answer takes a hundred times as long as the stages: without it they can be seen.
  if (before.length && before.length < spans.length) panel.append(el("h3", {}, "Until the first token"), picture(before), el("h3", {}, "Whole"));
  panel.append(
    picture(spans),
    el("p", { class: "legend" }, ...kinds.map((kind) => el("span", {}, el("i", { class: `swatch ${kind}` }), KIND_WORDS[kind]))),
    el("details", {}, el("summary", {}, "As a table"), listed(["Part", "Kind", "From", "Took"], spans.map((span) => [span.name, KIND_WORDS[span.kind], duration(span.from_ms), duration(span.to_ms - span.from_ms)]), [2, 3])),
    el("p", { class: "soft small" }, "Stages report how long they took, not when they began; they are drawn one after the other."),
  );
  return panel;
}

function picture(spans) {
  const total = Math.max(...spans.map((span) => span.to_ms)) || 1;
  const from = spans.map((span) => span.from_ms);
  // A hair's breadth for what took no time.
  const to = spans.map((span) => Math.max(span.to_ms, span.from_ms + total / 300));
  const places = spans.map((_, position) => position);
  const fills = () => spans.map((span) => colour(KINDS.indexOf(span.kind)));
  return chart(
    `How long each part took: ${spans.map((span) => `${span.name} ${duration(span.to_ms - span.from_ms)}`).join(", ")}`,
    () => ({
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { time: false, ori: 1, dir: -1, range: [-0.6, spans.length - 0.4] },
        y: { ori: 0, dir: 1, range: [0, total * 1.02] },
      },
      axes: [
        axis({ side: 3, scale: "x", size: 150, grid: { show: false }, ticks: { show: false }, splits: () => places, values: () => spans.map((span) => span.name), font: "13px system-ui" }),
        axis({ side: 2, scale: "y", size: 34, space: 75, values: (_, ticks) => ticks.map((tick) => `${tick} ms`) }),
      ],
      series: [
        {},
        {
          fill: () => ink("--accent"),
          width: 0,
          points: { show: false },
          paths: uPlot.paths.bars({
            size: [0.62, 30],
            disp: { y0: { unit: 1, values: () => from }, y1: { unit: 1, values: () => to }, fill: { unit: 3, values: fills } },
          }),
        },
      ],
    }),
    [places, to],
    Math.max(90, 40 + 27 * spans.length),
  ).node;
}

function listed(heads, rows, numeric = []) {
  return table(
    heads.join(", "),
    heads.map((name, position) => [name, numeric.includes(position)]),
    rows.map((row) => el("tr", {}, ...row.map((cell, position) => el("td", { class: numeric.includes(position) ? "number" : null }, cell)))),
  );
}

function measure(value, most, label) {
  if (value === null || value === undefined) return el("span", { class: "soft" }, "–");
  const text = value.toFixed(2);
  return el("span", { class: "measure" }, el("meter", { min: "0", max: String(most || 1), value: String(Math.max(0, value)), "aria-label": label }, text), el("span", {}, text));
}

function candidates(decision, run, several) {
  const scorers = Object.keys(run.weights);
  const most = Math.max(...run.candidates.map((each) => each.total ?? 0), 0.001);
  const title = `Candidates of profile ${run.profile}${run.used ? "" : " (recorded, not used)"}${several ? `, attempt ${decision.attempt}` : ""}`;
  const panel = el("section", { class: "panel" }, el("h2", {}, title));
  if (run.error) panel.append(el("p", { class: "note" }, `It failed: ${run.error}`));
  // From below the device of an engine.
  const fetches = run.candidates.some((each) => each.fetched);
  const heads = [
    ["Endpoint", false], ["Total", false], ...scorers.map((name) => [`${name} × ${run.weights[name]}`, false]),
    ["Verdict", false], ["Running", true], ["Waiting", true], ["KV cache", true], ["Cached", true],
    ...(fetches ? [["Fetched", true]] : []), ["Report's age", true],
  ];
  const lines = run.candidates.map((each) =>
    el(
      "tr",
      { class: each.chosen ? "chosen" : null },
      el("th", { scope: "row" }, each.worker),
      el("td", {}, measure(each.total, most, `total of ${each.worker}`)),
      ...scorers.map((name) => el("td", {}, measure(each.scores[name], 1, `${name} of ${each.worker}`))),
      el("td", { class: "reason" }, each.chosen ? tag("chosen", "good") : each.removed ? tag("removed", "warn") : "", ` ${each.chosen ? "" : each.words}`),
      ...[each.opaque ? "own counts" : number(each.running), each.opaque ? "" : number(each.waiting), each.opaque ? "" : percent(each.kv), number(each.matched), ...(fetches ? [number(each.fetched)] : []), each.age_ms < 0 ? "none" : duration(each.age_ms)].map((text) => el("td", { class: "number" }, text)),
    ),
  );
  panel.append(table(title, heads, lines));
  if (run.omitted) panel.append(el("p", { class: "soft small" }, `${number(run.omitted)} more candidates were left out of the event; none of them was better.`));
  return panel;
}

function stages(request, decision) {
  const trail = decision?.trail ?? request.given?.trail ?? [];
  const rows = (reports) => reports.map((report) => [report.stage, tag(report.outcome, report.outcome.endsWith("passed") ? "good" : "warn"), duration(report.took_ms), report.note, el("span", { class: "nowrap" }, report.instance)]);
  const panel = el("section", { class: "panel" }, el("h2", {}, "Stages"));
  panel.append(trail.length ? listed(["Stage", "Outcome", "Took", "Note", "Instance"], rows(trail), [2]) : el("p", { class: "soft" }, "No stage reported."));
  if (request.reviews.length) panel.append(el("h3", {}, "On the way back"), listed(["Stage", "Outcome", "Took", "Note", "Instance"], rows(request.reviews), [2]));
  return panel;
}

function end(request) {
  const over = request.end;
  if (!over) return el("section", { class: "panel" }, el("h2", {}, "End"), el("p", { class: "soft" }, "It hasn't ended, or its end isn't recorded yet."));
  const usage = over.usage;
  return el(
    "section",
    { class: "panel" },
    el("h2", {}, "End"),
    el("p", {}, tag(`${over.status} ${over.outcome}`, over.outcome === "ok" ? "good" : "bad"), over.reason ? ` ${over.reason}` : ""),
    facts([
      ["Endpoint", over.worker],
      ["First token", over.ttft_ms === null ? null : `after ${duration(over.ttft_ms)}`],
      ["Whole", duration(over.duration_ms)],
      ["Tokens", usage ? `${number(usage.prompt_tokens)} prompt${usage.estimated ? "" : ` (${usage.cached_unknown ? "unknown" : number(usage.cached_tokens)} cached)`}, ${number(usage.completion_tokens)} completion${usage.estimated ? ", estimated" : ""}` : null],
      ["Service level", promised(over)],
      ["Cost", over.cost === null ? (usage ? "no price" : null) : `$${over.cost}`],
      ["Client", over.client],
      ["API", over.api ? `${over.api}${over.stream ? ", streamed" : ""}` : null],
    ]),
    over.seams.length ? listed(["Broke off", "After", "Continued by", "Gap", "Form", "Tokens kept", "Computed again"], over.seams.map((seam) => [seam.worker, duration(seam.at_ms), seam.next_worker, duration(seam.gap_ms), seam.form, String(seam.kept_tokens), String(seam.computed_again)]), [1, 3, 5, 6]) : null,
    over.unresumed ? el("p", {}, `The stream broke off and wasn't continued: ${over.unresumed}.`) : null,
    over.confidence || over.unused.length ? listed(["Model", "Given", "Judgement", "Took", "Tokens", "Cost"], [
      ...over.unused.map((one) => [one.model, "no", judgement(one.judged), duration(one.took_ms), tokens(one.usage), one.cost === null ? "–" : `$${one.cost}`]),
      ...(over.confidence ? [[over.served || "–", "yes", judgement(over.confidence), "–", tokens(over.usage), over.cost === null ? "–" : `$${over.cost}`]] : []),
    ], [3, 4, 5]) : null,
    over.legs.length ? listed(["Part", "Worker", "Outcome", "Status", "Began after", "Took", "Reason"], over.legs.map((leg) => [leg.leg, leg.worker, leg.outcome, leg.status === null ? "–" : String(leg.status), duration(leg.began_ms), duration(leg.took_ms), leg.reason]), [4, 5]) : null,
    over.attempts.length ? listed(["Attempt", "Outcome", "Status", "Took", "Reason"], over.attempts.map((attempt) => [attempt.worker, attempt.outcome, attempt.status === null ? "–" : String(attempt.status), duration(attempt.took_ms), attempt.reason]), [3]) : null,
  );
}

const judgement = (judged) => judged.verdict + (judged.why ? `: ${judged.why}` : "");

const tokens = (usage) => (usage ? `${number(usage.prompt_tokens)} + ${number(usage.completion_tokens)}` : "unknown");

function promised(over) {
  const promise = over.promise;
  if (!promise) return null;
  const told = [promise.ttft_ms == null ? null : `first token in ${duration(promise.ttft_ms)}`, promise.itl_ms == null ? null : `${promise.itl_ms} ms a token`];
  const times = [promise.predicted_ttft_ms, ...(promise.itl_ms == null ? [] : [promise.predicted_itl_ms])];
  const predicted = times.map((ms) => (ms == null ? "unknown" : duration(ms))).join(" and ");
  const kept = over.outcome === "rejected" ? "refused" : over.kept === null ? "unknown whether it was kept" : over.kept ? "kept" : "missed";
  return `${promise.service_class ? `${promise.service_class}: ` : ""}${told.filter(Boolean).join(", ")}; predicted ${predicted}; ${kept}${promise.spilled_from ? `; spilled from pool ${promise.spilled_from}` : ""}`;
}

function events(request) {
  return el(
    "section",
    { class: "panel" },
    el("h2", {}, "Events"),
    listed(["At", "What"], request.events.map((event) => [`${moment(event.at_ms)}.${String(event.at_ms % 1000).padStart(3, "0")}`, event.text])),
  );
}
