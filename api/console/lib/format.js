/** Numbers, times and names as the page shows them. Copies have UTC; the page has local time. */

const NONE = "–";
/** English, as all of the page. Not by `Intl`: a browser's first use of that took 50 ms and more, before anything was shown. */
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** @param {number | null | undefined} value */
export function whole(value) {
  return value === null || value === undefined ? NONE : String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ",");
}

/**
 * A number with its noun.
 * @param {number | null | undefined} value
 * @param {string} noun
 */
export function counted(value, noun) {
  return `${whole(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/**
 * Number of pairs in which the preferred answer is more likely, for the tuned model and for the model that the run started from.
 * @param {{reference: string, pairs: number, before: number, tuned: number, interval: [number, number] | null}} answers
 */
export function preferredAnswers({ reference, pairs, before, tuned, interval }) {
  const points = interval?.map((end) => (100 * end).toFixed(1)).join(" to ");
  return `On ${whole(tuned)} of ${counted(pairs, "pair")} the tuned model finds the preferred answer more likely, per token; the ${plain(reference, 40)}, on ${whole(before)}${points ? `; difference ${points} points (95 %)` : ""}.`;
}

/**
 * A loss, with four digits.
 * @param {number | null | undefined} value
 */
export function loss(value) {
  if (value === null || value === undefined) return NONE;
  if (!Number.isFinite(value)) return "not finite";
  return value !== 0 && Math.abs(value) < 0.01 ? value.toExponential(2) : value.toFixed(4);
}

/**
 * A number of which three digits matter.
 * @param {number | null | undefined} value
 */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && size < 0.001) return value.toExponential(2);
  if (size < 1000) return String(Number(value.toPrecision(3)));
  for (const [unit, name] of /** @type {[number, string][]} */ ([[1e9, "G"], [1e6, "M"], [1e3, "k"]]))
    if (size >= unit) return `${Number((value / unit).toPrecision(3))} ${name}`;
  return NONE;
}

/** @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return NONE;
  if (bytes < 1000) return `${bytes} B`;
  const names = ["kB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log10(bytes) / 3), names.length);
  return `${Number((bytes / 1000 ** power).toPrecision(3))} ${names[power - 1]}`;
}

/** A share. Only all is 100.0 %, and only nothing is 0.0 %. @param {number | null | undefined} fraction */
export function percent(fraction) {
  if (fraction === null || fraction === undefined) return NONE;
  if (fraction > 0 && fraction < 0.0005) return "< 0.1 %";
  return fraction < 1 && fraction >= 0.9995 ? "> 99.9 %" : `${(100 * fraction).toFixed(1)} %`;
}

/** How a value differs from another: in percent, or as a multiple of at least eleven. @param {number} value @param {number} of */
export function difference(value, of) {
  const part = (100 * (value - of)) / Math.abs(of);
  if (Math.abs(part) < 0.05) return "the same";
  if (part >= 1000 && of > 0) return `${whole(value / of)} times`;
  const digits = Math.abs(part) < 1000 ? short(Math.abs(part)) : whole(Math.abs(part));
  return `${part > 0 ? "+" : "−"}${digits} %`;
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (seconds < 60) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  const hours = Math.floor(seconds / 3600);
  if (hours < 48) return `${hours} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${Math.floor(hours / 24)} days`;
}

/**
 * Seconds between two times.
 * @param {string | null} from
 * @param {string | null} until null: now
 */
export function between(from, until) {
  return from ? ((until ? Date.parse(until) : Date.now()) - Date.parse(from)) / 1000 : null;
}

/** @param {string | number | null | undefined} time */
export function ago(time) {
  if (!time) return NONE;
  const at = new Date(time);
  const seconds = (Date.now() - at.getTime()) / 1000;
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  const today = new Date();
  if (at.toDateString() === today.toDateString()) return `today ${minute(time)}`;
  const yesterday = new Date(today.getTime() - 86_400_000);
  if (at.toDateString() === yesterday.toDateString()) return `yesterday ${minute(time)}`;
  return at.getFullYear() === today.getFullYear() ? `${day(at)} ${minute(time)}` : `${day(at)} ${at.getFullYear()}`;
}

/** @param {Date} at */
function day(at) {
  return `${at.getDate()} ${MONTHS[at.getMonth()]}`;
}

/** @param {number} number */
function twoDigits(number) {
  return String(number).padStart(2, "0");
}

/**
 * Day, time and distance from UTC.
 * @param {string | number | null | undefined} time
 */
export function exact(time) {
  if (!time) return "";
  const at = new Date(time);
  const ahead = -at.getTimezoneOffset();
  const [hours, minutes] = [Math.floor(Math.abs(ahead) / 60), Math.abs(ahead) % 60];
  const zone = ahead ? `UTC${ahead > 0 ? "+" : "-"}${hours}${minutes ? `:${twoDigits(minutes)}` : ""}` : "UTC";
  return `${day(at)} ${at.getFullYear()}, ${clock(time)} ${zone}`;
}

/** @param {string | number} time */
export function clock(time) {
  return `${minute(time)}:${twoDigits(new Date(time).getSeconds())}`;
}

/** @param {string | number} time */
export function minute(time) {
  const at = new Date(time);
  return `${twoDigits(at.getHours())}:${twoDigits(at.getMinutes())}`;
}

/**
 * The end of an id: those of one day begin alike.
 * @param {string} id
 */
export function tail(id) {
  return `…${id.slice(-6)}`;
}

/**
 * An adapter's or model's id, with the first digits of its digest.
 * @param {string | null | undefined} id
 */
export function model(id) {
  if (!id) return NONE;
  const [name, digest] = id.split("@", 2);
  return plain(digest && digest.length > 12 ? `${name}@${digest.slice(0, 8)}…` : id);
}

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]/gu;

/**
 * A name that somebody chose: what would hide or turn text is written out, and a long one is cut.
 * @param {unknown} text
 * @param {number} [most]
 */
export function plain(text, most = 200) {
  const shown = String(text ?? "").replace(HIDDEN, (sign) => `\\u${(sign.codePointAt(0) || 0).toString(16).padStart(4, "0")}`);
  return shown.length > most ? `${shown.slice(0, most)}…` : shown;
}

/**
 * Text of a row or an answer: lines and tabs stay, what would hide or turn text is written out.
 * @param {unknown} text
 * @param {number} [most]
 */
export function content(text, most = 200_000) {
  const all = String(text ?? "");
  const shown = all.slice(0, most).replace(HIDDEN, (sign) => (sign === "\n" || sign === "\t" || sign === "\r" ? sign : plain(sign)));
  return all.length > most ? `${shown}…\n(${whole(all.length - most)} more characters)` : shown;
}
