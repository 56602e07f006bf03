/** Two models, one question: answers side by side, with time, tokens and the adapter that answered. The chat stays in this page. */
import { useEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
import { address, change, to } from "../lib/address.js";
import { useObject } from "../lib/cache.js";
import { takeCarried } from "../lib/carried.js";
import { ApiError, call, missingRole, succeed } from "../lib/client.js";
import { content, counted, model as nameOf, plain, short, whole } from "../lib/format.js";
import { CopyAs, asCurl, openaiClient, quoted } from "../parts/copy_as.js";
import { h, html } from "../parts/html.js";
import { Failure, NotThere } from "../parts/state.js";

const KINDS = { alias: "Aliases", adapter: "Adapters", checkpoint: "Checkpoints", base: "Bases" };
const SIDES = /** @type {const} */ (["left", "right"]);
const VERDICTS = { left: "left is better", right: "right is better", neither: "both are bad" };
/** Why an answer is not a whole one. */
const CUTS = { length: "cut at the most tokens", stopped: "stopped by you", interrupted: "cut when the connection ended", filtered: "cut by a filter" };
const MOST_WORDS = 600;
/** Characters of a part of a long answer. */
const PART = 16_000;
/** Time after which the reading of an answer lets the page do other work, ms. */
const READING = 10;

/**
 * @typedef {{text: string, error?: any, adapter?: string | null, first?: number, seconds?: number, tokens?: number, cut?: keyof typeof CUTS, isOver: boolean}} Reply
 * @typedef {{prompt: string, system: string, models: {left: string, right: string}, left: Reply, right: Reply, verdict?: string}} Turn
 *   `models`: those that were asked, whatever is chosen by now
 */

export function Playground() {
  const { query } = address.value;
  const { data, error, reload } = useObject("/v1/models");
  const models = useMemo(() => (data?.data || []).filter((/** @type {any} */ one) => one.mens), [data]);
  const chosen = {
    left: query.get("left") || models.find((/** @type {any} */ one) => one.mens.kind === "alias")?.id || models[0]?.id || "",
    right: query.get("right") || models.find((/** @type {any} */ one) => one.mens.kind === "base")?.id || "",
  };
  const parameters = { temperature: numberOf(query.get("temperature"), 0), max_tokens: numberOf(query.get("max"), 256), seed: numberOf(query.get("seed"), 7) };
  const [carried] = useState(takeCarried);
  const [system, setSystem] = useState(carried?.system || "");
  const [prompt, setPrompt] = useState(carried?.prompt || "");
  const [turns, setTurns] = useState(/** @type {Turn[]} */ ([]));
  const [isCompared, setCompared] = useState(true);
  const running = useRef(/** @type {Record<string, AbortController>} */ ({}));
  const isBusy = turns.some((turn) => SIDES.some((side) => !turn[side].isOver));
  useEffect(() => () => Object.values(running.current).forEach((one) => one.abort()), []);

  const send = () => {
    if (!prompt.trim() || isBusy) return;
    const index = turns.length;
    const turn = { prompt, system, models: { ...chosen }, left: { text: "", isOver: false }, right: { text: "", isOver: false } };
    setTurns([...turns, turn]);
    setPrompt("");
    for (const side of SIDES) {
      const past = turns.flatMap((one) => [{ role: "user", content: one.prompt }, { role: "assistant", content: one[side].text }]);
      const messages = [...(system ? [{ role: "system", content: system }] : []), ...past, { role: "user", content: prompt }];
      const abort = (running.current[side] = new AbortController());
      /** @param {Partial<Reply>} now */
      const show = (now) => setTurns((old) => old.map((one, place) => (place === index ? { ...one, [side]: { ...one[side], ...now } } : one)));
      void ask({ model: chosen[side], messages, ...parameters }, abort.signal, show);
    }
  };
  /** @param {KeyboardEvent} event */
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      send();
    }
  };
  if (!data) return h(NotThere, { title: "Playground", error, retry: reload });
  const judged = turns.flatMap((turn, place) => (turn.verdict ? [{ ...turn, past: turns.slice(0, place) }] : []));
  return html`<div class="head"><h1>Playground</h1>
      ${turns.length > 0 && html`<button type="button" disabled=${isBusy} onClick=${() => setTurns([])}>New chat</button>`}
      ${h(CopyAs, copies(chosen.left, parameters, system, prompt || turns[turns.length - 1]?.prompt || "…"))}</div>
    <div class="stack">
    <section class="card" aria-label="Models and parameters">
      <div class="play-top">${SIDES.map((side) => h(Choice, { key: side, side, models, chosen: chosen[side] }))}</div>
      <div class="parameters">
        <label>temperature <input type="number" min="0" max="2" step="0.1" value=${parameters.temperature} onChange=${(/** @type {any} */ event) => change({ temperature: event.target.value }, { replace: true })} /></label>
        <label>most tokens <input type="number" min="1" max="32768" value=${parameters.max_tokens} onChange=${(/** @type {any} */ event) => change({ max: event.target.value }, { replace: true })} /></label>
        <label>seed <input type="number" value=${parameters.seed} onChange=${(/** @type {any} */ event) => change({ seed: event.target.value }, { replace: true })} /></label>
        <label class="grow">system message <input type="text" class="long" value=${system} placeholder="none" onInput=${(/** @type {any} */ event) => setSystem(event.target.value)} /></label>
      </div></section>
    ${turns.map((turn, index) => html`<section key=${index} class="turn" aria-label="Question ${index + 1}"><p class="you text">${content(turn.prompt)}</p>
      <div class="answers-two">${SIDES.map((side) => h(Reply, { key: side, side, reply: turn[side], name: turn.models[side], other: isCompared && turn.left.isOver && turn.right.isOver ? turn[side === "left" ? "right" : "left"].text : null,
        stop: () => running.current[side]?.abort() }))}</div>
      ${turn.left.isOver && turn.right.isOver && (unjudged(turn) ? html`<p class="faint">${unjudged(turn)}</p>` : html`<div class="verdict" role="group" aria-label="Verdict">${Object.entries(VERDICTS).map(([verdict, words]) => html`<button key=${verdict} type="button" class="small" aria-pressed=${String(turn.verdict === verdict)}
        onClick=${() => setTurns((old) => old.map((one, place) => (place === index ? { ...one, verdict: one.verdict === verdict ? undefined : verdict } : one)))}>${words}</button>`)}
        <span class="switches"><label><input type="checkbox" checked=${isCompared} onChange=${() => setCompared(!isCompared)} /> mark differences</label></span></div>`)}</section>`)}
    ${judged.length > 0 && h(SaveRows, { judged })}
    <div class="ask"><label class="hidden" for="prompt">Your question</label>
      <textarea id="prompt" rows="3" placeholder="Ask both models…" value=${prompt} onKeyDown=${keys} onInput=${(/** @type {any} */ event) => setPrompt(event.target.value)}></textarea>
      <div class="row"><span class="faint">${turns.length ? "Each model is sent its chat so far too; New chat begins without it." : "The chat stays in this page; the address has the models and parameters only."}</span>
      <button type="button" class="primary" disabled=${isBusy || !prompt.trim() || !chosen.left || !chosen.right} onClick=${send}>Send both <kbd class="on">Ctrl Enter</kbd></button></div></div>
    </div>`;
}

