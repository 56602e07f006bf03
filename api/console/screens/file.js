/** One file: what a job would say of it, and its rows as a base is trained on them. The address has base, length, filter and line. */
import { useEffect, useState } from "../vendor/preact-hooks.js";
import { address, change, go, to } from "../lib/address.js";
import { useObject } from "../lib/cache.js";
import { call, missingRole } from "../lib/client.js";
import { content, counted, exact, percent, plain, size, tail, whole } from "../lib/format.js";
import { Confirm } from "../parts/confirm.js";
import { CopyAs, CopyButton, asCurl, asHttpx, quoted } from "../parts/copy_as.js";
import { h, html } from "../parts/html.js";
import { useRowKeys } from "../parts/row_keys.js";
import { Empty, Fact, Failure, Loading, NotThere, Stale, said, wordOf } from "../parts/state.js";

const PAGE = 20;
/** Number of jobs, and of evals, that are read to name those that refer to a file. */
const LOOKED_AT = 100;
const JOBS = `/v1/jobs?limit=${LOOKED_AT}`;
const EVALS = `/v1/evals?limit=${LOOKED_AT}&order=desc`;
const NO_BASE = "none";
const WORDS = { supervised: "supervised", end: "ends the answer", special: "special token", cut: "cut off" };
const METHODS = { supervised: "rows to learn answers from", dpo: "pairs of answers, for DPO", kto: "rated answers, for KTO" };
/** Characters shown of what is cut off: where it ends is what matters. */
const CUT_SHOWN = 300;
/** Longer text may scroll, so the keyboard has to reach it. */
const isLong = (/** @type {string} */ text) => text.length > 300 || text.split("\n").length > 6;
/** Notes of rows, as people read them. */
const NOTES = {
  unsupported: "cannot be written with the template", without_embedding: "has a token without an embedding", nothing_supervised: "teaches nothing",
  end_not_learnt: "does not teach where to stop", cut: "cut off", last_turn_only: "only the last answer is supervised", prompt_differs: "served with another prompt",
  developer_as_system: "developer is written as system", thoughts_left_out: "loses thoughts", names_left_out: "loses names",
};

