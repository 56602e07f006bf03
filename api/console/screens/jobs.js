/** All jobs, newest first: filters in the address, pages as they come into view, changes without moving what is read. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
import { address, change, go, to } from "../lib/address.js";
import { ApiError, call, succeed } from "../lib/client.js";
import { between, duration, loss, plain, tail, whole } from "../lib/format.js";
import { useObject } from "../lib/cache.js";
import { FILTERS, countsPath, parametersOf } from "../lib/first_calls.js";
import { paced } from "../lib/pace.js";
import { connection, noteListed, onChanges } from "../lib/stream.js";
import { CopyAs, asCurl, asHttpx, quoted } from "../parts/copy_as.js";
import { h, html } from "../parts/html.js";
import { isInDialog, useRowKeys } from "../parts/row_keys.js";
import { Badge, Empty, Failure, Loading, Progress, Stale, Time, startsAbout, wordOf } from "../parts/state.js";

const STATES = ["", "running", "queued", "succeeded", "failed", "paused", "cancelled"];
const SINCE = { "": "any time", "1": "last 24 hours", "7": "last 7 days", "30": "last 30 days" };
/** As many as a comparison takes. */
const MOST_CHOSEN = 20;
/** Rows in the document above and below those in view; beyond them is empty space of the same height. At first only what is in view is drawn. */
const MARGIN = 20;
/** By how many rows the view moves until others are drawn: the fewer, the shorter is each time. */
const MOVED = 4;
/** Heights of a row and of a card, as in the style sheet. */
const ROW = 56;
const CARD = 116;
/** For how long a running job's duration stays as it was drawn. */
const RUNNING_SHOWN = 5_000;
const phone = matchMedia("(max-width: 760px)");

/**
 * The list's rows, and how to get more. Changed rows change where they are; new jobs wait until they are asked for.
 * @param {string} parameters
 */
function useJobs(parameters) {
  const [list, setList] = useState(/** @type {{rows: any[], hasMore: boolean, fresh: any[], error: any, at?: number, failures: number, isLoading: boolean}} */ (
    { rows: [], hasMore: false, fresh: [], error: null, failures: 0, isLoading: true }));
  const live = useRef({ parameters, etag: "", isBusy: false, counted: new Set() });

  /** Read the first page again, and lay it over what is here. */
  const read = async () => {
    const mine = parameters;
    const { etag } = live.current;
    try {
      const response = await succeed(`/v1/jobs?${mine}`, { headers: etag ? { "If-None-Match": etag } : {} });
      if (live.current.parameters !== mine) return;
      if (response.status === 304) return setList((old) => ({ ...old, error: null, at: Date.now(), failures: 0 }));
      const page = await response.json();
      live.current.etag = response.headers.get("etag") || "";
      noteListed(page.data);
      setList((old) => merged(old, page));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (live.current.parameters === mine) setList((old) => ({ ...old, error, failures: old.failures + 1, isLoading: false }));
    }
  };
  const more = async () => {
    if (live.current.isBusy || !list.hasMore || !list.rows.length) return;
    live.current.isBusy = true;
    const mine = parameters;
    try {
      const page = await call(`/v1/jobs?${mine}&after=${encodeURIComponent(list.rows[list.rows.length - 1].id)}`);
      if (live.current.parameters !== mine) return;
      setList((old) => {
        const here = new Set(old.rows.map((row) => row.id));
        return { ...old, rows: [...old.rows, ...page.data.filter((/** @type {any} */ row) => !here.has(row.id))], hasMore: page.has_more };
      });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setList((old) => ({ ...old, failures: old.failures + 1 }));
    } finally {
      live.current.isBusy = false;
    }
  };
  useLayoutEffect(() => {
    if (live.current.parameters !== parameters) {
      live.current = { parameters, etag: "", isBusy: false, counted: new Set() };
      setList((old) => ({ ...old, fresh: [], isLoading: true, error: null }));
    }
    void read();
    return onChanges((changes) => {
      const changed = new Map();
      for (const { event, data } of changes) if (event === "job" || event === "progress") changed.set(data.id, { ...changed.get(data.id), ...data });
      if (changes.some(({ event }) => event === "poll" || event === "reset")) void read();
      // Progress of a job far down the list is no news: only its states are.
      const told = new Set(changes.filter(({ event }) => event === "job").map(({ data }) => data.id));
      let isNew = false; // or only now known in full: progress has no number of steps, for which the list is asked once
      setList((old) => {
        const here = new Set(old.rows.map((row) => row.id));
        isNew = [...told].some((id) => !here.has(id) && !old.fresh.some((row) => row.id === id));
        for (const { id, total_steps } of old.rows) {
          if (!changed.get(id)?.step || total_steps || live.current.counted.has(id)) continue;
          live.current.counted.add(id);
          isNew = true;
        }
        return changed.size ? { ...old, at: Date.now(), rows: old.rows.map((row) => (changed.has(row.id) ? { ...row, ...changed.get(row.id) } : row)) } : old;
      });
      announce(changed);
      // Whether a new job fits the filters is the list's to say.
      if (isNew || changes.some(({ event, data }) => event === "job" && data.state !== "running")) void read();
    });
  }, [parameters]);
  const showFresh = () => setList((old) => ({ ...old, rows: [...old.fresh, ...old.rows], fresh: [] }));
  return { ...list, more, showFresh, retry: () => void read() };
}

