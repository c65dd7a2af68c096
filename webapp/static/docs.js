// The key stays in this tab until it is closed, so that loading the page again does not ask for it again.
"use strict";
const place = document.getElementById("swagger-ui");
const STORED = "batchyard key";

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

const ui = SwaggerUIBundle({
  url: place.dataset.document,
  domNode: place,
  presets: [SwaggerUIBundle.presets.apis],
  persistAuthorization: false,
  onComplete: () => {
    const key = sessionStorage.getItem(STORED);
    if (key) ui.preauthorizeApiKey("key", key);
    ui.getStore().subscribe(() => {
      const value = ui.authSelectors.authorized().getIn(["key", "value"]);
      if (value) sessionStorage.setItem(STORED, value);
      else sessionStorage.removeItem(STORED);
    });
  },
});
