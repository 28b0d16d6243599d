// Elements from values. Text is always text: nothing here reads markup.

/** An element: `el("td", {class: "number"}, "5")`. A property that is null or false is left out. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Put children in the place of those that are there. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
}

/** Change a text only if it is another one: screen readers and layout have less to do. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A table that scrolls sideways within itself, by keyboard too. */
export function scrolling(label, table) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
}

/** The head of a table from names of columns, each with whether its values are numbers. */
export function head(columns) {
  return el("thead", {}, el("tr", {}, ...columns.map(([name, numeric]) => el("th", { scope: "col", class: numeric ? "number" : null }, name))));
}

/** A table that scrolls; `columns` as in `head`, `lines` are its rows. */
export function table(label, columns, lines, caption = null) {
  return scrolling(label, el("table", {}, caption === null ? null : el("caption", {}, caption), head(columns), el("tbody", {}, ...lines)));
}

const plain = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => (value === null || value === undefined ? "–" : plain.format(value));
export const compact = (value) => (value === null || value === undefined ? "–" : short.format(value));
export const percent = (part) => (part === null || part === undefined ? "–" : `${Math.round(100 * part)} %`);
export const counted = (count, noun) => `${plain.format(count)} ${noun}${count === 1 ? "" : "s"}`;

/** Milliseconds in words, e.g. `0.4 ms`, `38 ms`, `2.1 s`. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-CA", { dateStyle: "short", timeStyle: "medium", hour12: false });

export const time = (ms) => clock.format(ms);
export const moment = (ms) => day.format(ms);