/**
 * @param {any} old
 * @param {{data: any[], has_more: boolean}} page
 */
function merged(old, page) {
  if (old.isLoading || !old.rows.length)
    return { rows: page.data, hasMore: page.has_more, fresh: [], error: null, at: Date.now(), failures: 0, isLoading: false };
  const now = new Map(page.data.map((row) => [row.id, row]));
  const here = new Set(old.rows.map((/** @type {any} */ row) => row.id));
  const last = page.data[page.data.length - 1]?.id;
  // A row that this page should have and does not have fits the filters no more.
  const end = page.has_more ? old.rows.findIndex((/** @type {any} */ row) => row.id === last) : old.rows.length - 1;
  const rows = old.rows.flatMap((/** @type {any} */ row, /** @type {number} */ index) => (now.has(row.id) ? [now.get(row.id)] : index <= end ? [] : [row]));
  const fresh = page.data.filter((row) => !here.has(row.id));
  // At the top nobody's row is moved: a list that begins with them is what the person looks at.
  const isAtTop = scrollY < 40 && !document.querySelector("tbody tr:hover, tbody tr:focus-within");
  return isAtTop
    ? { ...old, rows: [...fresh, ...rows], fresh: [], error: null, at: Date.now(), failures: 0 }
    : { ...old, rows, fresh, error: null, at: Date.now(), failures: 0 };
}

/**
 * Say changes of state to a screen reader, and no ticks of progress.
 * @param {Map<string, any>} changed
 */
function announce(changed) {
  const place = document.getElementById("announcements");
  const said = [...changed.values()].filter((job) => job.state).map((job) => `${plain(job.name || job.kind, 60)} is ${wordOf(job.state)}`);
  if (place && said.length) place.textContent = said.slice(0, 3).join(". ");
}

/**
 * Numbers of jobs by state, with the filters of the list; counted again when a job has changed its state, at most every ten seconds.
 * @param {URLSearchParams} parameters
 * @returns {Record<string, number>} without what is not known
 */
function useCounts(parameters) {
  const path = countsPath(parameters);
  const { data, reload } = useObject(path);
  useEffect(() => {
    const pace = paced(reload, 10_000);
    const stop = onChanges((changes) => changes.some(({ event }) => ["job", "poll", "reset"].includes(event)) && pace.ask());
    return () => (pace.stop(), stop());
  }, [path]);
  if (!data) return {};
  const counts = Object.fromEntries(data.data.map((/** @type {any} */ one) => [one.state, one.jobs]));
  return { ...Object.fromEntries(STATES.map((state) => [state, 0])), ...counts, "": data.data.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.jobs, 0) };
}

