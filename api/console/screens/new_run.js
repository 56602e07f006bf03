/** A new run: its contract as a form, and beside it the plan that the API would make of it. Nothing is written before it is submitted. */
import { useEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
import { address, change, go, to } from "../lib/address.js";
import { useObject } from "../lib/cache.js";
import { ApiError, call, missingRole } from "../lib/client.js";
import { BASE, FILE, FORM, MAIN, MORE, NAMES, REPLAY, bodyOf, fileNameOf, fileOf, isField, optionsOf, parametersOfFile, parametersOfJob } from "../lib/contract.js";
import { plain, size, tail, whole } from "../lib/format.js";
import { CopyAs, asCurl, asHttpx, quoted } from "../parts/copy_as.js";
import { Labelled, described, faultsOf, ofForm } from "../parts/fields.js";
import { h, html } from "../parts/html.js";
import { Decisions, Forecast, whoOf } from "../parts/plan.js";
import { isInDialog } from "../parts/row_keys.js";
import { useIsShown } from "../parts/shown.js";
import { Empty, Failure, Loading } from "../parts/state.js";

const PAUSE = 400;

/**
 * The plan of a body, 400 ms after it last changed; the answer before is forgotten.
 * @param {any} body
 * @param {boolean} isWanted
 */
function usePlan(body, isWanted) {
  const [planned, setPlanned] = useState(/** @type {{of: string, plan: any, error: any}} */ ({ of: "", plan: null, error: null }));
  const [again, setAgain] = useState(0);
  const text = JSON.stringify(body);
  useEffect(() => {
    if (!isWanted) return;
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const plan = await call("/v1/plans", { method: "POST", json: body, signal: abort.signal });
        setPlanned({ of: text, plan, error: null });
      } catch (error) {
        if (abort.signal.aborted) return;
        if (!(error instanceof ApiError)) throw error;
        setPlanned((old) => ({ of: text, plan: error.status ? null : old.plan, error }));
      }
    }, PAUSE);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text, isWanted, again]);
  return { ...planned, isCurrent: planned.of === text, retry: () => setAgain(again + 1) };
}

export function NewRun() {
  const { query } = address.value;
  const from = query.get("from");
  const missing = missingRole("trainer");
  const models = useObject("/v1/models");
  const files = useObject("/v1/files?purpose=fine-tune&limit=100&order=desc");
  const body = useMemo(() => bodyOf(query), [query]);
  const bases = (models.data?.data || []).filter((/** @type {any} */ one) => one.mens?.kind === "base");
  const isReady = !missing && !from && !!body.contract.data?.train_file;
  const planned = usePlan(body, isReady);
  const start = useStart(from);
  if (!models.data || !files.data) {
    const failed = [models, files].find((one) => one.error);
    return failed ? h(Failure, { error: failed.error, retry: failed.reload }) : h(Loading, {});
  }
  if (from) return start.error ? h(Failure, { error: start.error, retry: start.retry, what: start.error.status === 404 ? "Job not found." : undefined }) : h(Loading, {});
  if (!bases.length) return h(Empty, { title: "There is no base model yet", children: html`<p>An admin of the machine adds one:</p><pre tabindex="0" aria-label="command">mens base add smollm2-135m</pre>` });
  const faults = planned.isCurrent ? faultsOf(planned.error) : {};
  const props = { query, plan: planned.plan, faults, missing };
  return html`<p class="crumbs"><a href="#/jobs">Jobs</a></p>
    <div class="head"><h1>New run</h1>${h(Contract, { body })}${h(CopyAs, copies(body, files.data.data))}</div>
    ${missing && html`<p class="notice" role="status">Training ${missing}. You can look at the form and copy it.</p>`}
    <div class="new-run">
      <form class="stack" aria-label="New run" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
        <section class="card stack" aria-label="Model and data"><h2>Model and data</h2>
          ${h(Choice, { ...props, path: BASE, label: "Base", options: bases.map((/** @type {any} */ one) => [one.id, `${plain(one.id, 60)}${one.mens.serves_adapters === false ? " (no replica serves its adapters)" : ""}`]), nothing: "the only base that is served" })}
          ${h(File, { ...props, files: files.data.data, reload: files.reload })}
          ${NAMES.map((field) => h(Input, { key: field.path, ...props, field }))}</section>
        <section class="card stack" aria-label="Settings"><h2>Settings</h2><p class="faint">Leave a field empty, and Mens decides it from base and rows, as <code>mens train</code> does.</p>
          <div class="fields">${MAIN.map((field) => h(Input, { key: field.path, ...props, field }))}</div>
          <details open=${[REPLAY, ...MORE.map((field) => field.path)].some((path) => query.get(path) || faults[path])}><summary>More settings</summary><div class="fields">${MORE.map((field) => h(Input, { key: field.path, ...props, field }))}</div>
            ${h(Choice, { ...props, path: REPLAY, label: "Replay file", options: namesOf(files.data.data), nothing: "none", hint: "its rows are mixed into each epoch, so that the base keeps its other skills" })}</details>
          ${h(Others, { query, faults })}</section>
        ${h(Submit, { body, planned, missing, isReady })}
      </form>
      <div class="stack">${h(Planned, { planned, isReady, missing, file: query.get(FILE) || "" })}</div>
    </div>`;
}

