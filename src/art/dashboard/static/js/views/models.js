// All models the key sees: what they are made of, and what they serve.

import { Badge, Empty, PageHead, Resource, Table, useTitle } from "../components/index.js";
import { count, number } from "../format.js";
import { html } from "../lib.js";
import { ofAny, useResource } from "../resource.js";
import { href, setQuery } from "../router.js";

const FORKED = "forked from "; // as the server notes it

const COLUMNS = [
  { key: "name", label: "Model", render: (model) => html`<span class="of-project">${model.project}/</span>${model.name}` },
  { key: "base", label: "Base model", render: (model) => html`<span title=${model.config.base_model}>${model.config.base_model.split("/").slice(-2).join("/")}</span>` },
  { key: "from", label: "Starts from", render: (model) => html`<span title=${model.config.initial_adapter}>${origin(model)}</span>` },
  { key: "parameters", label: "Parameters", align: "right", render: (model) => number(model.parameters) },
  { key: "context", label: "Context", align: "right", render: (model) => `${count(model.context_length)} tokens` },
  { key: "step", label: "Latest", align: "right", render: (model) => html`<${Badge} kind="info">step ${model.step}<//>` },
  { key: "batch", label: "Batches", align: "right", title: "Train calls, also those that published nothing", render: (model) => count(model.batch) },
  { key: "try", label: "Try", render: (model) => html`<a href=${href("try", model, { a: model.step, b: 0 })}>Try a prompt</a>` },
];

/** What its step 0 is: another model's step that it was forked from, an adapter (`.../shop/models/agent/checkpoints/0012` is `shop/agent@12`), or nothing yet. */
function origin({ notes, config: { initial_adapter: folder } }) {
  const fork = notes.find((note) => note.startsWith(FORKED));
  if (fork) return fork.slice(FORKED.length);
  if (!folder) return "the base model";
  const found = /([^/]+)\/models\/([^/]+)\/checkpoints\/0*(\d+)\/?$/.exec(folder);
  return found ? `${found[1]}/${found[2]}@${found[3]}` : folder.split("/").slice(-2).join("/");
}

export function View({ route }) {
  useTitle("Models");
  const models = useResource("models", {}, { live: ofAny("checkpoint", "job") });
  const q = (route.query.q ?? "").toLowerCase();
  return html`<${PageHead} title="Models" actions=${html`<input type="search" data-filter aria-label="Filter models" placeholder="Filter by name ( / )" value=${route.query.q ?? ""} onInput=${(event) => setQuery({ q: event.target.value })} />`} />
    <${Resource} of=${models} what="models">${(data) => {
      const rows = data.models.filter((model) => `${model.project}/${model.name} ${model.config.base_model}`.toLowerCase().includes(q));
      if (rows.length === 0) return html`<${Empty} title=${data.models.length ? "No model has that in its name" : "No models yet"}>${data.models.length === 0 && html`<p><code>await model.register(backend)</code> makes one.</p>`}<//>`;
      return html`<${Table} label="Models" testid="models-table" columns=${COLUMNS} rows=${rows} rowKey=${(model) => model.inference_name} link=${(model) => href("checkpoints", model)} />`;
    }}<//>`;
}
