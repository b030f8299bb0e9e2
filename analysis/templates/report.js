"use strict";
// This script sorts and filters the tables, shows the details of a run and answers side by side, and
// unpacks and draws the figures. It adds text from a sweep to the page as text, never as HTML.

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

for (const table of all("table.sortable")) {
  const headers = [...table.tHead.rows[0].cells];
  const key = (row, column) => row.cells[column].dataset.sort ?? "";
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const difference = Number(a) - Number(b);
    return Number.isNaN(difference) ? a.localeCompare(b) : difference;
  };
  headers.forEach((header, column) => {
    header.querySelector("button")?.addEventListener("click", () => {
      const down = header.getAttribute("aria-sort") === "ascending";
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const [left, right] = [key(a, column), key(b, column)];
        const missing = left === "" || right === "";  // these come last in both orders
        return compare(left, right) * (down && !missing ? -1 : 1);
      });
      table.tBodies[0].append(...rows);
      const first = Number(table.dataset.first);
      if (table.classList.contains("long")) rows.forEach((row, at) => row.classList.toggle("rest", at >= first));
    });
  });
}

const pairs = (text) => new Map((text ?? "").toLowerCase().split("\n").map((line) => {
  const at = line.indexOf("=");
  return [line.slice(0, at), line.slice(at + 1)];
}));
// Return whether a word `key=value` matches the settings, or null if it is no such word or no setting
// has the key. `key` may be the last part of a longer key, and a number may have any notation.
const asked = (word, known) => {
  const at = word.indexOf("=");
  if (at < 1 || at === word.length - 1) return null;
  const [key, value] = [word.slice(0, at), word.slice(at + 1)];
  for (const own of known) {
    const found = own.get(key) ?? [...own].find(([name]) => name.endsWith(`.${key}`))?.[1];
    if (found !== undefined) return found === value || Number(found) === Number(value);
  }
  return null;
};
let brushed = null;  // the cells selected by dragging in a figure; null without a selection
const apply = (table) => {
  const input = document.querySelector(`input[data-filter="${table.id}"]`);
  const wanted = (input?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const common = pairs(table.dataset.common);
  const rows = [...table.tBodies[0].rows];
  let shown = 0;
  for (const row of rows) {
    const text = wanted.length ? row.textContent.toLowerCase() : "";
    const known = wanted.length ? [pairs(row.dataset.pairs), common] : [];
    row.hidden = !wanted.every((word) => asked(word, known) ?? text.includes(word))
      || (brushed !== null && !brushed.has(Number(row.dataset.cell)));
    shown += !row.hidden;
  }
  const narrowed = wanted.length > 0 || brushed !== null;
  table.classList.toggle("all", narrowed);
  const said = input?.closest(".filter").querySelector(".small");
  if (said) said.textContent = narrowed ? `${shown} of ${rows.length}` : "";
};
for (const input of all("input[data-filter]")) {
  input.addEventListener("input", () => apply(document.getElementById(input.dataset.filter)));
}

// Print all folded sections open, since a reader cannot open them on paper.
const folded = new Set();
addEventListener("beforeprint", () => {
  for (const details of all("details:not([open])")) {
    folded.add(details);
    details.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const details of folded) details.open = false;
  folded.clear();
});

const unpack = async (id) => {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
};

const element = (name, text, attributes = {}) => {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

const dialog = document.getElementById("run");
const show = (run) => {
  const put = (id, entries) => document.getElementById(id).replaceChildren(
    ...entries.map(([name, value]) => {
      const row = element("div", "");
      row.append(element("dt", name), element("dd", value));
      return row;
    }),
  );
  document.getElementById("run-name").textContent = run.name;
  put("run-facts", run.facts);
  const link = document.getElementById("run-link");
  link.hidden = !run.link;
  if (run.link) link.href = run.link;
  put("run-config", run.config);
  const log = document.getElementById("run-log");
  const { before, after } = log.dataset;
  const whole = before && run.quoted ? element("p", "All of it: ", { class: "small" }) : null;
  whole?.append(element("code", `${before} ${run.quoted} ${after}`));
  log.replaceChildren(
    element("h3", "The end of its log"),
    run.log.length ? element("pre", run.log.join("\n"), { tabindex: "0" })
      : element("p", whole ? "It is not in this page." : "There is none.", { class: "small" }),
    ...(whole ? [whole] : []),
  );
  const written = run.rollouts.flatMap((one) => [
    element("p", one.title, { class: "small" }),
    ...(one.prompt ? [element("pre", one.prompt, { class: "prompt", tabindex: "0" })] : []),
    element("pre", one.response, { tabindex: "0" }),
    ...(one.reference ? [element("p", `wanted: ${one.reference}`, { class: "small" })] : []),
  ]);
  document.getElementById("run-rollouts").replaceChildren(
    ...(written.length ? [element("h3", "What it wrote at the end")] : []), ...written);
  dialog.showModal();
  dialog.scrollTop = 0;
};
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();  // a click on the backdrop or on the dialog's padding
});

