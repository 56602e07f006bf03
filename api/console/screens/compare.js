/** Several runs: curves overlaid, the settings that differ with their sources, results, and their answers to the same rows. */
import { useEffect, useMemo, useState } from "../vendor/preact-hooks.js";
import { address, change, to } from "../lib/address.js";
import { load, useObjects } from "../lib/cache.js";
import { ApiError, call } from "../lib/client.js";
import { content, difference, duration, loss, percent, plain, short, size, tail, whole } from "../lib/format.js";
import { paced } from "../lib/pace.js";
import { connection, onChanges } from "../lib/stream.js";
import { Chart, smoothed } from "../parts/chart.js";
import { CopyAs, asCurl, asHttpx, quoted } from "../parts/copy_as.js";
import { h, html } from "../parts/html.js";
import { whoOf } from "../parts/plan.js";
import { Badge, Empty, FINAL, Failure, Loading, NotThere, Stale } from "../parts/state.js";

const TABS = [["", "overview"], ["settings", "settings"], ["answers", "answers"]];
const SERIES = /** @type {Record<string, [string, (value: number | null) => string]>} */ ({
  train_loss: ["Training loss", loss], valid_loss: ["Validation loss", loss], learning_rate: ["Learning rate", short],
  grad_norm: ["Gradient norm", short], tokens_per_second: ["Tokens per second", short], memory_bytes: ["Memory", size],
});
/** Names and forms of the results, in the order in which they are shown. */
const RESULTS = /** @type {Record<string, [string, (value: number | null) => string]>} */ ({
  "self_evaluation.loss.tuned": ["Loss, tuned (nats per token)", loss], "self_evaluation.loss.base": ["Loss, base", loss],
  "sample_answers.equal": ["Answers that equal the reference", whole], "sample_answers.rows": ["Answers drawn", whole],
  "self_evaluation.token_accuracy.tuned": ["Tokens right, tuned", percent], "self_evaluation.token_accuracy.base": ["Tokens right, base", percent],
  last_train_loss: ["Training loss, last", loss], last_val_loss: ["Validation loss, last", loss],
  optimizer_steps: ["Steps", whole], trained_tokens: ["Trained tokens", short], tokens_per_second: ["Tokens per second", short],
  "memory.peak_bytes": ["Memory, peak", size], "memory.predicted_bytes": ["Memory, predicted", size], seconds: ["Time", duration], gpu_minutes: ["GPU-minutes", short],
});
/** Results of which a larger value is better, and those of which a smaller one is. */
const LARGER = ["sample_answers.equal", "self_evaluation.token_accuracy.tuned", "tokens_per_second"];
const SMALLER = ["self_evaluation.loss.tuned", "last_train_loss", "last_val_loss", "memory.peak_bytes", "seconds", "gpu_minutes"];
const COLOURS = 8;
const DASHES = [undefined, [8, 4], [2, 3]];
const PAUSE = 2000;
const POINTS = 600;
const MOST_ROWS = 50;

/**
 * The comparison of jobs; asked for again when one of them changes, at most every 2 s, and once more after the last change.
 * @param {string[]} ids
 * @param {string | null} baseline
 */
function useComparison(ids, baseline) {
  const [kept, setKept] = useState(/** @type {{of?: string, failed?: string, data?: any, error?: any, at?: number, failures: number}} */ ({ failures: 0 }));
  const [again, setAgain] = useState(0);
  const key = `${ids.join(",")} ${baseline || ""}`;
  const body = { jobs: ids, ...(baseline ? { baseline } : {}) };
  useEffect(() => {
    if (ids.length < 2) return;
    const abort = new AbortController();
    call("/v1/plans:compare", { method: "POST", json: body, signal: abort.signal }).then(
      (data) => setKept({ of: key, data, error: null, at: Date.now(), failures: 0 }),
      (error) => {
        if (abort.signal.aborted) return;
        if (!(error instanceof ApiError)) throw error;
        setKept((old) => ({ ...old, data: error.status && error.status < 500 ? undefined : old.data, error, failed: key, failures: old.failures + 1 }));
      },
    );
    return () => abort.abort();
  }, [key, again]);
  useEffect(() => {
    const pace = paced(() => setAgain((count) => count + 1), PAUSE);
    const leave = onChanges((changes) => void (changes.some(({ event, data }) => event === "poll" || event === "reset" || ids.includes(data?.id)) && pace.ask()));
    return () => (pace.stop(), void leave());
  }, [key]);
  return { ...kept, isFailed: !!kept.error && kept.failed === key, isCurrent: kept.of === key, body, retry: () => setAgain((count) => count + 1) };
}