/**
 * "Again, with changes": the values that somebody chose for a job become the address.
 * @param {string | null} from
 */
function useStart(from) {
  const path = `/v1/jobs/${encodeURIComponent(from || "")}`;
  const job = useObject(from ? path : null);
  const preflight = useObject(from ? `${path}/preflight` : null);
  const isUnknown = preflight.error?.status === 404; // nothing is kept of it: its names are taken
  useEffect(() => {
    if (!from || !job.data || !(preflight.data || isUnknown)) return;
    change({ from: "", ...parametersOfJob(job.data, preflight.data?.sources || {}) }, { replace: true });
  }, [from, job.data, preflight.data, isUnknown]);
  const failed = [job, preflight].find((one) => one.error && !one.data && !(one === preflight && isUnknown));
  return { error: failed?.error, retry: failed?.reload };
}

/** @typedef {{query: URLSearchParams, plan: any, faults: Record<string, string>, missing: string}} Shared */

/** @param {Shared & {field: import("../lib/contract.js").Field}} props */
function Input({ query, plan, faults, missing, field }) {
  const { path, label, hint, choices } = field;
  const value = query.get(path) || "";
  const decided = plan ? plan.plan.contract[path.split(".")[0]]?.[path.split(".")[1]] : undefined;
  const shown = path === "name" ? plan?.plan.adapter_name : decided;
  const said = shown === undefined || shown === null ? "" : String(choices?.find(([one]) => one === String(shown))?.[1] ?? shown);
  const source = plan?.sources[path];
  const set = (/** @type {any} */ event) => change({ [path]: event.target.value }, { replace: true });
  const about = [hint, said && !value && source ? (source === "default" ? "the default" : `decided by ${whoOf(source)}`) : ""].filter(Boolean).join("; ");
  if (choices) return h(Choice, { query, plan, faults, missing, path, label, options: choices, nothing: said || "Mens decides", hint: about });
  return h(Labelled, { path, label, hint: about, fault: faults[path], children: html`<input ...${described(path, faults[path])} type="text" inputmode=${field.isText ? "text" : "decimal"}
    autocomplete="off" spellcheck="false" value=${value} placeholder=${plain(said, 60)} disabled=${!!missing} onInput=${set} />` });
}

/** @param {Shared & {path: string, label: string, options: [string, string][], nothing: string, hint?: string}} props */
function Choice({ query, faults, missing, path, label, options, nothing, hint = "" }) {
  const value = query.get(path) || "";
  const isKnown = !value || options.some(([one]) => one === value);
  return h(Labelled, { path, label, hint, fault: faults[path], children: html`<select ...${described(path, faults[path])} value=${value} disabled=${!!missing}
    onChange=${(/** @type {any} */ event) => change({ [path]: event.target.value }, { replace: true })}>
    <option value="">${nothing}</option>${!isKnown && html`<option value=${value}>${plain(value, 80)} (not in the list)</option>`}
    ${options.map(([one, text]) => html`<option key=${one} value=${one}>${text}</option>`)}</select>` });
}

/** The label of a field; one without a field of its own has its path. @param {string} path */
function labelOf(path) {
  return { [BASE]: "Base", [FILE]: "Training file", [REPLAY]: "Replay file" }[path] || FORM.find((field) => field.path === path)?.label || path;
}

