/** Fields of a form: each with its label, its hint, and what a refusal of the API says of it. */
import { ApiError } from "../lib/client.js";
import { plain } from "../lib/format.js";
import { html } from "./html.js";

/** Where a refusal points people who write requests: of no use to those who fill a form. */
const SCHEMA = /(\s*See GET \/v1\/openapi\.json|; `details\.errors` lists).*$/s;

/**
 * What a refusal says of each field, by path, with what to do about it.
 * @param {any} error
 * @returns {Record<string, string>}
 */
export function faultsOf(error) {
  if (!(error instanceof ApiError)) return {};
  const remedy = error.remedy.replace(SCHEMA, "");
  const found = error.details.errors?.[0]?.param ? error.details.errors : error.param ? [{ param: error.param, reason: error.message }] : [];
  return Object.fromEntries(found.map((/** @type {any} */ fault, /** @type {number} */ place) => [
    String(fault.param).replace(/^contract\./, ""),
    [String(fault.reason).replace(/[^.!?]$/, "$&."), place ? "" : remedy].filter(Boolean).join(" "),
  ]));
}

/**
 * A refusal as a form says it: in place of a schema it names the fields to correct.
 * @param {any} error
 * @param {(path: string) => string} labelOf the field's label in the form
 */
export function ofForm(error, labelOf) {
  if (!(error instanceof ApiError) || !SCHEMA.test(error.remedy)) return error;
  const names = Object.keys(faultsOf(error)).map((path) => plain(labelOf(path), 60));
  const own = error.remedy.replace(SCHEMA, "");
  const { code, message, requestId } = error;
  return { code, message, requestId, remedy: [own, names.length ? `Correct what is marked in the form: ${names.join(", ")}.` : ""].filter(Boolean).join(" ") };
}

/** A field with its label, its hint and what is wrong with it. @param {{path: string, label: string, hint?: any, fault?: string, children: any}} props */
export function Labelled({ path, label, hint, fault, children }) {
  return html`<div class="field ${fault ? "wrong" : ""}"><label for=${path}>${label}</label>${children}
    <small id=${`${path}-hint`}>${hint}</small>${fault && html`<p class="fault" id=${`${path}-fault`} role="alert">${plain(fault, 700)}</p>`}</div>`;
}

/** @param {string} path @param {string | undefined} fault */
export function described(path, fault) {
  return { id: path, "aria-describedby": `${path}-hint${fault ? ` ${path}-fault` : ""}`, "aria-invalid": fault ? "true" : undefined };
}

/** @param {{path: string, label: string, value: string, options: string[][], set: (value: string) => void, nothing?: string, hint?: any, fault?: string}} props `nothing`: what leaving it open means */
export function Select({ path, label, value, options, set, nothing, hint = "", fault }) {
  const isKnown = !value || options.some(([one]) => one === value);
  return Labelled({ path, label, hint, fault, children: html`<select ...${described(path, fault)} value=${value} onChange=${(/** @type {any} */ event) => set(event.target.value)}>
    ${nothing !== undefined && html`<option value="">${nothing}</option>`}${!isKnown && html`<option value=${value}>${plain(value, 80)} (not in the list)</option>`}
    ${options.map(([one, text]) => html`<option key=${one} value=${one}>${text}</option>`)}</select>` });
}

/** @param {{path: string, label: string, value: string, set: (value: string) => void, hint?: any, fault?: string, mode?: string, placeholder?: string}} props */
export function Text({ path, label, value, set, hint = "", fault, mode = "text", placeholder }) {
  return Labelled({ path, label, hint, fault, children: html`<input ...${described(path, fault)} type="text" inputmode=${mode} autocomplete="off" spellcheck="false" placeholder=${placeholder}
    value=${value} onInput=${(/** @type {any} */ event) => set(event.target.value)} />` });
}
