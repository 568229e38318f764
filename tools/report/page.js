// Draws the report with charts.js.

const report = document.getElementById("report");
const largest = data.runs[data.runs.length - 1];
const base = data.runs[0];

function card(title, hint, ...children) {
  const made = make("section", { class: "card" }, make("h2", {}, title),
    hint ? make("p", { class: "soft" }, hint) : null, ...children);
  report.append(made);
  return made;
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

// Charts side by side, if there is space: [[title, chart], ...].
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
      `${number(link.us)} us, ${link.gb_per_s ? number(link.gb_per_s) : "unknown"} GB/s`]);
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
