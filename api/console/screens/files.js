/** Uploaded files; one file's rows as a base is trained on them (`file.js`). */
import { useState } from "../vendor/preact-hooks.js";
import { address, go, to } from "../lib/address.js";
import { useObject } from "../lib/cache.js";
import { ApiError, call, missingRole } from "../lib/client.js";
import { exact, plain, size, tail } from "../lib/format.js";
import { CopyAs, asCurl, openaiClient, quoted } from "../parts/copy_as.js";
import { h, html } from "../parts/html.js";
import { useRowKeys } from "../parts/row_keys.js";
import { useIsShown } from "../parts/shown.js";
import { Empty, Failure, Loading, Stale, Time } from "../parts/state.js";
import { FileView } from "./file.js";

const PAGE = 50;
const PURPOSES = ["", "fine-tune", "evals"];

/** @param {{parts: string[]}} props */
export function Files({ parts }) {
  return parts[0] ? h(FileView, { id: parts[0] }) : h(FileList, {});
}

function FileList() {
  const { query } = address.value;
  const purpose = PURPOSES.find((known) => known === query.get("purpose")) || "";
  const after = query.get("after") || "";
  const parameters = new URLSearchParams({ limit: String(PAGE), order: "desc", ...(purpose && { purpose }), ...(after && { after }) });
  const path = `/v1/files?${parameters}`;
  const { data, error, at, failures, reload } = useObject(path);
  useRowKeys("a.name");
  return html`<div class="head"><h1>Data</h1>${h(Upload, {})}
      ${h(CopyAs, { curl: asCurl(path), python: [openaiClient(), `for file in client.files.list(limit=${PAGE}, order="desc"):`, "    print(file.id, file.filename, file.bytes)"].join("\n"), mens: `mens files list${purpose ? ` --purpose ${quoted(purpose)}` : ""}` })}</div>
    <nav class="tabs" aria-label="Purpose">${PURPOSES.map((value) => html`<a key=${value} href=${to(["files"], { purpose: value })} aria-current=${purpose === value ? "page" : undefined}>${value || "all"}</a>`)}</nav>
    ${h(Stale, { at, failures })}
    ${!data ? (error ? h(Failure, { error, retry: reload }) : h(Loading, {}))
      : !data.data.length ? h(NoFiles, { isFiltered: Boolean(purpose || after) })
      : html`<table class="list data-files ${failures >= 3 ? "old" : ""}" aria-label="Files"><thead><tr><th scope="col">Name</th><th scope="col">Size</th><th scope="col">Purpose</th><th scope="col">Uploaded</th><th scope="col">Expires</th></tr></thead>
        <tbody>${data.data.map((/** @type {any} */ file) => html`<tr key=${file.id}>
          <td><a class="name" href=${to(["files", file.id])}>${plain(file.filename, 120)}</a> <small title=${file.id}>${tail(file.id)}</small></td>
          <td class="number">${size(file.bytes)}</td><td class="purpose">${plain(file.purpose)}</td>
          <td title=${exact(file.created_at * 1000)}>${h(Time, { time: file.created_at * 1000 })}</td>
          <td class="expires">${file.expires_at ? exact(file.expires_at * 1000) : html`<span class="faint">never</span>`}</td></tr>`)}</tbody></table>
        <p class="end">${data.has_more && html`<a href=${to(["files"], { purpose, after: data.last_id })}>Older files</a>`}</p>`}`;
}

/** A file is chosen, sent and opened; its rows are checked there. */
function Upload() {
  const [state, setState] = useState(/** @type {{isBusy: boolean, error: any}} */ ({ isBusy: false, error: null }));
  const missing = missingRole("trainer");
  const isShown = useIsShown();
  /** @param {any} event */
  const send = async (event) => {
    const [file] = event.target.files;
    event.target.value = ""; // the same file may be chosen again
    if (!file) return;
    setState({ isBusy: true, error: null });
    const form = new FormData();
    form.append("purpose", "fine-tune");
    form.append("file", file);
    try {
      const stored = await call("/v1/files", { method: "POST", body: form });
      if (isShown.current) go(to(["files", stored.id]));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (isShown.current) setState({ isBusy: false, error });
    }
  };
  return html`<label class="button primary upload ${missing || state.isBusy ? "disabled" : ""}" title=${missing}>${state.isBusy ? "Uploading…" : "Upload a file"}
      <input type="file" accept=".jsonl,.json,.txt,.csv,.tsv" class="hidden" disabled=${Boolean(missing) || state.isBusy} onChange=${send} /></label>
    ${state.error && html`<div class="whole">${h(Failure, { error: state.error, what: "The file was not uploaded." })}</div>`}`;
}

/** @param {{isFiltered: boolean}} props */
function NoFiles({ isFiltered }) {
  if (isFiltered) return h(Empty, { title: "No file here", children: html`<p><a href="#/files">Show all files</a></p>` });
  return h(Empty, {
    title: "No files yet",
    children: html`<p>A training file has one row per line, in JSON, in one of these forms:</p>
      <pre tabindex="0" aria-label="Forms of a row">{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}\n{"prompt": "…", "response": "…"}</pre>
      <p>After the upload you see lines with errors, duplicates, and what a base is trained on. Nothing is trained yet.</p>`,
  });
}
