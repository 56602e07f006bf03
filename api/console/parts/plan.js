/** A plan: what a run will need, and every value of its contract with who decided it. */
import { useState } from "../vendor/preact-hooks.js";
import { flat, sourceOf } from "../lib/contract.js";
import { duration, plain, short, size, whole } from "../lib/format.js";
import { h, html } from "./html.js";
import { Fact } from "./state.js";

const WHO = {
  explicit: "you", auto: "Mens (auto)", data: "the data", machine: "the machine", parent: "the parent adapter",
  domain: "the domain profile", ladder: "Mens, by size of the base", preset: "the preset", default: "default",
};

/** What an estimate of time is made from. */
const BASES = { measured: "as fast as an earlier run", flops: "from the size of the model and the device's speed", steps: "a rough guess from the number of steps" };

/**
 * Who decided a value.
 * @param {string | undefined} source as `sources` of a plan names it
 */
export function whoOf(source) {
  return Object.hasOwn(WHO, source || "") ? WHO[/** @type {"auto"} */ (source)] : plain(source || "–");
}

/**
 * The needs of a run, and what is noteworthy about it.
 * @param {{preflight: any, validationRows: number | undefined, title: string}} props
 */
export function Forecast({ preflight, validationRows, title }) {
  const { estimate, data, supervision, device, precision } = preflight;
  const other = estimate.time?.other_seconds || 0;
  const seconds = estimate.seconds + other;
  const notes = [...new Set([...(preflight.warnings || []), ...(preflight.notes || [])])];
  return html`<section class="card" aria-label=${title}><h2>${title}</h2><dl class="facts">
    ${h(Fact, { name: "Rows", value: whole(data?.training?.rows), hint: `${whole(validationRows)} held out` })}
    ${h(Fact, { name: "Supervised tokens", value: whole(supervision?.supervised_tokens), hint: `of ${whole(supervision?.tokens)}` })}
    ${h(Fact, { name: "Cut rows", value: whole(supervision?.truncated_rows) })}
    ${h(Fact, { name: "Optimizer steps", value: whole(estimate.optimizer_steps) })}
    ${h(Fact, { name: "Memory", value: size(estimate.vram_bytes), hint: estimate.vram_budget ? `at most ${size(estimate.vram_budget)}` : "of an unknown machine" })}
    ${h(Fact, { name: "Training time", value: duration(estimate.seconds), hint: [BASES[/** @type {"flops"} */ (estimate.time?.basis)], other ? "" : "without loading and publishing"].filter(Boolean).join("; ") })}
    ${other > 0 && h(Fact, { name: "Device time", value: `${short(seconds / 60)} min`, hint: "with loading and publishing" })}
    ${h(Fact, { name: "Trained parameters", value: short(estimate.trainable_parameters), hint: `of ${short(estimate.parameters)}` })}
    ${h(Fact, { name: "Device", value: plain(device?.device), hint: plain(precision?.precision) })}</dl>
    ${notes.map((note) => html`<p key=${note} class="faint">${plain(note, 1000)}</p>`)}</section>`;
}

/**
 * Values of a contract and who decided each; those that are only defaults on request.
 * @param {{contract: any, sources: Record<string, string> | undefined}} props
 */
export function Decisions({ contract, sources = {} }) {
  const [isAll, setAll] = useState(false);
  const values = flat(contract || {});
  const isKnown = Object.keys(sources).length > 0;
  const shown = values.filter(([name]) => isAll || (sourceOf(sources, name) || "default") !== "default" || (!isKnown && name.startsWith("exec.")));
  return html`<div class="switches"><label><input type="checkbox" checked=${isAll} onChange=${() => setAll(!isAll)} /> show all ${whole(values.length)} values, defaults too</label></div>
    <div class="list scroll-x" tabindex="0" role="group" aria-label="Values of the plan"><table><thead><tr><th scope="col">Field</th><th scope="col">Value</th><th scope="col">Decided by</th></tr></thead>
      <tbody>${shown.map(([name, value]) => html`<tr key=${name}><th scope="row">${plain(name)}</th><td><code>${plain(JSON.stringify(value), 300)}</code></td>
        <td><span class="who ${sourceOf(sources, name) || ""}">${whoOf(sourceOf(sources, name))}</span></td></tr>`)}</tbody></table></div>`;
}