/** @param {{id: string}} props */
export function FileView({ id }) {
  const { query } = address.value;
  const path = `/v1/files/${encodeURIComponent(id)}`;
  const file = useObject(path);
  const models = useObject("/v1/models");
  const bases = (models.data?.data || []).filter((/** @type {any} */ one) => one.mens?.kind === "base").map((/** @type {any} */ one) => one.id);
  // Other files have no rows to train on: their lines are shown, and not judged.
  const isForTraining = file.data?.purpose === "fine-tune";
  const chosen = isForTraining ? query.get("base") || bases[0] || NO_BASE : NO_BASE;
  const isKnown = file.data && (!isForTraining || models.data || models.error || query.get("base"));
  const shared = new URLSearchParams();
  if (chosen !== NO_BASE) shared.set("base_model", chosen);
  if (Number(query.get("length")) >= 8) shared.set("seq_len", query.get("length") || "");
  const only = (isForTraining && query.get("only")) || "all";
  const line = Math.max(1, Number(query.get("line")) || 1);
  const rowsPath = `${path}/rows?${new URLSearchParams({ ...Object.fromEntries(shared), after: String(line - 1), limit: String(PAGE), ...(only !== "all" && { only }) })}`;
  const reportPath = `${path}/report${shared.size ? `?${shared}` : ""}`;
  const rows = useObject(isKnown ? rowsPath : null);
  const report = useObject(isKnown && isForTraining ? reportPath : null);
  const isPending = report.data?.object === "file.report.pending";
  useEffect(() => {
    if (!isPending) return;
    const timer = setTimeout(report.reload, 2000);
    return () => clearTimeout(timer);
  }, [isPending, report.at, reportPath]);
  // Two seconds were not enough to find a row: look on from there.
  const next = rows.data && !rows.data.data.length && rows.data.has_more ? rows.data.next_after + 1 : 0;
  useEffect(() => {
    if (next > line) change({ line: next }, { replace: true });
    else if (next) rows.reload();
  }, [next, rows.at]);
  useRowKeys("article.data-row");

  if (!file.data) return h(NotThere, { title: "File", error: file.error, retry: file.reload, what: file.error?.status === 404 ? "File not found." : undefined });
  const made = isPending ? null : report.data;
  const copied = { curl: asCurl(rowsPath), python: asHttpx(rowsPath), mens: !isForTraining ? `mens files rows ${quoted(id)}` : `mens data check ${quoted(file.data.filename)}${chosen === NO_BASE ? "" : ` --model ${quoted(chosen)}`}` };
  return html`<p class="crumbs"><a href="#/files">Data</a> / ${plain(id)}</p>
    <div class="head"><h1>${plain(file.data.filename)}</h1>
      ${!isForTraining ? "" : missingRole("trainer") ? html`<button type="button" disabled title=${missingRole("trainer")}>Train on it</button>`
        : html`<a class="button primary" href=${to(["new"], { "data.train_file": id, ...(chosen !== NO_BASE && { "model.hf_repo": chosen }) })}>Train on it</a>`}
      ${h(Delete, { file: file.data, path })}${h(CopyAs, copied)}</div>
    <p class="run-head"><span>${size(file.data.bytes)}</span><span>${plain(file.data.purpose)}</span><span>uploaded ${exact(file.data.created_at * 1000)}</span>
      ${file.data.expires_at && html`<span>deleted ${exact(file.data.expires_at * 1000)}</span>`}${rows.data && isForTraining && html`<span>${METHODS[/** @type {keyof typeof METHODS} */ (rows.data.method)]}</span>`}</p>
    <div class="stack">
      ${isForTraining && h(Report, { name: file.data.filename, report: made, error: report.error, isPending, retry: report.reload, base: chosen })}
      <section aria-label="Rows" class="stack">
        ${isForTraining && html`${h(Choices, { bases, chosen, query, length: rows.data?.seq_len })}${h(Tabs, { only, made, chosen })}`}
        ${h(Stale, rows)}
        ${rows.error && !rows.data ? h(Failure, { error: rows.error, retry: rows.reload })
          : !rows.data ? h(Loading, { rows: 8 })
          : next ? html`<p class="faint" role="status">Looking through the lines: ${whole(rows.data.next_after)}…</p>`
          : !rows.data.data.length ? h(Empty, { title: line > 1 ? "No further row" : only === "all" ? "The file is empty" : "No such row", children: html`<p><a href=${here({ line: "", only: "" })}>All rows from the beginning</a></p>` })
          : html`<div class="stack ${rows.failures >= 3 ? "old" : ""}">${rows.data.data.map((/** @type {any} */ row) => h(Row, { key: row.line, row: isForTraining ? row : { ...row, error: null, notes: [], trainable: true } }))}</div>
            <nav class="data-pages" aria-label="Pages">${line > 1 && html`<a class="button" href=${here({ line: "" })}>From the beginning</a>`}
              ${rows.data.has_more && html`<a class="button" href=${here({ line: rows.data.next_after + 1 })}>Next rows</a>`}</nav>`}
      </section></div>`;
}

/**
 * The address of this screen with other parameters.
 * @param {Record<string, string | number>} changes
 */
function here(changes) {
  const { parts, query } = address.value;
  return to(parts, { ...Object.fromEntries(query), ...changes });
}

