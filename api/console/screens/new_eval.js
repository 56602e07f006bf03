/** A new eval: checks for the answers to a file's questions; and a new run of one: which models answer. */
import { useEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
import { address, change, go, to } from "../lib/address.js";
import { useObject } from "../lib/cache.js";
import { ApiError, call, missingRole, succeed } from "../lib/client.js";
import { GROUPS, KINDS, checksIn, fieldsOf, fieldsRead, gradersOf, isItem, itemOf, optionsOf, partsOf, promptOf, rowsOf, schemaOf } from "../lib/evals.js";
import { content, counted, model as nameOf, plain, size, tail, whole } from "../lib/format.js";
import { CopyAs, asCurl, asHttpx, quoted } from "../parts/copy_as.js";
import { Labelled, Select, Text, described, faultsOf, ofForm } from "../parts/fields.js";
import { h, html } from "../parts/html.js";
import { useIsShown } from "../parts/shown.js";
import { Empty, Failure, NotThere } from "../parts/state.js";

/** Characters of a file that its fields are learnt from, and of one that the page makes items of. */
const SAMPLE = 500_000;
const MOST = 16_000_000;
const FILES = "/v1/files?limit=100&order=desc";
const QUESTIONS = ["messages", "question", "prompt", "input"];
const EXPECTED = ["expected", "answer", "reference", "response"];
const LABELS = /** @type {Record<string, string>} */ ({
  name: "Name", "source.id": "File", source: "File", "metadata.question": "Question", "metadata.file": "File", "data_source.model": "Model", model: "Model", incumbent: "Against", samples: "Answers to each question",
  temperature: "Temperature", max_completion_tokens: "Most tokens", input_messages: "Question",
});

/** @param {string} path */
function labelOf(path) {
  const criterion = /^testing_criteria\.(\d+)/.exec(path);
  if (criterion) return `Check ${Number(criterion[1]) + 1}`;
  return LABELS[path] || Object.entries(LABELS).find(([end]) => path.endsWith(`.${end}`))?.[1] || path;
}

/** What a refusal says of the field whose path ends so. @param {Record<string, string>} faults @param {string} end */
function faultAt(faults, end) {
  return Object.entries(faults).find(([path]) => path === end || path.endsWith(`.${end}`))?.[1];
}

/** What a refusal says of a criterion. @param {Record<string, string>} faults @param {(place: number) => boolean} isMeant */
function faultOf(faults, isMeant) {
  return Object.entries(faults).find(([path]) => isMeant(Number(/^testing_criteria\.(\d+)/.exec(path)?.[1] ?? NaN)))?.[1];
}

/** The first characters of a file, in whole lines, and at least one. @param {string} id @param {number} most @param {AbortSignal} [abort] */
async function beginningOf(id, most, abort) {
  const response = await succeed(`/v1/files/${encodeURIComponent(id)}/content`, { signal: abort });
  const reader = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (response.body).pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text;
    text += value;
    if (text.length <= most) continue;
    const end = text.lastIndexOf("\n", most) + 1 || text.indexOf("\n") + 1;
    if (!end && text.length < MOST) continue;
    void reader.cancel();
    return text.slice(0, end);
  }
}

/** A fault of a file as refusals are shown. @param {any} error */
function ofFile(error) {
  if (error instanceof ApiError) return error;
  return { code: "EVAL_ITEMS_INVALID", message: error instanceof SyntaxError ? error.message : "The file could not be read.", remedy: "Choose another file, or correct this one and send it again." };
}

/**
 * The first rows of a file, and their fields.
 * @param {string} id
 */
function useRows(id) {
  const [found, setFound] = useState(/** @type {{of: string, rows: any[], error: any}} */ ({ of: "", rows: [], error: null }));
  useEffect(() => {
    if (!id) return;
    const abort = new AbortController();
    beginningOf(id, SAMPLE, abort.signal).then(rowsOf).then(
      (rows) => !abort.signal.aborted && setFound({ of: id, rows, error: null }),
      (error) => !abort.signal.aborted && setFound({ of: id, rows: [], error: ofFile(error) }),
    );
    return () => abort.abort();
  }, [id]);
  return useMemo(() => {
    const isHere = !!id && found.of === id;
    const items = isHere ? found.rows.map(itemOf) : [];
    return { isHere, error: isHere ? found.error : null, items, fields: fieldsOf(items), areItems: isHere && found.rows.every(isItem) };
  }, [id, found]);
}

