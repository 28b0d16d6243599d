// Charts by uPlot, in the colours of the page, as wide as their place.
import uPlot from "/static/vendor/uplot/uPlot.esm.js";
import { el, time } from "/static/dom.js";

const SERIES = [
  ["#1f5fbf", "#6aa9f7"],
  ["#b3590a", "#f2a65a"],
  ["#17693b", "#7fd6a2"],
  ["#8a2d8f", "#d99ade"],
  ["#ab1d2b", "#ff9ba3"],
  ["#4a5563", "#b4c0cd"],
];
const dark = matchMedia("(prefers-color-scheme: dark)");

export { uPlot };

export const colour = (position) => SERIES[position % SERIES.length][dark.matches ? 1 : 0];

export function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A range of time that is a minute long at least. */
export const lately = (_, first, last) => [Math.min(first ?? 0, (last ?? 0) - 60), last ?? 0];

/** Axis options in the page's colours. */
export function axis(more = {}) {
  return {
    stroke: () => ink("--soft"),
    grid: { stroke: () => ink("--line"), width: 1 },
    ticks: { stroke: () => ink("--line"), width: 1 },
    ...more,
  };
}

/** An axis of times, and the series that belongs to it: in 24 hours, wherever the reader is. */
export const clock = () => axis({ space: 72, values: (_, splits) => splits.map((at) => time(at * 1000)) });
export const moments = { label: "Time", value: (_, at) => (at === null ? "–" : time(at * 1000)) };

/**
 * A chart in a figure with its words for those who don't see it. `options` and `data` are uPlot's. Returns
 * `{node, set}`.
 */
export function chart(words, options, data, height = 180) {
  const place = el("div", { class: "chart", role: "img", "aria-label": words });
  let plot = null;
  const make = () => {
    plot?.destroy();
    plot = new uPlot({ ...options(), width: Math.max(200, place.clientWidth || 600), height }, data, place);
  };
  const watch = new ResizeObserver(() => {
    if (!place.clientWidth) return;
    if (plot === null) make();
    else if (Math.abs(plot.width - place.clientWidth) > 1) plot.setSize({ width: place.clientWidth, height });
  });
  watch.observe(place);
  dark.addEventListener("change", () => plot && make());
  return {
    node: place,
    set(changed, said = null) {
      data = changed;
      plot?.setData(changed);
      if (said !== null && place.getAttribute("aria-label") !== said) place.setAttribute("aria-label", said);
    },
    /** Other options: drawn anew. */
    remake(changed) {
      data = changed;
      if (plot) make();
    },
  };
}