/** @param {{bases: string[], chosen: string, query: URLSearchParams, length: number | null | undefined}} props */
function Choices({ bases, chosen, query, length }) {
  const all = [...new Set([...bases, ...(chosen === NO_BASE ? [] : [chosen])])];
  return html`<div class="parameters">
    <label>base <select value=${chosen} onChange=${(/** @type {any} */ event) => change({ base: event.target.value, line: "" })}>
      ${all.map((name) => html`<option key=${name} value=${name}>${plain(name, 60)}</option>`)}<option value=${NO_BASE}>none: lines only</option></select></label>
    <label>longest row, tokens <input type="number" min="8" max="1048576" placeholder=${length ?? ""} disabled=${chosen === NO_BASE} value=${query.get("length") || ""}
      onChange=${(/** @type {any} */ event) => change({ length: event.target.value, line: "" })} /></label>
    <label>go to line <input type="number" min="1" value=${query.get("line") || ""} placeholder="1" onChange=${(/** @type {any} */ event) => change({ line: event.target.value, only: "" })} /></label>
    <p class="data-legend" aria-label="Colours">${Object.entries(WORDS).map(([kind, word]) => html`<span key=${kind}>${h(Piece, { piece: { kind, text: word } })}</span>`)}</p></div>`;
}

/** @param {{only: string, made: any, chosen: string}} props */
function Tabs({ only, made, chosen }) {
  const found = made?.supervision;
  const lost = found ? found.unsupported.count + found.without_embedding.count + found.nothing_supervised.count : 0;
  const counts = { all: made?.data.rows !== undefined ? made.data.rows + made.data.error_count : undefined, errors: made ? made.data.error_count + lost : undefined, cut: found?.cut.count, notes: undefined };
  const names = { all: "all", errors: "errors", ...(chosen !== NO_BASE && { cut: "cut", notes: "with notes" }) };
  return html`<nav class="tabs" aria-label="Which rows">${Object.entries(names).map(([name, word]) => {
    const count = counts[/** @type {keyof typeof counts} */ (name)];
    return html`<a key=${name} href=${here({ only: name === "all" ? "" : name, line: "" })} aria-current=${only === name ? "page" : undefined}>${word}${count === undefined || (found?.sampled && name !== "all") ? "" : ` ${whole(count)}`}</a>`;
  })}</nav>`;
}

/** @param {{file: any, path: string}} props */
function Delete({ file, path }) {
  const [isAsked, setAsked] = useState(false);
  const missing = missingRole("trainer");
  return html`<button type="button" class="danger" disabled=${!!missing} title=${missing} onClick=${() => setAsked(true)}>Delete…</button>
    ${isAsked && h(Confirm, { title: `Delete ${plain(file.filename, 80)}?`, verb: "Delete it", failed: "Not deleted", close: () => setAsked(false),
      act: async () => (await call(path, { method: "DELETE" }), go("#/files")), children: h(Users, { id: file.id }) })}`;
}

/** What refers to a file, as far as the newest jobs and evals tell. @param {{id: string}} props */
function Users({ id }) {
  const jobs = useObject(JOBS);
  const evals = useObject(EVALS);
  if (!jobs.data || !evals.data) return jobs.error || evals.error ? h(Failure, { error: jobs.error || evals.error }) : h(Loading, { rows: 2 });
  const users = [...jobs.data.data.filter((/** @type {any} */ job) => JSON.stringify([job.contract, job.plan]).includes(`"${id}"`)).map((/** @type {any} */ job) => ({ ...job, name: job.name || job.kind, at: "runs" })),
    ...evals.data.data.filter((/** @type {any} */ one) => one.metadata?.file === id).map((/** @type {any} */ one) => ({ ...one, at: "evals" }))];
  return html`<p>Its rows are gone for good. Results stay; a job that has not ended keeps the file from being deleted, and none that used it can be run again.</p>
    ${users.length ? html`<p>Of the newest ${whole(LOOKED_AT)} jobs and evals, these refer to it:</p><ul class="users">${users.map((one) => html`<li key=${one.id}><a href=${to([one.at, one.id])}>${plain(one.name, 60)}</a> <span class="faint">${one.state ? wordOf(one.state) : "eval"} ${tail(one.id)}</span></li>`)}</ul>`
      : html`<p>None of the newest ${whole(LOOKED_AT)} jobs and evals refers to it.</p>`}`;
}

