"use strict";
// Draws the report from the data that `lockstep report` has put into the page.

const data = JSON.parse(document.getElementById("data").textContent);
const report = document.getElementById("report");
const largest = data.runs[data.runs.length - 1];
const base = data.runs[0];

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

function card(title, hint, ...children) {
  const made = make("section", { class: "card" }, make("h2", {}, title),
    hint ? make("p", { class: "soft" }, hint) : null, ...children);
  report.append(made);
  return made;
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

// Draws a chart anew whenever its width changes: text keeps its size on every screen.
function chart(label, draw) {
  const svg = make("svg", { role: "img", "aria-label": label });
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now === width || now === 0) return;
    width = now;
    requestAnimationFrame(() => {
      svg.replaceChildren();
      const height = draw(svg, width);
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("height", height);
    });
  }).observe(svg);
  return svg;
}

// Round numbers from 0, or from `least`, to `most` or a little less.
function ticks(least, most, count) {
  const rough = (most - least) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const all = [];
  for (let at = Math.ceil(least / step - 1e-9) * step; at <= most + step * 1e-6; at += step)
    all.push(+at.toPrecision(12));
  return all;
}

// A frame with axes: returns the functions from values to places.
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

// Phases of which something is seen in some row.
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

// Stacked bars, one a row: {label, split}.
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

// The rows with the least wait, in their order.
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

// --- Scaling -------------------------------------------------------------------------------------

function scalingChart() {
  const points = data.runs.map((run) => ({ x: run.ratio * base.ranks, y: run.speed_up, run }));
  const most = Math.max(...points.map((point) => point.x)) * 1.5;
  const amdahl = (ranks) => 1 / (data.serial_part +
    (1 - data.serial_part) * base.ranks / ranks);
  return chart("speed-up over the number of ranks", (svg, width) => {
    const height = Math.min(Math.max(width * 0.45, 210), 330);
    const x = { least: base.ranks, most, name: "ranks",
      ticks: ticks(base.ranks, most, width / 90).filter(Number.isInteger) };
    const y = { least: 0, most: Math.max(most / base.ranks, ...points.map((each) => each.y)) };
    const { placeX, placeY } = frame(svg, width, height, x, y);
    const line = (speed, look) => {
      const all = [];
      for (let i = 0; i <= 60; ++i) {
        const ranks = base.ranks + (most - base.ranks) * i / 60;
        all.push([placeX(ranks), placeY(speed(ranks))]);
      }
      svg.append(make("path", { d: pathOf(all), fill: "none", ...look }));
      return all[60];
    };
    const ideal = line((ranks) => ranks / base.ranks,
      { stroke: "var(--soft)", "stroke-dasharray": "4 5", "stroke-width": 1.5 });
    svg.append(make("text", { x: ideal[0] - 26, y: ideal[1] + 4, "text-anchor": "end" }, "ideal"));
    const fitted = line(amdahl, { stroke: "var(--accent)", "stroke-width": 2 });
    svg.append(make("text", { x: fitted[0], y: fitted[1] - 9, "text-anchor": "end" },
      "Amdahl's law"));
    for (const { x: ranks, y: speed, run } of points)
      svg.append(withTip(make("circle", { cx: placeX(ranks), cy: placeY(speed), r: 6,
        fill: "var(--accent)", stroke: "var(--card)", "stroke-width": 2 }),
        `${run.name}\n${ranksText(run.ranks)}: ${speed.toFixed(2)} times as fast, ` +
        `efficiency ${percent(run.efficiency)}`));
    return height;
  });
}