/** Why a turn cannot become a row of an eval; empty: it can. @param {Turn} turn */
function unjudged(turn) {
  const side = SIDES.find((one) => turn[one].error || (turn[one].cut && turn[one].cut !== "length"));
  if (!side) return "";
  const { error, cut } = turn[side];
  return `Not for an eval: the ${side} answer ${error ? "failed" : `was ${CUTS[cut || "stopped"]}`}. Ask again to judge both.`;
}

/**
 * The row of an eval: what was asked, both answers, and the better one as the expected answer if it is whole.
 * @param {Turn & {past: Turn[]}} turn
 */
function rowOf({ system, prompt, models, left, right, verdict, past }) {
  const side = verdict === "right" ? "right" : "left";
  const better = verdict === "neither" ? null : side === "left" ? left : right;
  const chat = past.flatMap((one) => [{ role: "user", content: one.prompt }, { role: "assistant", content: one[side].text }]);
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...chat, { role: "user", content: prompt }];
  return { item: { messages, ...(better && !better.cut && { expected: better.text }), ...(system && { system }), prompt, left_model: models.left, left: left.text, right_model: models.right, right: right.text, verdict, ...(left.cut && { left_cut: left.cut }), ...(right.cut && { right_cut: right.cut }) } };
}

/**
 * @param {string | null} text
 * @param {number} otherwise
 */
