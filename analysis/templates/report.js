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

const source = document.getElementById("data");
if (source) {
  const embedded = JSON.parse(source.textContent);
  const charts = [...document.querySelectorAll(".chart")];
  const figures = embedded.figures;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Set();

  const theme = (print) => (dark.matches && !print ? embedded.dark : embedded.light);
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
  const draw = (index, print = false) => {
    const colours = theme(print);
    const traces = figures[index].data.map((trace) => painted(trace, colours));
    return Plotly.react(charts[index], traces, laid(layouts[index], colours), config);
  };
  const drawAll = (print) => Promise.all(charts.map((_, index) => draw(index, print)));

  charts.forEach((chart, index) => {
    const scale = chart.parentElement.querySelector(".scale");
    const buttons = [...scale.querySelectorAll("button")];
    const show = () => buttons.forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.scale === layouts[index].yaxis.type));
    });
    scale.hidden = !figures[index].layout.meta.log;
    buttons.forEach((button) => button.addEventListener("click", () => {
      const yaxis = { ...layouts[index].yaxis, type: button.dataset.scale };
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
  addEventListener("beforeprint", () => drawAll(true));
  addEventListener("afterprint", () => drawAll());
  drawAll().then(() => document.documentElement.classList.add("drawn"));
}
