"use strict";
/** What can be drawn: each of these gives a function from colours to plotly's data and layout. */
const charts = (() => {
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon"];
  const GLYPHS = ["●", "■", "◆", "▲", "✚", "✖", "★", "⬟"]; // the same as text
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const FEW = 10; // lines that a legend can name
  const PALE = 45; // percent, from where on viridis is nearer to white than to black
  // Okabe and Ito's colours, those first that stand out from the page; of viridis, the end that does.
  const THEMES = {
    light: {
      ink: "#1c2126", grid: "#d5dae0", paper: "#ffffff",
      series: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"],
      tasks: ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962"],
    },
    dark: {
      ink: "#e4e8ec", grid: "#363e47", paper: "#14181d",
      series: ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#ffffff"],
      tasks: ["#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"],
    },
  };

  const range = (count) => Array.from({ length: count }, (_, index) => index);
  const fixed = (value, digits = 1) => (value === null ? "–" : value.toFixed(digits));
  // plotly takes its strings for a kind of HTML: names from data must not be.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function axis(colours, title, more = {}) {
    const lines = { gridcolor: colours.grid, linecolor: colours.grid, zerolinecolor: colours.grid };
    return { title: { text: title, standoff: 8 }, fixedrange: true, ...lines, ...more };
  }

  function layout(colours, more) {
    return {
      font: { family: "system-ui, sans-serif", size: 12, color: colours.ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 56, r: 12, t: 12, b: 48 }, height: 300, showlegend: false, hovermode: "closest",
      hoverlabel: { bgcolor: colours.paper, bordercolor: colours.ink, font: { color: colours.ink } },
      ...more,
    };
  }

  const errors = (stds, color) => ({
    type: "data", array: stds, visible: stds.some((std) => std !== null), thickness: 1, width: 3, color,
  });

  /** R with its values; `least` is the width in pixels below which they would not fit. */
  function heatMap(R) {
    const tasks = R.map((_, index) => String(index + 1));
    const only = (fits) => R.map((row) => row.map((value) => (value !== null && fits(value) ? value : null)));
    const cells = (z, ink) => ({
      type: "heatmap", z, x: tasks, y: tasks, zmin: 0, zmax: 100, colorscale: "Viridis", showscale: false,
      xgap: 1, ygap: 1, texttemplate: "%{z:.1f}", textfont: { color: ink }, hoverongaps: false,
      hovertemplate: "after task %{y}, on task %{x}: %{z:.2f}%<extra></extra>",
    });
    return (colours) => ({
      least: 60 + 40 * R.length,
      // On the darker half of the scale white is easier to read.
      data: [cells(only((value) => value >= PALE), "#000000"), cells(only((value) => value < PALE), "#ffffff")],
      layout: layout(colours, {
        height: Math.max(300, 75 + 30 * R.length),
        xaxis: axis(colours, "accuracy on task", { type: "category", showgrid: false }),
        yaxis: axis(colours, "after task", { type: "category", autorange: "reversed", showgrid: false }),
      }),
    });
  }

  function trainingAxis(colours, tasks) {
    const ticks = range(tasks).filter((task) => task % Math.ceil(tasks / 10) === 0);
    const tickvals = ticks.map((task) => task + 0.5);
    const more = { range: [0, tasks], showgrid: false, tickvals, ticktext: ticks.map((task) => task + 1) };
    return axis(colours, "training on task", more);
  }

  function borders(colours, tasks) {
    const line = { color: colours.grid, width: 1 };
    return range(tasks - 1).map((task) => ({
      type: "line", x0: task + 1, x1: task + 1, y0: 0, y1: 1, yref: "paper", layer: "below", line,
    }));
  }

  /** Curves over the epochs of all tasks: one, or one for each task; a curve is a list of [history's row, value]. */
  function curves(run, series, title, more) {
    const tasks = run.R.length;
    const several = series.length > 1;
    const shade = (task, { tasks: scale }) => scale[Math.round((task / Math.max(tasks - 1, 1)) * (scale.length - 1))];
    return (colours) => ({
      data: series.map((points, task) => ({
        type: "scatter", mode: points.length > 60 ? "lines" : "lines+markers", cliponaxis: false,
        name: `task ${task + 1}`,
        x: points.map(([row]) => run.task[row] - 1 + run.epoch[row] / run.epochs),
        y: points.map(([, value]) => value),
        customdata: points.map(([row]) => `after epoch ${run.epoch[row]} of task ${run.task[row]}`),
        hovertemplate: `${several ? `task ${task + 1}, ` : ""}%{customdata}: %{y:.4~g}<extra></extra>`,
        line: { color: several ? shade(task, colours) : colours.series[0], width: 2 },
        marker: {
          size: 6, symbol: SYMBOLS[several ? task % SYMBOLS.length : 0], line: { color: colours.ink, width: 0.5 },
        },
      })),
      layout: layout(colours, {
        height: several ? 320 : 300,
        showlegend: several && series.length <= FEW,
        legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } },
        xaxis: trainingAxis(colours, tasks),
        yaxis: axis(colours, title, more),
        shapes: borders(colours, tasks),
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
        xaxis: axis(colours, "task", { type: "category" }), yaxis: axis(colours, "forgetting, points"),
      }),
    });
  }

  /** A colour and symbol for each name, a dash for each memory; the same whatever is chosen. */
  function styles(settings) {
    const names = [...new Set(settings.map((one) => one.name))];
    const memories = [...new Set(settings.map((one) => one.memory).filter(Boolean))].sort((a, b) => b - a);
    return (one, colours) => {
      const name = names.indexOf(one.name);
      return {
        colour: colours.series[name % colours.series.length],
        symbol: SYMBOLS[name % SYMBOLS.length],
        glyph: GLYPHS[name % GLYPHS.length],
        dash: DASHES[Math.max(memories.indexOf(one.memory), 0) % DASHES.length],
      };
    };
  }

  const named = (settings) => settings.map((one) => [plain(one.label), fixed(one.acc[1], 2)]);

  function accuracyBars(chosen, style) {
    const rows = [...chosen].reverse(); // plotly begins at the bottom
    const ticktext = rows.map((one) => plain(one.name).replace(/, /g, ",<br>"));
    return (colours) => ({
      data: [{
        type: "bar", orientation: "h", x: rows.map((one) => one.acc[0]), y: range(rows.length),
        error_x: errors(rows.map((one) => one.acc[1]), colours.ink),
        marker: { color: rows.map((one) => style(one, colours).colour) },
        customdata: named(rows), hovertemplate: "%{customdata[0]}: %{x:.2f} ± %{customdata[1]}<extra></extra>",
      }],
      layout: layout(colours, {
        height: 70 + rows.reduce((sum, one) => sum + Math.max(36, 18 * one.name.split(", ").length), 0),
        xaxis: axis(colours, "ACC, percent", { rangemode: "tozero" }),
        yaxis: axis(colours, "", { automargin: true, showgrid: false, tickvals: range(rows.length), ticktext }),
      }),
    });
  }

  function accuracyLines(chosen, style) {
    const tick = (memory) => (memory ? String(memory) : "none");
    const categoryarray = [...new Set(chosen.map((one) => one.memory))].sort((a, b) => a - b).map(tick);
    return (colours) => ({
      data: [...new Set(chosen.map((one) => one.name))].map((name) => {
        const own = chosen.filter((one) => one.name === name).sort((a, b) => a.memory - b.memory);
        const { colour, symbol } = style(own[0], colours);
        return {
          type: "scatter", mode: "lines+markers", name: plain(name),
          x: own.map((one) => tick(one.memory)), y: own.map((one) => one.acc[0]),
          error_y: errors(own.map((one) => one.acc[1]), colour),
          line: { color: colour, width: 2 }, marker: { size: 8, symbol, color: colour },
          customdata: named(own), hovertemplate: "%{customdata[0]}: %{y:.2f} ± %{customdata[1]}<extra></extra>",
        };
      }),
      layout: layout(colours, {
        xaxis: axis(colours, "memory, images", { type: "category", categoryorder: "array", categoryarray }),
        yaxis: axis(colours, "ACC, percent"),
      }),
    });
  }

  /** Means that the settings have for each task under `key`, as lines. */
  function byTask(chosen, style, key, x, y) {
    return (colours) => ({
      data: chosen.map((one) => {
        const { colour, symbol, dash } = style(one, colours);
        const [means, stds] = one[key];
        return {
          type: "scatter", mode: means.length > 25 ? "lines" : "lines+markers", name: plain(one.label),
          x: means.map((_, task) => task + 1), y: means,
          customdata: stds.map((std) => [plain(one.label), fixed(std, 2)]),
          line: { color: colour, width: 2, dash }, marker: { size: 7, symbol, color: colour },
          hovertemplate: "%{customdata[0]}<br>task %{x}: %{y:.2f} ± %{customdata[1]}<extra></extra>",
        };
      }),
      layout: layout(colours, {
        xaxis: axis(colours, x, { tick0: 1, dtick: Math.ceil(chosen[0][key][0].length / 10) }),
        yaxis: axis(colours, y),
      }),
    });
  }

  return { THEMES, range, fixed, plain, heatMap, curves, forgettingBars, styles, accuracyBars, accuracyLines, byTask };
})();