export function Jobs() {
  const { query } = address.value;
  const asked = parametersOf(query);
  const parameters = asked.toString();
  const counts = useCounts(asked);
  const list = useJobs(parameters);
  const { rows, fresh, hasMore, more, error, isLoading } = list;
  const body = useRef(/** @type {HTMLTableSectionElement | null} */ (null));
  const height = phone.matches ? CARD : ROW;
  const inView = Math.ceil(innerHeight / height);
  const [{ first, end }, setDrawn] = useState({ first: 0, end: inView });
  const rowOf = useRows(query);

  const latest = useRef(more);
  latest.current = more;
  const look = useRef(() => {});
  useEffect(() => {
    look.current = () => {
      const seen = Math.max(0, Math.floor(-(body.current?.getBoundingClientRect().top ?? 0) / height));
      const now = { first: Math.max(0, seen - MARGIN), end: seen + inView + MARGIN };
      setDrawn((old) => (Math.abs(old.first - now.first) >= MOVED || Math.abs(old.end - now.end) >= MOVED || (now.first === 0 && old.first !== 0) ? now : old));
      if (document.documentElement.scrollHeight - scrollY - innerHeight < 1200) void latest.current();
    };
    addEventListener("scroll", look.current, { passive: true });
    addEventListener("resize", look.current);
    return () => {
      removeEventListener("scroll", look.current);
      removeEventListener("resize", look.current);
    };
  }, [height, inView]);
  useEffect(() => whenIdle(() => look.current()), [rows.length, hasMore, height, inView]); // the rows in view are painted first
  useRowKeys("tbody a.name");
  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const choose = (event) => {
      if (!["x", "c"].includes(event.key) || event.ctrlKey || event.metaKey || isInDialog() || /^(INPUT|SELECT|TEXTAREA)$/.test(/** @type {Element} */ (event.target).tagName)) return;
      if (event.key === "c") return void document.querySelector(".chosen a.button")?.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
      document.activeElement?.closest("tr")?.querySelector("input")?.click();
    };
    addEventListener("keydown", choose);
    return () => removeEventListener("keydown", choose);
  }, []);

  const drawn = rows.slice(first, end);
  const isFiltered = [...query.keys()].some((key) => key !== "chosen" && query.get(key));
  const chosen = chosenIn(query);
  const isOld = connection.value.state === "stale" || list.failures >= 3;
  return html`<div class="head"><h1>Jobs</h1>
      <a class="button primary" href="#/new">New run</a>${h(CopyAs, copies(parameters))}</div>
    <nav class="tabs" aria-label="State">${STATES.map((state) => html`<a key=${state} href=${to(["jobs"], { ...Object.fromEntries(query), state })}
      aria-current=${(query.get("state") || "") === state ? "page" : undefined}>${state ? wordOf(state) : "all"}${counts[state] === undefined ? "" : html` <small>${whole(counts[state])}</small>`}</a>`)}</nav>
    ${h(Filters, { query })}
    ${h(Stale, { at: list.at, failures: list.failures, isLive: true })}
    <p class="fresh" aria-live="polite">${fresh.length > 0 && html`<button type="button" class="primary small" onClick=${() => (list.showFresh(), scrollTo(0, 0))}>${fresh.length} new</button>`}</p>
    ${error && !rows.length ? h(Failure, { error, retry: list.retry })
      : isLoading && !rows.length ? h(Loading, { rows: 8 })
      : !rows.length ? h(NoJobs, { isFiltered })
      : html`<table class="jobs ${isOld ? "old" : ""} ${isLoading ? "waiting" : ""}" aria-label="Jobs" aria-rowcount=${hasMore ? -1 : rows.length + 1}>
        <thead><tr aria-rowindex="1">${["Job", "State", "Progress", "Loss", "Base", "Alias", "By", "Submitted", "Took"].map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
        <tbody ref=${body}>
          ${first > 0 && html`<tr key="above" aria-hidden="true" class="space" style=${{ height: `${first * height}px` }}></tr>`}
          ${drawn.map((job, index) => rowOf(job, first + index + 2))}
          ${rows.length > end && html`<tr key="below" aria-hidden="true" class="space" style=${{ height: `${(rows.length - end) * height}px` }}></tr>`}
        </tbody></table>
        ${chosen.length > 0 && h(Chosen, { chosen })}
        <p class="faint end">${hasMore ? "Loading more…" : `${rows.length} ${rows.length === 1 ? "job" : "jobs"}`}</p>`}`;
}

