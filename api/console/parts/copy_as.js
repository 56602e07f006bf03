/** "Copy as": the same request for curl, Python and `mens`, with `$MENS_API_KEY` in place of a key. */
import { useRef, useState } from "../vendor/preact-hooks.js";
import { h, html } from "./html.js";

/** @param {{text: string, name?: string}} props */
export function CopyButton({ text, name = "Copy" }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button type="button" class="small" onClick=${copy}>${isDone ? "Copied" : name}</button>`;
}

/** One word for a shell. Signs that would steer a terminal are left out. @param {string} text */
export function quoted(text) {
  const shown = text.replace(/[\0-\x08\x0b-\x1f\x7f-\x9f]/g, "");
  return /^[\w@%+:,./-][\w@%+=:,./-]*$/.test(shown) ? shown : `'${shown.replaceAll("'", `'\\''`)}'`;
}

/**
 * A call as curl: a GET, or with a body that is sent as JSON.
 * @param {string} path
 * @param {{method?: string, json?: unknown}} [options]
 */
export function asCurl(path, { method = "POST", json } = {}) {
  const call = `-H "Authorization: Bearer $MENS_API_KEY" ${quoted(location.origin + path)}`;
  if (json === undefined) return `curl ${call}`;
  return `curl ${method === "POST" ? "" : `-X ${method} `}${call} -H "Content-Type: application/json" \\\n  -d ${quoted(JSON.stringify(json))}`;
}

/**
 * Python with httpx, for routes that OpenAI's client does not have.
 * @param {string | string[]} paths several are read one after the other
 * @param {{method?: string, json?: unknown}} [options]
 */
export function asHttpx(paths, { method = "POST", json } = {}) {
  const sent = json === undefined ? "" : `, json=${literal(json)}`;
  const verb = json === undefined ? "get" : method.toLowerCase();
  return [
    "import os",
    "import httpx",
    "",
    `mens = httpx.Client(base_url=${JSON.stringify(location.origin)}, headers={"Authorization": f"Bearer {os.environ['MENS_API_KEY']}"})`,
    ...[paths].flat().map((path) => `print(mens.${verb}(${JSON.stringify(path)}${sent}).raise_for_status().json())`),
  ].join("\n");
}

/**
 * A value of JSON as Python writes it.
 * @param {unknown} value
 * @returns {string}
 */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, part]) => `${JSON.stringify(key)}: ${literal(part)}`).join(", ")}}`;
  return JSON.stringify(value);
}

/** The beginning of a program with OpenAI's client. */
export function openaiClient() {
  return [
    "import os",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${location.origin}/v1`)}, api_key=os.environ["MENS_API_KEY"])`,
  ].join("\n");
}

/** @param {{curl: string, python: string, mens?: string, name?: string}} props `mens`: none if no command does it */
export function CopyAs({ curl, python, mens, name = "Copy as…" }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [isOpen, setOpen] = useState(false);
  const open = () => {
    setOpen(true);
    dialog.current?.showModal();
  };
  return html`<button type="button" onClick=${open}>${name}</button>
    <dialog ref=${dialog} aria-label="Copy as" onClose=${() => setOpen(false)}>
      ${isOpen && html`<header><h2>The same elsewhere</h2><button type="button" class="small" onClick=${() => dialog.current?.close()}>Close</button></header>
      <p class="faint">Set <code>MENS_API_KEY</code> to a key of yours; the page never shows one.</p>
      ${[["mens", mens || ""], ["curl", curl], ["Python", python]].filter(([, text]) => text).map(([title, text]) => html`<section key=${title} class="code">
        <header><h3>${title}</h3>${h(CopyButton, { text })}</header><pre tabindex="0" aria-label=${title}>${text}</pre></section>`)}`}
    </dialog>`;
}
