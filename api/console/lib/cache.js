/** One store: objects by URL, with their ETag. A screen names what it shows; what changes is drawn again. */
import { signal } from "../vendor/signals.js";
import { useLayoutEffect } from "../vendor/preact-hooks.js";
import { ApiError, call, caller, succeed } from "./client.js";
import { eventsPath } from "./first_calls.js";

/**
 * @typedef {{data?: any, error?: ApiError | null, at?: number, failures: number}} Kept `at`: when the API last confirmed the data
 * @typedef {{kept: import("../vendor/signals.js").Signal<Kept>, etag: string, users: number, loading: Promise<void> | null, again: boolean}} Entry
 */

/** @type {Map<string, Entry>} */
const entries = new Map();
const KEPT = 40;

/** @param {string} url */
function entryOf(url) {
  let entry = entries.get(url);
  if (!entry) {
    entry = { kept: signal({ failures: 0 }), etag: "", users: 0, loading: null, again: false };
    entries.set(url, entry);
    for (const [other, { users }] of entries) if (entries.size > KEPT && !users && other !== url) entries.delete(other);
  }
  return entry;
}

/**
 * Ask for an object again; a 304 confirms what is here. Calls while one is on its way become one call after it.
 * @param {string} url
 * @returns {Promise<void>}
 */
export function load(url) {
  const entry = entryOf(url);
  if (entry.loading) {
    entry.again = true;
    return entry.loading;
  }
  entry.loading = read(url, entry).finally(() => {
    entry.loading = null;
    if (entry.again) {
      entry.again = false;
      void load(url);
    }
  });
  return entry.loading;
}

/**
 * @param {string} url
 * @param {Entry} entry
 */
async function read(url, entry) {
  try {
    const response = await succeed(url, { headers: entry.etag ? { "If-None-Match": entry.etag } : {} });
    const old = entry.kept.peek();
    if (response.status === 304) {
      entry.kept.value = { ...old, error: null, at: Date.now(), failures: 0 };
      return;
    }
    const isJson = (response.headers.get("content-type") || "").includes("json");
    const data = isJson ? await response.json() : await response.text();
    entry.etag = response.headers.get("etag") || "";
    entry.kept.value = { data, error: null, at: Date.now(), failures: 0 };
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const old = entry.kept.peek();
    entry.kept.value = { ...old, error, failures: old.failures + 1 };
  }
}

/**
 * The object of a URL, loaded when the screen appears and again when it changed.
 * @param {string | null} url null: nothing yet
 * @returns {Kept & {reload: () => void}}
 */
export function useObject(url) {
  useLayoutEffect(() => { // asks before the frame is painted, not after
    if (!url) return;
    const entry = entryOf(url);
    entry.users += 1;
    void load(url);
    return () => void (entry.users -= 1);
  }, [url]);
  if (!url) return { failures: 0, reload: () => {} };
  return { ...entryOf(url).kept.value, reload: () => void load(url) };
}

/**
 * The objects of several URLs, as `useObject` gives one.
 * @param {string[]} urls
 * @returns {Kept[]}
 */
export function useObjects(urls) {
  useLayoutEffect(() => {
    const used = urls.map(entryOf);
    for (const entry of used) entry.users += 1;
    for (const url of urls) void load(url);
    return () => used.forEach((entry) => void (entry.users -= 1));
  }, [urls.join("\n")]);
  return urls.map((url) => entryOf(url).kept.value);
}

/**
 * Load what is shown again, if its URL is meant.
 * @param {(url: string) => boolean} [isMeant]
 */
export function refresh(isMeant = () => true) {
  for (const [url, entry] of entries) if (entry.users && isMeant(url)) void load(url);
}

/** Forget everything: another caller may see something else. */
caller.subscribe((now) => {
  if (now === null) entries.clear();
});

/**
 * All events of a job, in order. The API gives 500 a call.
 * @param {string} id
 * @param {number} after
 */
export async function eventsOf(id, after) {
  const events = [];
  for (let page = 0; page < 10; page++) {
    const answer = await call(eventsPath(id, after));
    events.push(...(answer.events || []));
    if ((answer.events || []).length < 500) break;
    after = events[events.length - 1].seq;
  }
  return events;
}