export function Compare() {
  const { query } = address.value;
  const ids = useMemo(() => [...new Set((query.get("jobs") || "").split(",").filter(Boolean))].slice(0, 20), [query.get("jobs")]);
  const { data, error, at, failures, isCurrent, isFailed, body, retry } = useComparison(ids, query.get("base"));
  if (ids.length < 2) return html`<div class="head"><h1>Compare</h1></div>${h(Empty, { title: "Choose two runs or more", children: html`<p>Tick them in <a href=${to(["jobs"], { chosen: ids.join(",") })}>the list of jobs</a>, or with <kbd>x</kbd>, and press <kbd>c</kbd>.</p>` })}`;
  if (!data) return h(NotThere, { title: "Compare", error, retry, what: error?.status === 404 ? "One of these runs is not here." : "These runs cannot be compared." });
  const open = query.get("tab") || "";
  const runs = data.jobs.map((/** @type {any} */ job, /** @type {number} */ place) => ({
    job, isBase: job.id === data.baseline, label: `${plain(job.name || job.kind, 40)} ${tail(job.id)}`,
    colour: `--curve-${(place % COLOURS) + 1}`, dash: DASHES[Math.floor(place / COLOURS)],
  }));
  return html`<p class="crumbs"><a href=${to(["jobs"], { chosen: ids.join(",") })}>Jobs</a></p>
    <div class="head"><h1>${whole(runs.length)} runs</h1><a class="button" href=${to(["jobs"], { chosen: ids.join(",") })}>Choose others</a>
      ${h(CopyAs, { curl: asCurl("/v1/plans:compare", { json: body }), python: asHttpx("/v1/plans:compare", { json: body }), mens: ["mens jobs compare", ...body.jobs.map(quoted), ...(body.baseline ? ["--baseline", quoted(body.baseline)] : [])].join(" ") })}</div>
    ${h(Stale, { at, failures, isLive: true })}
    ${isFailed && !isCurrent && h(Failure, { error, retry, what: "These runs could not be compared. Below are those of before." })}
    <div class="stack ${isCurrent && failures < 3 && connection.value.state !== "stale" ? "" : "old"}">
    <ul class="compared" aria-label="Runs">${runs.map((/** @type {any} */ run) => h(Chip, { key: run.job.id, run, ids }))}</ul>
    <nav class="tabs" aria-label="Parts of the comparison">${TABS.map(([tab, title]) => html`<a key=${tab} href=${to(["compare"], { ...Object.fromEntries(query), tab })} aria-current=${open === tab ? "page" : undefined}>${title}</a>`)}</nav>
    ${open === "settings" ? h(Settings, { data, runs, query }) : open === "answers" ? h(Answers, { runs }) : h(Overview, { data, runs, query })}</div>`;
}

/** @param {{run: any, ids: string[]}} props */
function Chip({ run, ids }) {
  const { job, isBase, colour, dash } = run;
  return html`<li class=${isBase ? "base" : ""}><i class="swatch ${dash ? "broken" : ""}" style=${{ color: `var(${colour})` }} aria-hidden="true"></i>
    <a href=${to(["runs", job.id])} title=${plain(job.id)}>${run.label}</a>
    <button type="button" class="small" aria-label="Leave out ${run.label}" onClick=${() => change({ jobs: ids.filter((id) => id !== job.id).join(","), ...(isBase ? { base: "" } : {}) })}><span aria-hidden="true">×</span></button>
    <div>${h(Badge, { state: job.state, stage: job.stage })}<span class="faint">${plain(job.base_model, 40)}</span>
      ${isBase ? html`<b>baseline</b>` : html`<button type="button" class="small" aria-label="make it the baseline: ${run.label}" onClick=${() => change({ base: job.id }, { replace: true })}>make it the baseline</button>`}</div></li>`;
}

