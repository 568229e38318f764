"use strict";
// Charts and tables of the data that `lockstep report` writes into the page.

const data = JSON.parse(document.getElementById("data").textContent);

// --- Elements ------------------------------------------------------------------------------------

const svgNames = new Set(["svg", "g", "rect", "line", "path", "text", "circle"]);

// make("p", {class: "soft"}, "text", child, ...)
function make(name, attributes = {}, ...children) {
  const element = svgNames.has(name)
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

function table(heading, rows, kind = "") {
  const line = (cells, tag) => make("tr", {}, ...cells.map((cell) => make(tag, {}, cell)));
  return make("div", { class: "scroll" }, make("table", { class: kind },
    ...(heading ? [make("thead", {}, line(heading, "th"))] : []),
    make("tbody", {}, ...rows.map((row) => line(row, "td")))));
}

const number = (value) => value.toLocaleString("en", value >= 99.95
  ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 });
const percent = (value) => `${Math.round(100 * value)} %`;
const ranksText = (count) => `${count} rank${count === 1 ? "" : "s"}`;

// --- Tooltip -------------------------------------------------------------------------------------

const tip = document.body.appendChild(make("div", { id: "tip", role: "status" }));

function showTip(event, text) {
  tip.textContent = text;
  tip.style.visibility = "visible";
  const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const y = event.clientY + 18 + tip.offsetHeight > innerHeight
    ? event.clientY - tip.offsetHeight - 12 : event.clientY + 18;
  tip.style.left = `${Math.max(x, 8)}px`;
  tip.style.top = `${y}px`;
}

function withTip(element, text) {
  element.addEventListener("pointermove", (event) =>
    showTip(event, typeof text === "function" ? text(event) : text));
  element.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; });
  return element;
}

// --- Charts --------------------------------------------------------------------------------------

// Draws a chart when the page is loaded and whenever its width changes, so that text keeps its size
// on every screen.
function chart(label, draw) {
  const svg = make("svg", { role: "img", "aria-label": label });
  let width = 0;
  const redraw = () => {
    const now = Math.floor(svg.getBoundingClientRect().width);
    if (now === width || now === 0) return;
    width = now;
    svg.replaceChildren();
    const height = draw(svg, width);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
  };
  queueMicrotask(redraw);
  new ResizeObserver(() => requestAnimationFrame(redraw)).observe(svg);
  return svg;
}

// Round numbers from 0, or from `least`, to `most` or slightly less.
function ticks(least, most, count) {
  const rough = (most - least) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const first = Math.ceil(least / step - 1e-9);
  const length = Math.max(Math.floor(most / step + 1e-6) - first + 1, 0);
  // By a count, because adding a small step to a large number may not change it.
  return Array.from({ length }, (_, i) => +((first + i) * step).toPrecision(12));
}

// Draws a frame with axes; returns the functions from values to positions.
function frame(svg, width, height, x, y) {
  const left = 46;
  const right = 14;
  const top = 12;
  const bottom = 34;
  const placeX = (value) => left + (value - x.least) / (x.most - x.least || 1) *
    (width - left - right);
  const placeY = (value) => height - bottom - (value - y.least) / (y.most - y.least || 1) *
    (height - top - bottom);
  for (const at of ticks(y.least, y.most, 4)) {
    svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: placeY(at),
      y2: placeY(at) }));
    svg.append(make("text", { x: left - 8, y: placeY(at) + 4, "text-anchor": "end" }, number2(at)));
  }
  for (const at of x.ticks ?? ticks(x.least, x.most, width / 110))
    svg.append(make("text", { x: placeX(at), y: height - bottom + 18, "text-anchor": "middle" },
      number2(at)));
  svg.append(make("text", { x: width - right, y: height - 2, "text-anchor": "end" }, x.name));
  return { placeX, placeY, left, right, top, bottom };
}

const number2 = (value) => (Math.abs(value) >= 1e5
  ? value.toLocaleString("en", { notation: "compact" })
  : value.toLocaleString("en", { maximumSignificantDigits: 4 }));

