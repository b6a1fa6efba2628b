// Starts the page.

import { takeKey } from "./api.js";
import { App } from "./app.js";
import { html, render } from "./lib.js";

takeKey();
const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