/** @param {{data: any, runs: any[], query: URLSearchParams}} props */
function Overview({ data, runs, query }) {
  const name = Object.hasOwn(SERIES, query.get("series") || "") ? query.get("series") || "" : "train_loss";
  const [title, format] = SERIES[name];
  const from = Number(query.get("from")) || null;
  const until = Number(query.get("to")) || null;
  const smooth = Number(query.get("smooth")) || 0;
  const isLog = query.get("log") === "1";
  const range = `${from ? `&from_step=${from}` : ""}${until ? `&to_step=${until}` : ""}`;
  const urls = runs.map(({ job }) => `/v1/jobs/${encodeURIComponent(job.id)}/metrics?series=${name}&points=${POINTS}${range}`);
  const found = useObjects(urls);
  const running = runs.filter(({ job }) => !FINAL.includes(job.state)).map(({ job }) => job.id).join(",");
  useEffect(() => {
    if (!running) return;
    const pace = paced(() => urls.forEach((url, place) => running.includes(runs[place].job.id) && void load(url)), PAUSE);
    const leave = onChanges((changes) => void (changes.some(({ data: changed }) => running.includes(changed?.id || " ")) && pace.ask()));
    return () => (pace.stop(), void leave());
  }, [running, urls.join(" ")]);
  const state = found.map((one) => one.at).join(" ");
  const curves = useMemo(() => runs.map((run, place) => {
    const points = found[place].data?.series?.[name] || { step: [], value: [] };
    return { name: run.job.id, label: run.label, colour: run.colour, dash: run.dash, points: smooth ? smoothed(points, smooth) : points, dots: name === "valid_loss" && points.step.length < 12 };
  }), [state, smooth, name, runs.map((run) => run.job.id).join()]);
  const failed = runs.map((run, place) => ({ run, url: urls[place], ...found[place] })).filter((one) => one.error && !one.data);
  const zoomed = from || until;
  return html`<section class="card" aria-label="Curves"><div class="switches">
      <label>curve <select value=${name} onChange=${(/** @type {any} */ event) => change({ series: event.target.value === "train_loss" ? "" : event.target.value }, { replace: true })}>
        ${Object.entries(SERIES).map(([value, [text]]) => html`<option key=${value} value=${value}>${text}</option>`)}</select></label>
      <label>smooth <select value=${String(smooth)} onChange=${(/** @type {any} */ event) => change({ smooth: event.target.value === "0" ? "" : event.target.value }, { replace: true })}>
        ${["0", "0.6", "0.9"].map((value) => html`<option key=${value} value=${value}>${value}</option>`)}</select></label>
      <label><input type="checkbox" checked=${isLog} onChange=${() => change({ log: isLog ? "" : "1" }, { replace: true })} /> log scale</label>
      ${zoomed ? html`<button type="button" class="small" onClick=${() => change({ from: "", to: "" })}>Steps ${whole(from || 1)} to ${whole(until)}: show all</button>` : html`<span class="faint">drag over the curves to zoom</span>`}</div>
      ${failed.map((one) => h(Failure, { key: one.url, error: one.error, retry: () => void load(one.url), what: `No curve of ${one.run.label}.` }))}
      ${failed.length < runs.length && h(Chart, { title, curves, isLog, from, until, height: 320, format, ticksOf: format === size ? size : short, zoom: (/** @type {number | null} */ left, /** @type {number | null} */ right) => change({ from: left, to: right }) })}</section>
    <section class="stack" aria-label="Results"><h2>Results</h2>${data.results.length ? h(Results, { data, runs }) : html`<p class="faint">None of these runs has ended yet.</p>`}</section>`;
}

/** @param {{data: any, runs: any[]}} props */
function Results({ data, runs }) {
  const base = runs.findIndex((run) => run.isBase);
  const known = Object.keys(RESULTS);
  const rows = [...data.results].sort((one, other) => known.indexOf(one.path) - known.indexOf(other.path));
  return h(Versus, { runs, label: "Results", rows: rows.map((row) => {
    const [title, format] = RESULTS[row.path] || [plain(row.path), short];
    const of = row.values[base];
    return { key: row.path, title, cells: row.values.map((/** @type {number | null} */ value, /** @type {number} */ place) => ({
      text: format(value),
      hint: place !== base && value !== null && of ? relative(value, of, row.path) : "",
    })) };
  }) });
}

/**
 * How a value differs from the baseline's, and whether that is good.
 * @param {number} value
 * @param {number} of
 * @param {string} path
 */
function relative(value, of, path) {
  const text = difference(value, of);
  const isGood = LARGER.includes(path) ? value > of : SMALLER.includes(path) ? value < of : null;
  return isGood === null || text === "the same" ? text : `${text}, ${isGood ? "better" : "worse"}`;
}

/** @param {{data: any, runs: any[], query: URLSearchParams}} props */
function Settings({ data, runs, query }) {
  const isAll = query.get("all") === "1";
  const base = runs.findIndex((run) => run.isBase);
  const differing = data.rows.filter((/** @type {any} */ row) => row.differs);
  const rows = isAll ? data.rows : differing;
  return html`<div class="switches"><label><input type="checkbox" checked=${isAll} onChange=${() => change({ all: isAll ? "" : "1" }, { replace: true })} /> show all ${whole(data.rows.length)} values, equal ones too</label>
      <span class="faint">${whole(differing.length)} differ</span></div>
    ${rows.length ? h(Versus, { runs, label: "Settings", rows: rows.map((/** @type {any} */ row) => ({ key: row.path, title: html`<code>${plain(row.path)}</code>`,
      cells: row.values.map((/** @type {any} */ value, /** @type {number} */ place) => ({
        text: html`<code>${plain(value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value), 200)}</code>`,
        hint: row.sources[place] ? whoOf(row.sources[place]) : "",
        isOther: place !== base && JSON.stringify(value) !== JSON.stringify(row.values[base]),
      })) })) }) : h(Empty, { title: "These runs have the same settings" })}`;
}