/**
 * The field that is named, or the first of the usual ones that there is.
 * @param {ReturnType<typeof fieldsOf>} fields
 * @param {string | null | undefined} named
 * @param {string[]} usual
 */
function chosenOf(fields, named, usual) {
  return named || usual.find((name) => fields.some((field) => field.name === name)) || "";
}

/** @param {any[]} files */
function filesToChoose(files) {
  return files.filter((file) => ["evals", "fine-tune"].includes(file.purpose))
    .map((file) => /** @type {[string, string]} */ ([file.id, `${plain(file.filename, 60)}, ${size(file.bytes)}, for ${file.purpose === "evals" ? "evals" : "training"}, ${tail(file.id)}`]));
}

/** @param {any[]} models served ones, aliases first */
function modelsToChoose(models) {
  const kinds = ["alias", "adapter", "checkpoint", "base"];
  return models.filter((one) => one.mens && one.mens.served !== false).sort((one, other) => kinds.indexOf(one.mens.kind) - kinds.indexOf(other.mens.kind))
    .map((one) => /** @type {[string, string]} */ ([one.id, `${nameOf(one.id)} (${plain(one.mens.kind)}${one.mens.step ? `, step ${one.mens.step}` : ""})`]));
}

/** @param {Record<string, string>} changes */
const set = (changes) => change(changes, { replace: true });

/** The rows to ask about, and where their questions are. @param {{files: any[], file: string, rows: ReturnType<typeof useRows>, question: string, fault?: string, questionFault?: string}} props */
function Rows({ files, file, rows, question, fault, questionFault }) {
  const options = rows.fields.filter((field) => field.isChat || field.isText);
  return html`${h(Select, { path: "file", label: "File", value: file, options: filesToChoose(files), nothing: files.length ? "choose a file" : "no file yet: send one under Data, or judge answers in the playground", fault,
      set: (value) => set({ file: value, question: "", expected: "" }), hint: rows.isHere && !rows.error && !rows.areItems ? "a run makes items of its rows: the last answer of each is the expected one" : "" })}
    ${rows.error && h(Failure, { error: rows.error, what: "No rows" })}
    ${rows.items.length > 0 && h(Select, { path: "question", label: "Question", value: question, fault: questionFault, set: (value) => set({ question: value }),
      options: options.map((field) => [field.name, field.isChat ? `${plain(field.name, 60)}: a chat` : plain(field.name, 60)]), hint: "the field of each row that a model is asked" })}`;
}

/** A row as a model will be asked. @param {{item: any}} props */
function FirstItem({ item }) {
  return item && html`<details><summary>The first row</summary><pre tabindex="0" aria-label="The first row">${content(JSON.stringify(item, null, 2), 5000)}</pre></details>`;
}

// -- a new eval -------------------------------------------------------------------------------------------------------

