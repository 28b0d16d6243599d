// Stored configurations: what each changed, and the way back where it is allowed.
import { ask, begin, content, send, tell } from "/static/frame.js";
import { counted, el, fill, moment, scrolling } from "/static/dom.js";

const nodes = { list: el("div"), shown: el("div"), status: el("p", { class: "unseen", role: "status" }) };
const MARKS = { "+": ["added", "Added"], "-": ["removed", "Removed"], "@": ["place", "At"] };
let own;
let kept;

begin(async (session) => {
  own = session;
  fill(content, nodes.status, el("div", { class: "columns" }, el("section", { class: "panel" }, el("h2", {}, "Revisions"), nodes.list), el("section", { class: "panel" }, nodes.shown)));
  await list();
  const wanted = Number(new URLSearchParams(location.search).get("revision"));
  const first = kept.revisions.find((each) => each.revision === wanted) ?? kept.revisions[0];
  if (first) await show(first.revision);
});

async function list() {
  kept = await ask("/api/configuration");
  if (!kept.revisions.length) return fill(nodes.list, el("p", { class: "soft" }, "No configuration is stored."));
  fill(
    nodes.list,
    scrolling(
      "Revisions",
      el(
        "table",
        {},
        el("caption", {}, `${counted(kept.revisions.length, "revision")}, the newest first; the server keeps 64`),
        el("thead", {}, el("tr", {}, ...["Revision", "Applied", "Policy", "Changed"].map((name) => el("th", { scope: "col" }, name)), kept.writes ? el("th", { scope: "col" }, el("span", { class: "unseen" }, "Roll back")) : null)),
        el(
          "tbody",
          {},
          ...kept.revisions.map((each, position) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, el("a", { href: `?revision=${each.revision}`, onclick: (event) => { event.preventDefault(); window.history.replaceState(null, "", `?revision=${each.revision}`); show(each.revision).catch((error) => tell(error.message)); } }, `${each.revision}${position === 0 ? " (current)" : ""}`)),
              el("td", {}, moment(each.at_ms)),
              el("td", { class: "mono" }, each.problem ? "not readable by this version" : each.policy),
              el("td", {}, each.changed === null ? "–" : counted(each.changed, "key")),
              kept.writes ? el("td", {}, position && own.may_write ? el("button", { type: "button", onclick: () => confirmed(each.revision) }, "Roll back") : "") : null,
            ),
          ),
        ),
      ),
    ),
    kept.writes && !own.may_write ? el("p", { class: "soft small" }, "Rolling back needs a key with the scope console:write.") : null,
    kept.writes ? null : el("p", { class: "soft small" }, "This console is read-only: POINTSMAN_WRITES=true allows it to roll back. On the command line: pointsman config rollback."),
  );
}

async function show(revision) {
  const found = await ask(`/api/configuration/${revision}`);
  tell("");
  fill(
    nodes.shown,
    el("h2", {}, `Revision ${found.revision}`),
    el("h3", {}, found.against === null ? "The first that is kept" : `Against revision ${found.against}`),
    difference(found),
    el("details", {}, el("summary", {}, "The whole text"), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Text of revision ${found.revision}` }, el("pre", {}, found.text))),
  );
  nodes.status.textContent = `Revision ${found.revision} is shown.`;
}

function difference(found) {
  if (found.against === null) return el("p", { class: "soft" }, "There is nothing to compare it with.");
  const lines = found.lines.map((line) => {
    const [kind, word] = MARKS[line[0]] ?? ["", ""];
    return el("div", { class: kind }, word ? el("span", { class: "unseen" }, `${word}: `) : "", line || " ");
  });
  return el(
    "div",
    {},
    el("p", {}, found.keys.length ? `Keys with another meaning: ${found.keys.join(", ")}.` : "It means the same: only comments, order or defaults differ."),
    lines.length ? el("div", { class: "diff scroll", tabindex: "0", role: "region", "aria-label": "Difference, line by line" }, ...lines) : null,
  );
}

function confirmed(revision) {
  const back = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const go = el("button", { type: "button", class: "main", onclick: () => { dialog.close(); rollBack(revision); } }, `Roll back to ${revision}`);
  const dialog = el(
    "dialog",
    { "aria-labelledby": "ask" },
    el("h2", { id: "ask" }, `Roll back to revision ${revision}?`),
    el("p", {}, `Its text is stored again as the newest revision, and every service runs it within a second.`),
    el("div", { class: "bar" }, back, go),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

async function rollBack(revision) {
  try {
    const done = await send("/api/configuration/rollback", { revision }, own.csrf);
    await list();
    await show(done.revision);
    nodes.status.textContent = `Revision ${done.revision} has the text of revision ${revision}.`;
  } catch (error) {
    tell(error.message);
  }
}
