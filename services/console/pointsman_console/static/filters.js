// The filters of a page that follows a stream. The page's address keeps them.
import { el } from "/static/dom.js";

/** Filters by name: `fields` has the label and the hint of each, `size` is their width in characters, and `changed` is
 * called with the filters that are set. More inputs may be put into `inputs` before `form` is called. */
export function filters(fields, size, changed) {
  const inputs = Object.fromEntries(
    Object.entries(fields).map(([name, [, hint]]) => [name, el("input", { name, placeholder: hint, autocomplete: "off", spellcheck: "false", size })]),
  );

  function wanted() {
    const found = new URLSearchParams();
    for (const [name, input] of Object.entries(inputs)) if (input.value.trim()) found.set(name, input.value.trim());
    return found;
  }

  function apply() {
    const asked = wanted();
    window.history.replaceState(null, "", asked.size ? `?${asked}` : location.pathname);
    changed(asked);
  }

  function clear() {
    for (const input of Object.values(inputs)) input.value = "";
    apply();
  }

  /** The form, filled from the page's address; `more` filters and what stands at its `end`. */
  function form(more = null, end = null) {
    const address = new URLSearchParams(location.search);
    for (const [name, input] of Object.entries(inputs)) input.value = address.get(name) ?? "";
    return el(
      "form",
      { class: "bar", onsubmit: (event) => { event.preventDefault(); apply(); } },
      ...Object.entries(fields).map(([name, [label]]) => el("label", {}, label, inputs[name])),
      more,
      el("button", { class: "main", type: "submit" }, "Filter"),
      el("button", { type: "button", onclick: clear }, "Clear"),
      end,
    );
  }

  return { inputs, wanted, apply, form };
}
