/** The states that every screen has: loading, empty, refused, stale; and a job's own states. */
import { useEffect, useState } from "../vendor/preact-hooks.js";
import { signal } from "../vendor/signals.js";
import { ago, exact, minute, plain, short, whole } from "../lib/format.js";
import { connection } from "../lib/stream.js";
import { h, html } from "./html.js";

const STATES = {
  queued: ["waiting", "◌"],
  running: ["running", "●"],
  paused: ["paused", "‖"],
  succeeded: ["succeeded", "✓"],
  failed: ["failed", "✕"],
  cancelled: ["cancelled", "⊘"],
};
export const FINAL = ["succeeded", "failed", "cancelled"];
const STAGES = {
  preflight: "checking", training: "training", publishing: "publishing", self_evaluation: "comparing", evaluating: "evaluating",
};

/**
 * The word for a state.
 * @param {string} state
 */
export function wordOf(state) {
  return STATES[/** @type {keyof typeof STATES} */ (state)]?.[0] || plain(state);
}

/**
 * A state as word and shape, besides its colour.
 * @param {{state: string, stage?: string | null, word?: string}} props `word`: in place of the state's own
 */
export function Badge({ state, stage, word }) {
  const shape = STATES[/** @type {keyof typeof STATES} */ (state)]?.[1] || "○";
  const doing = state === "running" && stage ? STAGES[/** @type {keyof typeof STAGES} */ (stage)] || plain(stage) : "";
  return html`<span class="badge ${state}"><span class="shape" aria-hidden="true">${shape}</span>${word || doing || wordOf(state)}</span>`;
}

/** Grows every half minute while somebody looks: one timer for all times of a page. */
const tick = signal(0);
let timer = 0;
function followClock() {
  clearInterval(timer);
  if (document.hidden) return;
  tick.value += 1;
  timer = setInterval(() => (tick.value += 1), 30_000);
}
document.addEventListener("visibilitychange", followClock);
followClock();

/** @param {{time: string | number | null | undefined}} props */
export function Time({ time }) {
  void tick.value;
  if (!time) return html`<span class="faint">–</span>`;
  return html`<time datetime=${new Date(time).toISOString()} title=${exact(time)}>${ago(time)}</time>`;
}

/** @param {{step: number | null, total: number | null, label?: string}} props */
export function Progress({ step, total, label }) {
  const share = step !== null && total ? Math.min(1, step / total) : 0;
  return html`<span class="progress">
    <span class="bar" role="progressbar" aria-label=${label || "progress"} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(100 * share)}>
      <span style=${{ width: `${100 * share}%` }}></span></span>
    <span class="number">${whole(step)} / ${whole(total)}</span>
  </span>`;
}

/** Outlines, after 150 ms and never over what is there. @type {import("../vendor/preact.js").FunctionComponent<{rows?: number}>} */
export const Loading = ({ rows = 6 }) => {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 150);
    return () => clearTimeout(timer);
  }, []);
  return isLate
    ? html`<div class="skeleton"><p class="hidden" role="status">Loading</p>${Array.from({ length: rows }, (_, row) => html`<span key=${row}></span>`)}</div>`
    : null;
};

/** @param {{title: string, children?: any}} props */
export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

/** A sentence, with the commands in it as such. @param {unknown} text @param {number} [most] */
export function said(text, most = 2000) {
  return plain(text, most).split("`").map((part, place) => (place % 2 ? html`<code key=${place}>${part}</code>` : part));
}

/** When a waiting job begins, unless that time has passed. @param {{estimated_start?: string | null}} place */
export function startsAbout({ estimated_start: at }) {
  return at && Date.parse(at) > Date.now() ? `, starts about ${minute(at)}` : "";
}

/** @param {{error: any, retry?: () => void, what?: string}} props */
export function Failure({ error, retry, what = "This could not be loaded." }) {
  return html`<section class="failure" role="alert">
    <h2>${what}</h2>
    <p><code>${plain(error.code || error.name)}</code> ${said(error.message)}</p>
    ${error.remedy && html`<p>${said(error.remedy)}</p>`}
    ${error.requestId && html`<p class="faint">Request <code>${plain(error.requestId)}</code></p>`}
    ${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
  </section>`;
}

/**
 * A whole screen that is being loaded or could not be: it has a heading, as every page does.
 * @param {{title: string, error: any, retry?: () => void, what?: string, rows?: number}} props
 */
export function NotThere({ title, error, retry, what, rows }) {
  return html`<h1 class="hidden">${title}</h1>${error ? h(Failure, { error, retry, what }) : h(Loading, { rows })}`;
}

/**
 * How old a screen is while the API does not answer.
 * @param {{at?: number, failures: number, isLive?: boolean}} props `isLive`: the stream of changes keeps the screen up to date, so it counts too
 */
export function Stale({ at, failures, isLive = false }) {
  const { state, since } = connection.value;
  if (!at || !(failures >= 3 || (isLive && state === "stale"))) return null;
  return html`<p class="notice" role="status">Mens does not answer. This is from ${exact(isLive ? Math.max(at, since) : at)}.</p>`;
}

/** @param {{name: string, value: any, hint?: any}} props */
export function Fact({ name, value, hint }) {
  return html`<div class="fact"><dt>${name}</dt><dd>${value}${hint && html`<small>${hint}</small>`}</dd></div>`;
}

/**
 * A number with its unit.
 * @param {{value: number | null | undefined, unit?: string}} props
 */
export function Measure({ value, unit = "" }) {
  return html`<span class="number">${short(value)}${unit && value !== null && value !== undefined ? ` ${unit}` : ""}</span>`;
}

export { h };