export function NewEval() {
  const { query } = address.value;
  const missing = missingRole("trainer");
  const files = useObject(missing ? null : FILES);
  const models = useObject(missing ? null : "/v1/models");
  const file = query.get("file") || "";
  const rows = useRows(missing ? "" : file);
  const [own, setOwn] = useState("");
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isBusy, setBusy] = useState(false);
  const isShown = useIsShown();
  const checks = useMemo(() => checksIn(query.get("checks")), [query.get("checks")]);
  const question = chosenOf(rows.fields, query.get("question"), QUESTIONS);
  const expected = chosenOf(rows.fields, query.get("expected"), EXPECTED);
  const parsed = useMemo(() => ownGraders(own), [own]);
  const body = useMemo(() => bodyOf({ name: query.get("name") || "", file, question, expected: expected || "expected", checks, own: parsed.graders, fields: rows.fields.map((field) => field.name) }), [query, file, question, expected, checks, parsed, rows]);
  useEffect(() => setError(null), [JSON.stringify(body)]);
  if (missing) return html`<p class="crumbs"><a href="#/evals">Evals</a></p>${h(Empty, { title: "New eval", children: html`<p>Making an eval ${missing}.</p>` })}`;
  if (!files.data || !models.data) return h(NotThere, { title: "New eval", error: files.error || models.error, retry: () => (files.reload(), models.reload()) });
  const faults = faultsOf(error);
  const reason = !file ? "choose rows first" : !rows.isHere ? "the rows are being read" : !rows.items.length ? "the file has no rows" : parsed.fault ? "correct what is marked first" : !body.testing_criteria.length ? "add a check first" : "";
  const create = async () => {
    if (reason || isBusy) return;
    setBusy(true);
    try {
      const made = await call("/v1/evals", { method: "POST", json: body });
      if (isShown.current) go(to(["evals", made.id], { run: "new", file, question }));
    } catch (refusal) {
      if (!(refusal instanceof ApiError)) throw refusal;
      setError(refusal);
      setBusy(false);
    }
  };
  /** @param {string[]} now */
  const setChecks = (now) => set({ checks: JSON.stringify(now) });
  const having = rows.fields.find((field) => field.name === expected);
  return html`<p class="crumbs"><a href="#/evals">Evals</a></p>
    <div class="head"><h1>New eval</h1>${h(CopyAs, { curl: asCurl("/v1/evals", { json: body }), python: asHttpx("/v1/evals", { json: body }), mens: ["mens eval run rows.jsonl --model NAME", ...optionsOf(checks, quoted), ...(parsed.graders.length ? ["--grader graders.json"] : [])].join(" ") })}</div>
    <form class="stack narrow" aria-label="New eval" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <section class="card stack" aria-label="Rows"><h2>Rows</h2>
        ${h(Rows, { files: files.data.data, file, rows, question, fault: faultAt(faults, "metadata.file"), questionFault: faultAt(faults, "metadata.question") })}
        ${rows.items.length > 0 && h(Select, { path: "expected", label: "Expected answer", value: expected, set: (value) => set({ expected: value }), options: rows.fields.map((field) => [field.name, plain(field.name, 60)]), nothing: "none",
          hint: having ? (having.count < rows.items.length ? `${whole(having.count)} of the first ${counted(rows.items.length, "row")} have it; a check that reads it refuses the others` : "each row's own") : "checks against it need one" })}
        ${h(FirstItem, { item: rows.items[0] })}
        ${h(Text, { path: "name", label: "Name", value: query.get("name") || "", set: (value) => set({ name: value }), fault: faultAt(faults, "name"), placeholder: body.name })}</section>
      <section class="card stack" aria-label="Checks"><h2>Checks</h2><p class="faint">An answer passes if all of them do.</p>
        ${checks.map((check, place) => h(Check, { key: place, check, place, models: models.data.data, fault: faultOf(faults, (number) => number === place),
          set: (now) => setChecks(checks.map((one, number) => (number === place ? now : one))), remove: () => setChecks(checks.filter((_, number) => number !== place)) }))}
        <p><button type="button" onClick=${() => setChecks([...checks, "exact"])}>Add a check</button></p>
        <details open=${!!own}><summary>Graders in OpenAI's form</summary>${h(Own, { text: own, set: setOwn, fault: parsed.fault || faultOf(faults, (place) => place >= checks.length) })}</details></section>
      <div class="submit">${error && h(Failure, { error: ofForm(error, labelOf), what: "Not made" })}
        <button type="button" class="primary" disabled=${!!reason || isBusy} title=${reason} aria-describedby="create-reason" onClick=${() => void create()}>Create eval</button>
        <span class="faint" id="create-reason">${reason || "Nothing runs yet: next you choose the models."}</span></div></form>`;
}

/**
 * The request. Only fields that checks or the question read are required of a row.
 * @param {{name: string, file: string, question: string, expected: string, checks: string[], own: any[], fields: string[]}} chosen
 */
function bodyOf({ name, file, question, expected, checks, own, fields }) {
  const graders = [...gradersOf(checks, { expected, question: question || "messages" }), ...own];
  const required = [...new Set([...(question ? [question] : []), ...fieldsRead(graders, [...fields, expected])])];
  return { name: name || `Eval of ${new Date().toISOString().slice(0, 10)}`, data_source_config: { type: "custom", item_schema: schemaOf(required), include_sample_schema: true }, testing_criteria: graders,
    ...(file && { metadata: { file, ...(question && { question }) } }) };
}

/** @param {string} text */
function ownGraders(text) {
  if (!text.trim()) return { graders: [], fault: "" };
  try {
    return { graders: /** @type {any[]} */ ([JSON.parse(text)].flat()), fault: "" };
  } catch {
    return { graders: [], fault: "This is not JSON. Write one grader, or a list of them." };
  }
}

/** @param {{text: string, set: (text: string) => void, fault?: string}} props */
function Own({ text, set: write, fault }) {
  return h(Labelled, { path: "graders", label: "Graders", fault, hint: "one or a list: string_check, text_similarity, label_model, score_model, python; the address does not keep them",
    children: html`<textarea ...${described("graders", fault)} rows="5" spellcheck="false" value=${text} onInput=${(/** @type {any} */ event) => write(event.target.value)}></textarea>` });
}

