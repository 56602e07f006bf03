/** Evals, their runs, and a run's items: the answers of both models side by side, and which of them were lost. */
import { useEffect, useRef, useState } from "../vendor/preact-hooks.js";
import { address, change, to } from "../lib/address.js";
import { useObject } from "../lib/cache.js";
import { ApiError, call, missingRole } from "../lib/client.js";
import { content, counted, exact, model, plain, short, tail, whole } from "../lib/format.js";
import { useChanges } from "../lib/stream.js";
import { CopyAs, asCurl, openaiClient, quoted } from "../parts/copy_as.js";
import { h, html } from "../parts/html.js";
import { useRowKeys } from "../parts/row_keys.js";
import { useIsShown } from "../parts/shown.js";
import { Badge, Empty, FINAL, Fact, Failure, Loading, NotThere, Progress, Stale, Time } from "../parts/state.js";
import { NewEval, NewEvalRun } from "./new_eval.js";

const PAGE = 50;
const ITEMS = 100;
/** So many items are shown before a button brings more; a rare kind is looked for this long. */
const SHOWN = 20;
const MOST_CALLS = 20;
const FILTERS = [["", "all"], ["different", "only differences"], ["lost", "only lost"], ["gained", "only gained"], ["failed", "not passed"]];
/** Statuses by which the API leaves out items before they are compared. */
const STATUS = /** @type {Record<string, string>} */ ({ gained: "pass" });

/** @param {{parts: string[]}} props */
export function Evals({ parts }) {
  if (parts[0] === "new") return h(NewEval, {});
  if (parts[1]) return h(Items, { key: parts[1], id: parts[0], run: parts[1] });
  return parts[0] ? h(Runs, { key: parts[0], id: parts[0] }) : h(List, {});
}