function numberOf(text, otherwise) {
  const value = text === null || text === "" ? NaN : Number(text);
  return Number.isFinite(value) ? value : otherwise;
}

/** @param {{side: "left" | "right", models: any[], chosen: string}} props */
function Choice({ side, models, chosen }) {
  const isKnown = models.some((one) => one.id === chosen);
  const info = models.find((one) => one.id === chosen)?.mens;
  return html`<div class="choice"><label for=${`model-${side}`}>${side === "left" ? "Left model" : "Right model"}</label>
    <select id=${`model-${side}`} value=${chosen} onChange=${(/** @type {any} */ event) => change({ [side]: event.target.value })}>
      ${!isKnown && html`<option value=${chosen}>${chosen ? `${nameOf(chosen)} (not in the list)` : "no model"}</option>`}
      ${Object.entries(KINDS).map(([kind, title]) => {
        const own = models.filter((one) => one.mens.kind === kind);
        return own.length > 0 && html`<optgroup key=${kind} label=${title}>${own.map((one) => html`<option key=${one.id} value=${one.id} disabled=${one.mens.served === false}>
          ${nameOf(one.id)}${one.mens.step ? `, step ${one.mens.step}` : ""}${one.mens.served === false ? " (not served here: no replica has it)" : ""}</option>`)}</optgroup>`;
      })}</select>
    <small>${info?.kind === "alias" ? `points to ${nameOf(info.adapter_id)}` : info?.base_model ? `adapter of ${plain(info.base_model)}` : info ? "base model" : ""}</small></div>`;
}

/** @param {{side: string, reply: Reply, name: string, other: string | null, stop: () => void}} props */
function Reply({ side, reply, name, other, stop }) {
  const speed = reply.tokens && reply.seconds && reply.first !== undefined && reply.seconds > reply.first ? (reply.tokens - 1) / (reply.seconds - reply.first) : null;
  return html`<article class="card answer" aria-label="Answer of the ${side} model" aria-busy=${String(!reply.isOver)}><header><b>${nameOf(name)}</b>
    ${reply.first !== undefined && html`<span>${reply.first.toFixed(2)} s to first</span>`}
    ${reply.tokens !== undefined && html`<span>${counted(reply.tokens, "token")}</span>`}
    ${speed && html`<span>${short(speed)} tokens/s</span>`}
    ${reply.adapter && html`<span title=${plain(reply.adapter)}>by ${nameOf(reply.adapter)}</span>`}
    ${reply.cut && html`<span>${CUTS[reply.cut]}</span>`}
    ${!reply.isOver && html`<button type="button" class="small" onClick=${stop}>Stop</button>`}</header>
    ${reply.error ? h(Failure, { error: reply.error, what: "No answer" })
      : html`<p class="text">${h(Answer, { text: reply.text, other })}${!reply.text && reply.isOver ? html`<span class="faint">(nothing)</span>` : ""}</p>`}</article>`;
}

