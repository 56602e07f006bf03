/**
 * One stream of changes for a browser and tenant, read by `fetch`: an EventSource shows neither headers nor errors.
 *
 * Over HTTP/1.1 a browser has six connections for a host, so with a stream for each tab the seventh tab would never load. A tab
 * elects itself by Web Locks, and shares what it reads. A hidden tab reads nothing after 30 seconds.
 */
import { signal } from "../vendor/signals.js";
import { refresh } from "./cache.js";
import { caller, endSignIn, send, storedHalf } from "./client.js";

const HIDDEN_AFTER = 30_000;
const SILENT_AFTER = 40_000; // the API sends a comment every 15 s
const POLL_EVERY = 5_000;
const BATCH = 500;

/** How the page learns of changes. `since`: when it last heard something. */
export const connection = signal({ state: /** @type {"live" | "polling" | "stale" | "connecting"} */ ("connecting"), since: Date.now() });

/** @typedef {{event: string, data: any}} Change */
/** @type {Set<(changes: Change[]) => void>} */
const listeners = new Set();
/** @type {Change[]} */
let waiting = [];
let timer = 0;

/**
 * Call with changes, at most twice a second and before the screen is drawn.
 * @param {(changes: Change[]) => void} listener
 * @returns {() => void}
 */
export function onChanges(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** @param {Change} change */
function collect(change) {
  waiting.push(change);
  timer ||= setTimeout(() => requestAnimationFrame(deliver), BATCH);
}

function deliver() {
  const changes = waiting;
  waiting = [];
  timer = 0;
  const ids = new Set(changes.map((change) => change.data?.id).filter(Boolean));
  const kinds = new Set(changes.map((change) => change.event));
  for (const listener of listeners) listener(changes);
  refresh((url) => {
    if (kinds.has("reset")) return true;
    const job = /^\/v1\/jobs\/([^/?]+)/.exec(url);
    if (job) return ids.has(decodeURIComponent(job[1]));
    return kinds.has("alias") && /^\/v1\/(models|adapters|aliases)/.test(url);
  });
}

/** @param {"live" | "polling" | "stale" | "connecting"} state */
function show(state) {
  const old = connection.peek();
  if (state === "live" || state === "polling") old.since = Date.now();
  if (state !== old.state) connection.value = { state, since: old.since }; // else every part of the stream would draw the screen again
}

/** Follow changes as long as somebody is signed in and looks. */
export function follow() {
  /** @type {AbortController | null} */
  let running = null;
  let hidden = 0;
  const start = () => {
    if (running || !caller.peek() || document.hidden) return;
    running = new AbortController();
    void run(running.signal);
  };
  const stop = () => {
    running?.abort();
    running = null;
  };
  caller.subscribe((now) => {
    stop();
    if (now) start();
  });
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    if (document.hidden) {
      hidden = setTimeout(stop, HIDDEN_AFTER);
    } else if (!running) {
      start();
      refresh();
      collect({ event: "reset", data: {} });
    }
  });
}

/**
 * Be the tab that reads, or listen to it.
 * @param {AbortSignal} abort
 */
async function run(abort) {
  const name = `mens.changes.${caller.peek()?.tenant}.${caller.peek()?.name}`;
  const channel = new BroadcastChannel(name);
  abort.addEventListener("abort", () => channel.close());
  let heard = Date.now();
  channel.onmessage = ({ data }) => {
    heard = Date.now();
    if (data.state) show(data.state);
    if (data.change) collect(data.change);
  };
  /** @param {any} message */
  const share = (message) => {
    if (!abort.aborted) channel.postMessage(message);
  };
  const watch = setInterval(() => {
    if (Date.now() - heard > SILENT_AFTER && connection.peek().state === "live") show("connecting");
  }, 5_000);
  abort.addEventListener("abort", () => clearInterval(watch));
  const lead = () => readOrPoll(abort, (message) => {
    heard = Date.now();
    if (message.state) show(message.state);
    if (message.change) collect(message.change);
    share(message);
  });
  if (!navigator.locks) return lead(); // plain HTTP at another machine
  channel.postMessage({ hello: true });
  show("live"); // until the leading tab says otherwise
  try {
    await navigator.locks.request(name, { signal: abort }, lead);
  } catch (error) {
    if (!abort.aborted) throw error;
  }
}

/**
 * @param {AbortSignal} abort
 * @param {(message: {state?: any, change?: Change}) => void} tell
 */
async function readOrPoll(abort, tell) {
  let failures = 0;
  let cursor = "";
  let polled = 0;
  while (!abort.aborted) {
    try {
      cursor = await readStream(abort, cursor, (message) => {
        failures = 0;
        tell(message);
      });
    } catch (error) {
      if (abort.aborted) return;
    }
    if (abort.aborted || !caller.peek()) return;
    failures += 1;
    const isThere = await poll(abort);
    polled = isThere ? 0 : polled + 1;
    tell({ state: polled >= 3 ? "stale" : isThere && failures >= 3 ? "polling" : "connecting" });
    if (isThere) tell({ change: { event: "poll", data: {} } });
    if (!isThere) refresh(); // so that a screen shows what the API answers
    await pause(Math.min(500 * 2 ** failures, POLL_EVERY), abort);
  }
}

/** @param {AbortSignal} abort */
async function poll(abort) {
  try {
    return (await send("/v1/me", { signal: abort })).status < 500;
  } catch {
    return false;
  }
}

/**
 * Read the stream until it ends.
 * @param {AbortSignal} abort
 * @param {string} cursor id of the last event
 * @param {(message: {state?: any, change?: Change}) => void} tell
 * @returns {Promise<string>} the new cursor
 */
async function readStream(abort, cursor, tell) {
  const silent = new AbortController();
  const stopped = AbortSignal.any([abort, silent.signal]);
  addEventListener("offline", () => silent.abort(), { once: true, signal: stopped });
  const half = storedHalf();
  const response = await send("/v1/events", { signal: stopped, headers: cursor ? { "Last-Event-ID": cursor } : {} });
  if (!response.ok || !response.body) {
    if (response.status === 401) endSignIn(half);
    throw new Error(`The stream has status ${response.status}.`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  tell({ state: "live" });
  for (;;) {
    const timer = setTimeout(() => silent.abort(), SILENT_AFTER);
    const { done, value } = await reader.read();
    clearTimeout(timer);
    if (done) return cursor;
    tell({ state: "live" });
    text += value;
    const parts = text.split(/\r?\n\r?\n/);
    text = parts.pop() || "";
    for (const part of parts) {
      const fields = fieldsOf(part);
      if (fields.id) cursor = fields.id;
      if (fields.event === "error") throw new Error("The key has ended.");
      if (fields.event && fields.data) tell({ change: { event: fields.event, data: JSON.parse(fields.data) } });
      else if (fields.event) tell({ change: { event: fields.event, data: {} } });
    }
  }
}

/** @param {string} part */
function fieldsOf(part) {
  /** @type {Record<string, string>} */
  const fields = {};
  for (const line of part.split(/\r?\n/)) {
    const [, name, value] = /^(\w+): ?(.*)$/.exec(line) || [];
    if (name) fields[name] = name in fields ? `${fields[name]}\n${value}` : value;
  }
  return fields;
}

/**
 * @param {number} milliseconds
 * @param {AbortSignal} abort
 */
function pause(milliseconds, abort) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    abort.addEventListener("abort", () => (clearTimeout(timer), resolve(undefined)), { once: true });
  });
}