/** Files to choose from. @param {any[]} files */
function namesOf(files) {
  return files.map((file) => /** @type {[string, string]} */ ([file.id, `${plain(file.filename, 60)}, ${size(file.bytes)}, ${tail(file.id)}`]));
}

/** The training file: one that is there, or one that is sent now. @param {Shared & {files: any[], reload: () => void}} props */
function File({ files, reload, ...props }) {
  const [sending, setSending] = useState("");
  const [error, setError] = useState(/** @type {any} */ (null));
  const options = namesOf(files);
  const isShown = useIsShown();
  /** @param {any} event */
  const send = async (event) => {
    const file = event.target.files?.[0];
    event.target.value = ""; // the same file may be chosen again
    if (!file) return;
    setSending(file.name);
    setError(null);
    const form = new FormData();
    form.append("purpose", "fine-tune");
    form.append("file", file, file.name);
    try {
      const stored = await call("/v1/files", { method: "POST", body: form });
      if (!isShown.current) return;
      reload();
      change({ [FILE]: stored.id }, { replace: true });
    } catch (refusal) {
      if (!(refusal instanceof ApiError)) throw refusal;
      if (isShown.current) setError(refusal);
    }
    setSending("");
  };
  return html`<div class="stack">${h(Choice, { ...props, path: FILE, label: "Training file", options, nothing: files.length ? "choose a file" : "no file yet: send one" })}
    <div class="field"><label for="new-file">or send a JSONL file</label>
      <input id="new-file" type="file" accept=".jsonl,.json,.txt" disabled=${!!props.missing || !!sending} onChange=${(/** @type {any} */ event) => void send(event)} />
      <small role="status">${sending ? `Sending ${plain(sending, 80)}…` : ""}</small>${error && h(Failure, { error, what: "Not stored" })}</div></div>`;
}

/** Values of a contract for which the form has no field. @param {{query: URLSearchParams, faults: Record<string, string>}} props */
function Others({ query, faults }) {
  const others = [...new Set(query.keys())].filter((path) => isField(path) && ![BASE, FILE, REPLAY].includes(path) && !FORM.some((field) => field.path === path));
  if (!others.length) return null;
  return html`<div class="filters" role="group" aria-label="Values without a field">${others.map((path) => html`<button key=${path} type="button" class="chip" onClick=${() => change({ [path]: "" }, { replace: true })}
    aria-label="Remove ${plain(path)}">${plain(path, 60)}: <b>${plain(query.get(path), 60)}</b> <span aria-hidden="true">×</span></button>${faults[path] && html`<p class="fault" role="alert">${plain(faults[path], 500)}</p>`}`)}</div>`;
}

/** The form as a contract's file, and back. @param {{body: any}} props */
function Contract({ body }) {
  const [fault, setFault] = useState("");
  const picker = useRef(/** @type {HTMLInputElement | null} */ (null));
  const isShown = useIsShown();
  const download = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([fileOf(body)], { type: "application/json" }));
    link.download = fileNameOf(body);
    link.click();
    URL.revokeObjectURL(link.href);
  };
  /** @param {any} event */
  const read = async (event) => {
    const file = event.target.files?.[0];
    event.target.value = "";
    if (!file) return;
    try {
      const parameters = parametersOfFile(await file.text());
      if (!isShown.current) return;
      setFault("");
      go(to(["new"], parameters));
    } catch {
      setFault(`${plain(file.name, 80)} is not a contract in JSON.`);
    }
  };
  return html`${fault && html`<span class="fault" role="alert">${fault}</span>`}
    <button type="button" onClick=${download}>Download contract</button>
    <button type="button" onClick=${() => picker.current?.click()}>Read contract…</button>
    <input ref=${picker} type="file" accept=".json" aria-label="Contract file" hidden onChange=${(/** @type {any} */ event) => void read(event)} />`;
}

