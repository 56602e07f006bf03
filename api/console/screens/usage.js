/** What was used and what it costs, by day, key, base, model, job or tenant; for operators also the machines behind it. */
import { useEffect, useState } from "../vendor/preact-hooks.js";
import { address, change, to } from "../lib/address.js";
import { useObject } from "../lib/cache.js";
import { ApiError, call, caller, succeed } from "../lib/client.js";
import { counted, exact, model, plain, size, tail, whole } from "../lib/format.js";
import { useChanges } from "../lib/stream.js";
import { CopyAs, asCurl, asHttpx, quoted } from "../parts/copy_as.js";
import { h, html } from "../parts/html.js";
import { useIsShown } from "../parts/shown.js";
import { Empty, FINAL, Fact, Failure, Loading, Stale } from "../parts/state.js";
import { SignIns, copiesOfSignIns } from "./sign_ins.js";

const PERIODS = /** @type {Record<string, string>} */ ({ "1": "today", "7": "7 days", "30": "30 days", "90": "90 days", "365": "a year" });
const GROUPS = /** @type {Record<string, string>} */ ({ day: "day", key: "key", base: "base", model: "model", job: "job", "day,key,base": "day, key and base" });
const OF_ALL = /** @type {Record<string, string>} */ ({ tenant: "tenant", "tenant,key": "tenant and key", "day,tenant,key,base": "day, tenant, key and base" });
const NAMES = /** @type {Record<string, string>} */ ({ day: "day", tenant: "tenant", key: "key_name", base: "base", model: "model", job: "job_id" });
const PAGE = 100;
/** Shortest time between two requests of the sums, ms: each reads many rows. */
const PAUSE = 30_000;
const SHORT_OF_DISK = 0.1;

const TABS = [["", "usage"], ["system", "system"], ["sign-ins", "sign-ins"]];
const MACHINES = ["/v1/workers", "/v1/replicas", "/v1/quotas"];

/** @param {{query: URLSearchParams}} props */
export function UsageAndSystem({ query }) {
  const open = TABS.find(([tab]) => tab === query.get("tab"))?.[0] || "";
  const copies = open === "sign-ins" ? copiesOfSignIns() : open ? (caller.value.is_operator ? copiesOfSystem() : null) : copiesOfUsage();
  return html`<div class="head"><h1>Usage and system</h1>${copies && h(CopyAs, copies)}</div>
    <nav class="tabs" aria-label="Parts">${TABS.map(([tab, title]) => html`<a key=${tab} href=${to(["usage"], { tab })} aria-current=${open === tab ? "page" : undefined}>${title}</a>`)}</nav>
    ${open === "sign-ins" ? h(SignIns, {}) : !open ? h(Usage, {})
      : caller.value.is_operator ? h(System, {}) : h(Empty, { title: "For operators", children: html`<p>Machines belong to the installation: this needs an admin of the tenant <code>shared</code>.</p>` })}`;
}

/** What the address asks for: days and groups that there are. */
function asked() {
  const { query } = address.value;
  const days = Object.hasOwn(PERIODS, query.get("days") || "") ? /** @type {string} */ (query.get("days")) : "30";
  const groups = caller.value.is_operator ? { ...GROUPS, ...OF_ALL } : GROUPS;
  const by = Object.hasOwn(groups, query.get("by") || "") ? /** @type {string} */ (query.get("by")) : "day";
  const from = new Date(Date.now() - (Number(days) - 1) * 86_400_000).toISOString().slice(0, 10);
  return { days, by, groups, from, path: `/v1/usage/costs?${new URLSearchParams({ from, group_by: by })}` };
}

function copiesOfUsage() {
  const { from, by, path } = asked();
  return { curl: asCurl(path), python: asHttpx(path), mens: `mens usage --costs --from ${quoted(from)} --by ${quoted(by)}` };
}

function copiesOfSystem() {
  return { curl: MACHINES.map((path) => asCurl(path)).join("\n"), python: asHttpx(MACHINES), mens: "mens status --workers\nmens replicas\nmens tenants list" };
}

