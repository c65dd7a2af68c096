// /models/<name>/try beyond HTML: the answer as it comes, how fast that is, a button that stops it, and Ctrl+Enter.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("try");
  const [answer, send, stop] = ["answer", "send", "stop"].map((id) => document.getElementById(id));
  let running = null;

  const element = (name, attributes) => Object.assign(document.createElement(name), attributes);
  const seconds = (value) => (value < 1 ? `${Math.round(1000 * value)} ms` : `${value.toFixed(1)} s`);

  function problem(message) {
    const shown = element("p", { className: "problem", role: "alert" });
    shown.append(element("bdi", { textContent: message }));
    answer.append(shown);
  }

  // What a response without a stream says: an error of the API, or the page of somebody who has to sign in again.
  async function refusal(response) {
    if (!response.headers.get("Content-Type")?.startsWith("application/json")) return "This page is out of date; reload it.";
    return (await response.json()).error?.message ?? `The server answered ${response.status}.`;
  }

  // The data of each event, as server-sent events have them; comments are passed over.
  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      const parts = (rest + (value ?? "")).split(/\r?\n\r?\n/);
      rest = done ? "" : parts.pop();
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
        if (data) yield data === "[DONE]" ? { done: true } : JSON.parse(data);
      }
      if (done) return;
    }
  }

  async function ask() {
    running = new AbortController();
    const text = element("pre", { className: "text", dir: "auto", tabIndex: 0, role: "group", ariaLabel: "answer", ariaLive: "off" });
    const note = element("p", { className: "note", textContent: "Sent.", role: "status" });
    answer.replaceChildren(text, note);
    send.disabled = true;
    stop.hidden = false;
    const began = performance.now();
    const since = (at) => (performance.now() - at) / 1000;
    let first = null, last = null, pieces = 0, tokens = null, reason = null, whole = false, stopped = false, failed = false;
    const says = () => {
      const parts = [];
      const wait = Math.floor(since(began));
      if (first === null && running) parts.push(wait < 2 ? "Sent." : `Waiting ${wait} s for the first token. A model without a running engine starts one first.`);
      if (first !== null) parts.push(`first token after ${seconds((first - began) / 1000)}`);
      if (tokens !== null) parts.push(`${tokens.toLocaleString("en")} tokens in ${seconds(since(began))}`);
      else if (pieces) parts.push(`${pieces.toLocaleString("en")} pieces so far`);
      const number = tokens ?? pieces;
      const what = tokens === null ? "pieces" : "tokens";
      // Of an answer that came in few pieces nobody knows when each token was there.
      if (pieces > 4 && last > first) parts.push(`${((1000 * (number - 1)) / (last - first)).toFixed(1)} ${what} a second after the first`);
      else if (tokens !== null) parts.push(`${(tokens / since(began)).toFixed(1)} ${what} a second overall`);
      if (reason === "length") parts.push("cut at max tokens");
      if (stopped) parts.push("stopped");
      note.textContent = parts.join(", ");
    };
    const clock = setInterval(says, 1000);
    try {
      const response = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)), headers: { Accept: "text/event-stream" }, signal: running.signal });
      if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) throw new Error(await refusal(response));
      for await (const event of events(response.body)) {
        if (event.error) throw new Error(event.error.message);
        const choice = event.choices?.[0];
        const piece = choice?.delta?.content ?? choice?.delta?.reasoning_content ?? choice?.text;
        if (piece) {
          last = performance.now();
          first ??= last;
          pieces += 1;
          text.append(piece);
        }
        reason = choice?.finish_reason ?? reason;
        whole ||= Boolean(event.done || reason);
        tokens = event.usage?.completion_tokens ?? tokens;
        says();
      }
      if (!whole) throw new Error("The connection was closed before the answer was complete.");
    } catch (error) {
      stopped = running.signal.aborted;
      failed = !stopped;
      if (failed) problem(error instanceof TypeError ? "The server does not answer." : error.message);
    } finally {
      running = null;
      clearInterval(clock);
      send.disabled = false;
      stop.hidden = true;
      says();
      if (!text.textContent) text.remove();
      if (failed && !pieces) note.remove();
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) ask();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  stop.addEventListener("click", () => running?.abort());
});
