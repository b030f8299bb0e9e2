"use strict";
// Tables that sort and filter, what opens when a run is clicked, and the figures: unpacked, drawn,
// recoloured with the screen, switched on and off. Text from elsewhere is only ever put in as text.

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
        const missing = left === "" || right === "";  // at the end, whichever way
        return compare(left, right) * (down && !missing ? -1 : 1);
      });
      table.tBodies[0].append(...rows);
    });
  });
}

const pairs = (text) => new Map((text ?? "").toLowerCase().split("\n").map((line) => {
  const at = line.indexOf("=");
  return [line.slice(0, at), line.slice(at + 1)];
}));
// A setting is asked for by its key, whole or the last part of it, and found however its value is written.
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
for (const input of all("input[data-filter]")) {
  const table = document.getElementById(input.dataset.filter);
  const rows = [...table.tBodies[0].rows];
  const common = pairs(table.dataset.common);
  const said = input.closest(".filter").querySelector(".small");
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const known = [pairs(row.dataset.pairs), common];
      row.hidden = !wanted.every((word) => asked(word, known) ?? text.includes(word));
      shown += !row.hidden;
    }
    said.textContent = wanted.length ? `${shown} of ${rows.length}` : "";
  });
}

// On paper nothing unfolds.
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
  if (event.target === dialog) dialog.close();  // beside it
});

const start = async () => {
  const embedded = JSON.parse(await unpack("data"));
  const runs = new Map(Object.entries(embedded.runs));
  for (const button of all("button[data-run]")) {
    button.addEventListener("click", () => show(runs.get(button.dataset.run)));
  }
  if (!document.getElementById("library")) return;
  document.head.append(element("script", await unpack("library")));
  await figures(embedded, runs);
};

const figures = async (embedded, runs) => {
  const charts = all(".chart");
  const shown = charts.map((chart) => embedded.figures[Number(chart.dataset.figure)]);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Set();
  let clock = "step";
  let smooth = false;

  // Of what a sheet of A4 or Letter leaves between its margins; the page does not know it.
  const PAPER = { autosize: false, width: 680 };

  // Kept, since a browser that turns from dark to light for the paper says so after beforeprint.
  let printing = false;

  // Whose a point is: the lines of a cell's runs are one trace.
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
  const painted = (trace, colours) => {
    const colour = tone(trace, colours);
    const copy = { ...trace, visible: !hidden.has(trace.meta.cell) };
    if (trace.line) copy.line = { ...trace.line, color: colour };
    if (trace.marker) copy.marker = { ...trace.marker, color: colour };
    if (trace.error_y) copy.error_y = { ...trace.error_y, color: colour };
    if (trace.fillcolor) copy.fillcolor = colour;
    if (curve(trace)) {
      if (clock !== "step" && trace.meta.x?.[clock]) copy.x = trace.meta.x[clock];
      else if (clock !== "step" && (trace.meta.role === "band" || trace.meta.role === "end")) copy.visible = false;
      if (smooth && trace.meta.smooth) copy.y = trace.meta.smooth;
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
  const draw = (index) => {
    const colours = theme();
    const traces = shown[index].data.map((trace) => painted(trace, colours));
    const layout = laid(index, colours);
    if (printing) Object.assign(layout, PAPER, { height: Math.min(300, layout.height) });
    return Plotly.react(charts[index], traces, layout, config);
  };
  // The marks that the report came with are those of the whole range: closer, there are others.
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
    const kept = values.filter((value) => value <= high);
    return { tickvals: kept, ticktext: kept.map((value) => String(value)) };
  };
  const zoomed = (index, event) => {
    const yaxis = charts[index].layout.yaxis;
    if (yaxis.type !== "log" || !Object.keys(event).some((key) => key.startsWith("yaxis.") && !key.includes("tick"))) return;
    const { tickvals, ticktext } = shown[index].layout.meta.ticks;
    const [low, high] = yaxis.range.map((end) => 10 ** end);
    const enough = tickvals.filter((value) => value >= low && value <= high).length > 3;
    const chosen = enough ? { tickvals, ticktext } : marks(low, high);
    Plotly.relayout(charts[index], { "yaxis.tickvals": chosen.tickvals, "yaxis.ticktext": chosen.ticktext });
  };
  const drawAll = () => Promise.all(charts.map((_, index) => draw(index)));

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
  for (const button of all(".legend button")) {
    button.addEventListener("click", () => {
      const off = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!off));
      for (const cell of button.dataset.cells.split(" ")) {
        if (off) hidden.add(Number(cell));
        else hidden.delete(Number(cell));
      }
      drawAll();
    });
  }
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
  document.getElementById("smooth")?.addEventListener("click", (event) => {
    smooth = !smooth;
    event.target.setAttribute("aria-pressed", String(smooth));
    drawAll();
  });
  dark.addEventListener("change", () => drawAll());
  for (const [name, state] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(name, () => {
      printing = state;
      drawAll();
    });
  }
  await drawAll();
  charts.forEach((chart, index) => {
    chart.on("plotly_relayout", (event) => zoomed(index, event));
    chart.on("plotly_click", (event) => {
      const run = runs.get(event.points[0]?.customdata);
      if (run) show(run);
    });
  });
  document.documentElement.classList.add("drawn");
};
start();