const pathOf = (points) => points.map(([x, y], i) =>
  `${i === 0 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

const phaseColor = (i) => `var(--${data.phases[i]})`;
const sum = (values) => values.reduce((a, b) => a + b, 0);

// Phases that are visible in some row.
function seenPhases(rows) {
  const longest = Math.max(...rows.map((row) => sum(row.split)));
  return data.phases.map((_, i) => i).filter((i) =>
    rows.some((row) => row.split[i] > longest / 1000));
}

function legend(phases) {
  return make("div", { class: "legend" }, ...phases.map((i) => {
    const mark = make("i");
    mark.style.background = phaseColor(i);
    return make("span", {}, mark, data.phases[i]);
  }));
}

// Stacked bars, one per row: {label, split}.
function splitBars(rows) {
  const phases = seenPhases(rows);
  const most = Math.max(...rows.map((row) => sum(row.split)));
  const svg = chart("milliseconds of a step by phase", (into, width) => {
    const longest = Math.max(...rows.map((row) => row.label.length));
    const left = Math.min(Math.max(longest * 7 + 12, 52), width * 0.36);
    const right = 64;
    const pitch = 32;
    rows.forEach((row, line) => {
      const y = line * pitch + 2;
      into.append(make("text", { class: "strong", x: 0, y: y + 16 }, shortened(row.label, left)));
      let at = left;
      for (const i of phases) {
        const bar = row.split[i] / most * (width - left - right);
        if (bar < 0.3) continue;
        into.append(withTip(make("rect", { x: at, y, width: Math.max(bar - 1, 0.5), height: 22,
          rx: Math.min(3, bar / 3), fill: phaseColor(i) }),
          `${row.label}\n${data.phases[i]}: ${number(row.split[i])} ms ` +
          `(${percent(row.split[i] / sum(row.split))})`));
        at += bar;
      }
      into.append(make("text", { x: at + 7, y: y + 16 }, `${number(sum(row.split))} ms`));
    });
    return rows.length * pitch;
  });
  return [legend(phases), svg];
}

// The rows with the least wait, in their original order.
function longest(rows, most) {
  const wait = data.phases.indexOf("wait");
  const kept = new Set([...rows].sort((a, b) => a.split[wait] - b.split[wait]).slice(0, most));
  return rows.filter((row) => kept.has(row));
}

function shortened(label, width) {
  const most = Math.max(Math.floor(width / 7) - 1, 4);
  return label.length > most ? `${label.slice(0, most - 1)}…` : label;
}

function splitTable(rows, first) {
  const phases = seenPhases(rows);
  return make("details", {}, make("summary", {}, "Numbers, in ms"), table(
    [first, ...phases.map((i) => data.phases[i]), "step"],
    rows.map((row) => [row.label, ...phases.map((i) => number(row.split[i])),
      number(sum(row.split))])));
}

// --- Lines over steps ----------------------------------------------------------------------------

function nearest(points, x) {
  let best = points[0];
  for (const point of points) if (Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
  return best;
}

function extent(values, from) {
  const least = from ?? Math.min(...values);
  const most = Math.max(...values);
  return most > least ? { least, most } : { least: least - 1, most: most + 1 };
}

// `points`: [step, value, low, high]; the band between the last two may be absent.
function stepChart(label, points, unit, from) {
  return chart(label, (svg, width) => {
    const height = Math.min(Math.max(width * 0.3, 150), 240);
    const has_band = points[0].length > 2;
    const x = { ...extent(points.map((point) => point[0])), name: "step" };
    // A single long step, for example with a checkpoint, would flatten the rest.
    const values = points.flatMap((point) => point.slice(1)).sort((a, b) => a - b);
    const means = points.map((point) => point[1]);
    const high = values[Math.floor((values.length - 1) * 0.99)];
    const y = extent([...means, high], from);
    y.most += (y.most - y.least) * 0.06;
    const { placeX, placeY, left, right } = frame(svg, width, height, x, y);
    const clipped = (value) => placeY(Math.min(value, y.most));
    if (has_band) {
      const upper = points.map(([step, , , most]) => [placeX(step), clipped(most)]);
      const lower = points.map(([step, , least]) => [placeX(step), clipped(least)]).reverse();
      svg.append(make("path", { d: `${pathOf([...upper, ...lower])}Z`, fill: "var(--band)" }));
    }
    svg.append(make("path", { d: pathOf(points.map(([step, mean]) => [placeX(step),
      clipped(mean)])), fill: "none", stroke: "var(--accent)", "stroke-width": 1.8,
      "stroke-linejoin": "round" }));
    const mark = svg.appendChild(make("line", { class: "grid", y1: 12, y2: height - 34,
      visibility: "hidden" }));
    const cover = withTip(make("rect", { x: left, y: 0, width: width - left - right,
      height: height - 30, fill: "transparent" }), (event) => {
      const box = svg.getBoundingClientRect();
      const share = ((event.clientX - box.left) - left) / (width - left - right);
      const [step, mean, least, most] = nearest(points, x.least + share * (x.most - x.least));
      mark.setAttribute("x1", placeX(step));
      mark.setAttribute("x2", placeX(step));
      mark.setAttribute("visibility", "visible");
      return `step ${step}\n${number2(mean)}${unit}` +
        (has_band ? ` (${number2(least)} to ${number2(most)})` : "");
    });
    cover.addEventListener("pointerleave", () => mark.setAttribute("visibility", "hidden"));
    svg.append(cover);
    return height;
  });
}