/** @param {{name: string, report: any, error: any, isPending: boolean, retry: () => void, base: string}} props */
function Report({ name, report, error, isPending, retry, base }) {
  if (!report) {
    if (error) return h(Failure, { error, retry, what: "The report could not be made." });
    return html`<section class="card" aria-label="Report"><p class="faint" role="status">${isPending ? "The whole file is being read…" : "Reading the file…"}</p></section>`;
  }
  const { data, supervision, refusal } = report;
  const repeats = data.duplicates;
  const buckets = supervision ? supervision.token_histogram.map((/** @type {any} */ one) => [`up to ${whole(one.up_to)}`, one.rows])
    : data.lengths.counts.map((/** @type {number} */ count, /** @type {number} */ index) => [index < data.lengths.bounds.length ? `up to ${whole(data.lengths.bounds[index])}` : "more", count]);
  return html`<section class="card" aria-label="Report">
    ${refusal ? html`<div class="failure"><h2>A job with the defaults would be refused</h2><p><code>${plain(refusal.code)}</code> ${said(refusal.message)}</p>${refusal.remedy && html`<p>${said(refusal.remedy)}</p>`}${commandOf(refusal, name).map((command) => html`<div key=${command} class="code"><pre tabindex="0" aria-label="command">${command}</pre>${h(CopyButton, { text: command })}</div>`)}</div>`
      : html`<p class="good">A job with the defaults would take this file${supervision ? "" : ", as far as can be said without a base"}.</p>`}
    <div class="data-report"><dl class="facts">
      ${h(Fact, { name: "Rows", value: whole(data.rows), hint: data.trainable_rows === data.rows ? "" : `${whole(data.trainable_rows)} pass the filter` })}
      ${h(Fact, { name: "Bad lines", value: whole(data.error_count), hint: lineLinks(data.errors.map((/** @type {any} */ one) => one.line)) })}
      ${h(Fact, { name: "Duplicates", value: `${whole(repeats.exact_rows)} exact, ${whole(repeats.near_rows)} near`, hint: pairLinks([...repeats.exact_pairs, ...repeats.near_pairs]) })}
      ${supervision && h(Fact, { name: "Supervised", value: percent(supervision.tokens ? supervision.supervised_tokens / supervision.tokens : 0), hint: `${whole(supervision.supervised_tokens)} of ${whole(supervision.tokens)} tokens` })}
      ${supervision && h(Fact, { name: "Longest row", value: counted(supervision.longest_row, "token"), hint: supervision.truncated_rows ? `${counted(supervision.truncated_rows, "row")} cut at ${whole(report.seq_len)}` : `none is cut at ${whole(report.seq_len)}` })}
      ${supervision?.sampled && h(Fact, { name: "Sample", value: counted(supervision.rows, "row"), hint: "tokens are of these" })}
    </dl>
    ${data.rows > 0 && h(Histogram, { name: supervision ? "tokens of a row" : "characters of a row", buckets })}</div>
    ${report.notes.length > 0 && html`<ul class="data-notes">${report.notes.map((/** @type {string} */ note) => html`<li key=${note}>${plain(note, 600)}</li>`)}</ul>`}
    ${supervision?.end_token_note && html`<p class="faint">${plain(supervision.end_token_note, 600)}</p>`}</section>`;
}

