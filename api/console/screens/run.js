/** One run, the page that is sent to a colleague: curves, answers beside the base's, plan, proofs, events, and why it failed. */
import { useEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
import { change, to } from "../lib/address.js";
import { carry } from "../lib/carried.js";
import { eventsOf, load, useObject } from "../lib/cache.js";
import { ApiError, call, missingRole } from "../lib/client.js";
import { ago, between, clock, content, counted, duration, exact, loss, model, percent, plain, preferredAnswers, short, size, tail, whole } from "../lib/format.js";
import { jobPath, metricsPath, shownSteps } from "../lib/first_calls.js";
import { paced } from "../lib/pace.js";
import { onChanges } from "../lib/stream.js";
import { Chart, smoothed } from "../parts/chart.js";
import { Confirm } from "../parts/confirm.js";
import { CopyAs, CopyButton, asCurl, openaiClient, quoted } from "../parts/copy_as.js";
import { h, html } from "../parts/html.js";
import { Decisions, Forecast } from "../parts/plan.js";
import { useLostFocus } from "../parts/shown.js";
import { Badge, Empty, FINAL, Fact, Failure, Loading, NotThere, Progress, Stale, Time, said, startsAbout } from "../parts/state.js";

const TABS = [["", "overview"], ["samples", "samples"], ["plan", "plan"], ["checkpoints", "checkpoints"], ["certificates", "certificates"], ["events", "events"], ["log", "log"]];
const PAUSE = 2000;
/** What the page draws of a run, by the name of the series; those after the losses only where they are. */
const SMALL = /** @type {const} */ ([
  ["learning_rate", "Learning rate", "--curve-3", short],
  ["grad_norm", "Gradient norm", "--curve-1", short],
  ["tokens_per_second", "Tokens per second", "--curve-3", short],
  ["memory_bytes", "Memory", "--curve-2", (/** @type {number | null} */ value) => size(value)],
]);

/** @param {{parts: string[], query: URLSearchParams}} props */
export function Run({ parts, query }) {
  const id = parts[0] || "";
  const path = jobPath(id);
  const { data: job, error, at, failures, reload } = useObject(path);
  const events = useEvents(id, job?.version);
  useEffect(() => {
    if (job) document.title = `${plain(job.name || job.kind, 60)} ${wordAndStep(job)} · Mens`;
  }, [job]);
  if (!job) return h(NotThere, { title: "Run", error, retry: reload, what: error?.status === 404 ? "Job not found." : undefined });
  const open = query.get("tab") || "";
  const asked = askedBy(job, events);
  const tabs = TABS.filter(([tab]) => tab !== "samples" || job.result?.self_evaluation);
  return html`<p class="crumbs"><a href="#/jobs">Jobs</a></p>
    <div class="head"><h1>${plain(job.name || job.kind)}</h1>${h(Actions, { job, reload })}
      ${job.kind === "finetune" && html`<a class="button" href=${to(["new"], { from: job.id })}>Again, with changes</a>
        <a class="button" href=${to(["jobs"], { chosen: job.id })}>Compare</a>`}${h(CopyAs, copies(job))}</div>
    <div class="run-head">${h(Badge, { state: job.state, stage: job.stage })}
      ${job.state === "running" && job.stage === "training" && job.progress?.eta_seconds ? html`<span>about ${duration(job.progress.eta_seconds)} left</span>` : ""}
      <span>${plain(job.base_model)}</span>
      ${job.contract?.artifact?.alias && html`<span>alias <b>${plain(job.contract.artifact.alias)}</b></span>`}
      ${job.kind === "evaluate" && job.plan?.eval_id && html`<a href=${to(["evals", job.plan.eval_id, job.id])}>its items</a>`}
      ${job.created_by && html`<span>by ${plain(job.created_by)}</span>`}
      ${asked && html`<span>${asked.word} by ${plain(asked.by, 80)}</span>`}
      <span>submitted ${h(Time, { time: job.created_at })}</span>
      ${Object.entries(job.labels || {}).map(([key, value]) => html`<span key=${key} class="who">${plain(key, 40)}: ${plain(value, 60)}</span>`)}
      <span><code title=${plain(job.id)}>${tail(job.id)}</code> ${h(CopyButton, { text: job.id, name: "Copy id" })}</span></div>
    ${h(Stale, { at, failures })}
    ${job.state === "failed" && h(Reason, { job, path })}
    ${job.queue && html`<p class="notice">Place ${whole(job.queue.position)} in the queue${startsAbout(job.queue)}. ${plain(job.queue.explanation, 500)}</p>`}
    <nav class="tabs" aria-label="Parts of the run">${tabs.map(([tab, title]) => html`<a key=${tab} href=${to(["runs", id], { tab })} aria-current=${open === tab ? "page" : undefined}>${title}</a>`)}</nav>
    ${open === "samples" ? h(Samples, { job })
      : open === "plan" ? h(Plan, { job, path })
      : open === "checkpoints" ? h(Checkpoints, { job, path })
      : open === "certificates" ? h(Certificates, { job, path })
      : open === "events" ? h(Events, { events })
      : open === "log" ? h(Log, { path, isOver: FINAL.includes(job.state) })
      : h(Overview, { job, events, query })}`;
}

/**
 * Who cancelled or paused a job, or asked its worker to: as its newest event with a name says.
 * @param {any} job
 * @param {any[] | null} events
 */
function askedBy(job, events) {
  const verb = job.requested || { cancelled: "cancel", paused: "pause" }[/** @type {"paused"} */ (job.state)];
  const by = verb && events?.filter((event) => event.data?.by).pop()?.data.by;
  return by ? { by, word: job.requested ? `${verb} asked for` : job.state } : null;
}

/** @param {any} job */
function wordAndStep(job) {
  return job.state === "running" && job.progress?.total_steps ? `${job.progress.step}/${job.progress.total_steps}` : job.state;
}

/**
 * A job's events; those that are new are asked for when its version changes, at most every second.
 * @param {string} id
 * @param {number | undefined} version
 */
function useEvents(id, version) {
  const [events, setEvents] = useState(/** @type {any[] | null} */ (null));
  const live = useRef({ id, last: 0, isBusy: false, wanted: -1 });
  useEffect(() => {
    if (version === undefined) return;
    const state = live.current;
    state.wanted = version;
    if (state.isBusy) return;
    state.isBusy = true;
    const read = async () => {
      let seen;
      do {
        seen = state.wanted;
        try {
          const added = await eventsOf(id, state.last);
          if (added.length) state.last = added[added.length - 1].seq;
          setEvents((old) => (added.length || !old ? [...(old || []), ...added] : old));
        } catch (error) {
          if (!(error instanceof ApiError)) throw error;
          break; // the job itself shows the failure
        }
        await new Promise((resolve) => setTimeout(resolve, 1000));
      } while (seen !== state.wanted);
      state.isBusy = false;
    };
    void read();
  }, [version]);
  return events;
}

/** @param {{job: any, reload: () => void}} props */
function Actions({ job, reload }) {
  const [asked, setAsked] = useState("");
  useLostFocus(job.state);
  const missing = missingRole("trainer");
  const verbs = { queued: ["pause", "cancel"], running: ["pause", "cancel"], paused: ["resume", "cancel"] }[/** @type {"queued"} */ (job.state)] || [];
  const titles = { pause: "Pause", resume: "Resume", cancel: "Cancel" };
  const isQueued = job.state === "queued";
  const meanings = {
    pause: "The run writes a checkpoint and gives its device back. It can be resumed from there.",
    resume: "The run goes on from its checkpoint as soon as a worker is free.",
    cancel: isQueued ? "The run leaves the queue and cannot be resumed." : "The run stops after its current step and cannot be resumed. Its checkpoints stay.",
  };
  return html`${verbs.map((verb) => html`<button key=${verb} type="button" class=${verb === "cancel" ? "danger" : ""} disabled=${!!missing} title=${missing}
      onClick=${() => setAsked(verb)}>${titles[/** @type {"pause"} */ (verb)]}</button>`)}
    ${verbs.length > 0 && missing && html`<span class="faint">${missing}</span>`}
    ${asked && h(Confirm, { title: `${titles[/** @type {"pause"} */ (asked)]} ${plain(job.name || job.kind, 80)}?`, verb: `${titles[/** @type {"pause"} */ (asked)]} the run`, close: () => setAsked(""),
      act: async () => (await call(`/v1/jobs/${encodeURIComponent(job.id)}/${asked}`, { method: "POST" }), reload()),
      children: html`<p>${meanings[/** @type {"pause"} */ (asked)]}</p>` })}`;
}

/** Why a run failed, first on its page. @param {{job: any, path: string}} props */
function Reason({ job, path }) {
  const { data } = useObject(missingRole("trainer") ? null : `${path}/log?bytes=4096`);
  const error = job.error || {};
  const step = job.progress?.step;
  const lines = typeof data === "string" ? data.trim().split("\n").slice(-12).join("\n") : "";
  return html`<section class="failure stack" aria-label="Why it failed"><div>
    <h2>It failed${step ? ` at step ${whole(step)} of ${whole(job.progress.total_steps)}` : job.kind === "finetune" ? " before its first step" : ""}</h2>
    <p><code>${plain(error.code)}</code> ${said(error.message, 4000)}</p>
    ${error.remedy && html`<p><b>What to do:</b> ${said(error.remedy, 4000)}</p>`}
    ${error.retryable !== undefined && html`<p class="faint">${error.retryable ? "It may work if it is submitted again unchanged." : "It will fail again unless something is changed."}</p>`}
    ${lines && html`<pre tabindex="0" aria-label="Last lines of the log">${content(lines)}</pre>`}</div></section>`;
}

// -- overview ---------------------------------------------------------------------------------------------------------

/**
 * Series of a run: those that the API keeps of every step, or what a run of an earlier release left among its events.
 * @param {any} job
 * @param {any[] | null} events
 * @param {number | null} from
 * @param {number | null} until
 */
function useSeries(job, events, from, until) {
  const url = job.kind === "finetune" ? metricsPath(job.id, from, until) : null;
  const { data: read, error } = useObject(url);
  const last = useRef(read);
  if (read) last.current = read;
  const data = last.current; // until the steps that were zoomed to have arrived, what is known of them
  useEffect(() => {
    if (!url || FINAL.includes(job.state)) return;
    const pace = paced(() => void load(url), PAUSE);
    const leave = onChanges((changes) => void (changes.some(({ data: changed }) => changed?.id === job.id) && pace.ask()));
    return () => (pace.stop(), void leave());
  }, [url, job.state]);
  return useMemo(() => {
    const found = data?.series || {};
    if (Object.values(found).some((/** @type {any} */ one) => one.step?.length)) return { series: found, attempts: data.attempts || [] };
    return { series: seriesOf(events || []), attempts: [] };
  }, [data, error, events]);
}

/**
 * The losses among a job's events.
 * @param {any[]} events
 */
function seriesOf(events) {
  /** @type {Record<string, {step: number[], value: (number | null)[]}>} */
  const series = { train_loss: { step: [], value: [] }, valid_loss: { step: [], value: [] } };
  for (const { type, data } of events) {
    if (type !== "metrics") continue;
    for (const [name, key] of [["train_loss", "train_loss"], ["valid_loss", "val_loss"]]) {
      if (typeof data[key] !== "number") continue;
      const { step, value } = series[name];
      while (step.length && step[step.length - 1] >= data.step) step.pop(), value.pop(); // a resumed attempt
      step.push(data.step);
      value.push(data[key]);
    }
  }
  return series;
}

/** @param {{job: any, events: any[] | null, query: URLSearchParams}} props */
function Overview({ job, events, query }) {
  const { from, until } = shownSteps(query);
  const isLog = query.get("log") === "1";
  const smooth = Number(query.get("smooth")) || 0;
  const { series, attempts } = useSeries(job, events, from, until);
  const none = { step: [], value: [] };
  const isKnown = Object.keys(series).some((name) => series[name].step.length);
  const curves = useMemo(() => {
    const train = series.train_loss || none;
    const faint = smooth ? [{ name: "raw", label: "", colour: "--curve-1", points: train, faint: true }] : [];
    return [...faint,
      { name: "train_loss", label: "training", colour: "--curve-1", points: smooth ? smoothed(train, smooth) : train },
      { name: "valid_loss", label: "validation", colour: "--curve-2", points: series.valid_loss || none, dots: true }];
  }, [series, smooth]);
  const marks = useMemo(() => attempts.slice(1).map((/** @type {any} */ one) => ({ step: one.first_step, label: `attempt ${one.attempt}` })), [attempts]);
  const small = SMALL.filter(([name]) => series[name]?.step?.length);
  const smallCurves = useMemo(() => small.map(([name, title, colour]) => [{ name, label: title.toLowerCase(), colour, points: series[name] }]), [series]);
  const notable = (events || []).filter((event) => event.type !== "metrics");
  const zoomed = from || until;
  const isEmpty = FINAL.includes(job.state) && events && !isKnown && !zoomed; // nothing was trained
  if (job.kind !== "finetune") return h(OtherKind, { job, events: notable });
  return html`<div class="stack">
    ${job.state === "running" && job.progress?.total_steps ? html`<div class="card">${h(Progress, { step: job.progress.step, total: job.progress.total_steps, label: "progress of the run" })}</div>` : ""}
    <div class="overview">
      ${!isEmpty && html`<section class="card" aria-label="Loss">
        <div class="switches">
          <label>smooth <select value=${String(smooth)} onChange=${(/** @type {any} */ event) => change({ smooth: event.target.value === "0" ? "" : event.target.value }, { replace: true })}>
            ${["0", "0.6", "0.9"].map((value) => html`<option key=${value} value=${value}>${value}</option>`)}</select></label>
          <label><input type="checkbox" checked=${isLog} onChange=${() => change({ log: isLog ? "" : "1" }, { replace: true })} /> log scale</label>
          ${zoomed ? html`<button type="button" class="small" onClick=${() => change({ from: "", to: "" })}>Steps ${whole(from || 1)} to ${whole(until)}: show all</button>`
            : html`<span class="faint">drag over the curve to zoom</span>`}
        </div>
        ${events === null && !isKnown ? h(Loading, { rows: 3 }) : h(Chart, { title: "Loss", curves, isLog, marks, from, until, height: 320, format: loss,
          zoom: (/** @type {number | null} */ left, /** @type {number | null} */ right) => change({ from: left, to: right }) })}
      </section>`}
      ${h(Outcome, { job })}
    </div>
    ${small.length > 0 && html`<div class="small-charts">${small.map(([name, title, , format], index) => html`<section key=${name} class="card" aria-label=${title}>
      ${h(Chart, { title, curves: smallCurves[index], from, until, marks, height: 150, format, ticksOf: format })}</section>`)}</div>`}
    <section class="card" aria-label="What happened"><header><h2>What happened</h2><a href=${to(["runs", job.id], { tab: "events" })}>all events</a></header>
      ${h(EventTable, { events: notable.slice(-6).reverse(), isPlain: true })}</section>
  </div>`;
}

/** Result and cost of a run. @param {{job: any}} props */
function Outcome({ job }) {
  const result = job.result || {};
  const evaluation = result.self_evaluation;
  const samples = evaluation?.sample_answers || [];
  const isDone = FINAL.includes(job.state);
  return html`<div class="stack">
    ${evaluation && html`<section class="card" aria-label="Base beside tuned"><h2>Base → tuned</h2>
      <p class="figures"><span class="before">${loss(evaluation.loss?.base)}</span><span class="arrow">→</span><b>${loss(evaluation.loss?.tuned)}</b><span class="faint">loss, nats per token</span></p>
      <p class="faint">${counted(evaluation.rows, evaluation.source === "held_out" ? "held-out row" : "row")}${evaluation.loss?.interval ? `; difference ${loss(evaluation.loss.interval[0])} to ${loss(evaluation.loss.interval[1])} (95 %)` : ""}</p>
      ${evaluation.preferred && html`<p>${preferredAnswers(evaluation.preferred)}</p>`}
      ${samples.length > 0 && html`<p>${h(Equal, { samples })} <a href=${to(["runs", job.id], { tab: "samples" })}>read them</a></p>`}
      ${(evaluation.warnings || []).map((/** @type {string} */ warning) => html`<p key=${warning} class="notice">${plain(warning, 1000)}</p>`)}
    </section>`}
    <section class="card" aria-label="Facts"><h2>${isDone ? "Result" : "So far"}</h2><dl class="facts">
      ${result.adapter_id && h(Fact, { name: "Adapter", value: model(result.adapter_id), hint: result.alias?.moved ? `${plain(result.alias.name, 60)} points to it` : "" })}
      ${h(Fact, { name: "Steps", value: `${whole(result.optimizer_steps ?? job.progress?.step)} of ${whole(job.plan?.optimizer_steps)}`, hint: job.contract?.exec ? `${counted(job.contract.exec.epochs, "epoch")} of ${counted(job.plan?.train?.rows - (job.plan?.validation_rows || 0), "row")}` : "" })}
      ${(job.progress?.step || !isDone) && h(Fact, { name: "Training loss", value: loss(result.last_train_loss ?? job.progress?.loss) })}
      ${result.last_val_loss !== undefined && h(Fact, { name: "Validation loss", value: loss(result.last_val_loss), hint: samples.length ? "" : `${percent(evaluation?.token_accuracy?.tuned)} of tokens right` })}
      ${h(Fact, { name: "Time", value: job.started_at ? duration(between(job.started_at, isDone ? job.finished_at : null)) : "–", hint: job.started_at ? `started ${ago(job.started_at)}` : "" })}
      ${(job.progress?.step || !isDone) && h(Fact, { name: "Speed", value: `${short(result.tokens_per_second ?? job.progress?.tokens_per_second)} tokens/s` })}
      ${result.memory && h(Fact, { name: "Peak memory", value: size(result.memory.peak_bytes), hint: `${size(result.memory.predicted_bytes)} predicted, ${plain(result.memory.device, 40)}` })}
      ${job.attempt > 1 && h(Fact, { name: "Attempts", value: whole(job.attempt) })}
    </dl>
    ${result.adapter_id && html`<p><a href=${besideBase(job)} onClick=${() => carry(samples[0])}>Ask it beside its base</a></p>`}
    </section></div>`;
}

/** The playground with a run's result and its base; its alias may point to another run's by now. @param {any} job */
const besideBase = (job) => to(["playground"], { left: job.result.adapter_id, right: job.base_model });

/** @param {{job: any, events: any[]}} props */
function OtherKind({ job, events }) {
  return html`<div class="stack"><section class="card"><h2>A job of the kind ${plain(job.kind)}</h2><dl class="facts">
    ${Object.entries(job.result || {}).filter(([, value]) => ["string", "number", "boolean"].includes(typeof value)).map(([name, value]) => h(Fact, { name: plain(name.replaceAll("_", " ")), value: plain(value) }))}
    ${h(Fact, { name: "Time", value: job.started_at ? duration(between(job.started_at, job.finished_at)) : "–" })}</dl></section>
    <section class="card"><h2>What happened</h2>${h(EventTable, { events: [...events].reverse(), isPlain: true })}</section></div>`;
}

// -- samples ----------------------------------------------------------------------------------------------------------

/** @param {string | null} text */
const trimmed = (text) => String(text ?? "").trim();

/** How many answers equal the reference. @param {{samples: any[]}} props */
function Equal({ samples }) {
  const equal = samples.filter((sample) => trimmed(sample.tuned) === trimmed(sample.reference)).length;
  return html`<b>${whole(equal)} of ${whole(samples.length)}</b> answers equal the reference.`;
}

/** @param {{job: any}} props */
function Samples({ job }) {
  const { sample_answers: samples = [], general_answers: general = [] } = job.result?.self_evaluation || {};
  if (!samples.length) return h(Empty, { title: "No sample answers", children: html`<p>This run drew none. A run that publishes answers some held-out rows when it ends.</p>` });
  return html`<div class="stack"><p>${h(Equal, { samples })} Greedy answers to held-out rows, before and after.</p>
    <div class="samples">${samples.map((/** @type {any} */ sample, /** @type {number} */ index) => {
      const isEqual = trimmed(sample.tuned) === trimmed(sample.reference);
      return html`<article key=${index} class="sample"><header><h2>Row ${whole(sample.line)}</h2>
        <b class=${isEqual ? "equal" : "different"}>${isEqual ? "✓ equals the reference" : "≠ differs from the reference"}</b>
        ${job.result.adapter_id && html`<a href=${besideBase(job)} onClick=${() => carry(sample)}>Ask both again</a>`}</header>
        ${sample.system && html`<p class="question faint text">${content(sample.system, 2000)}</p>`}
        <p class="question text">${content(sample.prompt, 4000)}</p>
        <div class="answers">${h(Answer, { title: "Reference", text: sample.reference })}${h(Answer, { title: "Tuned", text: sample.tuned, isCut: sample.tuned_ended === false })}${h(Answer, { title: "Base", text: sample.base, isCut: sample.base_ended === false })}</div></article>`;
    })}</div>
    ${general.length > 0 && html`<section class="stack"><h2>General questions</h2><p class="faint">What the tuning cost: the same questions to base and tuned model.</p>
      <div class="samples">${general.map((/** @type {any} */ one, /** @type {number} */ index) => html`<article key=${index} class="sample"><p class="question text">${content(one.question, 2000)}</p>
        <div class="answers">${h(Answer, { title: "Tuned", text: one.tuned })}${h(Answer, { title: "Base", text: one.base })}</div></article>`)}</div></section>`}</div>`;
}

/** @param {{title: string, text: string | null, isCut?: boolean}} props */
function Answer({ title, text, isCut }) {
  return html`<div><h3>${title}</h3><p class="text">${text ? content(text, 8000) : html`<span class="faint">(nothing)</span>`}</p>${isCut ? html`<small>cut: it had not ended</small>` : ""}</div>`;
}

// -- plan -------------------------------------------------------------------------------------------------------------

/** @param {{job: any, path: string}} props */
function Plan({ job, path }) {
  const { data, error } = useObject(`${path}/preflight`);
  return html`<div class="stack">
    ${error && error.status !== 404 && h(Failure, { error })}
    ${data?.estimate && h(Forecast, { preflight: data, validationRows: job.plan?.validation_rows, title: "Before it ran" })}
    ${h(Decisions, { contract: job.contract, sources: data?.sources })}</div>`;
}

// -- checkpoints and certificates ---------------------------------------------------------------------------------------

/** @param {{job: any, path: string}} props */
function Checkpoints({ job, path }) {
  const { data, error, reload } = useObject(`${path}/checkpoints`);
  if (!data) return error ? h(Failure, { error, retry: reload }) : h(Loading, {});
  if (!data.data.length) return h(Empty, { title: "No checkpoints", children: html`<p>A run stores them while it trains, and its result when it ends.</p>` });
  return html`<div class="list" tabindex="0" role="group" aria-label="Checkpoints"><table><thead><tr>${["Step", "Adapter", "Training loss", "Validation loss", "State", "Stored"].map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
    <tbody>${data.data.map((/** @type {any} */ one) => html`<tr key=${one.id}><td class="number">${whole(one.step)}${one.final ? " (result)" : ""}</td>
      <td><code title=${plain(one.id)}>${model(one.id)}</code> ${h(CopyButton, { text: one.id, name: "Copy" })}</td>
      <td class="number">${loss(one.metrics?.train_loss)}</td><td class="number">${loss(one.metrics?.valid_loss)}</td>
      <td>${one.published ? html`<a href=${to(["playground"], { left: one.id, right: job.base_model })}>ask it</a>` : html`<span class="faint">${plain(one.state, 60)}</span>`}</td>
      <td class="time">${h(Time, { time: one.created_at })}</td></tr>`)}</tbody></table></div>`;
}

/** @param {{job: any, path: string}} props */
function Certificates({ path }) {
  const { data, error, reload } = useObject(`${path}/checkpoints`);
  if (!data) return error ? h(Failure, { error, retry: reload }) : h(Loading, {});
  const proofs = data.data.flatMap((/** @type {any} */ one) => Object.entries(one.certificates || {}).map(([replica, proof]) => ({ one, replica, proof: /** @type {any} */ (proof) })));
  if (!proofs.length) return h(Empty, { title: "No certificates", children: html`<p>A published adapter is measured on every replica before it is offered. Nothing of this run was.</p>` });
  return html`<div class="stack"><p class="faint">Each replica's log-probabilities were compared with the trainer's before the adapter was offered.</p>
    ${proofs.map((/** @type {any} */ { one, replica, proof }) => html`<section key=${one.id + replica} class="card"><header><h2><code>${model(one.id)}</code> on ${plain(replica)}</h2>
      ${h(Badge, { state: proof.passed ? "succeeded" : "failed", word: proof.passed ? "passed" : "failed" })}<span class="faint">step ${whole(one.step)}, ${h(Time, { time: one.created_at })}</span></header><dl class="facts">
      ${h(Fact, { name: "Trainer and replica differ by", value: `${short(proof.parity?.engine_error_rms_nats)} nats`, hint: `at most ${short(proof.parity?.engine_error_limit_nats)}, over ${counted(proof.positions, "position")}` })}
      ${h(Fact, { name: "The adapter changes", value: `${short(proof.effect_rms_nats)} nats`, hint: "against its base on the same replica" })}
      ${h(Fact, { name: "Chat template", value: proof.template?.equal ? "the same tokens" : "differs", hint: proof.template ? `${counted(proof.template.chats?.length, "chat")}, ${counted(proof.template.tokens, "token")}` : "" })}
      ${h(Fact, { name: "End tokens", value: proof.stop?.missed?.length ? "missed" : "stop the answer", hint: plain((proof.stop?.tokens || []).join(" "), 80) })}
      ${proof.tools && h(Fact, { name: "Tool calls", value: proof.tools.as_trained ? "parsed as trained" : "not parsed as trained", hint: plain(proof.tools.reason, 200) })}
      ${h(Fact, { name: "Base", value: plain(proof.base?.name), hint: `${plain(proof.base?.dtype)}, ${plain(proof.base?.digest).slice(0, 8)}…` })}</dl>
      ${[...(proof.failed || []), ...(proof.warnings || [])].map((/** @type {any} */ note) => html`<p key=${String(note)} class="notice">${plain(typeof note === "string" ? note : JSON.stringify(note), 500)}</p>`)}</section>`)}</div>`;
}

// -- events and log ---------------------------------------------------------------------------------------------------

/** @param {{events: any[] | null}} props */
function Events({ events }) {
  const [isAll, setAll] = useState(false);
  const [most, setMost] = useState(200);
  if (!events) return h(Loading, {});
  const shown = events.filter((event) => isAll || event.type !== "metrics").reverse();
  return html`<div class="stack"><div class="switches"><label><input type="checkbox" checked=${isAll} onChange=${() => setAll(!isAll)} /> losses too</label><span class="faint">${counted(shown.length, "event")}, newest first</span></div>
    ${h(EventTable, { events: shown.slice(0, most) })}
    ${shown.length > most && html`<p class="end"><button type="button" onClick=${() => setMost(most + 500)}>Show more</button></p>`}</div>`;
}

/** @param {{events: any[], isPlain?: boolean}} props */
function EventTable({ events, isPlain }) {
  if (!events.length) return html`<p class="faint">Nothing yet.</p>`;
  return html`<div class=${isPlain ? "events" : "list events"} tabindex=${isPlain ? undefined : "0"} role="group" aria-label="Events"><table>
    <thead class=${isPlain ? "hidden" : ""}><tr><th scope="col">Time</th><th scope="col">Event</th></tr></thead><tbody>${events.map((event) => html`<tr key=${event.seq} class=${event.level}>
    <td class="time"><time datetime=${event.created_at} title=${exact(event.created_at)}>${clock(event.created_at)}</time></td>
    <td>${event.level === "info" ? "" : html`<b>${plain(event.level)}: </b>`}${said(event.message)}${event.data?.by ? html` <span class="faint">by ${plain(event.data.by, 80)}</span>` : ""}</td></tr>`)}</tbody></table></div>`;
}

/** @param {{path: string, isOver: boolean}} props */
function Log({ path, isOver }) {
  const missing = missingRole("trainer");
  const { data, error, reload } = useObject(missing ? null : `${path}/log?bytes=65536`);
  if (missing) return h(Empty, { title: "Not for this role", children: html`<p>The log may quote rows: reading it ${missing}.</p>` });
  if (data === undefined) return error ? h(Failure, { error, retry: reload }) : h(Loading, {});
  if (!data) return h(Empty, { title: "No log", children: html`<p>${isOver ? "The run ended before training, which writes it, began." : "No attempt has written one yet."}</p>` });
  return html`<div class="stack"><div class="switches"><span class="faint">The end of the last attempt's log; at most 15 seconds old while it runs.</span>${h(CopyButton, { text: data, name: "Copy the log" })}
    <button type="button" class="small" onClick=${reload}>Read again</button></div><pre class="log" tabindex="0" aria-label="Log">${content(data.replace(/[^\n]*\r(?!\n)/g, ""))}</pre></div>`;
}

/** @param {any} job */
function copies(job) {
  const python = job.kind === "finetune"
    ? `${openaiClient()}\nprint(client.fine_tuning.jobs.retrieve(${JSON.stringify(job.id)}))\nfor event in client.fine_tuning.jobs.list_events(${JSON.stringify(job.id)}):\n    print(event.message)`
    : `import os\nimport httpx\n\nprint(httpx.get(${JSON.stringify(`${location.origin}/v1/jobs/${job.id}`)}, headers={"Authorization": f"Bearer {os.environ['MENS_API_KEY']}"}).json())`;
  return { curl: asCurl(`/v1/jobs/${job.id}`), python, mens: `mens jobs show ${quoted(job.id)}` };
}