/**
 * A text, with the words marked that the other answer does not have at this place. The browser lays out the parts of a long one that are in
 * view: the whole would stop the page for a tenth of a second.
 * @param {{text: string, other: string | null}} props
 */
function Answer({ text, other }) {
  const runs = useMemo(() => (other === null ? [/** @type {[string, boolean]} */ ([content(text), false])] : differing(content(text), content(other))), [text, other]);
  const parts = runs.length === 1 ? blocks(runs[0][0]) : [];
  if (parts.length > 1) return html`${parts.map((part, index) => html`<span key=${index} class="part">${part}</span>`)}`;
  return html`${runs.map(([run, isOwn], index) => (isOwn ? html`<mark key=${index}>${run}</mark>` : run))}`;
}

/** A long text in parts that end with a line, or else a word. @param {string} text */
export function blocks(text) {
  const parts = [];
  for (let start = 0, end; start < text.length; start = end) {
    end = start + PART;
    if (end < text.length) end = [text.lastIndexOf("\n", end), text.lastIndexOf(" ", end)].map((place) => place + 1).find((place) => place > start) || start + PART;
    parts.push(text.slice(start, end));
  }
  return parts;
}

/**
 * Runs of words, and whether only this text has them: by the longest common subsequence.
 * @param {string} text
 * @param {string} other
 * @returns {[string, boolean][]}
 */
export function differing(text, other) {
  const own = text.split(/(?<=\s)/);
  const theirs = other.split(/(?<=\s)/);
  if (own.length > MOST_WORDS || theirs.length > MOST_WORDS) return [[text, false]];
  const key = (/** @type {string} */ word) => word.trim();
  const common = Array.from({ length: own.length + 1 }, () => new Uint16Array(theirs.length + 1));
  for (let a = own.length - 1; a >= 0; a--)
    for (let b = theirs.length - 1; b >= 0; b--)
      common[a][b] = key(own[a]) === key(theirs[b]) ? common[a + 1][b + 1] + 1 : Math.max(common[a + 1][b], common[a][b + 1]);
  /** @type {[string, boolean][]} */
  const runs = [];
  /** @param {string} word @param {boolean} isOwn */
  const add = (word, isOwn) => {
    const last = runs[runs.length - 1];
    if (last && last[1] === isOwn) last[0] += word;
    else runs.push([word, isOwn]);
  };
  for (let a = 0, b = 0; a < own.length; ) {
    if (b < theirs.length && key(own[a]) === key(theirs[b])) add(own[a++], false), b++;
    else if (b >= theirs.length || common[a + 1][b] >= common[a][b + 1]) add(own[a++], true);
    else b++;
  }
  return runs;
}

/**
 * Ask a model, and show its answer as it comes, at most once a frame.
 * @param {any} body
 * @param {AbortSignal} abort
 * @param {(now: Partial<Reply>) => void} show
 */
async function ask(body, abort, show) {
  const began = performance.now();
  const since = () => (performance.now() - began) / 1000;
  let text = "";
  let frame = 0;
  let isWhole = false; // its end was told
  /** @type {Partial<Reply>} */
  const facts = {};
  try {
    const response = await succeed("/v1/chat/completions", { method: "POST", json: { ...body, stream: true, stream_options: { include_usage: true } }, signal: abort });
    facts.adapter = response.headers.get("x-mens-adapter");
    const reader = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (response.body).pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let paused = performance.now();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop() || "";
      for (const line of lines) {
        if (line.startsWith("data: [DONE]")) isWhole = true;
        if (!line.startsWith("data: ") || line.startsWith("data: [DONE]")) continue;
        // A fast answer comes in large pieces, and pieces that are there already are read without a pause.
        if (performance.now() - paused > READING) {
          await new Promise((resume) => setTimeout(resume));
          paused = performance.now();
        }
        const part = JSON.parse(line.slice(6));
        if (part.error) throw new ApiError(0, { ...part.error, ...part.error.mens }, response.headers.get("x-request-id"));
        const delta = part.choices?.[0]?.delta?.content;
        if (delta) {
          facts.first ??= since();
          text += delta;
        }
        const finish = part.choices?.[0]?.finish_reason;
        if (finish) isWhole = true;
        if (finish === "length") facts.cut = "length";
        if (finish === "content_filter") facts.cut = "filtered";
        if (part.usage) facts.tokens = part.usage.completion_tokens;
      }
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        show({ ...facts, text });
      });
    }
  } catch (error) {
    if (abort.aborted) facts.cut = "stopped";
    else facts.error = error instanceof ApiError ? error : { code: "INTERRUPTED", message: "The answer was interrupted.", remedy: "Ask again." };
  }
  cancelAnimationFrame(frame);
  if (!isWhole && !facts.error) facts.cut ??= "interrupted";
  show({ ...facts, text, seconds: since(), isOver: true });
}

