// The only page without a session.
import { el, fill } from "/static/dom.js";
import { content, send, tell } from "/static/frame.js";

const next = new URLSearchParams(location.search).get("next") || "/";

function go() {
  // Only a path of this console.
  location.replace(/^\/(?![/\\])/.test(next) ? next : "/");
}

async function logIn(body) {
  tell("");
  try {
    await send("/api/login", body);
    go();
  } catch (error) {
    tell(error.message);
  }
}

const key = el("input", { id: "key", type: "password", autocomplete: "current-password", required: true, autofocus: true });
const form = el(
  "form",
  { class: "login panel", onsubmit: (event) => { event.preventDefault(); logIn({ key: key.value.trim() }); } },
  el("label", { class: "field", for: "key" }, "API key with the scope console"),
  key,
  el("button", { class: "main", type: "submit" }, "Log in"),
);
fill(
  content,
  form,
  el("p", { class: "soft small" }, "A key is made by ", el("code", {}, "pointsman keys create --tenant ops --scope console"), "."),
);

// The address that `pointsman up` prints has a token behind the #, which browsers don't send to servers.
const token = location.hash.startsWith("#token=") ? location.hash.slice(7) : "";
if (token) {
  history.replaceState(null, "", location.pathname + location.search);
  logIn({ token });
}
