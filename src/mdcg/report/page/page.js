"use strict";
(() => {
  const { THEMES, range, fixed, plain } = charts;
  const STROKES = { solid: "", dash: "6 3", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 4" };
  const FEW = 8; // tasks whose R fits beside other charts
  const AS_TEXT = { typesetMath: false }; // a name between dollars is no formula
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const plots = new Map(); // of each chart on the page: what draws it
  let printing = false;

  const theme = () => (dark.matches && !printing ? THEMES.dark : THEMES.light);
  const read = (name) => JSON.parse(document.getElementById(name).textContent);

  function put(node, attributes) {
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  }

  function make(tag, { text, ...attributes } = {}, children = []) {
    const node = put(document.createElement(tag), attributes);
    if (text !== undefined) node.textContent = text;
    node.append(...children);
    return node;
  }

  // ---- figures ----

  /** A chart with its title and a button that saves it; `draw` gives data and layout for a theme. */
  function figure(title, draw, wide = false) {
    const save = make("button", { type: "button", class: "tools", text: "SVG", "aria-label": `save as SVG: ${title}` });
    const plot = make("div", { class: "plot" });
    const reachable = wide ? { tabindex: "0", role: "region", "aria-label": title } : {};
    save.addEventListener("click", () => download(title, draw(THEMES.light), plot.clientWidth));
    plots.set(plot, draw);
    return make("figure", { class: wide ? "wide" : "" }, [
      make("figcaption", {}, [make("span", { text: title }), save]),
      make("div", { class: "scroll", ...reachable }, [plot]),
    ]);
  }

  /** What stands around a chart on the page goes into the file: its title, a legend, a background. */
  function download(title, { data, layout }, width) {
    const showlegend = data.filter((trace) => trace.name).length > 1;
    const whole = {
      ...layout, showlegend, paper_bgcolor: THEMES.light.paper, title: { text: plain(title), font: { size: 14 } },
      margin: { ...layout.margin, t: 48 }, legend: { x: 1.02, y: 1, xanchor: "left" },
    };
    const size = { width: Math.max(width, showlegend ? 800 : 0), height: layout.height + 36 };
    Plotly.downloadImage({ data, layout: whole, config: AS_TEXT }, { format: "svg", filename: title, ...size });
  }

  function show(plot) {
    const { data, layout, least } = plots.get(plot)(theme());
    plot.style.minWidth = least ? `${least}px` : "";
    Plotly.react(plot, data, layout, { ...AS_TEXT, displayModeBar: false, responsive: true });
  }

  const showIn = (node) => node.querySelectorAll(".plot").forEach(show);

  function empty(node) {
    for (const plot of node.querySelectorAll(".plot")) {
      Plotly.purge(plot);
      plots.delete(plot);
    }
    node.replaceChildren();
  }

  // ---- comparison of the chosen settings of a section ----

  function legendItem(one, style) {
    const { colour, dash, glyph } = style(one, theme());
    const svg = (tag, attributes) => put(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes);
    const picture = svg("svg", { width: 30, height: 12, "aria-hidden": "true" });
    picture.append(svg("path", { d: "M1 6H29", stroke: colour, "stroke-width": 3, "stroke-dasharray": STROKES[dash] }));
    const symbol = make("span", { "aria-hidden": "true", style: `color: ${colour}`, text: glyph });
    return make("li", {}, [picture, symbol, make("span", { text: one.label })]);
  }

  function compare(section, settings, style) {
    const place = section.querySelector(".comparison");
    const ticked = [...section.querySelectorAll(".choose:checked")];
    const ids = new Set(ticked.map((box) => Number(box.closest("tr").dataset.setting)));
    const chosen = settings.filter((one) => ids.has(one.id));
    empty(place);
    if (!chosen.length) {
      place.append(make("p", { class: "faint", text: "Choose settings in the table to compare them." }));
      return;
    }
    const memories = new Set(chosen.map((one) => one.memory).filter(Boolean));
    const seen = charts.byTask(chosen, style, "seen", "after task", "accuracy, percent");
    const figures = [
      memories.size > 1
        ? figure("Accuracy at the end, by memory", charts.accuracyLines(chosen, style))
        : figure("Accuracy at the end", charts.accuracyBars(chosen, style)),
      figure("Mean accuracy over the tasks seen so far", seen),
    ];
    if (chosen.some((one) => one.forgetting[0].length)) {
      const lost = charts.byTask(chosen, style, "forgetting", "task", "forgetting, points");
      figures.push(figure("Forgetting of each task", lost));
    }
    const legend = make("ul", { class: "legend" }, chosen.map((one) => legendItem(one, style)));
    place.append(make("h3", { text: "Chosen settings" }), legend, make("div", { class: "charts" }, figures));
    showIn(place);
  }

  // ---- one setting and its runs ----

  function runView(run) {
    const tasks = run.R.length;
    const seed = `seed ${run.seed}`;
    const rows = range(run.task.length);
    const looks = Object.entries(run.accuracy).map(([row, values]) => [Number(row), values]);
    const ofTask = (task) =>
      looks.filter(([, values]) => task < values.length).map(([row, values]) => [row, values[task]]);
    const figures = [figure(`R of ${seed}`, charts.heatMap(run.R), tasks > FEW)];
    if (looks.length) {
      const each = charts.curves(run, range(tasks).map(ofTask), "accuracy, percent", { rangemode: "tozero" });
      figures.push(figure(`Accuracy of each task, ${seed}`, each));
    }
    if (run.forgetting.length)
      figures.push(figure(`Forgetting of each task, ${seed}`, charts.forgettingBars(run.forgetting)));
    if (rows.length) {
      const loss = charts.curves(run, [rows.map((row) => [row, run.loss[row]])], "loss", { rangemode: "tozero" });
      const right = charts.curves(run, [rows.map((row) => [row, run.train[row]])], "percent of the epoch’s images", {});
      figures.push(figure(`Training loss, ${seed}`, loss), figure(`Training accuracy, ${seed}`, right));
    }
    const classes = run.classes.map((own, task) => [
      `classes of task ${task + 1}`, own.map(([name, accuracy]) => `${name}: ${fixed(accuracy)}`).join(", "),
    ]);
    const fact = ([key, text]) => [make("dt", { text: key }), make("dd", { text })];
    return [...figures, make("dl", { class: "wide" }, [...run.facts, ...classes].flatMap(fact))];
  }

  function panelOf(number, close) {
    const { label, R, runs } = read(`setting-${number}`);
    const title = make("h3", { text: label, tabindex: "-1", id: `panel-title-${number}` });
    const acc = (run) => run.R.at(-1).reduce((sum, value) => sum + value, 0) / run.R.length;
    const option = (run, index) => make("option", { value: index, text: `seed ${run.seed}: ACC ${fixed(acc(run))}` });
    const choice = make("select", { id: `runs-${number}` }, runs.map(option));
    const mean = runs.length > 1 ? [figure(`R, mean of ${runs.length} runs`, charts.heatMap(R), R.length > FEW)] : [];
    const view = make("div", { class: "run" }, runView(runs[0]));
    choice.addEventListener("change", () => {
      empty(view);
      view.append(...runView(runs[Number(choice.value)]));
      showIn(view);
    });
    return make("section", { class: "panel", id: `panel-${number}`, "aria-labelledby": title.id }, [
      make("div", { class: "bar" }, [title, close]),
      make("div", { class: "choice" }, [make("label", { for: choice.id, text: "Run" }), choice]),
      make("div", { class: "charts" }, [...mean, view]),
    ]);
  }

  function toggle(button, section) {
    const number = button.closest("tr").dataset.setting;
    const open = document.getElementById(`panel-${number}`);
    button.setAttribute("aria-expanded", String(!open));
    if (open) {
      empty(open);
      open.remove();
      button.removeAttribute("aria-controls");
      return;
    }
    const close = make("button", { type: "button", class: "close", text: "close" });
    close.addEventListener("click", () => {
      toggle(button, section);
      button.focus();
    });
    const panel = panelOf(number, close);
    section.querySelector(".panels").prepend(panel);
    showIn(panel);
    button.setAttribute("aria-controls", panel.id);
    panel.querySelector("h3").focus({ preventScroll: true });
    panel.scrollIntoView({ block: "nearest" });
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
    const style = charts.styles(settings);
    const boxes = [...section.querySelectorAll(".choose")];
    const every = section.querySelector(".every");
    let drawn = false;
    const update = () => {
      const count = boxes.filter((box) => box.checked).length;
      every.checked = count === boxes.length;
      every.indeterminate = count > 0 && count < boxes.length;
      if (drawn) compare(section, settings, style);
    };
    const draw = () => {
      drawn = true;
      update();
    };
    section.addEventListener("click", ({ target }) => {
      if (target.matches(".sort")) sort(target);
      if (target.matches(".open")) toggle(target, section);
    });
    section.addEventListener("change", ({ target }) => {
      if (target === every) boxes.forEach((box) => { box.checked = every.checked; });
      if (target.matches(".choose, .every")) update();
    });
    update();
    // Charts take time: those of a section are drawn when it comes near.
    const observer = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      draw();
    }, { rootMargin: "300px" });
    observer.observe(section.querySelector(".comparison"));
    return { draw, isDrawn: () => drawn };
  }

  const sections = [...document.querySelectorAll("section[data-section]")].map(prepare);

  function redraw() {
    sections.filter(({ isDrawn }) => printing || isDrawn()).forEach(({ draw }) => draw());
    document.querySelectorAll(".panel .plot").forEach(show);
  }
  function print(on) {
    printing = on;
    redraw();
  }
  dark.addEventListener("change", redraw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
})();
