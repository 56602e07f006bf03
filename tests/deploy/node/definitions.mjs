// Prints a CustomResourceDefinition (JSON, an array) for each kind that is read: its fields, which of them are required, their types and
// enumerations, from the types that the operators' packages declare. Patterns and bounds are not in these types; custom-resources.mjs has them.
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";

import { MODULES } from "./modules.mjs";

const ANYTHING = { "x-kubernetes-preserve-unknown-fields": true };
const folder = dirname(fileURLToPath(import.meta.url));

/** The structural schema of a type. */
function schema(checker, type) {
  if (type.flags & (ts.TypeFlags.Any | ts.TypeFlags.Unknown)) return ANYTHING;
  if (type.isUnion()) return union(checker, type);
  if (type.isStringLiteral()) return { type: "string", enum: [type.value] };
  if (type.flags & ts.TypeFlags.StringLike) return { type: "string" };
  if (type.flags & ts.TypeFlags.NumberLike) return { type: "number" };
  if (type.flags & ts.TypeFlags.BooleanLike) return { type: "boolean" };
  if (checker.isArrayType(type)) return { type: "array", items: schema(checker, checker.getTypeArguments(type)[0]) };
  const values = type.getStringIndexType();
  if (values) return { type: "object", additionalProperties: schema(checker, values) };
  const properties = {};
  const required = [];
  for (const field of type.getProperties()) {
    properties[field.name] = schema(checker, checker.getTypeOfSymbol(field));
    if (!(field.flags & ts.SymbolFlags.Optional)) required.push(field.name);
  }
  if (!Object.keys(properties).length) return { type: "object", ...ANYTHING };
  return { type: "object", properties, ...(required.length && { required }) };
}

function union(checker, type) {
  const empty = ts.TypeFlags.Undefined | ts.TypeFlags.Null;
  const parts = type.types.filter((part) => !(part.flags & empty));
  const nullable = type.types.some((part) => part.flags & ts.TypeFlags.Null) ? { nullable: true } : {};
  const all = (flag) => parts.every((part) => part.flags & flag);
  if (all(ts.TypeFlags.BooleanLike)) return { type: "boolean", ...nullable };
  if (parts.length === 1) return { ...schema(checker, parts[0]), ...nullable };
  if (parts.every((part) => part.isStringLiteral()))
    return { type: "string", enum: parts.map((part) => part.value), ...nullable };
  if (all(ts.TypeFlags.String | ts.TypeFlags.Number)) return { "x-kubernetes-int-or-string": true, ...nullable };
  return ANYTHING;
}

function definition(checker, type, { apiVersion, kind, plural }) {
  const [group, name] = apiVersion.split("/");
  const found = schema(checker, type);
  // The server has schemas of its own for these three.
  for (const field of ["apiVersion", "kind"]) found.properties[field] = { type: "string" };
  found.properties.metadata = { type: "object" };
  return {
    apiVersion: "apiextensions.k8s.io/v1",
    kind: "CustomResourceDefinition",
    metadata: {
      name: `${plural}.${group}`,
      // Groups below k8s.io want it.
      annotations: { "api-approved.kubernetes.io": "unapproved, made for tests" },
    },
    spec: {
      group,
      scope: "Namespaced",
      names: { kind, listKind: `${kind}List`, plural, singular: kind.toLowerCase() },
      versions: [{ name, served: true, storage: true, schema: { openAPIV3Schema: found } }],
    },
  };
}

const kinds = JSON.parse(readFileSync(0, "utf8"));
const program = join(folder, "kinds.ts");
const lines = kinds.map(
  ({ apiVersion, kind }, number) =>
    `import { I${kind} } from "${MODULES[apiVersion]}/${kind}"; export declare const kind${number}: I${kind};`,
);
writeFileSync(program, lines.join("\n"));
const options = { module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext, strict: true };
const built = ts.createProgram([program], { ...options, noEmit: true, types: [] });
const faults = ts.getPreEmitDiagnostics(built, built.getSourceFile(program));
if (faults.length) throw new Error(ts.formatDiagnostics(faults, ts.createCompilerHost(options)));
const checker = built.getTypeChecker();
const exported = checker.getExportsOfModule(checker.getSymbolAtLocation(built.getSourceFile(program)));
const types = Object.fromEntries(exported.map((symbol) => [symbol.name, checker.getTypeOfSymbol(symbol)]));
console.log(JSON.stringify(kinds.map((kind, number) => definition(checker, types[`kind${number}`], kind))));