/** @param {{planned: ReturnType<typeof usePlan>, isReady: boolean, missing: string, file: string}} props */
function Planned({ planned, isReady, missing, file }) {
  const { plan, error, isCurrent } = planned;
  if (missing) return h(Empty, { title: "The plan", children: html`<p>Planning ${missing}.</p>` });
  if (!isReady) return h(Empty, { title: "The plan", children: html`<p>Choose a training file: what the run will need appears here, before anything is spent.</p>` });
  const lines = error?.details.errors?.filter((/** @type {any} */ fault) => fault.line) || [];
  const fit = plan ? fitOf(plan.preflight.estimate) : null;
  return html`<p class="hidden" role="status">${isCurrent ? (error ? "This cannot run." : "The plan is ready.") : "Planning."}</p>
    ${isCurrent && error && html`<div class="stack">${h(Failure, { error: ofForm(error, labelOf), what: "This cannot run", retry: error.retryable ? planned.retry : undefined })}
      ${lines.length > 0 && html`<div class="list" tabindex="0" role="group" aria-label="Bad lines"><table><thead><tr><th scope="col">Line</th><th scope="col">Reason</th></tr></thead><tbody>
        ${lines.slice(0, 20).map((/** @type {any} */ fault) => html`<tr key=${fault.line}><td class="number"><a href=${to(["files", file], { line: fault.line })}>${whole(fault.line)}</a></td><td>${plain(fault.reason, 300)}</td></tr>`)}</tbody></table></div>`}</div>`}
    ${plan ? html`<div class="stack ${isCurrent && !error ? "" : "old"}">
      ${fit && html`<p class=${fit.isPossible ? "good" : "notice"}>${fit.text}</p>`}
      ${h(Forecast, { preflight: plan.preflight, validationRows: plan.plan.validation_rows, title: "If it runs" })}
      <section class="stack" aria-label="Decisions"><h2>Every decision</h2>${h(Decisions, { contract: plan.plan.contract, sources: plan.sources })}</section></div>`
      : !error && h(Loading, { rows: 3 })}`;
}

/**
 * Whether a run fits its machine.
 * @param {any} estimate
 */
function fitOf(estimate) {
  if (estimate.fits) return { isPossible: true, text: `✓ It fits: ${size(estimate.vram_bytes)} of ${size(estimate.vram_budget)}.` };
  if (estimate.fits === null || estimate.fits === undefined) return { isPossible: true, text: "No worker has reported its memory, so whether it fits is not known." };
  const near = estimate.nearest_fit;
  if (near && !near.changes_result) return { isPossible: true, text: `✓ It fits in smaller steps, with the same result. ${plain(near.advice, 500)}` };
  return { isPossible: false, text: `✕ It does not fit. ${plain(near?.advice, 500)}` };
}

/** @param {{body: any, planned: ReturnType<typeof usePlan>, missing: string, isReady: boolean}} props */
function Submit({ body, planned, missing, isReady }) {
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isBusy, setBusy] = useState(false);
  const isShown = useIsShown();
  const text = JSON.stringify(body);
  // One key for one form: a second press is the same job, whatever became of the first.
  const key = useMemo(() => crypto.randomUUID(), [text]);
  useEffect(() => setError(null), [text]);
  const isPossible = planned.isCurrent && planned.plan && !planned.error && fitOf(planned.plan.preflight.estimate).isPossible;
  const reason = missing || (!isReady ? "choose a training file first" : !planned.isCurrent ? "the plan is being made" : isPossible ? "" : planned.error ? "correct what is marked first" : "the plan does not fit");
  const submit = async () => {
    if (reason || isBusy) return;
    setBusy(true);
    try {
      const job = await call("/v1/jobs", { method: "POST", json: body, headers: { "Idempotency-Key": key } });
      if (isShown.current) go(to(["runs", job.id]));
    } catch (refusal) {
      if (!(refusal instanceof ApiError)) throw refusal;
      setError(refusal);
      setBusy(false);
    }
  };
  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const keys = (event) => void (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !isInDialog() && submit());
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  });
  return html`<div class="submit">${error && h(Failure, { error: ofForm(error, labelOf), what: "Not submitted" })}
    <button type="button" class="primary" disabled=${!!reason || isBusy} title=${reason} aria-describedby="submit-reason" onClick=${() => void submit()}>Start training <kbd class="on">Ctrl Enter</kbd></button>
    <span class="faint" id="submit-reason">${reason || "It enters the queue; you can cancel it there."}</span></div>`;
}

/**
 * @param {any} body
 * @param {any[]} files
 */
function copies(body, files) {
  const file = files.find((one) => one.id === body.contract.data?.train_file);
  return { curl: asCurl("/v1/jobs", { json: body }), python: asHttpx("/v1/jobs", { json: body }), mens: ["mens train", quoted(file ? plain(file.filename) : "my.jsonl"), ...optionsOf(body, quoted)].join(" ") };
}
