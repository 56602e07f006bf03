// Reads documents of custom resources (JSON, an array) and prints for each the list of what is wrong with it.
import { readFileSync } from "node:fs";

import { MODULES } from "./modules.mjs";

/** A view of a value that notes which of its fields are read. */
function watched(value, path, read) {
  if (typeof value !== "object" || value === null) return value;
  return new Proxy(value, {
    get(target, key) {
      const found = Reflect.get(target, key);
      if (typeof key !== "string" || !Object.hasOwn(target, key)) return found;
      read.add(`${path}/${key}`);
      return watched(found, `${path}/${key}`, read);
    },
  });
}

function* paths(value, path) {
  if (typeof value !== "object" || value === null) return;
  for (const [key, inner] of Object.entries(value)) {
    yield `${path}/${key}`;
    yield* paths(inner, `${path}/${key}`);
  }
}

/** The validators accept unknown fields. They read every field that they know, so one that was not read is none. */
async function faults(document) {
  const module = MODULES[document.apiVersion];
  const kind = module && (await import(module))[document.kind];
  if (!kind) return [`${document.apiVersion} ${document.kind} is no kind`];
  const read = new Set();
  try {
    kind.prototype.validate.call(watched(document, "", read));
  } catch (error) {
    return [error.message];
  }
  return [...paths(document, "")].filter((path) => !read.has(path)).map((path) => `${path} is no field`);
}

const documents = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(await Promise.all(documents.map(faults))));
