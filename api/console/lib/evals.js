/** Evals as people write them: checks by the short names of `mens eval run`, and rows as items. */

/** @typedef {{title: string, value?: string, hint?: string, type?: "number" | "text" | "lines" | "model"}} Kind `value`: name of what the check needs besides its kind */

export const METRICS = ["rouge_l", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "bleu", "gleu", "meteor", "fuzzy_match", "cosine"];
const LANGUAGE = { value: "Language", hint: "python, json, sql, or one whose checker is installed" };

/** Kinds of checks in groups, by their short names. @type {[string, Record<string, Kind>][]} */
export const GROUPS = [
  ["Against the expected answer", {
    exact: { title: "equals the expected answer" },
    contains: { title: "contains the expected answer" },
    icontains: { title: "contains it, in upper or lower case" },
  }],
  ["Form of the answer", {
    regex: { title: "has a match of an expression", value: "Expression", hint: "as Python's re.search" },
    json: { title: "is JSON" },
    json_schema: { title: "is JSON that a schema describes", value: "JSON Schema", type: "lines" },
    compiles: { title: "its code compiles", ...LANGUAGE },
    anti_stub: { title: "its code is not a stub", ...LANGUAGE },
  }],
  ["Similar to the expected answer", Object.fromEntries(METRICS.map((name) => [name, { title: `similar by ${name}`, value: "At least", type: "number", hint: "0 to 1" }]))],
  ["A model judges", {
    judge: { title: "a model finds it as correct as the expected answer", value: "Judge", type: "model" },
    better: { title: "a model finds it better than the other model's", value: "Judge", type: "model", hint: "needs a second model in each run" },
  }],
];
/** @type {Record<string, Kind>} */
export const KINDS = Object.assign(Object.create(null), ...GROUPS.map(([, kinds]) => kinds));
const OPERATIONS = /** @type {Record<string, string>} */ ({ exact: "eq", contains: "like", icontains: "ilike" });
const ANSWER = "{{ sample.output_text }}";
const BETTER = "You judge two answers to the same question. Which is better? Do not let their order or their length decide.";
const JUDGE = "You judge an answer. Compare it with the reference: is it as correct and as complete? Differences of wording do not matter.";

/** Kind and value of a check, "regex=^[0-9]+$". @param {string} check @returns {[string, string]} */
export function partsOf(check) {
  const [name] = check.split("=", 1);
  return [name, check.slice(name.length + 1)];
}

/** Checks that an address names. @param {string | null} text @returns {string[]} */
export function checksIn(text) {
  try {
    const checks = JSON.parse(text || "null");
    if (Array.isArray(checks)) return checks.map(String).slice(0, 32);
  } catch {
    // Somebody has cut the address.
  }
  return ["exact"];
}

/**
 * The graders of checks, in OpenAI's form, each with a name of its own. What is missing in one is left out: the API says so at its field.
 * @param {string[]} checks
 * @param {{expected: string, question: string}} fields of the items
 */
export function gradersOf(checks, fields) {
  const counts = new Map();
  return checks.map((check) => {
    const [kind] = partsOf(check);
    const count = (counts.get(kind) || 0) + 1;
    counts.set(kind, count);
    return { ...graderOf(check, fields), name: count > 1 ? `${kind} ${count}` : kind };
  });
}

/**
 * @param {string} check
 * @param {{expected: string, question: string}} fields
 * @returns {Record<string, any>}
 */
function graderOf(check, { expected, question }) {
  const [name, value] = partsOf(check);
  const reference = `{{ item.${expected} }}`;
  if (Object.hasOwn(OPERATIONS, name)) return { type: "string_check", input: ANSWER, reference, operation: OPERATIONS[name] };
  if (METRICS.includes(name)) return { type: "text_similarity", input: ANSWER, reference, evaluation_metric: name, ...(value.trim() && { pass_threshold: jsonOf(value) }) };
  if (name === "judge") return judged(value, ["correct", "incorrect"], `${JUDGE}\n\nReference:\n${reference}\n\nAnswer:\n${ANSWER}`);
  if (name === "better") return judged(value, ["first", "second", "equal"], `${BETTER}\n\nQuestion:\n{{ item.${question} }}\n\nFirst answer:\n${ANSWER}\n\nSecond answer:\n{{ sample.other.output_text }}`);
  const mens = name === "regex" ? { check: name, pattern: value } : name === "json" ? { check: "json_schema" }
    : name === "json_schema" ? { check: name, json_schema: jsonOf(value) } : { check: name, language: value };
  return { type: "python", source: "", mens }; // with the block no code runs
}