// Questions that one cell solves and another fails, with the answers of both. Answers are added to
// the page only when a question is opened, because there may be many.
const answered = (kind, name, score, text) => {
  const made = element("article", "", { class: `transcript ${kind}` });
  made.append(element("p", `${name}: ${score}`, { class: "small" }), element("pre", text, { tabindex: "0" }));
  return made;
};
const sides = (place, task) => {
  const [solves, fails] = [place.querySelector(".solves"), place.querySelector(".fails")];
  for (const choice of [solves, fails]) {
    choice.append(...task.cells.map((name, at) => element("option", name, { value: String(at) })));
  }
  [solves.value, fails.value] = [String(task.pairs[0].solves), String(task.pairs[0].fails)];
  const list = () => {
    const [own, other] = [Number(solves.value), Number(fails.value)];
    const pair = task.pairs.find((one) => one.solves === own && one.fails === other);
    const count = pair?.count ?? 0;
    const said = `${count === 1 ? "1 question" : `${count} questions`}`;
    const shown = pair?.items ?? [];
    place.querySelector("[role=status]").textContent =
      shown.length < count ? `${said}, of which ${shown.length} are here` : said;
    place.querySelector(".answers").replaceChildren(...shown.map((item) => {
      const made = element("details", "");
      made.append(element("summary", item.prompt.slice(0, 160) || item.item));
      made.addEventListener("toggle", () => {
        if (made.childElementCount > 1) return;
        const both = element("div", "", { class: "transcripts" });
        both.append(
          answered("best", task.cells[own], item.scores[0], item.solved),
          answered("worst", task.cells[other], item.scores[1], item.failed),
        );
        if (item.prompt) made.append(element("pre", item.prompt, { class: "prompt", tabindex: "0" }));
        if (item.right) made.append(element("p", `wanted: ${item.right}`, { class: "small" }));
        made.append(both);
      });
      return made;
    }));
  };
  solves.addEventListener("change", list);
  fails.addEventListener("change", list);
  list();
};

const start = async () => {
  const drawing = document.getElementById("library") !== null;
  const library = drawing ? unpack("library") : null;  // unpacked in parallel with the data
  const embedded = JSON.parse(await unpack("data"));
  const runs = new Map(Object.entries(embedded.runs));
  for (const button of all("button[data-run]")) {
    button.addEventListener("click", () => show(runs.get(button.dataset.run)));
  }
  for (const place of all(".beside")) sides(place, embedded.beside[Number(place.dataset.task)]);
  if (!drawing) return;
  document.head.append(element("script", await library));
  await figures(embedded, runs);
};

