/** A curve over steps: pointer and keyboard read values, dragging zooms, and a table says the same without a picture. */
import { useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
import uPlot from "../vendor/uplot.js";
import { short, whole } from "../lib/format.js";
import { theme } from "../lib/theme.js";
import { html } from "./html.js";

/** uPlot's own style, which only screens with curves need. */
const sheet = document.createElement("link");
const isThere = new Promise((resolve) => (sheet.onload = sheet.onerror = resolve));
sheet.rel = "stylesheet";
sheet.href = new URL("../vendor/uplot.css", import.meta.url).href;
document.head.append(sheet);
await isThere;

/**
 * @typedef {{name: string, label: string, colour: string, points: {step: number[], value: (number | null)[]}, dots?: boolean, faint?: boolean, dash?: number[]}} Curve
 *   `colour`: a custom property of the style sheet; `faint`: behind the others, and left out of the table; `dash`: lengths of a broken line
 */
const TABLE_ROWS = 25;

/** Colours that were asked for, with the theme in which they are so. */
const colours = { theme: "", found: new Map() };

/**
 * A colour of the style sheet as a canvas takes it: a custom property's own value would still be `light-dark(…)`.
 * @param {string} name
 */
function colour(name) {
  if (colours.theme !== theme.peek()) Object.assign(colours, { theme: theme.peek(), found: new Map() });
  if (!colours.found.has(name)) colours.found.set(name, probed(name));
  return colours.found.get(name);
}

/** @param {string} name */
function probed(name) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/**
 * One row of steps for all curves; a step that a curve does not have is `undefined`, over which uPlot draws on.
 * @param {Curve[]} curves
 */
function aligned(curves) {
  const steps = [...new Set(curves.flatMap((curve) => curve.points.step))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, index) => [step, index]));
  const columns = curves.map(({ points }) => {
    const column = new Array(steps.length).fill(undefined);
    points.step.forEach((step, index) => (column[/** @type {number} */ (place.get(step))] = points.value[index]));
    return column;
  });
  return [steps, ...columns];
}

/**
 * A weighted mean of a curve's past, corrected at its beginning.
 * @param {Curve["points"]} points
 * @param {number} weight of the past, 0 to 1
 */
export function smoothed(points, weight) {
  let mean = 0;
  let share = 0;
  const value = points.value.map((now) => {
    if (now === null || !Number.isFinite(now)) return null;
    mean = weight * mean + (1 - weight) * now;
    share = weight * share + (1 - weight);
    return mean / share;
  });
  return { step: points.step, value };
}

/**
 * @param {{title: string, curves: Curve[], height?: number, isLog?: boolean, marks?: {step: number, label: string}[],
 *   from?: number | null, until?: number | null, zoom?: (from: number | null, until: number | null) => void,
 *   format?: (value: number | null) => string, ticksOf?: (value: number) => string}} props
 */
