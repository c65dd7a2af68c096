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
const zone = (date) =>
  new Intl.DateTimeFormat(undefined, { timeZoneName: "short" }).formatToParts(date).find((part) => part.type === "timeZoneName").value;
const utc = (date) => date.toISOString().slice(0, 19).replace("T", " ") + " UTC";

// Times become the visitor's, with UTC in their titles.
function showTimes() {
  for (const element of document.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    const local = `${date.toLocaleString("sv")} ${zone(date)}`; // as 2026-11-28 22:02:20
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

document.addEventListener("htmx:after:swap", showTimes);
document.addEventListener("DOMContentLoaded", showTimes);
setInterval(() => document.hidden || showTimes(), 20000);

// A list's URL names only the filters that are set.
document.addEventListener("submit", (event) => {
  if (event.target.id !== "filter") return;
  for (const field of event.target.elements) if (!field.value) field.disabled = true;
});
addEventListener("pageshow", () => document.querySelectorAll("#filter :disabled").forEach((field) => (field.disabled = false)));
