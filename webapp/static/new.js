// /new and /new/job/… beyond HTML: dropping a file anywhere on the form, a preview of no more than the beginning of a text,
// how far a file is sent, names that are inserted by a click, and Ctrl+Enter.
const TEXT = /\.(txt|prompts|csv|tsv|jsonl|ndjson|log)$/i;
const MOST = 16 * 2 ** 20; // of a file that cannot be read from its beginning alone
document.addEventListener("DOMContentLoaded", () => {
  const place = (name) => document.querySelector(`#new ${name}`);
  const form = () => document.getElementById("new");

  document.addEventListener("dragover", (event) => {
    if (place("#file") && event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    if (!place("#file") || !event.dataTransfer.files.length) return;
    event.preventDefault();
    place("#file").files = event.dataTransfer.files;
    place("#file").dispatchEvent(new Event("change", { bubbles: true }));
  });

  document.addEventListener("htmx:config:request", (event) => {
    const body = event.detail.ctx.request.body;
    const file = body.get("file");
    if (!(file instanceof File)) return;
    body.set("file_bytes", file.size);
    if (!file.size) body.delete("file");
    // One byte more than is looked at, so that the server sees that there is more.
    else if (TEXT.test(file.name)) body.set("file", file.slice(0, Number(form().dataset.headBytes) + 1), file.name);
    else if (file.size > MOST) {
      event.preventDefault();
      place("#shown").textContent = "No preview: this file is checked when you submit it.";
    }
  });

  // Only the models of the chosen task are offered.
  function offerModels() {
    const model = place("#model");
    for (const option of model?.querySelectorAll("[data-tasks]") ?? []) {
      option.hidden = option.disabled = !option.dataset.tasks.split(" ").includes(place("#endpoint").value);
    }
    if (model?.selectedOptions[0]?.disabled) model.value = model.querySelector(":enabled")?.value;
  }
  document.addEventListener("change", (event) => event.target.id === "endpoint" && offerModels());
  offerModels();

  // The names of columns, models and the like become buttons that insert them where the cursor is.
  function showChips() {
    for (const list of document.querySelectorAll("#new [data-into]")) {
      for (const name of list.querySelectorAll("code")) {
        const button = Object.assign(document.createElement("button"), { type: "button", className: "chip", textContent: name.textContent });
        button.tabIndex = list.querySelector(".chip") ? -1 : 0; // one stop for all; the arrow keys lead to the others
        name.replaceWith(button);
      }
      if (list.dataset.place) document.getElementById(list.dataset.place)?.replaceChildren(list);
    }
  }
  document.addEventListener("htmx:after:swap", () => {
    if (!place("#shown [data-place]")) place("#columns")?.replaceChildren();
    showChips();
  });
  showChips();
  document.addEventListener("click", (event) => {
    const chip = event.target.closest("#new .chip");
    if (!chip) return;
    const list = chip.closest("[data-into]");
    const field = document.getElementById(list.dataset.into);
    const name = chip.textContent;
    const braces = "braces" in list.dataset;
    const text = braces ? `{${name}}` : name;
    const before = field.value.slice(0, field.selectionStart);
    const apart = !before || /\s$/.test(before) ? "" : braces ? " " : "\n";
    field.setRangeText(apart + text, field.selectionStart, field.selectionEnd, "end");
    field.focus();
    field.dispatchEvent(new Event("input", { bubbles: true }));
  });
  document.addEventListener("keydown", (event) => {
    const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    if (step && event.target.matches?.(".chip")) event.target[step]?.focus();
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.closest?.("#new")) return;
    event.preventDefault();
    form().requestSubmit(place("button.main"));
  });

  document.addEventListener("submit", (event) => {
    const file = place("#file")?.files[0];
    const button = place("button.main");
    if (event.target !== form() || event.submitter !== button) return;
    if (button.disabled) return event.preventDefault();
    button.disabled = true;
    if (!file) return;
    event.preventDefault();
    send(file).then(
      (answer) => show(answer),
      (reason) => say(reason.message),
    );
  });

  function say(text) {
    place("#upload").hidden = false;
    place("#upload [role=status]").textContent = text;
    place("button.main").disabled = false;
  }

  function send(file) {
    return new Promise((resolve, reject) => {
      const most = Number(form().dataset.maxBytes);
      if (file.size > most) return reject(new Error(`The file is larger than ${most} bytes; split it.`));
      const request = new XMLHttpRequest();
      request.upload.onprogress = (event) => {
        place("#upload").hidden = false;
        place("#upload progress").value = event.loaded / event.total;
        place("#upload [role=status]").textContent =
          event.loaded < event.total ? `Sent ${Math.floor((100 * event.loaded) / event.total)} %` : "Sent; processing";
      };
      request.onload = () => resolve(request);
      request.onerror = () => reject(new Error("The file was not sent: the connection broke. Try again."));
      request.open("POST", form().action);
      request.send(new FormData(form()));
    });
  }

  // Either the batch's page, to go to, or the form again with what is wrong; the chosen file stays.
  function show(request) {
    if (request.status < 400) return location.assign(request.responseURL);
    const answer = new DOMParser().parseFromString(request.responseText, "text/html");
    if (!answer.getElementById("new")) return say(answer.querySelector(".lead")?.textContent ?? `Status ${request.status}`);
    const chosen = place("#file").files;
    document.querySelector("main").replaceWith(answer.querySelector("main"));
    offerModels();
    showChips();
    place("#file").files = chosen;
    document.getElementById("file-lost")?.remove();
    htmx.process(form());
    document.querySelector(".problem")?.scrollIntoView();
  }

  addEventListener("pageshow", () => {
    if (place("button.main")) place("button.main").disabled = false;
  });
});