/** Verdicts become rows of a new file for evals, which is shown before it is saved. @param {{judged: (Turn & {past: Turn[]})[]}} props */
function SaveRows({ judged }) {
  const [saved, setSaved] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const rows = judged.map((turn) => JSON.stringify(rowOf(turn))).join("\n");
  const cut = judged.filter((turn) => turn.left.cut || turn.right.cut).length;
  const [isBusy, setBusy] = useState(false);
  const missing = missingRole("trainer");
  const save = async () => {
    if (isBusy) return;
    setBusy(true);
    const form = new FormData();
    form.append("purpose", "evals");
    form.append("file", new Blob([`${rows}\n`], { type: "application/jsonl" }), `playground-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.jsonl`);
    try {
      setSaved(await call("/v1/files", { method: "POST", body: form }));
      setError(null);
    } catch (refusal) {
      if (!(refusal instanceof ApiError)) throw refusal;
      setError(refusal);
    } finally {
      setBusy(false);
    }
  };
  return html`<section class="card" aria-label="Rows of an eval"><header><h2>${whole(judged.length)} judged</h2>
    <button type="button" disabled=${!!missing || isBusy} title=${missing} onClick=${() => void save()}>Save as a file for evals</button></header>
    ${cut > 0 && html`<p class="faint">${counted(cut, "row")} with an answer that was cut at the most tokens: <code>left_cut</code> or <code>right_cut</code> says so, and it is not an expected answer. Ask again with more tokens for a whole one.</p>`}
    <details><summary>The rows</summary><pre tabindex="0" aria-label="Rows">${content(rows)}</pre></details>
    ${saved && html`<p role="status">Saved as <a href=${to(["files", saved.id])}>${plain(saved.filename)}</a> (<code>${plain(saved.id)}</code>): under Data, with the purpose evals. <a href=${to(["evals", "new"], { file: saved.id })}>New eval of these rows</a></p>`}${error && h(Failure, { error, what: "Not saved" })}${missing && html`<p class="faint">Saving ${missing}.</p>`}</section>`;
}

/**
 * The request to the left model, with the question that is written or was asked last.
 * @param {string} name
 * @param {{temperature: number, max_tokens: number, seed: number}} parameters
 * @param {string} system
 * @param {string} prompt
 */
function copies(name, parameters, system, prompt) {
  const messages = [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: prompt }];
  const written = Object.entries(parameters).map(([key, value]) => `${key}=${value}`).join(", ");
  return {
    curl: asCurl("/v1/chat/completions", { json: { model: name, messages, ...parameters } }),
    python: `${openaiClient()}\nmessages = ${JSON.stringify(messages, null, 2)}\nanswer = client.chat.completions.create(model=${JSON.stringify(name)}, messages=messages, ${written})\nprint(answer.choices[0].message.content)`,
    mens: ["mens chat", quoted(name), quoted(prompt), ...(system ? ["--system", quoted(system)] : [])].join(" "),
  };
}
