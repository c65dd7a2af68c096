// What pages do beyond HTML: charts, and no polling while nobody looks. Pages work without it.
"use strict";

document.addEventListener("htmx:before:request", (event) => {
  if (document.hidden && event.detail.ctx.sourceElement.hasAttribute("data-live")) event.preventDefault();
});

// "Show more" is replaced by what it loads: the focus goes to the first of that, not to the beginning of the page.
document.addEventListener("htmx:before:request", (event) => {
  const more = event.detail.ctx.sourceElement.closest(".more");
  if (!more || !more.contains(document.activeElement)) return;
  const parent = more.parentElement;
  const before = more.previousElementSibling;
  document.addEventListener("htmx:after:swap", () => {
    const first = before ? before.nextElementSibling : parent.firstElementChild;
    const target = first?.matches("[tabindex], a, button") ? first : first?.querySelector("[tabindex], a, button");
    target?.focus();
  }, { once: true });
});

// Copy buttons are hidden without a script; the texts can be selected.
async function copy(button) {
  const element = document.getElementById(button.dataset.copy);
  const text = element.href || element.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // over http a page has no clipboard
    const area = Object.assign(document.createElement("textarea"), { value: text, readOnly: true, className: "hidden" });
    button.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1500);
}
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});
document.addEventListener("DOMContentLoaded", () => {
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
});

const HEIGHT = 200;
const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ");
const compact = new Intl.NumberFormat("en", { notation: "compact" });

function drawChart(element) {
  const said = element.dataset.series;
  if (element.drawn === said) return;
  element.drawn = said;
  const data = JSON.parse(said);
  if (element.plot) return element.plot.setData(data);
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
  const numbers = { ...axis, size: 52, values: (_, values) => values.map((value) => compact.format(value)) };
  element.plot = new uPlot({
    width: element.clientWidth,
    height: HEIGHT,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { answered: { range: (_, low, high) => [0, Math.max(high, 1)] }, rate: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
    axes: [{ ...axis, space: 80, values: (_, splits) => splits.map((seconds) => clock(seconds).slice(11)) }, { ...numbers, scale: "answered" }, { ...numbers, scale: "rate", side: 1, grid: { show: false } }],
    series: [
      { label: "UTC", value: (_, seconds) => (seconds == null ? "–" : clock(seconds)) },
      { label: "answered", scale: "answered", stroke: color("--link"), fill: color("--busy-back"), width: 2, points: { show: false }, value: (_, value) => value?.toLocaleString("en") ?? "–" },
      { label: "rows/s", scale: "rate", stroke: color("--warn"), width: 1.5, points: { show: false }, value: (_, value) => value?.toLocaleString("en") ?? "–" },
    ],
  }, data, element);
  new ResizeObserver(() => element.plot.setSize({ width: element.clientWidth, height: HEIGHT })).observe(element);
}

const drawCharts = () => document.querySelectorAll(".chart").forEach(drawChart);
document.addEventListener("htmx:after:swap", drawCharts);
document.addEventListener("DOMContentLoaded", drawCharts);