export function Chart({ title, curves, height = 300, isLog = false, marks = [], from = null, until = null, zoom, format = short, ticksOf = short }) {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const [isTable, setTable] = useState(false);
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  const shown = useMemo(() => curves.filter((curve) => curve.points.step.length), [curves]);
  const data = useMemo(() => aligned(shown), [shown]);
  const look = JSON.stringify([shown.map(({ name, label, colour: own, dots, faint, dash }) => [name, label, own, dots, faint, dash]), isLog, height, marks, !!zoom, theme.value]);

  useLayoutEffect(() => { // before the frame is painted, which would be one without curves
    const box = place.current;
    if (!box || !shown.length) return;
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const options = {
      width: box.clientWidth || 600,
      height,
      padding: /** @type {[number, number, number, number]} */ ([12, 22, 0, 0]),
      scales: { x: { time: false }, y: { distr: isLog ? 3 : 1 } },
      axes: [
        { ...axis, size: 32, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((tick) => (Number.isInteger(tick) ? whole(tick) : "")) },
        { ...axis, size: 56, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((tick) => (tick === null ? "" : ticksOf(tick))) },
      ],
      legend: { show: false },
      cursor: { drag: { x: !!zoom, y: false, setScale: false }, points: { size: 7 }, y: false, sync: { key: "steps" } },
      series: [{}, ...shown.map((curve) => ({
        stroke: colour(curve.colour),
        alpha: curve.faint ? 0.3 : 1,
        width: curve.faint ? 1 : 1.75,
        dash: curve.dash,
        spanGaps: false,
        points: curve.dots || curve.points.step.length === 1 ? { show: true, size: 6, fill: colour(curve.colour), stroke: colour(curve.colour) } : { show: false },
      }))],
      hooks: {
        setCursor: [(/** @type {any} */ self) => setAt(self.cursor.idx ?? null)],
        setSelect: [(/** @type {any} */ self) => {
          if (!zoom || self.select.width < 8) return;
          const left = Math.max(1, Math.floor(self.posToVal(self.select.left, "x")));
          zoom(left, Math.ceil(self.posToVal(self.select.left + self.select.width, "x")));
          self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
        draw: [(/** @type {any} */ self) => drawMarks(self, marks)],
      },
    };
    plot.current = new uPlot(options, /** @type {uPlot.AlignedData} */ (/** @type {unknown} */ (data)), box);
    const resize = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height }));
    resize.observe(box);
    const leave = () => setAt(null);
    box.addEventListener("mouseleave", leave);
    return () => {
      resize.disconnect();
      box.removeEventListener("mouseleave", leave);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [look]);

  useLayoutEffect(() => {
    const self = plot.current;
    if (!self) return;
    const steps = data[0];
    const first = from ?? steps[0] ?? 0;
    const end = until ?? steps[steps.length - 1] ?? 1;
    self.batch(() => {
      self.setData(data, false);
      self.setScale("x", { min: first, max: end > first ? end : first + 1 });
    });
  }, [data, from, until, look]);

  /** @param {KeyboardEvent} event */
  const move = (event) => {
    const steps = data[0];
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
    const by = moves[/** @type {keyof typeof moves} */ (event.key)];
    if (by === undefined || !plot.current) return;
    event.preventDefault();
    const next = Math.min(steps.length - 1, Math.max(0, (at ?? (by > 0 ? -1 : steps.length)) + by));
    plot.current.setCursor({ left: plot.current.valToPos(steps[next], "x"), top: 10 }, false);
    setAt(next);
  };

  const step = at === null ? undefined : data[0][at];
  const named = shown.filter((curve) => !curve.faint);
  if (!shown.length) return html`<figure class="chart"><figcaption>${title}</figcaption><p class="faint nothing">No values yet.</p></figure>`;
  return html`<figure class="chart">
    <figcaption>
      <span>${title}</span>
      <span class="legend">${named.map((curve) => html`<span key=${curve.name}>
        <i class="swatch ${curve.dots ? "dots" : curve.dash ? "broken" : ""}" style=${{ color: `var(${curve.colour})` }}></i>${curve.label}
        <b class="number">${format(valueAt(curve, step))}</b></span>`)}
        <span class="at">${step === undefined ? "last" : `step ${whole(step)}`}</span></span>
    </figcaption>
    <div class="plot" ref=${place} role="group" tabindex="0" onKeyDown=${move} aria-label="${title}: arrow keys move over the steps"></div>
    <p class="hidden" aria-live="off">${step === undefined ? "" : named.map((curve) => `${curve.label} ${format(valueAt(curve, step))}`).join(", ")}</p>
    <details class="values" onToggle=${(/** @type {any} */ event) => setTable(event.target.open)}><summary>Values as a table</summary>${isTable && html`<div class="scroll" tabindex="0" role="group" aria-label="${title}, values">
      <table><thead><tr><th scope="col">step</th>${named.map((curve) => html`<th key=${curve.name} scope="col">${curve.label}</th>`)}</tr></thead>
      <tbody>${rowsOf(named).map((row) => html`<tr key=${row}><th scope="row" class="number">${whole(row)}</th>
        ${named.map((curve) => html`<td key=${curve.name} class="number">${format(exactly(curve, row))}</td>`)}</tr>`)}</tbody></table></div>`}</details>
  </figure>`;
}

/**
 * @param {any} self
 * @param {{step: number, label: string}[]} marks
 */
function drawMarks(self, marks) {
  const { ctx, bbox } = self;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour("--muted");
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  for (const mark of marks) {
    const x = Math.round(self.valToPos(mark.step, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(mark.label, x + 4 * devicePixelRatio, bbox.top + 12 * devicePixelRatio);
  }
  ctx.restore();
}

/**
 * The curve's value at a step, or the one before it; without a step the last.
 * @param {Curve} curve
 * @param {number | undefined} step
 */
function valueAt({ points }, step) {
  let index = points.step.length - 1;
  if (step !== undefined) while (index >= 0 && points.step[index] > step) index -= 1;
  return index < 0 ? null : points.value[index];
}

/**
 * @param {Curve} curve
 * @param {number} step
 */
function exactly({ points }, step) {
  const index = points.step.indexOf(step);
  return index < 0 ? null : points.value[index];
}

/**
 * Steps of the table: of the curve with the fewest points all, if they are few; else as evenly as there are points.
 * @param {Curve[]} curves
 */
function rowsOf(curves) {
  const steps = [...new Set(curves.flatMap((curve) => curve.points.step))].sort((a, b) => a - b);
  if (steps.length <= TABLE_ROWS) return steps;
  const rows = Array.from({ length: TABLE_ROWS }, (_, row) => steps[Math.round((row * (steps.length - 1)) / (TABLE_ROWS - 1))]);
  return [...new Set(rows)];
}
