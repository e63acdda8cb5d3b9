"use strict";
(() => {
  // Okabe and Ito's colours, those first that stand out from the page.
  const THEMES = {
    light: {
      ink: "#1c2126", grid: "#d5dae0", paper: "#ffffff",
      series: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"],
    },
    dark: {
      ink: "#e4e8ec", grid: "#363e47", paper: "#14181d",
      series: ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#ffffff"],
    },
  };
  const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon"];
  const GLYPHS = ["●", "■", "◆", "▲", "✚", "✖", "★", "⬟"]; // the same as text
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const STROKES = { solid: "", dash: "6 3", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 4" };
  const FEW = 8; // tasks whose R fits beside other charts
  const FONT = "system-ui, sans-serif";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const plots = new Map(); // of each chart that is drawn: what draws it
  let printing = false;

  const theme = () => (dark.matches && !printing ? THEMES.dark : THEMES.light);
  const read = (name) => JSON.parse(document.getElementById(name).textContent);
  const range = (count) => Array.from({ length: count }, (_, index) => index);
  const fixed = (value, digits = 1) => (value === null ? "–" : value.toFixed(digits));
  // plotly takes its strings for a kind of HTML: names from data must not be.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function make(tag, settings = {}, children = []) {
    const { text, ...attributes } = settings;
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    node.append(...children);
    return node;
  }

  // ---- charts ----

  function axis(colours, title, more = {}) {
    return {
      title: { text: title, standoff: 8 }, gridcolor: colours.grid, linecolor: colours.grid, zerolinecolor: colours.grid,
      automargin: true, fixedrange: true, ...more,
    };
  }

  function layout(colours, more) {
    return {
      font: { family: FONT, size: 12, color: colours.ink }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 48, r: 12, t: 12, b: 44 }, height: 300, showlegend: false, hovermode: "closest",
      hoverlabel: { bgcolor: colours.paper, bordercolor: colours.ink, font: { color: colours.ink } }, ...more,
    };
  }

  /** A chart with its title and a button that saves it; `draw` gives data and layout for a theme. */
  function figure(title, draw, wide = false) {
    const save = make("button", { type: "button", class: "tools", text: "SVG", "aria-label": `save as SVG: ${title}` });
    const plot = make("div", { class: "plot" });
    const scroll = make("div", { class: "scroll" }, [plot]);
    const node = make("figure", { class: wide ? "wide" : "" }, [make("figcaption", {}, [make("span", { text: title }), save]), scroll]);
    save.addEventListener("click", () => {
      const { data, layout: shown } = draw(THEMES.light);
      const whole = { ...shown, title: { text: plain(title), font: { size: 14 } }, paper_bgcolor: "#ffffff" };
      whole.margin = { ...shown.margin, t: 48 };
      whole.showlegend = data.length > 1;
      Plotly.downloadImage(
        { data, layout: whole }, { format: "svg", width: plot.clientWidth, height: shown.height + 36, filename: title }
      );
    });
    plots.set(plot, draw);
    return node;
  }

  function show(plot) {
    const { data, layout: shown, least } = plots.get(plot)(theme());
    plot.style.minWidth = least ? `${least}px` : "";
    Plotly.react(plot, data, shown, { displayModeBar: false, responsive: true });
  }

  const showIn = (node) => node.querySelectorAll(".plot").forEach(show);

  function remove(node) {
    for (const plot of node.querySelectorAll(".plot")) {
      Plotly.purge(plot);
      plots.delete(plot);
    }
    node.replaceChildren();
  }

  function heatMap(R) {
    const tasks = R.map((_, index) => String(index + 1));
    return (colours) => ({
      least: 60 + 40 * R.length,
      data: [{
        type: "heatmap", z: R, x: tasks, y: tasks, zmin: 0, zmax: 100, colorscale: "Viridis", showscale: false,
        xgap: 1, ygap: 1, texttemplate: "%{z:.1f}", hoverongaps: false,
        hovertemplate: "after task %{y}, on task %{x}: %{z:.2f}%<extra></extra>",
      }],
      layout: layout(colours, {
        height: Math.max(300, 75 + 30 * R.length),
        xaxis: axis(colours, "accuracy on task", { type: "category", showgrid: false }),
        yaxis: axis(colours, "after task", { type: "category", autorange: "reversed", showgrid: false }),
      }),
    });
  }

  function trainingAxis(colours, tasks) {
    const step = Math.ceil(tasks / 10);
    const ticks = range(tasks).filter((task) => task % step === 0);
    return axis(colours, "training on task", {
      range: [0, tasks], showgrid: false, tickvals: ticks.map((task) => task + 0.5), ticktext: ticks.map((task) => task + 1),
    });
  }

  const borders = (colours, tasks) => range(tasks - 1).map((task) => ({
    type: "line", x0: task + 1, x1: task + 1, y0: 0, y1: 1, yref: "paper", layer: "below",
    line: { color: colours.grid, width: 1 },
  }));

  /** Curves over the epochs of all tasks; each is a list of [row of the history, value]. */
  function curves(run, series, title, more) {
    const tasks = run.R.length;
    const name = (task) => `task ${task + 1}`;
    const shade = (task) => VIRIDIS[Math.round((task / Math.max(tasks - 1, 1)) * (VIRIDIS.length - 1))];
    return (colours) => ({
      data: series.map((points, task) => ({
        type: "scatter", mode: points.length > 60 ? "lines" : "lines+markers", name: name(task),
        x: points.map(([row]) => run.task[row] - 1 + run.epoch[row] / run.epochs),
        y: points.map(([, value]) => value),
        customdata: points.map(([row]) => `after epoch ${run.epoch[row]} of task ${run.task[row]}`),
        hovertemplate: `${series.length > 1 ? `${name(task)}, ` : ""}%{customdata}: %{y:.4~g}<extra></extra>`,
        line: { color: series.length > 1 ? shade(task) : colours.series[0], width: 2 },
        marker: { size: 6, symbol: SYMBOLS[series.length > 1 ? task % SYMBOLS.length : 0], line: { color: colours.ink, width: 0.5 } },
      })),
      layout: layout(colours, {
        height: series.length > 1 && series.length <= 10 ? 340 : 300,
        showlegend: series.length > 1 && series.length <= 10,
        legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } },
        xaxis: trainingAxis(colours, tasks), yaxis: axis(colours, title, more), shapes: borders(colours, tasks),
      }),
    });
  }

  function forgettingBars(values) {
    return (colours) => ({
      data: [{
        type: "bar", x: values.map((_, task) => String(task + 1)), y: values, marker: { color: colours.series[0] },
        hovertemplate: "task %{x}: %{y:.2f}<extra></extra>",
      }],
      layout: layout(colours, {
        xaxis: axis(colours, "task", { type: "category" }), yaxis: axis(colours, "forgetting, points", {}),
      }),
    });
  }

  // ---- comparison of the chosen settings of a section ----

  const errors = (colours, values) => ({ type: "data", array: values, visible: values.some((value) => value !== null), thickness: 1, width: 3 });

  /** A colour and symbol for each name, a dash for each memory; the same whatever is chosen. */
  function styles(settings) {
    const names = [...new Set(settings.map((one) => one.name))];
    const memories = [...new Set(settings.map((one) => one.memory).filter(Boolean))].sort((a, b) => b - a);
    return (one, colours) => {
      const name = names.indexOf(one.name);
      return {
        colour: colours.series[name % colours.series.length], symbol: SYMBOLS[name % SYMBOLS.length],
        dash: DASHES[Math.max(memories.indexOf(one.memory), 0) % DASHES.length],
      };
    };
  }

  function accuracyBars(chosen, style) {
    const broken = (name) => plain(name).replace(/, /g, ",<br>");
    const ordered = [...chosen].reverse(); // plotly begins at the bottom
    return (colours) => ({
      data: [{
        type: "bar", orientation: "h", x: ordered.map((one) => one.acc[0]), y: ordered.map((_, index) => index),
        error_x: { ...errors(colours, ordered.map((one) => one.acc[1])), color: colours.ink },
        marker: { color: ordered.map((one) => style(one, colours).colour) },
        customdata: ordered.map((one) => [plain(one.label), fixed(one.acc[1], 2)]),
        hovertemplate: "%{customdata[0]}: %{x:.2f} ± %{customdata[1]}<extra></extra>",
      }],
      layout: layout(colours, {
        height: 70 + ordered.reduce((sum, one) => sum + Math.max(36, 18 * one.name.split(", ").length), 0),
        xaxis: axis(colours, "ACC, percent", { rangemode: "tozero" }),
        yaxis: axis(colours, "", { tickvals: range(ordered.length), ticktext: ordered.map((one) => broken(one.name)), showgrid: false }),
      }),
    });
  }

  function accuracyLines(chosen, style) {
    const memories = [...new Set(chosen.map((one) => one.memory))].sort((a, b) => a - b);
    const tick = (memory) => (memory ? String(memory) : "none");
    return (colours) => ({
      data: [...new Set(chosen.map((one) => one.name))].map((name) => {
        const own = chosen.filter((one) => one.name === name).sort((a, b) => a.memory - b.memory);
        const { colour, symbol } = style(own[0], colours);
        return {
          type: "scatter", mode: "lines+markers", name: plain(name), x: own.map((one) => tick(one.memory)),
          y: own.map((one) => one.acc[0]), error_y: errors(colours, own.map((one) => one.acc[1])),
          customdata: own.map((one) => [plain(one.label), fixed(one.acc[1], 2)]), line: { color: colour, width: 2 },
          marker: { size: 8, symbol, color: colour },
          hovertemplate: "%{customdata[0]}: %{y:.2f} ± %{customdata[1]}<extra></extra>",
        };
      }),
      layout: layout(colours, {
        xaxis: axis(colours, "memory, images", { type: "category", categoryorder: "array", categoryarray: memories.map(tick) }),
        yaxis: axis(colours, "ACC, percent", {}),
      }),
    });
  }

  function byTask(chosen, style, key, x, y) {
    return (colours) => ({
      data: chosen.map((one) => {
        const { colour, symbol, dash } = style(one, colours);
        const [means, stds] = one[key];
        return {
          type: "scatter", mode: means.length > 25 ? "lines" : "lines+markers", name: plain(one.label),
          x: means.map((_, task) => task + 1), y: means, customdata: means.map((_, task) => [plain(one.label), fixed(stds[task], 2)]),
          line: { color: colour, width: 2, dash }, marker: { size: 7, symbol, color: colour },
          hovertemplate: "%{customdata[0]}<br>task %{x}: %{y:.2f} ± %{customdata[1]}<extra></extra>",
        };
      }),
      layout: layout(colours, { xaxis: axis(colours, x, { tick0: 1, dtick: Math.ceil(chosen[0][key][0].length / 10) }), yaxis: axis(colours, y, {}) }),
    });
  }

  function legend(chosen, style) {
    return make("ul", { class: "legend" }, chosen.map((one) => {
      const { colour, dash, symbol } = style(one, theme());
      const glyph = make("span", { "aria-hidden": "true", style: `color: ${colour}`, text: GLYPHS[SYMBOLS.indexOf(symbol)] });
      const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
      for (const [key, value] of Object.entries({ width: 30, height: 12, "aria-hidden": "true" })) picture.setAttribute(key, value);
      const looks = { d: "M1 6H29", stroke: colour, "stroke-width": 3, "stroke-dasharray": STROKES[dash] };
      for (const [key, value] of Object.entries(looks)) line.setAttribute(key, value);
      picture.append(line);
      return make("li", {}, [picture, glyph, make("span", { text: one.label })]);
    }));
  }

  function compare(section, settings, style) {
    const place = section.querySelector(".comparison");
    const ids = new Set([...section.querySelectorAll("tr:has(.choose:checked)")].map((row) => Number(row.dataset.setting)));
    const chosen = settings.filter((one) => ids.has(one.id));
    remove(place);
    if (!chosen.length) {
      place.append(make("p", { class: "faint hint", text: "Choose settings in the table to compare them." }));
      return;
    }
    const memories = new Set(chosen.map((one) => one.memory).filter(Boolean));
    const charts = [
      memories.size > 1
        ? figure("Accuracy at the end, by memory", accuracyLines(chosen, style))
        : figure("Accuracy at the end", accuracyBars(chosen, style)),
      figure("Mean accuracy over the tasks seen so far", byTask(chosen, style, "seen", "after task", "accuracy, percent")),
    ];
    if (chosen.some((one) => one.forgetting[0].length))
      charts.push(figure("Forgetting of each task", byTask(chosen, style, "forgetting", "task", "forgetting, points")));
    place.append(legend(chosen, style), make("div", { class: "charts" }, charts));
    showIn(place);
  }

  // ---- one setting and its runs ----

  function runView(run) {
    const tasks = run.R.length;
    const looks = Object.entries(run.accuracy).map(([row, values]) => [Number(row), values]);
    const ofTask = range(tasks).map((task) => looks.filter(([, values]) => task < values.length).map(([row, values]) => [row, values[task]]));
    const rows = range(run.task.length);
    const charts = [figure(`R of seed ${run.seed}`, heatMap(run.R), tasks > FEW)];
    if (looks.length)
      charts.push(figure("Accuracy of each task as training goes on", curves(run, ofTask, "accuracy, percent", { rangemode: "tozero" })));
    if (run.forgetting.length) charts.push(figure("Forgetting of each task", forgettingBars(run.forgetting)));
    if (rows.length) {
      charts.push(figure("Training loss", curves(run, [rows.map((row) => [row, run.loss[row]])], "loss", { rangemode: "tozero" })));
      charts.push(figure("Training accuracy", curves(run, [rows.map((row) => [row, run.train[row]])], "percent, of the epoch’s images", {})));
    }
    const classes = run.classes.map((own, task) => [
      `classes of task ${task + 1}`, own.map(([name, accuracy]) => `${name}: ${fixed(accuracy)}`).join(", "),
    ]);
    const facts = [...run.facts, ...classes].flatMap(([key, text]) => [make("dt", { text: key }), make("dd", { text })]);
    return [make("div", { class: "charts" }, charts), make("dl", {}, facts)];
  }

  function openPanel(button, panels, number) {
    const content = read(`setting-${number}`);
    const close = make("button", { type: "button", class: "close", text: "close" });
    const title = make("h3", { text: content.label, tabindex: "-1", id: `panel-title-${number}` });
    const choice = make("select", { id: `runs-${number}` }, content.runs.map((run, index) =>
      make("option", { value: index, text: `seed ${run.seed}: ACC ${fixed(run.R.at(-1).reduce((a, b) => a + b, 0) / run.R.length)}` })));
    const view = make("div", { class: "run" });
    const count = content.runs.length;
    const panel = make("section", { class: "panel", id: `panel-${number}`, "aria-labelledby": title.id }, [
      make("div", { class: "bar" }, [title, close]),
      make("div", { class: "charts" }, [
        figure(count > 1 ? `R, mean of ${count} runs` : "R of its only run", heatMap(content.R), content.R.length > FEW),
      ]),
      make("div", { class: "choice" }, [make("label", { for: choice.id, text: "Run" }), choice]),
      view,
    ]);
    const change = () => {
      remove(view);
      view.append(...runView(content.runs[Number(choice.value)]));
      showIn(view);
    };
    panels.prepend(panel);
    showIn(panel);
    change();
    choice.addEventListener("change", change);
    close.addEventListener("click", () => {
      button.click();
      button.focus();
    });
    title.focus({ preventScroll: true });
    panel.scrollIntoView({ block: "nearest" });
  }

  function toggle(button, section) {
    const number = button.closest("tr").dataset.setting;
    const open = document.getElementById(`panel-${number}`);
    button.setAttribute("aria-expanded", String(!open));
    if (open) {
      remove(open);
      open.remove();
      button.removeAttribute("aria-controls");
      return;
    }
    openPanel(button, section.querySelector(".panels"), number);
    button.setAttribute("aria-controls", `panel-${number}`);
  }

  // ---- tables ----

  /** Sort rows by a column; those without a value stay last. */
  function sort(button) {
    const head = button.closest("th");
    const column = head.cellIndex;
    const body = head.closest("table").tBodies[0];
    const opposite = { ascending: "descending", descending: "ascending" };
    const order = opposite[head.getAttribute("aria-sort")] || button.dataset.first;
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const value = (row) => row.cells[column].dataset.value;
    const rows = [...body.rows].sort((a, b) => {
      const [one, two] = [value(a), value(b)];
      if (one === undefined || two === undefined) return (one === undefined) - (two === undefined);
      return sign * (column ? Number(one) - Number(two) : one.localeCompare(two));
    });
    body.append(...rows);
  }

  function prepare(section) {
    const settings = read(`section-${section.dataset.section}`);
    const style = styles(settings);
    const boxes = [...section.querySelectorAll(".choose")];
    const every = section.querySelector(".every");
    const place = section.querySelector(".comparison");
    let drawn = false;
    const update = () => {
      const count = boxes.filter((box) => box.checked).length;
      every.checked = count === boxes.length;
      every.indeterminate = count > 0 && count < boxes.length;
      if (drawn) compare(section, settings, style);
    };
    section.addEventListener("click", ({ target }) => {
      if (target.matches(".sort")) sort(target);
      if (target.matches(".open")) toggle(target, section);
    });
    section.addEventListener("change", ({ target }) => {
      if (target === every) boxes.forEach((box) => { box.checked = every.checked; });
      if (target.matches(".choose, .every")) update();
    });
    const draw = () => {
      drawn = true;
      update();
    };
    update();
    // Charts take time: those of a section are drawn when it comes into sight.
    const observer = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      draw();
    }, { rootMargin: "300px" });
    observer.observe(place);
    return draw;
  }

  const draws = [...document.querySelectorAll("section[data-section]")].map(prepare);
  const recolour = () => {
    draws.forEach((draw) => draw());
    document.querySelectorAll(".panel .plot").forEach(show);
  };
  dark.addEventListener("change", recolour);
  addEventListener("beforeprint", () => { printing = true; recolour(); });
  addEventListener("afterprint", () => { printing = false; recolour(); });
})();
