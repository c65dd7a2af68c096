// /new beyond HTML: dropping a file anywhere on the form, a preview of no more than its beginning, and how far it is sent.
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
    // One byte more than is looked at, so that the server sees that there is more.
    if (file.size) body.set("file", file.slice(0, Number(form().dataset.headBytes) + 1), file.name);
    else body.delete("file");
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
          event.loaded < event.total ? `Sent ${Math.floor((100 * event.loaded) / event.total)} %` : "Sent; being read";
      };
      request.onload = () => resolve(request);
      request.onerror = () => reject(new Error("The file was not sent: the connection broke off. Try again."));
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
    place("#file").files = chosen;
    document.getElementById("file-lost")?.remove();
    htmx.process(form());
    document.querySelector(".problem")?.scrollIntoView();
  }

  addEventListener("pageshow", () => {
    if (place("button.main")) place("button.main").disabled = false;
  });
});
