// Starts the page.

import { takeKey } from "./api.js";
import { App } from "./app.js";
import { html, render } from "./lib.js";

takeKey();
window.addEventListener("hashchange", takeKey); // before the router hears of it
const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
