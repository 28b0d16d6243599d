// Sessions of agents: turns, gaps, engines and moves between them, and how much of the prompts caches kept.
import { begin, content, follow } from "/static/frame.js";
import { counted, duration, el, fill, number, percent, say, table, time } from "/static/dom.js";
import { filters } from "/static/filters.js";

const FIELDS = { session: ["Session", "a part of the name"], tenant: ["Tenant", "every tenant"], agent: ["Agent", "every agent"], model: ["Model", "every model"] };
const HEADS = [
  ["Session", 0], ["Agent", 0], ["Tenant", 0], ["Model", 0], ["Turns", 1], ["Gap", 1], ["Engine", 0], ["Moves", 0],
  ["Kept by caches", 0], ["Lost", 1], ["Last", 0], ["Begun by", 0],
];
const TURNS = [
  ["Time", 0], ["Request", 0], ["Turn", 1], ["Gap", 1], ["Predicted", 1], ["Engine", 0], ["Prompt", 1], ["Goes on", 1],
  ["Kept", 1], ["Lost", 1], ["Result", 0], ["Why there", 0],
];
const filter = filters(FIELDS, 16, listen);
const nodes = {
  state: el("p", { class: "soft" }, "Listening …"),
  list: el("div"),
  turns: el("section", { class: "panel", hidden: true }),
};
let stop = null;

begin(() => {
  fill(
    content,
    el("section", { class: "panel" }, el("h2", {}, "Filters"), filter.form()),
    el("section", { class: "panel" }, el("h2", {}, "Sessions"), nodes.state, nodes.list),
    nodes.turns,
  );
  listen(filter.wanted());
});

function listen(asked) {
  if (stop) stop();
  stop = follow(`/api/sessions/stream?${asked}`, { sessions: draw });
}

function draw({ rows, count, turns, since_ms, missing, forgotten }) {
  const more = rows.length < count ? `; the latest ${number(rows.length)} are shown` : "";
  const lost = forgotten ? ` ${counted(forgotten, "earlier session")} left out.` : "";
  say(nodes.state, missing ? `Nothing is heard: ${missing}.` : `${counted(count, "session")} with a request since ${time(since_ms)}, when the page was opened${more}.${lost}`);
  const focused = document.activeElement?.getAttribute("href");
  fill(nodes.list, rows.length ? table("Sessions, the latest first", HEADS, rows.map(row)) : el("p", { class: "soft" }, "pointsman sessions shows earlier ones; how sessions are recognised is in docs/agents.md."));
  nodes.turns.hidden = turns === null;
  if (turns !== null) fill(nodes.turns, el("h2", {}, "Turns"), el("p", { class: "soft small" }, "Predicted: within this time half of the sessions were to come back. Goes on, kept, lost: prompt tokens that an earlier turn had, that the engine reported as cached, and that it computed again."), table("Turns, the latest first", TURNS, turns.reverse().map(turn)));
  if (focused) content.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

function row(session) {
  const share =
    session.cached_share === null
      ? "unknown"
      : el("span", { class: "measure" }, el("progress", { max: "1", value: String(session.cached_share), "aria-label": `kept for ${session.session}` }, percent(session.cached_share)), el("span", {}, percent(session.cached_share)));
  const subs = session.children ? ` + ${counted(session.children, "sub-agent")}` : "";
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, el("a", { class: "mono", title: session.session, href: `?session=${encodeURIComponent(session.session)}` }, brief(session.session)), subs ? el("span", { class: "soft small" }, subs) : null),
    el("td", {}, session.agent),
    el("td", {}, session.tenant || "–"),
    el("td", {}, session.model || "–"),
    el("td", { class: "number" }, number(session.turns), session.open ? ` (${number(session.open)} open)` : ""),
    el("td", { class: "number" }, duration(session.gap_ms)),
    el("td", { class: "nowrap" }, session.engine || "–"),
    el("td", {}, moves(session)),
    el("td", {}, share, session.unknown ? el("p", { class: "soft small" }, `${counted(session.unknown, "turn")} unknown`) : null),
    el("td", { class: "number" }, number(session.lost_tokens)),
    el("td", {}, time(session.last_ms)),
    el("td", { title: session.parent, class: "mono" }, session.parent ? brief(session.parent) : "–"),
  );
}

function moves(session) {
  if (!session.moves) return "–";
  return el("span", { class: "tags" }, ...Object.entries(session.reasons).map(([reason, count]) => el("span", { class: "tag warn" }, `${number(count)} ${reason}`)));
}

function turn(each) {
  const moved = each.moves.length ? el("p", {}, ...each.moves.map((move) => el("span", { class: "tag warn" }, move))) : null;
  return el(
    "tr",
    {},
    el("td", {}, time(each.at_ms)),
    el("td", { class: "nowrap" }, el("a", { class: "mono", href: `/decision?id=${encodeURIComponent(each.id)}`, title: each.id }, brief(each.id))),
    el("td", { class: "number" }, number(each.turn)),
    el("td", { class: "number" }, duration(each.gap_ms)),
    el("td", { class: "number" }, duration(each.half_back_ms)),
    el("td", { class: "nowrap" }, each.engine || "–"),
    ...["prompt_tokens", "continued_tokens", "cached_tokens", "lost_tokens"].map((name) => el("td", { class: "number" }, number(each[name]))),
    el("td", {}, el("span", { class: `tag ${!each.outcome ? "" : each.outcome === "ok" ? "good" : "bad"}` }, each.outcome || "open")),
    el("td", { class: "reason small" }, moved, each.why),
  );
}

const brief = (name) => (name.length > 20 ? `${name.slice(0, 8)}…${name.slice(-10)}` : name);
