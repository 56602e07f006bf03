// OpenAI's Node client makes an eval, runs it, waits, reads its output items, and cancels and deletes as its methods do.
//
//   OPENAI_BASE_URL=… OPENAI_API_KEY=… node evals.mjs MODEL

import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";

const [model] = process.argv.slice(2);
const client = new OpenAI();
const pause = () => new Promise((resolve) => setTimeout(resolve, 200));

const made = await client.evals.create({
  name: "Node",
  data_source_config: {
    type: "custom",
    item_schema: { type: "object", properties: { question: { type: "string" } }, required: ["question"] },
    include_sample_schema: true,
  },
  testing_criteria: [
    { type: "string_check", name: "says", input: "{{ sample.output_text }}", reference: "", operation: "like" },
  ],
});
assert.equal((await client.evals.retrieve(made.id)).name, "Node");
assert.equal((await client.evals.update(made.id, { name: "Renamed" })).name, "Renamed");

const rows = [1, 2, 3].map((number) => JSON.stringify({ item: { question: `Question ${number}?` } })).join("\n");
const file = await client.files.create({ file: await toFile(Buffer.from(rows), "rows.jsonl"), purpose: "evals" });
const dataSource = {
  type: "completions",
  model,
  source: { type: "file_id", id: file.id },
  input_messages: { type: "template", template: [{ role: "user", content: "{{ item.question }}" }] },
  sampling_params: { temperature: 0, max_completion_tokens: 8 },
};
let run = await client.evals.runs.create(made.id, { name: "first", data_source: dataSource });
while (run.status === "queued" || run.status === "in_progress") {
  await pause();
  run = await client.evals.runs.retrieve(run.id, { eval_id: made.id });
}
assert.equal(run.status, "completed");
assert.deepEqual(run.result_counts, { total: 3, errored: 0, failed: 0, passed: 3 });
const items = [];
for await (const item of client.evals.runs.outputItems.list(run.id, { eval_id: made.id, limit: 2 })) items.push(item);
assert.deepEqual(items.map((item) => item.datasource_item_id), [0, 1, 2]);
const one = await client.evals.runs.outputItems.retrieve(items[1].id, { eval_id: made.id, run_id: run.id });
assert.equal(one.status, "pass");

const second = await client.evals.runs.create(made.id, { name: "second", data_source: dataSource });
const stopping = await client.evals.runs.cancel(second.id, { eval_id: made.id }).catch((error) => error);
assert.ok(["queued", "in_progress", "canceled"].includes(stopping.status) || stopping.status === 409);
for (;;) {
  const { status } = await client.evals.runs.retrieve(second.id, { eval_id: made.id });
  if (status === "canceled" || status === "completed") break;
  await pause();
}
assert.equal((await client.evals.runs.delete(second.id, { eval_id: made.id })).deleted, true);
assert.equal((await client.evals.delete(made.id)).deleted, true);
await assert.rejects(client.evals.retrieve(made.id), OpenAI.NotFoundError);
console.log("all is well");