function scalingCard() {
  if (data.serial_part === null) return;
  const most = `at most ${number(1 / data.serial_part)} times ${ranksText(base.ranks)}`;
  const limit = data.serial_part > 0.99 ? "more ranks do not help"
    : data.serial_part > 0 ? `${most}, however many there are` : "no limit shows";
  card("Scaling", `${number(100 * data.serial_part)} % of the work does not scale: ${limit}.`,
    scalingChart());
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
    // A single long step, as for a checkpoint, would flatten the rest.
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

// --- The report ----------------------------------------------------------------------------------

function runName(run) {
  return data.runs.filter((each) => each.ranks === run.ranks).length > 1
    ? run.name : ranksText(run.ranks);
}

function tile(value, text) {
  return make("div", { class: "tile" }, make("b", {}, value), make("span", {}, text));
}

function comparisonTile() {
  if (data.runs.length === 1) return null;
  if (largest.ranks === base.ranks)
    return tile(`×${largest.speed_up.toFixed(2)}`, `${largest.name} against ${base.name}`);
  return tile(percent(largest.efficiency),
    `efficiency of ${ranksText(largest.ranks)} against ${ranksText(base.ranks)}`);
}

function header() {
  const names = data.runs.map((run) => run.name).join(", ");
  const waits = largest.split[data.phases.indexOf("wait")] / largest.step_ms;
  const best = data.changes[0];
  report.append(make("h1", {}, "Lockstep report"), make("p", { class: "soft" }, names),
    make("div", { class: "tiles" },
      comparisonTile(),
      tile(`${number(largest.rate)}`, `${data.rate_unit}, ${runName(largest)}`),
      tile(`${number(largest.step_ms)} ms`, `a step, ${runName(largest)}`),
      tile(percent(waits), "of a step waits for other ranks"),
      best ? tile(`×${best.gain.toFixed(2)}`, best.question) : null));
}

function verdicts() {
  for (const run of data.runs.filter((each) => each.straggler))
    report.append(make("section", { class: "card verdict" },
      make("b", {}, `${run.name}: `), run.straggler));
}

function runsCard() {
  const compared = data.runs.length > 1;
  const rows = data.runs.map((run) => [run.name, run.ranks, run.hosts, run.steps,
    number(run.step_ms), run.p99_ms ? number(run.p99_ms) : "–", number(run.rate),
    ...(compared ? [run.speed_up.toFixed(2), percent(run.efficiency)] : []), run.ended]);
  card(compared ? "Runs" : "Run", compared
    ? `Speed-up and efficiency are against ${base.name} on ${ranksText(base.ranks)}.` : "",
    table(["run", "ranks", "hosts", "steps", "step ms", "p99 ms", data.rate_unit,
      ...(compared ? ["speed-up", "efficiency"] : []), "ended"],
      rows.map((row) => row.map(String))));
}

function splitCards() {
  const runs = data.runs.map((run) => ({ label: run.name, split: run.split }));
  card("Where a step spends its time", "The mean of the ranks, in milliseconds.",
    ...splitBars(runs), splitTable(runs, "run"));
  for (const run of data.runs.filter((each) => each.by_rank.length > 1)) {
    const ranks = run.by_rank.map((each) => ({ label: `rank ${each.rank}` +
      (run.hosts > 1 && each.host ? `, host ${each.host}` : ""), split: each.split }));
    const shown = longest(ranks, 24);
    card(`Ranks of ${run.name}`, shown.length < ranks.length
      ? `The ${shown.length} of ${ranks.length} ranks that work longest: the others wait for them.`
      : "A rank that works longer makes the others wait.",
      ...splitBars(shown), splitTable(ranks, "rank"));
  }
}

// Charts side by side, where there is room: [[title, chart], ...].
function grid(charts) {
  return make("div", { class: "charts" }, ...charts.map(([title, chart]) =>
    make("div", {}, make("h3", {}, title), chart)));
}

function timeCards() {
  const runs = data.runs.filter((run) => run.bins.length > 1);
  if (runs.length > 0)
    card("Length of a step over time", "Milliseconds: the mean, and from the shortest to the " +
      "longest of all ranks. Rare longer steps are cut off.",
      grid(runs.map((run) => [run.name,
        stepChart(`length of a step, ${run.name}`, run.bins, " ms", 0)])));
  for (const run of data.runs) {
    const scalars = Object.entries(run.scalars).filter(([, points]) => points.length > 1);
    if (scalars.length > 0)
      card(`Scalars of ${run.name}`, "", grid(scalars.map(([name, points]) =>
        [name, stepChart(name, points, "")])));
  }
}

function answersList(answers) {
  return make("ul", { class: "answers" }, ...answers.map((each) => make("li", {},
    make("b", { class: each.gain >= 1 ? "gains" : "loses" }, `×${each.gain.toFixed(2)}`),
    make("div", {}, make("p", {}, `${each.question}: a step of ${number(each.step_ms)} ms`),
      make("p", { class: "soft" }, each.assumption)))));
}

function whatIfCard() {
  if (data.changes.length + data.sizes.length === 0) return;
  card("What if", `Throughput relative to ${largest.name}, from its own split and its link.`,
    answersList([...data.changes, ...data.sizes]));
}

function aboutCards() {
  for (const run of data.runs) {
    const links = run.links.map((link) => [`link, ${link.name}`,
      `${number(link.us)} us, ${number(link.gb_per_s)} GB/s`]);
    report.append(make("details", { class: "card" }, make("summary", {}, `About ${run.name}`),
      table(null, [...run.about, ...links], "about")));
  }
}

header();
verdicts();
runsCard();
scalingCard();
splitCards();
whatIfCard();
timeCards();
aboutCards();
