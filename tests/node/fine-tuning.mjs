// A program that knows of OpenAI's API alone tunes a model under OpenAI's own name for its base, as OpenAI's example does.
//
//   OPENAI_BASE_URL=… OPENAI_API_KEY=… node fine-tuning.mjs BASE TRAINING_FILE
//
// Uploads, waits for the file, creates the job, follows its events, and asks the tuned model. The last line is its answer.

import fs from "node:fs";
import OpenAI from "openai";

const [base, trainingFile, question] = process.argv.slice(2);
const client = new OpenAI();
const pause = () => new Promise((resolve) => setTimeout(resolve, 200));

let file = await client.files.create({ file: fs.createReadStream(trainingFile), purpose: "fine-tune" });
while (file.status !== "processed") {
  await pause();
  file = await client.files.retrieve(file.id);
}

let job = await client.fineTuning.jobs.create({
  model: base,
  training_file: file.id,
  method: { type: "supervised", supervised: { hyperparameters: { n_epochs: 10, batch_size: 8 } } },
});
console.log(`created on ${job.model}: ${job.status}`);

const seen = new Set();
while (!["succeeded", "failed", "cancelled"].includes(job.status)) {
  await pause();
  const { data } = await client.fineTuning.jobs.listEvents(job.id, { limit: 100 });
  for (const event of data.reverse().filter((event) => event.type === "message" && !seen.has(event.id))) {
    seen.add(event.id);
    console.log(`- ${event.message}`);
  }
  job = await client.fineTuning.jobs.retrieve(job.id);
}
console.log(`${job.status} on ${job.model}`);

const messages = [{ role: "user", content: question }];
const answer = await client.chat.completions.create({ model: job.fine_tuned_model, messages, max_tokens: 48, temperature: 0 });
console.log(answer.choices[0].message.content);