function Usage() {
  const { days, by, groups, from, path } = asked();
  const isOfAll = by.includes("tenant");
  const first = useObject(`${path}&limit=${PAGE}`);
  // Operators may add up all tenants: the sum is that of one column, which the lines have too.
  const sums = useObject(`/v1/usage/costs?${new URLSearchParams({ from, group_by: isOfAll ? "tenant" : "", limit: String(PAGE) })}`);
  const quota = useObject("/v1/quota");
  useChanges(() => [first, sums, quota].forEach((one) => one.reload()), ({ state }) => FINAL.includes(state), PAUSE);
  const [more, setMore] = useState({ path: "", lines: /** @type {any[]} */ ([]), isLast: false });
  const [error, setError] = useState(/** @type {any} */ (null));
  const isShown = useIsShown();
  useEffect(() => setError(null), [path]);
  const further = more.path === path ? more : { lines: [], isLast: false };
  const lines = [...(first.data?.data || []), ...further.lines];
  const hasMore = first.data?.has_more && !further.isLast;
  const isMine = caller.value.role !== "admin";
  const next = async () => {
    try {
      const page = await call(`${path}&limit=${PAGE}&after=${encodeURIComponent(lines[lines.length - 1].id)}`);
      if (isShown.current) setMore({ path, lines: [...further.lines, ...page.data], isLast: !page.has_more });
    } catch (reason) {
      if (!(reason instanceof ApiError)) throw reason;
      if (isShown.current) setError(reason);
    }
  };
  const save = async () => {
    setError(null);
    try {
      const table = await (await succeed(path, { headers: { Accept: "text/csv" } })).blob();
      const link = document.createElement("a");
      link.href = URL.createObjectURL(table);
      link.download = `mens-usage-from-${from}.csv`;
      link.click();
      URL.revokeObjectURL(link.href);
    } catch (reason) {
      if (!(reason instanceof ApiError)) throw reason;
      if (isShown.current) setError(reason);
    }
  };
  return html`<div class="filters">
      <select aria-label="Period" value=${days} onChange=${(/** @type {any} */ event) => change({ days: event.target.value })}>${Object.entries(PERIODS).map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}</select>
      <select aria-label="Group by" value=${by} onChange=${(/** @type {any} */ event) => change({ by: event.target.value })}>${Object.entries(groups).map(([value, text]) => html`<option key=${value} value=${value}>by ${text}</option>`)}</select>
      <button type="button" onClick=${save}>Save as CSV</button></div>
    ${error && h(Failure, { error, what: "This could not be read." })}${h(Stale, first)}
    <div class="stack">${sums.data && !sums.data.has_more && h(Sum, { lines: sums.data.data, quota: isOfAll ? null : quota.data, isMine, isOfAll })}
    ${!first.data ? (first.error ? h(Failure, { error: first.error, retry: first.reload }) : h(Loading, {}))
      : !lines.length ? h(Empty, { title: "Nothing was used", children: html`<p>GPU time counts when an attempt at a job has ended, tokens a few seconds after the answer.</p>` })
      : html`<div class="list ${first.failures >= 3 ? "old" : ""}" tabindex="0" role="group" aria-label="Usage">${h(Lines, { lines, by })}</div>
        <p class="end">${hasMore && html`<button type="button" onClick=${next}>More lines</button>`}</p>`}</div>`;
}

/** @param {{lines: any[], by: string}} props */
function Lines({ lines, by }) {
  const groups = by.split(",");
  const isPriced = (/** @type {string} */ name) => lines.some((line) => line[name] !== null);
  const costs = [["gpu_cost", "GPU cost"], ["token_cost", "token cost"]].filter(([name]) => isPriced(name));
  return html`<table><thead><tr>${[...groups, "attempts", "GPU-minutes", "requests", "prompt tokens", "of them cached", "answer tokens", ...costs.map(([, title]) => title)].map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
    <tbody>${lines.map((line) => html`<tr key=${line.id}>${groups.map((group) => html`<td key=${group}>${cellOf(group, line[NAMES[group]])}</td>`)}
      <td class="number">${whole(line.attempts)}</td><td class="number">${minutes(line.gpu_minutes)}</td><td class="number">${whole(line.requests)}</td><td class="number">${whole(line.prompt_tokens)}</td><td class="number">${whole(line.cached_tokens)}</td><td class="number">${whole(line.completion_tokens)}</td>
      ${costs.map(([name]) => html`<td key=${name} class="number">${money(line[name], line.currency)}</td>`)}</tr>`)}</tbody></table>`;
}

/**
 * @param {string} group
 * @param {string} value
 */
function cellOf(group, value) {
  if (!value) return html`<span class="faint">${group === "job" ? "none: a base answered" : "unknown"}</span>`;
  if (group === "job") return html`<a href=${to(["runs", value])} title=${plain(value)}>${tail(value)}</a>`;
  return group === "model" ? html`<span title=${plain(value)}>${model(value)}</span>` : plain(value, 80);
}

/** @param {{lines: any[], quota: any, isMine: boolean, isOfAll: boolean}} props */
function Sum({ lines, quota, isMine, isOfAll }) {
  const sum = (/** @type {string} */ name) => lines.reduce((total, line) => total + Number(line[name] || 0), 0);
  const priced = lines.find((line) => line.currency);
  const cost = (/** @type {string} */ name) => (priced && priced[name] !== null ? money(sum(name).toFixed(4), priced.currency) : "");
  const limit = quota?.gpu_minutes_per_month;
  return html`<section class="card" aria-label="Sum"><h2>${isOfAll ? "All tenants" : isMine ? "Your key" : `The tenant ${plain(caller.value.tenant, 60)}`}</h2><dl class="facts">
    ${h(Fact, { name: "GPU-minutes", value: minutes(sum("gpu_minutes")), hint: cost("gpu_cost") })}
    ${h(Fact, { name: "Requests", value: whole(sum("requests")) })}
    ${h(Fact, { name: "Tokens", value: whole(sum("prompt_tokens") + sum("completion_tokens")), hint: cost("token_cost") })}
    ${quota && h(Fact, { name: "GPU-minutes this month", value: `${minutes(quota.gpu_minutes_used)}${limit === null ? "" : ` of ${minutes(limit)}`}`, hint: `of the tenant; ${minutes(quota.gpu_minutes_held)} held by running jobs` })}</dl></section>`;
}

