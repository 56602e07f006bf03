// OpenAI's Node client runs and validates graders of all six types, and lends a tuned model's checkpoint to another project.
// The published examples of graders are in examples.mjs.
//
//   OPENAI_BASE_URL=… OPENAI_API_KEY=… node graders.mjs CHECKPOINT PROJECT JUDGE

import assert from "node:assert/strict";
import OpenAI from "openai";

const [checkpoint, project, judge] = process.argv.slice(2);
const client = new OpenAI({ maxRetries: 0 });
const { graders } = client.fineTuning.alpha;
// The client sends its admin key to these routes, and no other; here a key of the role admin is one.
const admin = new OpenAI({ adminAPIKey: process.env.OPENAI_API_KEY, maxRetries: 0 });
const { permissions } = admin.fineTuning.checkpoints;

async function all(pages) {
  const found = [];
  for await (const item of pages) found.push(item);
  return found;
}

async function running() {
  const exact = { type: "string_check", name: "exact", input: "{{ sample.output_text }}", reference: "{{ item.answer }}", operation: "eq" };
  const similar = { type: "text_similarity", name: "similar", input: "{{ sample.output_text }}", reference: "{{ item.answer }}", evaluation_metric: "rouge_l" };
  const both = { type: "multi", name: "both", graders: { exact, similar }, calculate_output: "(exact + similar) / 2" };
  const item = { answer: "fuzzy wuzzy was a bear" };

  const found = await graders.run({ grader: both, model_sample: "fuzzy wuzzy had no hair", item });
  assert.deepEqual(found.sub_rewards, { exact: 0, similar: 0.4 });
  assert.equal(found.reward, 0.2);
  assert.deepEqual([found.metadata.name, found.metadata.type, found.metadata.token_usage], ["both", "multi", null]);
  assert.ok(Object.values(found.metadata.errors).every((value) => !value));
  assert.equal((await graders.run({ grader: exact, model_sample: item.answer, item })).reward, 1);

  const unknown = await graders.run({ grader: { ...exact, reference: "{{ item.nothing }}" }, model_sample: "x", item });
  assert.deepEqual([unknown.reward, unknown.metadata.errors.invalid_variable_error], [0, true]);
}

async function running_code() {
  const grader = { type: "python", name: "length", source: "def grade(sample, item):\n    return len(sample['output_text']) / item['length']" };
  assert.equal((await graders.run({ grader, model_sample: "abc", item: { length: 4 } })).reward, 0.75);
  const failed = await graders.run({ grader, model_sample: "abc", item: {} });
  assert.deepEqual([failed.reward, failed.metadata.errors.python_grader_runtime_error], [0, true]);
  assert.match(failed.metadata.errors.python_grader_runtime_error_details, /KeyError/);
}

// A tiny model judges: what it says is by chance, but held to the form of a judgement, unless it is cut off.
async function asking() {
  const input = [{ role: "user", content: "Is this good? {{ sample.output_text }}" }];
  const sampling_params = { temperature: 0, seed: 1, max_completions_tokens: 200 };
  const score = { type: "score_model", name: "score", model: judge, input, range: [1, 5], sampling_params };
  const label = { type: "label_model", name: "label", model: judge, input, labels: ["good", "bad"], passing_labels: ["good"], sampling_params };
  for (const grader of [score, label]) {
    const { reward, metadata } = await graders.run({ grader, model_sample: "It is.", item: {} });
    const flags = Object.keys(metadata.errors).filter((name) => metadata.errors[name] === true);
    assert.ok(flags.length === 0 || flags[0] === "model_grader_parse_error", flags);
    assert.ok(flags.length ? reward === 0 : grader === score ? reward >= 1 && reward <= 5 : [0, 1].includes(reward), reward);
    assert.deepEqual([metadata.sampled_model_name, metadata.type], [judge, grader.type]);
  }
}

async function validating() {
  // OpenAI's own example leaves the name out: it is the type then.
  const unnamed = { type: "string_check", input: "{{ sample.output_text }}", reference: "b", operation: "like" };
  assert.deepEqual((await graders.validate({ grader: unnamed })).grader, { ...unnamed, name: "string_check" });
  await assert.rejects(
    graders.validate({ grader: { ...unnamed, operation: "neq" } }),
    (error) => error instanceof OpenAI.BadRequestError && error.param.includes("operation"),
  );
}

async function lending() {
  const [made] = await all(permissions.create(checkpoint, { project_ids: [project] }));
  assert.deepEqual([made.object, made.project_id], ["checkpoint.permission", project]);
  const known = await all(permissions.list(checkpoint, { project_id: project, limit: 1 }));
  assert.deepEqual(known, [made]);
  const gone = await permissions.delete(made.id, { fine_tuned_model_checkpoint: checkpoint });
  assert.deepEqual([gone.id, gone.deleted], [made.id, true]);
  assert.deepEqual(await all(permissions.list(checkpoint, { project_id: project })), []);
  await assert.rejects(
    permissions.delete(made.id, { fine_tuned_model_checkpoint: checkpoint }),
    (error) => error instanceof OpenAI.NotFoundError,
  );
}

await running();
await running_code();
await asking();
await validating();
await lending();
console.log("all is well");