/** A table with a column for each run. @param {{runs: any[], label: string, rows: {key: string, title: any, cells: {text: any, hint: string, isOther?: boolean}[]}[]}} props */
function Versus({ runs, label, rows }) {
  return html`<div class="list versus ${label.toLowerCase()} scroll-x" tabindex="0" role="group" aria-label=${label}><table><thead><tr><th scope="col">${label === "Settings" ? "Field" : "Result"}</th>
    ${runs.map((run) => html`<th key=${run.job.id} scope="col"><i class="swatch ${run.dash ? "broken" : ""}" style=${{ color: `var(${run.colour})` }} aria-hidden="true"></i>${run.label}${run.isBase ? " (baseline)" : ""}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key}><th scope="row">${row.title}</th>${row.cells.map((cell, place) => html`<td key=${place} class="number ${cell.isOther ? "other" : ""}">${cell.isOther && html`<span class="hidden">differs: </span>`}${cell.text}${cell.hint && html`<small>${cell.hint}</small>`}</td>`)}</tr>`)}</tbody></table></div>`;
}

/** Answers of base and tuned models to the same rows. @param {{runs: any[]}} props */
function Answers({ runs }) {
  const urls = runs.map(({ job }) => `/v1/jobs/${encodeURIComponent(job.id)}`);
  const found = useObjects(urls);
  const failed = found.findIndex((one) => one.error && !one.data);
  if (failed >= 0) return h(Failure, { error: found[failed].error, retry: () => void load(urls[failed]), what: `No answers of ${runs[failed].label}.` });
  if (found.some((one) => !one.data)) return h(Loading, {});
  /** @type {Map<string, {prompt: string, system: string | null, reference: string, answers: Map<number, any>}>} */
  const rows = new Map();
  found.forEach((one, place) => {
    for (const sample of one.data.result?.self_evaluation?.sample_answers || []) {
      const key = JSON.stringify([sample.system, sample.prompt, sample.reference]);
      if (!rows.has(key)) rows.set(key, { ...sample, answers: new Map() });
      rows.get(key)?.answers.set(place, sample);
    }
  });
  if (!rows.size) return h(Empty, { title: "No sample answers", children: html`<p>A run that publishes answers some held-out rows when it ends. None of these has.</p>` });
  // Rows that most runs answered tell most.
  const shown = [...rows.values()].sort((one, other) => other.answers.size - one.answers.size).slice(0, MOST_ROWS);
  const equal = (/** @type {any} */ text, /** @type {any} */ reference) => String(text ?? "").trim() === String(reference ?? "").trim();
  return html`<p class="faint">Greedy answers to held-out rows: the reference, each base before its tuning, and each tuned model.</p>
    <div class="samples">${shown.map((row, index) => {
      const bases = new Map([...row.answers].map(([place, sample]) => [`${runs[place].job.base_model}\n${sample.base}`, { name: runs[place].job.base_model, text: sample.base }]));
      return html`<article key=${index} class="sample"><header><h2>${whole(row.answers.size)} of ${whole(runs.length)} runs answered it</h2></header>
      ${row.system && html`<p class="question faint text">${content(row.system, 2000)}</p>`}<p class="question text">${content(row.prompt, 4000)}</p>
      <div class="answers"><div><h3>Reference</h3><p class="text">${content(row.reference, 8000)}</p></div>
        ${[...bases.values()].map((base) => html`<div key=${base.text}><h3>Base: ${plain(base.name, 40)}</h3><p class="text">${content(base.text, 8000)}</p></div>`)}
        ${[...row.answers].map(([place, sample]) => html`<div key=${place}><h3><i class="swatch" style=${{ color: `var(${runs[place].colour})` }} aria-hidden="true"></i>${runs[place].label}</h3>
          <p class="text">${sample.tuned ? content(sample.tuned, 8000) : html`<span class="faint">(nothing)</span>`}</p>
          <small class=${equal(sample.tuned, row.reference) ? "equal" : "different"}>${equal(sample.tuned, row.reference) ? "✓ equals the reference" : "≠ differs from the reference"}</small></div>`)}</div></article>`;
    })}</div>`;
}
