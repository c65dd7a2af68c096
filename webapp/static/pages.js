// What pages do beyond HTML. They work without it.
"use strict";

// Nothing is polled while the tab is hidden, nor a part of which somebody has opened more.
document.addEventListener("htmx:before:request", (event) => {
  const source = event.detail.ctx.sourceElement;
  if (!source.hasAttribute("data-live")) {
    const rest = source.closest("#rest");
    if (rest) rest.dataset.opened = "";
  } else if (document.hidden || source.closest("[data-opened]")) event.preventDefault();
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

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
const number = (value, size) => String(value).padStart(size, "0");

function localTime(date) {
  const day = [number(date.getFullYear(), 4), number(date.getMonth() + 1, 2), number(date.getDate(), 2)].join("-");
  return `${day} ${[date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => number(part, 2)).join(":")}`;
}
const zone = (date) =>
  new Intl.DateTimeFormat(undefined, { timeZoneName: "short" }).formatToParts(date).find((part) => part.type === "timeZoneName").value;
const utc = (date) => date.toISOString().slice(0, 19).replace("T", " ") + " UTC";

// Times become the visitor's, with UTC in their titles.
function showTimes() {
  for (const element of document.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    const local = `${localTime(date)} ${zone(date)}`;
    if ("ago" in element.dataset) {
      const age = Math.max(0, (Date.now() - date) / 1000);
      const [name, size] = UNITS.find(([, size]) => age >= size) ?? ["s", 1];
      element.textContent = `${Math.floor(age / size)} ${name} ago`;
      element.title = `${local}, ${utc(date)}`;
    } else {
      element.textContent = local;
      element.title = utc(date);
    }
  }
}

const HEIGHT = 220;
const compact = new Intl.NumberFormat("en", { notation: "compact" });

function drawChart(element) {
  const said = element.dataset.series;
  if (element.drawn === said) return;
  element.drawn = said;
  const { data, deadline } = JSON.parse(said);
  element.deadline = deadline;
  const last = (plot) => plot.setLegend({ idx: plot.data[1].findLastIndex((value) => value != null) });
  // The legend names an expected course while there is one.
  const name = () => {
    const entries = element.querySelectorAll(".u-legend .u-series");
    for (const index of [4, 5]) entries[index].classList.toggle("none", data[index].every((count) => count == null));
  };
  if (element.plot) {
    element.plot.setData(data);
    name();
    return last(element.plot);
  }
  element.replaceChildren(); // what is there for visitors without scripts
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
  const numbers = { ...axis, size: 52, values: (_, values) => values.map((value) => compact.format(value)) };
  const value = (_, shown) => shown?.toLocaleString("en") ?? "–";
  const line = { points: { show: false }, value, spanGaps: false };
  // Of an expected course the legend says when it ends.
  const end = (plot, _, index) => {
    const at = plot.data[index].findIndex((count) => count === Math.max(...plot.data[index].map(Number)));
    return plot.data[index].some((count) => count != null) ? localTime(new Date(plot.data[0][at] * 1000)).slice(11) : "–";
  };
  const expected = { ...line, value: end, scale: "answered", stroke: color("--soft"), width: 1 };
  element.plot = new uPlot({
    width: element.clientWidth,
    height: HEIGHT,
    scales: {
      x: { range: (_, low, high) => [low, Math.max(high, element.deadline ?? high) + 0.01 * (high - low)] },
      answered: { range: (_, low, high) => [0, Math.max(high, 1)] },
      rate: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] },
    },
    axes: [
      { ...axis, space: 80, values: (_, splits) => splits.map((seconds) => localTime(new Date(seconds * 1000)).slice(11)) },
      { ...numbers, scale: "answered" },
      { ...numbers, scale: "rate", side: 1, grid: { show: false } },
    ],
    series: [
      { label: zone(new Date()), value: (_, seconds) => (seconds == null ? "–" : localTime(new Date(seconds * 1000))) },
      { ...line, label: "answered", scale: "answered", stroke: color("--link"), fill: color("--busy-back"), width: 2 },
      { ...line, label: "failed", scale: "answered", stroke: color("--bad"), width: 2 },
      { ...line, label: "rows/s", scale: "rate", stroke: color("--warn"), width: 1.5 },
      { ...expected, label: "earliest end", dash: [2, 3] },
      { ...expected, label: "latest end", dash: [7, 3] },
    ],
    bands: [{ series: [4, 5], fill: color("--plain-back") }],
    hooks: {
      setCursor: [(plot) => plot.cursor.idx == null && last(plot)], // the mouse is elsewhere: the latest values
      draw: [
        (plot) => {
          if (element.deadline == null) return;
          const x = Math.round(plot.valToPos(element.deadline, "x", true));
          plot.ctx.save();
          plot.ctx.strokeStyle = color("--bad");
          plot.ctx.lineWidth = devicePixelRatio;
          plot.ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
          plot.ctx.beginPath();
          plot.ctx.moveTo(x, plot.bbox.top);
          plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
          plot.ctx.stroke();
          plot.ctx.restore();
        },
      ],
      ready: [last],
    },
  }, data, element);
  name();
  new ResizeObserver(() => element.plot.setSize({ width: element.clientWidth, height: HEIGHT })).observe(element);
}

function show() {
  showTimes();
  document.querySelectorAll(".chart").forEach(drawChart);
}
document.addEventListener("htmx:after:swap", show);
document.addEventListener("DOMContentLoaded", show);
setInterval(() => document.hidden || showTimes(), 20000);

// A list's URL names only the filters that are set.
document.addEventListener("submit", (event) => {
  if (event.target.id !== "filter") return;
  for (const field of event.target.elements) if (!field.value) field.disabled = true;
});
addEventListener("pageshow", () => document.querySelectorAll("#filter :disabled").forEach((field) => (field.disabled = false)));