/** @param {{check: string, place: number, models: any[], fault?: string, set: (check: string) => void, remove: () => void}} props */
function Check({ check, place, models, fault, set: write, remove }) {
  const [name, value] = partsOf(check);
  const kind = KINDS[name];
  const path = `check-${place}`;
  const first = `Check ${place + 1}`;
  /** @param {string} now */
  const choose = (now) => write(KINDS[now].value ? `${now}=${KINDS[now].type === KINDS[name]?.type ? value : ""}` : now);
  const shared = { path: `${path}-value`, label: `${kind?.value} of check ${place + 1}`, value, fault, hint: kind?.hint, set: (/** @type {string} */ text) => write(`${name}=${text}`) };
  return html`<div class="check" role="group" aria-label=${first}>
    ${h(Labelled, { path, label: first, fault: kind?.value ? "" : fault, children: html`<select ...${described(path, kind?.value ? "" : fault)} value=${kind ? name : ""} onChange=${(/** @type {any} */ event) => choose(event.target.value)}>
      ${!kind && html`<option value="">${plain(name, 40)} (unknown)</option>`}
      ${GROUPS.map(([title, kinds]) => html`<optgroup key=${title} label=${title}>${Object.entries(kinds).map(([one, { title: text }]) => html`<option key=${one} value=${one}>${text}</option>`)}</optgroup>`)}</select>` })}
    ${!kind?.value ? "" : kind.type === "model" ? h(Select, { ...shared, options: modelsToChoose(models), nothing: "choose a model" })
      : kind.type === "lines" ? h(Labelled, { ...shared, children: html`<textarea ...${described(shared.path, fault)} rows="4" spellcheck="false" value=${value} onInput=${(/** @type {any} */ event) => shared.set(event.target.value)}></textarea>` })
      : h(Text, { ...shared, mode: kind.type === "number" ? "decimal" : "text" })}
    <button type="button" class="small" aria-label="Remove check ${place + 1}" onClick=${remove}><span aria-hidden="true">×</span></button></div>`;
}

// -- a new run --------------------------------------------------------------------------------------------------------

