"use strict";
// Sorting of the table, and the curves: drawn, recoloured with the screen, switched on and off.

for (const table of document.querySelectorAll("table.sortable")) {
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

// On paper nothing unfolds.
const folded = new Set();
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    folded.add(details);
    details.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const details of folded) details.open = false;
  folded.clear();
});

const source = document.getElementById("data");
if (source) {
  const embedded = JSON.parse(source.textContent);
  const charts = [...document.querySelectorAll(".chart")];
  const figures = embedded.figures;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Set();

  // Of what a sheet of A4 or Letter leaves between its margins; the page does not know it.
  const PAPER = { autosize: false, width: 680, height: 300 };

  // Kept, since a browser that turns from dark to light for the paper says so after beforeprint.
  let printing = false;

  const theme = () => (dark.matches && !printing ? embedded.dark : embedded.light);
  const tone = (trace, colours) => colours.tones[trace.meta.tone < 0 ? colours.tones.length - 1 : trace.meta.tone];
  const painted = (trace, colours) => {
    const colour = tone(trace, colours);
    const copy = { ...trace, visible: !hidden.has(trace.meta.cell) };
    if (trace.line) copy.line = { ...trace.line, color: colour };
    if (trace.marker) copy.marker = { ...trace.marker, color: colour };
    if (trace.fillcolor) copy.fillcolor = colour;
    return copy;
  };
  const layouts = figures.map((figure) => figure.layout);
  const laid = (layout, colours) => {
    const axis = (own) => ({ ...own, gridcolor: colours.grid, linecolor: colours.grid });
    return {
      ...layout,
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colours.text },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colours.text, activecolor: colours.text },
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
    };
  };
  const config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
  const draw = (index) => {
    const colours = theme();
    const traces = figures[index].data.map((trace) => painted(trace, colours));
    const layout = laid(layouts[index], colours);
    if (printing) Object.assign(layout, PAPER);
    return Plotly.react(charts[index], traces, layout, config);
  };
  const drawAll = () => Promise.all(charts.map((_, index) => draw(index)));

  charts.forEach((chart, index) => {
    const scale = chart.parentElement.querySelector(".scale");
    const buttons = [...scale.querySelectorAll("button")];
    const show = () => buttons.forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.scale === layouts[index].yaxis.type));
    });
    scale.hidden = !figures[index].layout.meta.log;
    buttons.forEach((button) => button.addEventListener("click", () => {
      const type = button.dataset.scale;
      const dtick = type === "log" ? figures[index].layout.meta.dtick : undefined;
      const yaxis = { ...layouts[index].yaxis, type, dtick };
      layouts[index] = { ...layouts[index], yaxis };
      show();
      draw(index);
    }));
    show();
  });
  for (const button of document.querySelectorAll(".legend button")) {
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
  dark.addEventListener("change", () => drawAll());
  for (const [name, state] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(name, () => {
      printing = state;
      drawAll();
    });
  }
  drawAll().then(() => document.documentElement.classList.add("drawn"));
}