/** @param {string} model @param {string[]} labels @param {string} prompt */
function judged(model, labels, prompt) {
  return { type: "label_model", model, input: [{ role: "user", content: prompt }], labels, passing_labels: labels.slice(0, 1) };
}

/** A value as JSON, or as it is written. @param {string} text */
function jsonOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/**
 * The words of `mens eval run` for checks; a schema is a file there.
 * @param {string[]} checks
 * @param {(text: string) => string} quoted
 */
export function optionsOf(checks, quoted) {
  return checks.flatMap((check) => ["--check", quoted(partsOf(check)[0] === "json_schema" ? "json_schema=schema.json" : check)]);
}

/** The schema of items that have some fields, and maybe others. @param {string[]} fields */
export function schemaOf(fields) {
  return { type: "object", properties: Object.fromEntries(fields.map((name) => [name, {}])), required: fields, additionalProperties: true };
}

/** Fields of items that a criterion reads. @param {any[]} graders @param {string[]} known */
export function fieldsRead(graders, known) {
  const text = JSON.stringify(graders);
  return known.filter((name) => text.includes(`item.${name} `));
}

// -- rows -------------------------------------------------------------------------------------------------------------

/** @param {unknown} value @returns {value is Record<string, any>} */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Turns of a chat. @param {unknown} value */
export function isChat(value) {
  return Array.isArray(value) && value.length > 0 && value.every((turn) => isObject(turn) && typeof turn.role === "string");
}

/** Whether a line is one that a run takes as it is. @param {unknown} row */
export function isItem(row) {
  return isObject(row) && isObject(row.item) && Object.keys(row).every((key) => key === "item" || key === "sample");
}

/**
 * A row as an item, as `mens eval run` makes it: a training row gets `messages`, the turns before its last answer, and that answer as
 * `expected`, unless it is rated bad.
 * @param {any} row
 * @returns {Record<string, any>}
 */
export function itemOf(row) {
  if (isItem(row)) return row.item;
  let turns = isChat(row.messages) ? row.messages : isChat(row.turns) ? row.turns : written(row);
  if (!turns.length) return row;
  if (typeof row.system === "string" && !["system", "developer"].includes(turns[0].role)) turns = [{ role: "system", content: row.system }, ...turns];
  const last = turns[turns.length - 1];
  if (turns.length < 2 || last.role !== "assistant" || "expected" in row) return { ...row, messages: turns };
  return { ...row, messages: turns.slice(0, -1), ...(row.label === false ? {} : { expected: last.content }) };
}

/** Turns of a row with its prompt and its answer in fields of their own. @param {any} row */
function written(row) {
  const first = (/** @type {string[]} */ ...names) => {
    const texts = names.map((name) => row[name]).filter((text) => typeof text === "string");
    return texts.find(Boolean) ?? texts[0];
  };
  const prompt = [first("prompt", "instruction"), first("input"), first("context")].filter(Boolean).join("\n");
  const answer = first("response", "output", "completion");
  return prompt ? [{ role: "user", content: prompt }, ...(answer === undefined ? [] : [{ role: "assistant", content: answer }])] : [];
}

/**
 * Rows of JSONL.
 * @param {string} text
 * @returns {Record<string, any>[]}
 * @throws {SyntaxError} with the line
 */
export function rowsOf(text) {
  return text.split("\n").flatMap((line, index) => {
    if (!line.trim()) return [];
    let row;
    try {
      row = JSON.parse(line);
    } catch {
      // Refused below, like JSON that is not an object.
    }
    if (!isObject(row)) throw new SyntaxError(`Line ${index + 1} is not a JSON object.`);
    return [row];
  });
}

/**
 * Fields that all items, or some, have, and what they hold.
 * @param {Record<string, any>[]} items
 */
export function fieldsOf(items) {
  const names = [...new Set(items.flatMap((item) => Object.keys(item)))].filter((name) => /^[A-Za-z_]\w*$/.test(name));
  return names.map((name) => {
    const values = items.filter((item) => Object.hasOwn(item, name)).map((item) => item[name]);
    return { name, count: values.length, isChat: values.every(isChat), isText: values.every((value) => typeof value === "string") };
  });
}

/** How items become messages. @param {string} field @param {boolean} isChatField */
export function promptOf(field, isChatField) {
  if (isChatField) return { type: "item_reference", item_reference: `item.${field}` };
  return { type: "template", template: [{ role: "user", content: `{{ item.${field} }}` }] };
}
