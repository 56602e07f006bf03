// A stock OpenAI client for Node drives Mens: files, fine-tuning jobs, events, models, chat, errors.
//
//   OPENAI_BASE_URL=… OPENAI_API_KEY=… node client.mjs MODEL BASE TRAINING_FILE
//
// MODEL is a tuned model's id, which has an `@` in it. Every step asserts; the last line is "all is well".

import assert from "node:assert/strict";
import fs from "node:fs";
import OpenAI, { AuthenticationError, BadRequestError, NotFoundError } from "openai";

const [model, base, trainingFile] = process.argv.slice(2);
const client = new OpenAI({ maxRetries: 0 });
const question = [{ role: "user", content: "Count from 1 to 5." }];

async function all(pages) {
  const found = [];
  for await (const item of pages) found.push(item);
  return found;
}

async function files() {
  const file = await client.files.create({ file: fs.createReadStream(trainingFile), purpose: "fine-tune" });
  assert.equal(file.bytes, fs.statSync(trainingFile).size);
  assert.deepEqual([file.object, file.purpose], ["file", "fine-tune"]);
  assert.equal((await client.files.retrieve(file.id)).filename, file.filename);
  const content = await (await client.files.content(file.id)).text();
  assert.equal(content, fs.readFileSync(trainingFile, "utf-8"));
  assert.ok((await all(client.files.list({ purpose: "fine-tune", limit: 1 }))).some((other) => other.id === file.id));
  return file;
}

async function job(file) {
  const created = await client.fineTuning.jobs.create({
    model: base,
    training_file: file.id,
    suffix: "node",
    seed: 3,
    metadata: { from: "node" },
    method: { type: "supervised", supervised: { hyperparameters: { n_epochs: 50, batch_size: "auto" } } },
  });
  assert.equal(created.object, "fine_tuning.job");
  assert.deepEqual([created.seed, created.metadata, created.hyperparameters.n_epochs], [3, { from: "node" }, 50]);
  assert.ok((await all(client.fineTuning.jobs.list({ limit: 2 }))).some((other) => other.id === created.id));
  await client.fineTuning.jobs.cancel(created.id);
  const cancelled = await ended(created.id);
  assert.equal(cancelled.status, "cancelled");
  const events = await all(client.fineTuning.jobs.listEvents(created.id, { limit: 2 }));
  assert.ok(events.length > 1 && events.every((event) => event.object === "fine_tuning.job.event"));
  assert.equal(events.at(-1).message, "Job created and queued.");
  assert.deepEqual((await client.fineTuning.jobs.checkpoints.list(created.id)).data, []);
}

async function ended(id) {
  for (;;) {
    const found = await client.fineTuning.jobs.retrieve(id);
    if (["succeeded", "failed", "cancelled"].includes(found.status)) return found;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

async function models() {
  assert.ok(model.includes("@"));
  assert.deepEqual((await client.models.retrieve(model)).id, model);
  const names = (await all(client.models.list())).map((entry) => entry.id);
  assert.ok(names.includes(model) && names.includes(base));
}

async function chat() {
  const asked = { model, messages: question, temperature: 0, max_tokens: 32 };
  const whole = await client.chat.completions.create(asked);
  const answer = whole.choices[0].message.content;
  assert.equal(answer, "1, 2, 3, 4, 5.");
  const stream = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
  const chunks = await all(stream);
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta?.content ?? "").join(""), answer);
  assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
}

async function streaming() {
  // How many tokens a chunk has depends on how busy the machine is; an answer this long cannot be one chunk.
  const long = { model: base, messages: question, max_tokens: 600, ignore_eos: true, stream: true };
  for await (const chunk of await client.chat.completions.create(long)) {
    if (!chunk.choices[0].delta.content) continue;
    assert.equal(chunk.choices[0].finish_reason, null, "the first words are here before the last are made");
    return; // the client closes the connection
  }
  assert.fail("the stream has no words");
}

async function leaving() {
  const stream = await client.chat.completions.create({ model: base, messages: question, stream: true });
  for await (const _ of stream) break; // the client closes the connection, and Mens must live with it
  assert.equal((await client.models.retrieve(base)).id, base);
}

async function errors() {
  const unknown = client.chat.completions.create({ model: "nobody", messages: question });
  await assert.rejects(unknown, (error) => error instanceof NotFoundError && error.code === "model_not_found");
  const wrong = client.chat.completions.create({ model, messages: question, temperature: -1 });
  await assert.rejects(
    wrong,
    (error) => error instanceof BadRequestError && error.code === "invalid_value" && error.param === "temperature",
  );
  const stranger = new OpenAI({ apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), (error) => error instanceof AuthenticationError && error.code === "invalid_api_key");
}

await job(await files());
await models();
await chat();
await streaming();
await leaving();
await errors();
console.log("all is well");
