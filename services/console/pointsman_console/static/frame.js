// What all pages share: the session, problems, questions and streams.
import { el, fill } from "/static/dom.js";

export const content = document.getElementById("content");
const problem = document.getElementById("problem");

/** Show what went wrong; an empty text hides it. */
export function tell(text) {
  if (problem.textContent !== text) problem.textContent = text;
  problem.hidden = !text;
}

function toLogin() {
  const here = location.pathname + location.search;
  location.replace(here === "/" ? "/login" : `/login?next=${encodeURIComponent(here)}`);
}

/** Ask the console. Throws an Error with words for the page. */
export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The console doesn't answer.");
  }
  if (response.status === 401 && document.body.dataset.page !== "login") {
    toLogin();
    return new Promise(() => {});
  }
  const document_ = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(document_.error || `The console answered ${response.status}.`);
  return document_;
}

/** Send a change, with the session's token. */
export async function send(path, body, csrf = null) {
  const headers = { "content-type": "application/json" };
  if (csrf) headers["x-csrf-token"] = csrf;
  return ask(path, { method: "POST", headers, body: JSON.stringify(body) });
}

/** The session, shown in the head of the page. */
export async function session() {
  const own = await ask("/api/session");
  const leave = el("button", { type: "button", onclick: () => logOut(own.csrf) }, "Log out");
  fill(document.getElementById("who"), el("span", {}, own.name), leave);
  return own;
}

async function logOut(csrf) {
  try {
    await send("/api/logout", {}, csrf);
    location.replace("/login");
  } catch (error) {
    tell(error.message);
  }
}

/** Follow a stream of events. `handlers`: name → function of the document. Returns a function that ends it. */
export function follow(path, handlers) {
  const source = new EventSource(path);
  let broken = null;
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  }
  source.addEventListener("ended", () => {
    source.close();
    toLogin();
  });
  source.addEventListener("open", () => {
    clearTimeout(broken);
    broken = null;
    tell("");
  });
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) {
      // An answer that is no stream: the session is over, or there are too many streams. The answer says which.
      ask(path.replace(/\/stream.*$/, "/status")).catch((error) => tell(error.message));
    }
    broken ??= setTimeout(() => tell("The console doesn't answer; figures are old."), 3000);
  });
  addEventListener("pagehide", () => source.close());
  return () => {
    clearTimeout(broken);
    source.close();
  };
}

/** Begin a page: the session first, then `start(session)`; what either throws is shown. */
export async function begin(start) {
  try {
    await start(await session());
  } catch (error) {
    tell(error.message);
  }
}
