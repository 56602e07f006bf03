/**
 * One stream of changes for a browser and tenant, read by `fetch`: an EventSource shows neither headers nor errors.
 *
 * Over HTTP/1.1 a browser has six connections for a host, so with a stream for each tab the seventh tab would never load. A tab
 * elects itself by Web Locks, and shares what it reads. A hidden tab reads nothing after 30 seconds.
 */
import { useEffect, useRef } from "../vendor/preact-hooks.js";
import { signal } from "../vendor/signals.js";
import { refresh } from "./cache.js";
import { ApiError, caller, endSignIn, send, storedHalf, succeed, traffic } from "./client.js";
import { firstCursor } from "./first_calls.js";
import { paced } from "./pace.js";

const HIDDEN_AFTER = 30_000;
const SILENT_AFTER = 40_000; // the API sends a comment every 15 s
/** A stream that a proxy holds back says nothing; ours begins with a comment. */
const BEGINS_WITHIN = 8_000;
/** A page without a stream pauses for so long for each of its calls: a poll that takes three of them is followed by three pauses. With tries of the stream, two calls a poll are at most 12 in any minute, also in one that begins and ends with a poll. */
const CALL_EVERY = 7_200;
/** How long a poll may wait for its answers until a separate request asks whether the API is there. Less than `CALL_EVERY`. */
const ANSWERS_WITHIN = 5_000;
/** At most between two tries of a stream, or two polls, while the API answers. */
const TRY_EVERY = 60_000;
const BATCH = 500;

/** How the page learns of changes. `since`: when it last heard something. */
export const connection = signal({ state: /** @type {"live" | "polling" | "stale" | "connecting"} */ ("connecting"), since: Date.now() });

/** @typedef {{event: string, data: any}} Change */
/** @typedef {{state?: "live" | "polling" | "stale" | "connecting", change?: Change, cursor?: string}} Message `cursor`: id of the last event */
/** @typedef {(message: Message) => void} Tell */
/** @type {Change} */
const RESET = { event: "reset", data: {} };
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

/**
 * Ask again when something that is meant changes, and at each poll of a page without a stream; at most once per pause.
 * @param {() => void} reload
 * @param {(changed: any) => boolean} isMeant
 * @param {number} [pause] ms
 */
export function useChanges(reload, isMeant, pause = 2000) {
  const latest = useRef({ reload, isMeant });
  latest.current = { reload, isMeant };
  useEffect(() => {
    const pace = paced(() => latest.current.reload(), pause);
    const leave = onChanges((changes) => void (changes.some(({ event, data }) => ["poll", "reset"].includes(event) || (data?.id && latest.current.isMeant(data))) && pace.ask()));
    return () => (pace.stop(), void leave());
  }, []);
}

/** Versions of jobs as a list has shown them. @type {Map<string, number>} */
const listed = new Map();

/**
 * Note what a list shows: a stream begins a little before the list, and what it repeats is no change.
 * @param {{id: string, version: number}[]} jobs
 */
export function noteListed(jobs) {
  for (const { id, version } of jobs) listed.set(id, version);
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
    if (job) return kinds.has("poll") || ids.has(decodeURIComponent(job[1]));
    return ((kinds.has("alias") || kinds.has("poll")) && /^\/v1\/(models|adapters|aliases)/.test(url)) || (kinds.has("receipt") && /^\/v1\/receipts/.test(url));
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
      collect(RESET);
    }
  });
}

/** Where the first stream of this page begins; later ones begin with a `reset`. */
let first = firstCursor();

/**
 * Be the tab that reads, or listen to it.
 * @param {AbortSignal} abort
 */
async function run(abort) {
  const own = first;
  first = undefined;
  const name = `mens.changes.${caller.peek()?.tenant}.${caller.peek()?.name}`;
  const channel = new BroadcastChannel(name);
  abort.addEventListener("abort", () => channel.close());
  let heard = Date.now();
  let isLeading = false;
  let cursor = ""; // of all tabs, so that the next one to lead goes on where this one ended
  /** @type {Tell} */
  const hear = (message) => {
    heard = Date.now();
    cursor = message.cursor ?? cursor;
    if (message.state) show(message.state);
    if (message.change) collect(message.change);
  };
  channel.onmessage = ({ data }) => {
    if (data.hello && isLeading) share({ state: connection.peek().state, cursor });
    if (data.cursor && !cursor) void own?.then((mine) => mine && Number(data.cursor) > Number(mine) && collect(RESET)); // told before this tab listened
    hear(data);
  };
  /** @param {any} message */
  const share = (message) => {
    if (!abort.aborted) channel.postMessage(message);
  };
  const watch = setInterval(() => {
    if (Date.now() - heard > SILENT_AFTER && connection.peek().state === "live") show("connecting");
  }, 5_000);
  abort.addEventListener("abort", () => clearInterval(watch));
  const lead = async () => {
    isLeading = true;
    const begin = await Promise.race([own, pause(BEGINS_WITHIN, abort)]); // undefined: not known in time
    cursor ||= begin || "";
    const tell = (/** @type {Message} */ message) => {
      hear(message);
      share(message);
    };
    return readOrPoll(abort, () => cursor, begin === undefined && !cursor, tell);
  };
  if (!navigator.locks) return lead(); // plain HTTP at another machine
  channel.postMessage({ hello: true }); // the leading tab answers with its state
  try {
    await navigator.locks.request(name, { signal: abort }, lead);
  } catch (error) {
    if (!abort.aborted) throw error;
  }
}