function List() {
  const after = address.value.query.get("after") || "";
  const path = `/v1/evals?${new URLSearchParams({ limit: String(PAGE), order: "desc", ...(after && { after }) })}`;
  const { data, error, at, failures, reload } = useObject(path);
  useRowKeys("a.name");
  const missing = missingRole("trainer");
  return html`<div class="head"><h1>Evals</h1>${!missing && html`<a class="button primary" href="#/evals/new">New eval</a>`}${h(CopyAs, { curl: asCurl(path), python: [openaiClient(), "for one in client.evals.list(order='desc'):", "    print(one.id, one.name)"].join("\n"), mens: "mens eval list" })}</div>
    ${missing && html`<p class="faint">Making an eval ${missing}.</p>`}${h(Stale, { at, failures })}
    ${!data ? (error ? h(Failure, { error, retry: reload }) : h(Loading, {}))
      : !data.data.length ? h(Empty, { title: "No evals yet", children: html`<p>An eval asks a model the questions of a file and checks each answer; with another model beside it, it says what was lost.${missing ? "" : html` <a href="#/evals/new">Make one</a> of a file, or of answers that you judge in the <a href="#/playground">playground</a>; or in a terminal:`}</p><pre tabindex="0" aria-label="command">mens eval run rows.jsonl --model helper --against mens-tiny --check exact</pre>` })
      : html`<div class="list" tabindex="0" role="group" aria-label="Evals"><table><thead><tr>${["Eval", "Criteria", "Made"].map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
        <tbody>${data.data.map((/** @type {any} */ one) => html`<tr key=${one.id}><td><a class="name" href=${to(["evals", one.id])}>${plain(one.name || "eval", 120)}</a> <small title=${one.id}>${tail(one.id)}</small></td>
          <td>${one.testing_criteria.map((/** @type {any} */ each) => plain(each.name, 60)).join(", ")}</td><td class="time">${h(Time, { time: one.created_at * 1000 })}</td></tr>`)}</tbody></table></div>
        <p class="end">${data.has_more && html`<a href=${to(["evals"], { after: data.last_id })}>Older evals</a>`}</p>`}`;
}

/** @param {{id: string}} props */
function Runs({ id }) {
  const after = address.value.query.get("after") || "";
  const place = `/v1/evals/${encodeURIComponent(id)}`;
  const path = `${place}/runs?${new URLSearchParams({ limit: String(PAGE), order: "desc", ...(after && { after }) })}`;
  const one = useObject(place);
  const { data, error, at, failures, reload } = useObject(path);
  useRowKeys("a.name");
  const missing = missingRole("trainer");
  useChanges(reload, ({ id: job, kind }) => kind === "evaluate" || !!data?.data.some((/** @type {any} */ run) => run.mens.job_id === job));
  if (!one.data || !data) return h(NotThere, { title: "Eval", error: (!one.data && one.error) || error, retry: () => (one.reload(), reload()) });
  if (address.value.query.get("run") === "new" && !missing) return h(NewEvalRun, { one: one.data, last: after ? null : data.data[0] });
  return html`<p class="crumbs"><a href="#/evals">Evals</a></p>
    <div class="head"><h1>${plain(one.data.name || "Eval", 120)}</h1>${!missing && html`<a class="button primary" href=${to(["evals", id], { run: "new" })}>Run…</a>`}${h(CopyAs, { curl: asCurl(path), python: [openaiClient(), `for run in client.evals.runs.list(${JSON.stringify(id)}, order="desc"):`, "    print(run.id, run.model, run.result_counts)"].join("\n"), mens: "mens eval list" })}</div>
    ${missing && html`<p class="faint">Running it ${missing}.</p>`}
    <p class="faint">Checks: ${one.data.testing_criteria.map((/** @type {any} */ each) => plain(each.name, 60)).join(", ")}</p>${h(Stale, { at, failures })}
    ${!data.data.length ? h(Empty, { title: "No run of this eval yet" })
      : html`<div class="list" tabindex="0" role="group" aria-label="Runs"><table><thead><tr>${["Run", "State", "Model", "Against", "Passed", "Made"].map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
        <tbody>${data.data.map((/** @type {any} */ run) => html`<tr key=${run.id}><td><a class="name" href=${to(["evals", id, run.id])}>${plain(run.name || "run", 80)}</a> <small title=${run.id}>${tail(run.id)}</small></td>
          <td>${h(Badge, { state: run.mens.state, stage: run.mens.stage })}</td>${[0, 1].map((number) => html`<td key=${number}>${model(run.mens.models[number]?.name)}</td>`)}
          <td class="number">${whole(run.result_counts.passed)} of ${whole(run.result_counts.total)}${!FINAL.includes(run.mens.state) ? html`<small>of ${whole(run.mens.answers)} to come</small>` : ""}</td><td class="time">${h(Time, { time: run.created_at * 1000 })}</td></tr>`)}</tbody></table></div>
        <p class="end">${data.has_more && html`<a href=${to(["evals", id], { after: data.last_id })}>Older runs</a>`}</p>`}`;
}

/**
 * Whether an item is of a kind. Lost: the other model's answer passed, and this one's did not.
 * @param {any} item
 * @param {string} kind
 */
function isOf(item, kind) {
  const other = item.mens.incumbent;
  if (kind === "failed") return item.status !== "pass";
  if (kind === "lost") return other?.status === "pass" && item.status !== "pass";
  if (kind === "gained") return other && other.status !== "pass" && item.status === "pass";
  return !kind || (other && textOf(item.sample) !== textOf(other.sample));
}

/** @param {any} sample */
function textOf(sample) {
  const [said] = sample.output;
  return [said?.content, said?.tool_calls && JSON.stringify(said.tool_calls, null, 1)].filter(Boolean).join("\n");
}

/**
 * Items of a run that are of a kind, read until some are found.
 * @param {string} path
 * @param {string} kind
 * @param {string} stage of the run: the items are read again when it changes
 */
function useItems(path, kind, stage) {
  const nothing = { items: /** @type {any[]} */ ([]), after: "", hasMore: true, isBusy: true, error: /** @type {any} */ (null), read: 0 };
  const [list, setList] = useState(nothing);
  const asked = useRef({ kind, number: 0 });
  const isShown = useIsShown();
  /** @param {typeof nothing} from */
  const more = async (from) => {
    const mine = ++asked.current.number;
    const isWanted = () => isShown.current && asked.current.number === mine;
    setList({ ...from, isBusy: true, error: null });
    let { items, after, hasMore, read } = from;
    try {
      for (let calls = 0, found = 0; hasMore && found < SHOWN && calls < MOST_CALLS; calls++) {
        const status = STATUS[kind];
        const page = await call(`${path}/output_items?${new URLSearchParams({ limit: String(kind ? ITEMS : SHOWN), ...(status && { status }), ...(after && { after }) })}`);
        const fitting = page.data.filter((/** @type {any} */ item) => isOf(item, kind));
        [items, after, hasMore, found, read] = [[...items, ...fitting], page.last_id || after, page.has_more, found + fitting.length, read + page.data.length];
        if (!isWanted()) return;
      }
      setList({ items, after, hasMore, isBusy: false, error: null, read });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (isWanted()) setList({ ...from, isBusy: false, error });
    }
  };
  useEffect(() => void more(nothing), [path, kind, stage]);
  return { ...list, more: () => void more(list) };
}

/** @param {{id: string, run: string}} props */
function Items({ id, run }) {
  const kind = FILTERS.find(([name]) => name === address.value.query.get("show"))?.[0] || "";
  const path = `/v1/evals/${encodeURIComponent(id)}/runs/${encodeURIComponent(run)}`;
  const { data, error, at, failures, reload } = useObject(path);
  useChanges(reload, ({ id: job }) => job === (data?.mens.job_id ?? run));
  const isOver = FINAL.includes(data?.mens.state);
  const list = useItems(path, kind, !data ? "" : isOver ? "over" : data.result_counts.total ? "first" : "none");
  if (!data) return h(NotThere, { title: "Run of an eval", error, retry: reload });
  const [mine, other] = data.mens.models;
  const filters = FILTERS.filter(([name]) => other || !["different", "lost", "gained"].includes(name));
  return html`<p class="crumbs"><a href="#/evals">Evals</a> / <a href=${to(["evals", id])}>runs</a></p>
    <div class="head"><h1>${plain(data.name || "Run of an eval", 120)}</h1><a class="button" href=${to(["runs", data.mens.job_id])}>Its job</a>${h(CopyAs, { curl: asCurl(`${path}/output_items?limit=${ITEMS}`), python: [openaiClient(), `for item in client.evals.runs.output_items.list(${JSON.stringify(run)}, eval_id=${JSON.stringify(id)}):`, "    print(item.status, item.sample.output)"].join("\n"), mens: `mens eval show ${quoted(run)}` })}</div>
    ${h(Stale, { at, failures })}
    <div class="stack">${data.mens.error && h(Failure, { error: data.mens.error, what: "The run failed." })}
    <section class="card" aria-label="Result"><header><h2>Result</h2>${h(Badge, { state: data.mens.state, stage: data.mens.stage })}${!isOver && h(Progress, { step: data.result_counts.total, total: data.mens.answers, label: "answers judged" })}</header><dl class="facts">
      ${mine && h(Fact, { name: "Model", value: model(mine.name) })}${other && h(Fact, { name: "Against", value: model(other.name) })}
      ${h(Fact, { name: "Passed", value: `${whole(data.result_counts.passed)} of ${whole(data.result_counts.total)}`, hint: data.result_counts.errored ? counted(data.result_counts.errored, "error") : "" })}
      ${Object.entries(/** @type {Record<string, any>} */ (data.mens.criteria)).map(([name, total]) => h(Fact, { key: name, name: plain(name, 60), value: `${whole(total.passed)} passed`, hint: Object.hasOwn(data.mens.incumbent_criteria, name) ? `${whole(data.mens.incumbent_criteria[name].passed)} of the other` : "" }))}
      ${h(Fact, { name: "Made", value: exact(data.created_at * 1000) })}</dl></section>
    <nav class="tabs" aria-label="Which items">${filters.map(([name, title]) => html`<a key=${name} href=${to(["evals", id, run], { show: name })} aria-current=${kind === name ? "page" : undefined}>${title}</a>`)}</nav>
    ${list.error && h(Failure, { error: list.error, retry: list.more })}
    <div class="samples">${list.items.map((item) => h(Item, { key: item.id, item, names: [mine?.name || item.sample.model, other?.name] }))}</div>
    ${list.isBusy ? h(Loading, { rows: 3 }) : list.hasMore ? html`<p class="end">${kind ? `${whole(list.items.length)} of ${whole(list.read)} items looked at. ` : ""}<button type="button" onClick=${list.more}>More items</button></p>`
      : !list.items.length && !list.error ? h(Empty, { title: kind ? "No such item" : "No items yet", children: kind ? html`<p><button type="button" onClick=${() => change({ show: "" })}>Show all items</button></p>` : html`<p>${isOver ? "None was judged." : "Items appear as answers are judged."}</p>` }) : ""}</div>`;
}

/** An item: what was asked, what the row says, and each model's answer with its results. @param {{item: any, names: (string | undefined)[]}} props */
function Item({ item, names }) {
  const other = item.mens.incumbent;
  const question = item.sample.input.map((/** @type {any} */ turn) => (item.sample.input.length > 1 ? `${turn.role}: ${turn.content}` : turn.content)).join("\n");
  const both = [item, ...(other ? [other] : [])];
  const word = isOf(item, "lost") ? "lost" : isOf(item, "gained") ? "gained" : !other ? "" : isOf(item, "different") ? "different" : "same answer";
  return html`<article class="sample" aria-label="Item ${item.datasource_item_id + 1}"><header><h2>Item ${item.datasource_item_id + 1}${item.mens.sample_index ? `, answer ${item.mens.sample_index + 1}` : ""}</h2>${word && html`<span class=${word === "lost" ? "different" : word === "gained" ? "equal" : ""}>${word}</span>`}</header>
    ${question && html`<div class="question text">${content(question, 20_000)}</div>`}
    <div class="answers">${both.map((one, place) => html`<div key=${place}><h3>${place ? "against " : ""}${model(names[place])}: ${plain(one.status, 20)}</h3>
      <div class="text">${one.sample.error ? html`<code>${plain(one.sample.error.code, 60)}</code> ${plain(one.sample.error.message, 500)}` : content(textOf(one.sample), 20_000) || html`<span class="faint">empty</span>`}</div>
      <small class="faint">${one.results.map((/** @type {any} */ result) => `${plain(result.name, 60)} ${result.passed ? "passed" : "not passed"} (${short(result.score)})`).join(", ")}</small></div>`)}</div>
    <details><summary>The row</summary><pre tabindex="0" aria-label="Row of item ${item.datasource_item_id + 1}">${content(JSON.stringify(item.datasource_item, null, 2), 20_000)}</pre></details></article>`;
}