// -- system -----------------------------------------------------------------------------------------------------------

function System() {
  const [workers, replicas, queues] = MACHINES.map((path) => useObject(path));
  const failed = [workers, replicas, queues].find((one) => one.error && !one.data);
  if (failed) return h(Failure, { error: failed.error, retry: failed.reload });
  if (!workers.data || !replicas.data || !queues.data) return h(Loading, {});
  const again = () => [workers, replicas, queues].forEach((one) => one.reload());
  const releases = [...new Set(workers.data.data.map((/** @type {any} */ worker) => worker.release || "unknown"))];
  return html`<div class="stack">
    <section class="card" aria-label="Versions"><header><h2>Versions</h2><button type="button" class="small" onClick=${again}>Read again</button></header><dl class="facts">
      ${h(Fact, { name: "API", value: plain(caller.value.release) })}${h(Fact, { name: "Workers", value: releases.map((one) => plain(one, 40)).join(", ") || "–" })}</dl></section>
    ${h(Table, { title: "Workers", none: "No worker reports. Is one running?", columns: ["Device", "GPU memory", "Main memory", "Disk free", "Release", "Sandbox", "State"],
      rows: workers.data.data.map((/** @type {any} */ worker) => [
        worker.device === "cuda" ? `${worker.devices} × ${plain(worker.device_name, 60)}` : `CPU, ${counted(worker.cores, "core")}`,
        size(worker.memory_bytes), size(worker.host_bytes), worker.disk_bytes ? `${size(worker.disk_free_bytes)} of ${size(worker.disk_bytes)}${worker.disk_free_bytes < SHORT_OF_DISK * worker.disk_bytes ? ": nearly full" : ""}` : "–",
        plain(worker.release || "–", 40), plain(worker.sandbox || "–", 80), worker.fault ? html`<span class="different">${plain(worker.fault, 500)}</span>` : worker.gpu_fault ? plain(worker.gpu_fault, 500) : "takes jobs"]) })}
    ${h(Table, { title: "Replicas", none: "No replica is configured: models do not answer.", columns: ["Replica", "Base", "State", "In flight", "Last error"],
      rows: replicas.data.data.map((/** @type {any} */ replica) => [plain(replica.name, 80), plain(replica.base || "–", 80), plain(replica.state, 40), whole(replica.in_flight), replica.last_error ? `${plain(replica.last_error, 300)} (${exact(replica.last_error_at * 1000)})` : "–"]) })}
    ${h(Table, { title: "Queue", none: "Nothing waits, and nothing has run this month.", columns: ["Tenant", "Running", "Waiting", "GPU-minutes this month", "Held"],
      rows: queues.data.data.map((/** @type {any} */ one) => [plain(one.tenant, 80), limited(one.running, one.running_jobs), limited(one.queued, one.queued_jobs), limited(minutes(one.gpu_minutes_used), one.gpu_minutes_per_month), minutes(one.gpu_minutes_held)]) })}</div>`;
}

/** @param {{title: string, none: string, columns: string[], rows: any[][]}} props */
function Table({ title, none, columns, rows }) {
  return html`<section class="stack" aria-label=${title}><h2>${title}</h2>${rows.length
    ? html`<div class="list" tabindex="0" role="group" aria-label="Table of ${title}"><table><thead><tr>${columns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
      <tbody>${rows.map((row, number) => html`<tr key=${number}>${row.map((cell, place) => html`<td key=${place}>${cell}</td>`)}</tr>`)}</tbody></table></div>`
    : html`<p class="faint">${none}</p>`}</section>`;
}

/**
 * @param {string | number} value
 * @param {number | null} most
 */
function limited(value, most) {
  return most === null ? String(value) : `${value} of ${most}`;
}

/** @param {number} value */
function minutes(value) {
  return value >= 100 ? whole(value) : String(Number(value.toFixed(1)));
}

/**
 * An amount of the API, with two decimals; less than a hundredth keeps all it has.
 * @param {string | null} amount
 * @param {string | null} currency
 */
function money(amount, currency) {
  if (amount === null) return "–";
  const value = Number(amount);
  return `${value !== 0 && value < 0.01 ? amount : value.toFixed(2)} ${plain(currency, 8)}`;
}