/**
 * Act when the page has nothing else to do, soon after it was painted.
 * @param {() => void} act
 * @returns {() => void} calls it off
 */
function whenIdle(act) {
  if (!globalThis.requestIdleCallback) { // Safari
    const timer = setTimeout(act, 50);
    return () => clearTimeout(timer);
  }
  const idle = requestIdleCallback(act, { timeout: 200 });
  return () => cancelIdleCallback(idle);
}

/** What can be done with the chosen jobs. @param {{chosen: string[]}} props */
function Chosen({ chosen }) {
  return html`<div class="chosen" role="group" aria-label="Chosen jobs"><b>${chosen.length} chosen</b>
    ${chosen.length > 1 ? html`<a class="button primary" href=${to(["compare"], { jobs: chosen.join(",") })}>Compare</a>` : html`<span class="faint">choose another one to compare</span>`}
    <button type="button" onClick=${() => change({ chosen: "" }, { replace: true })}>Clear</button></div>`;
}

/** Jobs that the address names as chosen. @param {URLSearchParams} query */
function chosenIn(query) {
  return (query.get("chosen") || "").split(",").filter(Boolean);
}

/**
 * Rows that are drawn once for as long as their jobs and the address stay as they are: Preact skips a row that it was given before. That of
 * a running job, whose duration grows, serves for some seconds.
 * @param {URLSearchParams} query
 */
function useRows(query) {
  const text = query.toString();
  const drawn = useRef(/** @type {{text: string | null, around: Around, rows: WeakMap<any, any>}} */ ({ text: null, around: { chosen: [], filters: {} }, rows: new WeakMap() }));
  if (drawn.current.text !== text) drawn.current = { text, around: { chosen: chosenIn(query), filters: Object.fromEntries(query) }, rows: new WeakMap() };
  const { around, rows } = drawn.current;
  return (/** @type {any} */ job, /** @type {number} */ index) => {
    const old = rows.get(job);
    if (old?.index === index && (job.state !== "running" || Date.now() - old.at < RUNNING_SHOWN)) return old.row;
    const row = h(Row, { key: job.id, job, index, around });
    rows.set(job, { index, row, at: Date.now() });
    return row;
  };
}

/** @typedef {{chosen: string[], filters: Record<string, string>}} Around what the address says of all rows */

/**
 * A row. Its parts without a state of their own are functions that it calls: a component costs more than what it draws here.
 * @param {{job: any, index: number, around: Around}} props
 */
function Row({ job, index, around }) {
  const { chosen, filters } = around;
  const target = to(["runs", job.id]);
  const name = plain(job.name || job.kind, 80);
  /** @param {MouseEvent} event */
  const open = (event) => {
    if (!(/** @type {Element} */ (event.target).closest("a, button, input")) && !getSelection()?.toString()) go(target);
  };
  const isDone = ["succeeded", "failed", "cancelled"].includes(job.state);
  // Cells that progress leaves as they are: Preact skips what it was given before.
  const who = useMemo(() => html`<td class="job">${job.kind === "finetune" && html`<input type="checkbox" class="choose" aria-label="Choose ${name} ${tail(job.id)}" checked=${chosen.includes(job.id)} disabled=${chosen.length >= MOST_CHOSEN && !chosen.includes(job.id)}
      onChange=${() => change({ chosen: (chosen.includes(job.id) ? chosen.filter((id) => id !== job.id) : [...chosen, job.id]).join(",") }, { replace: true })} />`}<a class="name" href=${target}>${name}</a><small title=${job.id}>${job.kind === "finetune" ? "" : `${plain(job.kind)} `}${tail(job.id)}</small></td>`, [job.id, job.kind, name, around]);
  const whence = useMemo(() => html`<td class="base" data-name="base">${filterLink("base", job.base_model, filters)}</td>
    <td class="alias" data-name="alias">${filterLink("alias", job.alias, filters)}</td>
    <td class="by" data-name="by">${filterLink("by", job.created_by, filters)}</td>
    <td class="started">${h(Time, { time: job.created_at })}</td>`, [job.base_model, job.alias, job.created_by, job.created_at, around]);
  return html`<tr aria-rowindex=${index} onClick=${open} class=${job.state}>
    ${who}
    <td class="state">${Badge({ state: job.state, stage: job.stage })}</td>
    <td class="doing">${doing(job)}</td>
    <td class="number loss" data-name="loss">${loss(job.train_loss)}</td>
    ${whence}
    <td class="number took" data-name="took">${job.started_at ? duration(between(job.started_at, isDone ? job.finished_at : null)) : "–"}</td></tr>`;
}

