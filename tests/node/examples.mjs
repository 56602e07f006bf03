// OpenAI's Node client validates and runs the graders, and makes and runs the evals, that OpenAI has published.
//
//   OPENAI_BASE_URL=… OPENAI_API_KEY=… node examples.mjs GRADERS EVALS

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import OpenAI, { toFile } from "openai";

const [graders, evals] = process.argv.slice(2).map((path) => JSON.parse(readFileSync(path, "utf8")));
const client = new OpenAI({ maxRetries: 0 });

async function outcome(step, call) {
  try {
    return { found: await call() };
  } catch (error) {
    assert.ok(error instanceof OpenAI.BadRequestError, error);
    return { refused: [step, error.error.mens.code] };
  }
}

async function judge({ source, grader, item, model_sample, refused, reward, flags = [], sub_rewards = {} }) {
  const { alpha } = client.fineTuning;
  const validated = await outcome("validate", () => alpha.graders.validate({ grader }));
  if (validated.refused) return assert.deepEqual(validated.refused, refused, source);
  assert.equal(validated.found.grader.name, grader.name ?? grader.type, source);
  const run = await outcome("run", () => alpha.graders.run({ grader, item, model_sample }));
  if (run.refused || refused) return assert.deepEqual(run.refused, refused, source);
  const { errors, type } = run.found.metadata;
  assert.deepEqual([type, Object.keys(errors).filter((name) => errors[name] === true)], [grader.type, flags], source);
  assert.ok(Math.abs(run.found.reward - reward) < 1e-9, `${source}: ${run.found.reward}`);
  assert.deepEqual(run.found.sub_rewards, sub_rewards, source);
}

async function evaluate({ source: [source], eval: asked, update, rows, run, refused }) {
  const made = await client.evals.create(asked);
  assert.deepEqual([made.object, made.data_source_config.type], ["eval", asked.data_source_config.type], source);
  if (update) assert.equal((await client.evals.update(made.id, update)).name, update.name, source);
  if (run) {
    const lines = (rows ?? []).map((row) => JSON.stringify(row)).join("\n");
    const file = rows && (await client.files.create({ file: await toFile(Buffer.from(lines), "rows.jsonl"), purpose: "evals" }));
    if (file) run.data_source.source.id = file.id;
    const started = await outcome("run", () => client.evals.runs.create(made.id, run));
    assert.deepEqual(started.refused, refused, source);
    if (started.found) {
      const { id, status, data_source } = started.found;
      assert.deepEqual([status, data_source.type], ["queued", run.data_source.type], source);
      const listed = await client.evals.runs.list(made.id, { status: "queued" });
      assert.deepEqual(listed.data.map((each) => each.id), [id], source);
      assert.equal((await client.evals.runs.cancel(id, { eval_id: made.id })).status, "canceled", source);
      assert.equal((await client.evals.runs.delete(id, { eval_id: made.id })).deleted, true, source);
    }
  }
  assert.equal((await client.evals.delete(made.id)).deleted, true, source);
}

for (const example of graders) await judge(example);
for (const example of evals) await evaluate(example);
console.log(`${graders.length} graders, ${evals.length} evals`);
