// A program that knows of OpenAI's API alone tunes a model under OpenAI's own name for its base. Its calls are those of the
// fine-tuning example in openai-node's repository, with their arguments and in their order.
//
//   OPENAI_BASE_URL=… OPENAI_API_KEY=… node fine-tuning.mjs BASE TRAINING_FILE QUESTION
//
// Uploads, waits for the file, creates the job, follows its events, and, beyond the example, asks the tuned model.

import fs from "node:fs";
import OpenAI from "openai";

const [base, trainingFile, question] = process.argv.slice(2);
const client = new OpenAI();
const pause = () => new Promise((resolve) => setTimeout(resolve, 200));

const uploaded = await client.files.create({ file: fs.createReadStream(trainingFile), purpose: "fine-tune" });
for (;;) {
  const file = await client.files.retrieve(uploaded.id);
  if (file.status === "processed") break;
  await pause();
}

let job = await client.fineTuning.jobs.create({ model: base, training_file: uploaded.id });
console.log(`created on ${job.model}: ${job.status}`);

const seen = new Set();
// The example goes on in these two states alone: with any other, "validating_files" too, it takes the job for ended.
while (job.status === "running" || job.status === "queued") {
  job = await client.fineTuning.jobs.retrieve(job.id);
  const { data } = await client.fineTuning.jobs.listEvents(job.id, { limit: 100 });
  for (const event of data.reverse().filter((event) => !seen.has(event.id))) {
    seen.add(event.id);
    console.log(`- ${new Date(event.created_at * 1000).toISOString()}: ${event.message}`);
  }
  await pause();
}
console.log(`${job.status} on ${job.model} after ${seen.size} events`);

const messages = [{ role: "user", content: question }];
const answer = await client.chat.completions.create({ model: job.fine_tuned_model, messages, max_tokens: 48, temperature: 0 });
console.log(`${answer.model} answers`);