/** What a job does now, waits for, or died of. @param {any} job */
function doing(job) {
  if (job.state === "failed") return html`<code class="reason" title=${plain(job.error?.message, 500)}>${plain(job.error?.code || "failed")}</code>`;
  if (job.state === "queued") {
    const place = job.queue;
    if (!place) return html`<span class="faint">waits for a worker</span>`;
    return html`<span title=${plain(place.explanation, 500)}>place ${place.position}${startsAbout(place)}</span>`;
  }
  if (job.state === "running" || job.state === "paused") {
    return html`${job.total_steps ? Progress({ step: job.step, total: job.total_steps, label: `progress of ${plain(job.name, 60)}` }) : html`<span class="faint">starting</span>`}
      ${job.state === "running" && job.stage === "training" && job.eta_seconds ? html`<small>${duration(job.eta_seconds)} left</small>` : ""}`;
  }
  if (job.state === "succeeded") return html`<span class="faint">${job.alias_moved ? `${plain(job.alias, 40)} points to it` : job.adapter_id ? "adapter stored" : "done"}</span>`;
  return html`<span class="faint">–</span>`;
}

/**
 * A value that leads to the jobs that have it.
 * @param {string} name
 * @param {string | null} value
 * @param {Record<string, string>} filters of the address
 */
function filterLink(name, value, filters) {
  if (!value) return html`<span class="faint">–</span>`;
  return html`<a class="quiet" href=${to(["jobs"], { ...filters, [name]: value })} title="Only jobs with this ${name}: ${plain(value)}">${plain(value, 40)}</a>`;
}

/** @param {{query: URLSearchParams}} props */
function Filters({ query }) {
  const [typed, setTyped] = useState(query.get("q") || "");
  useEffect(() => setTyped(query.get("q") || ""), [query.get("q")]);
  useEffect(() => {
    const timer = setTimeout(() => {
      if (typed !== (query.get("q") || "")) change({ q: typed }, { replace: true });
    }, 300);
    return () => clearTimeout(timer);
  }, [typed]);
  const chosen = FILTERS.filter(([name]) => query.get(name));
  return html`<div class="filters" role="search">
    <input type="search" aria-label="Search jobs by name, base or id" placeholder="Search name, base, id   /" maxlength="100" value=${typed}
      onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} />
    <select aria-label="Created" value=${query.get("since") || ""} onChange=${(/** @type {any} */ event) => change({ since: event.target.value })}>
      ${Object.entries(SINCE).map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}</select>
    ${chosen.map(([name]) => html`<button key=${name} type="button" class="chip" onClick=${() => change({ [name]: "" })} aria-label="Remove the filter ${name} ${plain(query.get(name))}">
      ${name}: <b>${plain(query.get(name), 40)}</b> <span aria-hidden="true">×</span></button>`)}
  </div>`;
}

/** @param {{isFiltered: boolean}} props */
function NoJobs({ isFiltered }) {
  if (isFiltered) return h(Empty, { title: "No job fits these filters", children: html`<p><a href="#/jobs">Show all jobs</a></p>` });
  return h(Empty, {
    title: "No jobs yet",
    children: html`<p>Train a model on rows of your own: <a href="#/files">upload a file</a> and look at its rows, then <a href="#/new">start a run</a>.</p>`,
  });
}

/** @param {string} parameters */
function copies(parameters) {
  const path = `/v1/jobs?${parameters}`;
  const wanted = new URLSearchParams(parameters);
  const options = [["state", "--state"], ["base_model", "--base"], ["alias", "--alias"], ["created_by", "--by"], ["created_after", "--since"], ["q", "--find"]].flatMap(([name, option]) =>
    wanted.get(name) ? [option, quoted(wanted.get(name) || "")] : []);
  return { curl: asCurl(path), python: asHttpx(path), mens: ["mens jobs list", ...options].join(" ") };
}