const figures = async (embedded, runs) => {
  const charts = all(".chart");
  const shown = charts.map((chart) => embedded.figures[Number(chart.dataset.figure)]);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Set();
  let clock = "step";
  let smooth = 0;  // the position of the smoothing window, from 1; 0 without smoothing
  let group = null;  // the setting that determines the colours; null if the cell does

  // The width between the margins of A4 and Letter paper, which a page cannot query.
  const PAPER = { autosize: false, width: 680 };

  // Needed after `beforeprint`: only then do some browsers report the change from dark to light that
  // they make for printing, and the figures are drawn again.
  let printing = false;

  // Name the run of each point, since the lines of a cell's runs are one trace.
  for (const trace of shown.flatMap((figure) => figure.data)) {
    const owners = trace.meta.runs;
    if (owners) {
      trace.text = owners.flatMap(([name, count]) => Array(count).fill(name));
      trace.customdata = owners.flatMap(([, count, id]) => Array(count).fill(id));
      trace.hovertemplate = `%{text}<br>${trace.hovertemplate}<extra></extra>`;
    }
  }

  const theme = () => (dark.matches && !printing ? embedded.dark : embedded.light);
  const tone = (trace, colours) => colours.tones[trace.meta.tone < 0 ? colours.tones.length - 1 : trace.meta.tone];
  const curve = (trace) => ["run", "mean", "band", "end"].includes(trace.meta.role);
  // A setting with few values gets the palette's colours. One with many values gets shades between the
  // palette's first two colours.
  const mixed = (from, to, share) => `#${[1, 3, 5].map((at) => {
    const [a, b] = [from, to].map((one) => parseInt(one.slice(at, at + 2), 16));
    return Math.round(a + (b - a) * share).toString(16).padStart(2, "0");
  }).join("")}`;
  const ofValue = (value, colours) => {
    const { tones } = colours;
    const count = group.values.length;
    return count < tones.length ? tones[value] : mixed(tones[0], tones[1], value / (count - 1));
  };
  const ofCell = (cell, colours) => ofValue(group.of[cell], colours);
  // Grey cells share one trace. Split it if some of them are hidden, or if colours show a setting.
  const parted = (trace) => {
    const { cells, runs } = trace.meta;
    if (!cells || (group === null && !cells.some((cell) => hidden.has(cell)))) return [trace];
    const parts = new Map();
    let at = 0;
    cells.forEach((cell, index) => {
      const [from, to] = [at, at + runs[index][1]];
      at = to;
      if (hidden.has(cell)) return;
      const key = group === null ? -1 : group.of[cell];
      if (!parts.has(key)) parts.set(key, { cell, spans: [] });
      parts.get(key).spans.push([from, to]);
    });
    const cut = (values, spans) => {
      const found = spans.flatMap(([from, to]) => [...values.slice(from, to), ...(to > values.length ? [null] : [])]);
      return found.slice(0, -1);
    };
    return [...parts.values()].map(({ cell, spans }) => ({
      ...trace,
      opacity: group === null ? trace.opacity : 0.7,
      x: cut(trace.x, spans),
      y: cut(trace.y, spans),
      text: cut(trace.text, spans),
      meta: {
        ...trace.meta,
        cells: undefined,
        cell: group === null ? -1 : cell,
        x: Object.fromEntries(Object.entries(trace.meta.x ?? {}).map(([name, own]) => [name, cut(own, spans)])),
        smooth: trace.meta.smooth?.map((own) => cut(own, spans)),
      },
    }));
  };
  const painted = (trace, colours) => {
    const colour = group !== null && trace.meta.cell >= 0 ? ofCell(trace.meta.cell, colours) : tone(trace, colours);
    const copy = { ...trace, visible: !hidden.has(trace.meta.cell) };
    if (trace.line) copy.line = { ...trace.line, color: colour };
    if (trace.marker) copy.marker = { ...trace.marker, color: colour };
    if (trace.error_y) copy.error_y = { ...trace.error_y, color: colour };
    if (trace.fillcolor) copy.fillcolor = colour;
    if (curve(trace)) {
      if (clock !== "step" && trace.meta.x?.[clock]) copy.x = trace.meta.x[clock];
      else if (clock !== "step" && (trace.meta.role === "band" || trace.meta.role === "end")) copy.visible = false;
      if (smooth && trace.meta.smooth) copy.y = trace.meta.smooth[smooth - 1];
    }
    return copy;
  };
  const layouts = shown.map((figure) => figure.layout);
  const CLOCKS = { step: "step", tokens: "tokens", time: "time in steps, s" };
  const laid = (index, colours) => {
    const layout = layouts[index];
    const axis = (own) => ({ ...own, gridcolor: colours.grid, linecolor: colours.grid });
    const xaxis = axis(layout.xaxis);
    if (layout.meta.clocks.includes(clock)) xaxis.title = { ...xaxis.title, text: CLOCKS[clock] };
    return {
      ...layout,
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colours.text },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colours.text, activecolor: colours.text },
      xaxis,
      yaxis: axis(layout.yaxis),
    };
  };
  const config = { responsive: true, displaylogo: false, typesetMath: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
  const brushing = (index) => charts[index].closest("[data-brush]") !== null && !matchMedia("(pointer: coarse)").matches;
  const draw = (index) => {
    const colours = theme();
    const traces = shown[index].data.flatMap(parted).map((trace) => painted(trace, colours));
    const layout = laid(index, colours);
    if (brushing(index)) Object.assign(layout, { dragmode: "select", selectdirection: "any" });
    if (printing) Object.assign(layout, PAPER, { height: Math.min(300, layout.height) });
    const own = brushing(index) ? { ...config, modeBarButtons: [["toImage", "select2d", "zoom2d", "resetScale2d"]] } : config;
    return Plotly.react(charts[index], traces, layout, own).then(() => {
      if (!performance.getEntriesByName("first plot").length) performance.mark("first plot");
      if (!wired.has(index)) wire(index);
    });
  };
  // A chart accepts listeners only after its first drawing. If the user moves a slider meanwhile, all
  // charts are drawn again, so remember which of them have listeners.
  const wired = new Set();
  const wire = (index) => {
    const chart = charts[index];
    wired.add(index);
    chart.on("plotly_relayout", (event) => zoomed(index, event));
    chart.on("plotly_click", (event) => {
      const run = runs.get(event.points[0]?.customdata);
      if (run) show(run);
    });
    if (brushing(index)) brush(chart);
    if (wired.size < charts.length) return;
    performance.mark("all plots");
    document.documentElement.classList.add("drawn");
  };
  // The report's tick marks are for the whole range. Compute others for the range of a zoom.
  const marks = (low, high) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      for (let digit = 1; digit < 10; digit += 1) found.push(Number(`${digit}e${power}`));
    }
    const inside = found.filter((value) => value >= low && value <= high);
    if (inside.length > 2) return { tickvals: inside, ticktext: inside.map((value) => String(value)) };
    const size = 10 ** Math.floor(Math.log10((high - low) / 4));
    const step = [1, 2, 5, 10].map((digit) => digit * size).find((one) => (high - low) / one <= 7);
    const values = Array.from({ length: 8 }, (_, at) => Number(((Math.ceil(low / step) + at) * step).toPrecision(12)));
    const left = values.filter((value) => value <= high);
    return { tickvals: left, ticktext: left.map((value) => String(value)) };
  };
  const zoomed = (index, event) => {
    const yaxis = charts[index].layout.yaxis;
    if (yaxis.type !== "log" || !Object.keys(event).some((key) => key.startsWith("yaxis.") && !key.includes("tick"))) return;
    const { tickvals, ticktext } = shown[index].layout.meta.ticks;
    const [low, high] = yaxis.range.map((end) => 10 ** end);
    const enough = tickvals.filter((value) => value >= low && value <= high).length > 3;
    const own = enough ? { tickvals, ticktext } : marks(low, high);
    Plotly.relayout(charts[index], { "yaxis.tickvals": own.tickvals, "yaxis.ticktext": own.ticktext });
  };
  // Pause after each chart, so that the browser shows the first before the last is drawn.
  let turn = 0;
  const drawAll = async () => {
    turn += 1;
    const mine = turn;
    for (const index of charts.keys()) {
      await draw(index);
      await new Promise((go) => { setTimeout(go); });
      if (mine !== turn) return;
    }
  };

  charts.forEach((chart, index) => {
    const scale = chart.parentElement.querySelector(".scale");
    const buttons = all("button", scale);
    const mark = () => buttons.forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.scale === layouts[index].yaxis.type));
    });
    scale.hidden = !shown[index].layout.meta.log;
    buttons.forEach((button) => button.addEventListener("click", () => {
      const type = button.dataset.scale;
      const { tickvals, ticktext, ...bare } = layouts[index].yaxis;
      const yaxis = { ...bare, type, ...(type === "log" ? shown[index].layout.meta.ticks : {}) };
      layouts[index] = { ...layouts[index], yaxis };
      mark();
      draw(index);
    }));
    mark();
  });
  const legend = document.querySelector(".legend");
  const ofCells = all("button", legend ?? undefined);
  legend?.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const off = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!off));
    for (const cell of button.dataset.cells.split(" ")) {
      if (off) hidden.add(Number(cell));
      else hidden.delete(Number(cell));
    }
    drawAll();
  });
  document.getElementById("group")?.addEventListener("change", (event) => {
    group = event.target.value === "" ? null : embedded.groups[Number(event.target.value)];
    hidden.clear();
    ofCells.forEach((button) => button.setAttribute("aria-pressed", "true"));
    const made = (group?.values ?? []).map((value, at) => {
      const cells = [...group.of.keys()].filter((cell) => group.of[cell] === at);
      const button = element("button", "", { type: "button", "aria-pressed": "true", "data-cells": cells.join(" ") });
      button.style.setProperty("--tone", ofValue(at, theme()));
      button.append(element("span", "", { class: "swatch", "aria-hidden": "true" }), value);
      return button;
    });
    legend?.replaceChildren(...(group === null ? ofCells : made));
    drawAll();
  });
  const clocks = document.querySelector(".clock");
  const known = [...new Set(shown.flatMap((figure) => figure.layout.meta.clocks))];
  if (clocks && known.length) {
    clocks.hidden = false;
    for (const name of known) clocks.append(element("button", name, { type: "button", "data-clock": name, "aria-pressed": "false" }));
    for (const button of all("button", clocks)) {
      button.addEventListener("click", () => {
        clock = button.dataset.clock;
        all("button", clocks).forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
        drawAll();
      });
    }
  }
  document.getElementById("smooth")?.addEventListener("input", (event) => {
    const slider = event.target;
    smooth = Number(slider.value);
    const told = smooth ? `${slider.dataset.shown.split("|")[smooth - 1]} of the steps` : "nothing";
    slider.setAttribute("aria-valuetext", told);
    slider.nextElementSibling.textContent = told;
    drawAll();
  });
  dark.addEventListener("change", () => drawAll());
  for (const [name, state] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(name, () => {
      printing = state;
      turn += 1;
      charts.forEach((_, index) => draw(index));  // without pauses, since the browser prints at once
    });
  }
  // Dragging selects the cells whose values are inside the selection for every setting that it covers.
  const brush = (chart) => {
    const keep = (found) => {
      brushed = found;
      for (const id of chart.closest("[data-brush]").dataset.brush.split(" ")) apply(document.getElementById(id));
      const usual = new Map(shown[charts.indexOf(chart)].data.map((trace) => [trace.meta.cell, trace.opacity]));
      const seen = ({ meta }) => (brushed === null ? usual.get(meta.cell) : brushed.has(meta.cell) ? 1 : 0.04);
      Plotly.restyle(chart, { opacity: chart.data.map(seen) });
    };
    chart.on("plotly_selected", (event) => {
      if (!event) return;
      const at = new Map();
      for (const point of event.points) {
        if (!at.has(point.x)) at.set(point.x, new Set());
        at.get(point.x).add(point.data.meta.cell);
      }
      const sets = [...at.values()];
      keep(sets.length ? new Set([...sets[0]].filter((cell) => sets.every((own) => own.has(cell)))) : null);
    });
    chart.on("plotly_deselect", () => keep(null));
  };
  await drawAll();
};
start();