/** @param {{one: any, last: any}} props `last`: the newest run, whose rows and question are proposed */
export function NewEvalRun({ one, last }) {
  const { query } = address.value;
  const files = useObject(FILES);
  const models = useObject("/v1/models");
  const source = last?.data_source;
  const file = query.get("file") || source?.source?.id || one.metadata?.file || "";
  const rows = useRows(file);
  const question = chosenOf(rows.fields, query.get("question") || one.metadata?.question, QUESTIONS);
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isBusy, setBusy] = useState(false);
  const made = useRef(/** @type {Record<string, string>} */ (Object.create(null)));
  const isShown = useIsShown();
  const body = useMemo(() => runOf(query, made.current[file] || file, question, rows.fields), [query, file, question, rows]);
  const text = JSON.stringify(body);
  const key = useMemo(() => crypto.randomUUID(), [text]);
  useEffect(() => setError(null), [text]);
  if (!files.data || !models.data) return h(NotThere, { title: "New run of an eval", error: files.error || models.error, retry: () => (files.reload(), models.reload()) });
  const place = `/v1/evals/${encodeURIComponent(one.id)}`;
  const faults = faultsOf(error);
  const chosen = files.data.data.find((/** @type {any} */ each) => each.id === file);
  const reason = !file ? "choose rows first" : !rows.isHere ? "the rows are being read" : !rows.items.length ? "the file has no rows" : !body.data_source.model ? "choose a model first"
    : !rows.areItems && chosen?.bytes > MOST ? `the page makes items of files up to ${size(MOST)}; mens eval run does it with larger ones` : "";
  const start = async () => {
    if (reason || isBusy) return;
    setBusy(true);
    try {
      if (!rows.areItems) made.current[file] ||= await storeItems(file, chosen);
      const json = runOf(query, made.current[file] || file, question, rows.fields);
      const run = await call(`${place}/runs`, { method: "POST", json, headers: { "Idempotency-Key": key } });
      if (isShown.current) go(to(["evals", one.id, run.id]));
    } catch (refusal) {
      setError(ofFile(refusal));
      setBusy(false);
    }
  };
  const options = modelsToChoose(models.data.data);
  const runsPath = `${place}/runs`;
  const number = (/** @type {string} */ path, /** @type {string} */ label, /** @type {string} */ otherwise, /** @type {string} */ end, hint = "") => h(Text, { path, label, hint, value: query.get(path) || "", placeholder: otherwise, mode: "decimal", set: (value) => set({ [path]: value }), fault: faultAt(faults, end) });
  return html`<p class="crumbs"><a href="#/evals">Evals</a> / <a href=${to(["evals", one.id])}>${plain(one.name || "runs", 60)}</a></p>
    <div class="head"><h1>New run of ${plain(one.name || "an eval", 100)}</h1>${h(CopyAs, { curl: asCurl(runsPath, { json: body }), python: asHttpx(runsPath, { json: body }) })}</div>
    <form class="stack narrow" aria-label="New run of an eval" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <section class="card stack" aria-label="Models"><h2>Models</h2>
        ${h(Select, { path: "model", label: "Model", value: query.get("model") || "", options, nothing: "choose a model", set: (value) => set({ model: value }), fault: faultAt(faults, "data_source.model") })}
        ${h(Select, { path: "against", label: "Against", value: query.get("against") || "", options, nothing: "no other model", hint: "a second model gets the same questions; lost and gained answers are marked", set: (value) => set({ against: value }), fault: faultAt(faults, "incumbent") })}</section>
      <section class="card stack" aria-label="Rows"><h2>Rows</h2>${h(Rows, { files: files.data.data, file, rows, question, fault: faultAt(faults, "source.id") || faultAt(faults, "source"), questionFault: faultAt(faults, "input_messages") })}${h(FirstItem, { item: rows.items[0] })}</section>
      <section class="card stack" aria-label="Answers"><h2>Answers</h2><div class="fields">
        ${number("max", "Most tokens", "512", "max_completion_tokens")}${number("temperature", "Temperature", "0", "temperature")}
        ${number("samples", "Answers to each question", "1", "samples", "more than one needs a temperature above 0")}</div>
        ${h(Text, { path: "name", label: "Name", value: query.get("name") || "", set: (value) => set({ name: value }), fault: faultAt(faults, "name") })}</section>
      <div class="submit">${error && h(Failure, { error: ofForm(error, labelOf), what: "Not started" })}${h(BadLines, { error })}
        <button type="button" class="primary" disabled=${!!reason || isBusy} title=${reason} aria-describedby="start-reason" onClick=${() => void start()}>Start run</button>
        <span class="faint" id="start-reason">${reason || "It enters the queue; you can cancel it on the page of its job."}</span></div></form>`;
}

/** Lines that a run cannot use. @param {{error: any}} props */
function BadLines({ error }) {
  const lines = error?.details?.errors?.filter((/** @type {any} */ fault) => fault.line) || [];
  return lines.length > 1 && html`<ul class="gates" aria-label="Bad lines">${lines.map((/** @type {any} */ fault) => html`<li key=${fault.line}><b>Line ${whole(fault.line)}</b>: ${plain(fault.reason, 300)}</li>`)}</ul>`;
}

/**
 * The request of a run.
 * @param {URLSearchParams} query
 * @param {string} file
 * @param {string} question
 * @param {ReturnType<typeof fieldsOf>} fields
 */
function runOf(query, file, question, fields) {
  const numberOf = (/** @type {string} */ name, /** @type {number} */ otherwise) => {
    const text = (query.get(name) || "").trim();
    return text === "" ? otherwise : Number.isFinite(Number(text)) ? Number(text) : text;
  };
  const against = query.get("against");
  return {
    ...(query.get("name") && { name: query.get("name") }),
    data_source: { type: "completions", model: query.get("model") || "", input_messages: promptOf(question || "messages", !question || !!fields.find((field) => field.name === question)?.isChat), source: { type: "file_id", id: file },
      sampling_params: { temperature: numberOf("temperature", 0), max_completion_tokens: numberOf("max", 512) } },
    mens: { samples: numberOf("samples", 1), ...(against && { incumbent: against }) },
  };
}

/**
 * Make items of a file's rows, and send them as a file for evals.
 * @param {string} id
 * @param {any} file
 * @returns {Promise<string>} its id
 */
async function storeItems(id, file) {
  const items = rowsOf(await beginningOf(id, MOST)).map((row) => JSON.stringify({ item: itemOf(row) }));
  const form = new FormData();
  form.append("purpose", "evals");
  form.append("file", new Blob([`${items.join("\n")}\n`], { type: "application/jsonl" }), `${String(file?.filename || "rows").replace(/\.\w+$/, "")}-items.jsonl`);
  return (await call("/v1/files", { method: "POST", body: form })).id;
}