/** Commands by which a refusal says that the file can be converted. @param {{message: string, remedy?: string}} refusal @param {string} name */
function commandOf({ message, remedy }, name) {
  const commands = [...`${message} ${remedy}`.matchAll(/`(mens data convert FILE [^`]+)`/g)].map(([, command]) => command.replace("FILE", () => quoted(name)));
  return [...new Set(commands)];
}

/** @param {number} line */
const lineLink = (line) => html`<a href=${here({ line, only: "" })}>${line}</a>`;

/** @param {number[]} lines */
function lineLinks(lines) {
  const first = [...new Set(lines)].slice(0, 5);
  return first.length > 0 && html`line ${first.map((line, index) => html`<span key=${line}>${index ? ", " : ""}${lineLink(line)}</span>`)}`;
}

/** Lines that repeat an earlier one. @param {{first: number, second: number}[]} pairs */
function pairLinks(pairs) {
  const first = [...new Map(pairs.map((pair) => [pair.second, pair])).values()].slice(0, 5);
  return first.length > 0 && html`line ${first.map((pair, index) => html`<span key=${pair.second}>${index ? ", " : ""}${lineLink(pair.second)} repeats ${lineLink(pair.first)}</span>`)}`;
}

/** @param {{name: string, buckets: [string, number][]}} props */
function Histogram({ name, buckets }) {
  const most = Math.max(...buckets.map(([, rows]) => rows), 1);
  return html`<figure class="histogram"><figcaption>Rows by ${name}</figcaption><ol>${buckets.map(([label, rows]) => html`<li key=${label}>
    <span>${label}</span><span class="bar" aria-hidden="true"><span style=${{ width: `${(100 * rows) / most}%` }}></span></span><span class="number">${whole(rows)}</span></li>`)}</ol></figure>`;
}

/** @param {{row: any}} props */
function Row({ row }) {
  const [hasIds, setIds] = useState(false);
  const { trained, rejected } = row;
  return html`<article class="card data-row ${row.trainable ? "" : "bad"}" tabindex="-1" aria-label="Line ${row.line}">
    <header><h2><a href=${here({ line: row.line, only: "" })}>Line ${whole(row.line)}</a></h2>
      ${trained && html`<span class="number">${counted(trained.tokens, "token")}, ${whole(trained.supervised_tokens)} supervised${trained.truncated_tokens ? `, ${whole(trained.truncated_tokens)} cut off` : ""}</span>`}
      <span class="faint">${size(row.bytes)}</span>
      ${row.notes.map((/** @type {any} */ note) => html`<span key=${note.name} class="badge ${row.trainable ? "queued" : "failed"}" title=${plain(note.reason, 500)}>${NOTES[/** @type {keyof typeof NOTES} */ (note.name)] || plain(note.name)}</span>`)}
      ${trained && html`<button type="button" class="small" aria-pressed=${String(hasIds)} onClick=${() => setIds(!hasIds)}>Token ids</button>`}</header>
    ${row.error && html`<p class="reason"><code>${plain(row.error.code)}</code> ${plain(row.error.reason, 1000)}</p>`}
    ${!row.trainable && row.notes.map((/** @type {any} */ note) => html`<p key=${note.name} class="reason">${plain(note.reason, 1000)}</p>`)}
    <div class="data-sides"><div><h3>As it is</h3><p class="text data-raw" tabindex=${isLong(row.text) ? 0 : undefined}>${content(row.text)}${row.text_is_cut ? "…" : ""}</p></div>
      ${trained && html`<div><h3>${rejected ? "As it is trained on: preferred" : "As it is trained on"}</h3>${h(Pieces, { pieces: trained.pieces, hasIds })}</div>`}
      ${rejected && html`<div><h3>rejected</h3>${h(Pieces, { pieces: rejected.pieces, hasIds })}</div>`}</div></article>`;
}

/** @param {{pieces: any[], hasIds: boolean}} props */
function Pieces({ pieces, hasIds }) {
  const isTall = isLong(pieces.map((piece) => (hasIds ? piece.ids.join(" ") : piece.text)).join(""));
  return html`<p class="text data-pieces" tabindex=${isTall ? 0 : undefined}>${pieces.map((piece, index) => h(Piece, { key: index, piece: hasIds && piece.kind !== "omitted" ? { ...piece, text: `${piece.ids.join(" ")} ` } : piece }))}</p>`;
}

/** Text of one kind: kinds differ in more than their colour. @param {{piece: any}} props */
function Piece({ piece }) {
  const text = content(piece.text);
  if (piece.kind === "supervised") return html`<mark class="learnt">${text}</mark>`;
  if (piece.kind === "end") return html`<mark class="learnt last">${text}</mark>`;
  if (piece.kind === "cut") return html`<s>${text.length > CUT_SHOWN ? `… ${text.slice(-CUT_SHOWN)}` : text}</s>`;
  if (piece.kind === "special") return html`<span class="special">${text}</span>`;
  if (piece.kind === "omitted") return html`<em class="faint"> … left out here … </em>`;
  return html`<span>${text}</span>`;
}