/**
 * Read the stream; while there is none, let the screen ask, and try again more and more rarely.
 * @param {AbortSignal} abort
 * @param {() => string} cursor
 * @param {boolean} hasMissed whether changes may have come that no stream has told
 * @param {Tell} tell
 */
async function readOrPoll(abort, cursor, hasMissed, tell) {
  let tries = 0; // in a row that gave no stream although the API answers
  let unanswered = 0;
  let polled = { at: 0, calls: 0 };
  const due = () => polled.at + Math.min(CALL_EVERY * Math.max(traffic.calls - polled.calls, 1), TRY_EVERY);
  while (!abort.aborted) {
    try {
      await readStream(abort, cursor(), (message) => {
        if (message.state === "live") {
          if (hasMissed) tell({ change: { event: "reset", data: {} } });
          hasMissed = false;
          tries = 0;
        }
        tell(message);
      });
    } catch (error) {
      if (abort.aborted) return;
      hasMissed = true;
    }
    if (abort.aborted || !caller.peek()) return;
    tries += 1;
    const again = Date.now() + Math.min(500 * 3 ** tries, TRY_EVERY);
    do {
      const isThere = await isAnswering(polled.at, abort);
      if (abort.aborted || !caller.peek()) return;
      unanswered = isThere ? 0 : unanswered + 1;
      tell({ state: unanswered >= 3 ? "stale" : !unanswered && tries >= 3 ? "polling" : "connecting" });
      if (unanswered) {
        tries = 0; // so that the stream is there soon after the API
        refresh(); // a screen shows what the API answers
        await pause(Math.min(500 * 2 ** unanswered, CALL_EVERY), abort);
        break;
      }
      if (Date.now() >= due()) {
        polled = { at: Date.now(), calls: traffic.calls };
        tell({ change: { event: "poll", data: {} } });
      }
      await pause(Math.min(again, due()) - Date.now(), abort);
    } while (Date.now() < again);
  }
}

/**
 * Whether the API answers: as requests since the last poll have shown, or else one made for that.
 * @param {number} since
 * @param {AbortSignal} abort
 */
async function isAnswering(since, abort) {
  if (traffic.answeredAt > Math.max(since, traffic.failedAt, Date.now() - TRY_EVERY)) return true;
  if (traffic.failedAt < since && Date.now() < since + ANSWERS_WITHIN) return true; // the API answered just before the poll
  try {
    await succeed("/v1/me", { signal: AbortSignal.any([abort, AbortSignal.timeout(BEGINS_WITHIN)]) });
    return true;
  } catch (error) {
    return error instanceof ApiError && error.status > 0 && error.status < 500;
  }
}

/**
 * Read the stream until it ends.
 * @param {AbortSignal} abort
 * @param {string} cursor id of the last event
 * @param {Tell} tell
 */
async function readStream(abort, cursor, tell) {
  const silent = new AbortController();
  const stopped = AbortSignal.any([abort, silent.signal]);
  addEventListener("offline", () => silent.abort(), { once: true, signal: stopped });
  const half = storedHalf();
  let timer = setTimeout(() => silent.abort(), BEGINS_WITHIN); // until its first bytes
  const response = await send("/v1/events", { signal: stopped, headers: cursor ? { "Last-Event-ID": cursor } : {} });
  if (!response.ok || !response.body) {
    clearTimeout(timer);
    if (response.status === 401) endSignIn(half);
    if (response.status === 400) tell({ cursor: "" }); // an id of another release: the next try begins without it
    throw new Error(`The stream has status ${response.status}.`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    timer = setTimeout(() => silent.abort(), SILENT_AFTER);
    tell({ state: "live" });
    text += value;
    const parts = text.split(/\r?\n\r?\n/);
    text = parts.pop() || "";
    for (const part of parts) {
      const fields = fieldsOf(part);
      if (fields.event === "error") throw new Error("The key has ended.");
      if (!fields.event) continue;
      const data = JSON.parse(fields.data || "{}");
      const isRepeated = Number(fields.id) <= Number(cursor) && data.version <= (listed.get(data.id) ?? -1);
      tell({ cursor: fields.id, ...(isRepeated ? {} : { change: { event: fields.event, data } }) });
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
 * @returns {Promise<undefined>}
 */
function pause(milliseconds, abort) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    abort.addEventListener("abort", () => (clearTimeout(timer), resolve(undefined)), { once: true });
  });
}
