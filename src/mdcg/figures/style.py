"""One look for all figures: readable in print, in grey and by people who see colours differently.

Lines differ in colour, in dashes and in markers at once; maps use `cividis`, whose lightness grows evenly, and carry
their numbers. Legends stand outside the axes, so that they never lie over the data.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from PIL import Image

from mdcg.metrics import Matrix
from mdcg.outputs import Kind, marked
from mdcg.terminal import plain

WIDTH = 6.6  # inches: the text width of a page
DPI = 200
MADE_BY = "mdcg"  # says a drawing of itself
ON_SCREEN = 100  # pixels per inch of a notebook's page
MAP = "cividis"
DIVERGING = "PuOr"  # of what lies on either side of zero: the middle is white
GREY = "0.45"
MANY = 12  # tasks, whose names would no longer stand side by side
POWERS = 6  # of ten, which stand above each other beside a panel
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")  # formulas are not set, see `text.parse_math`
RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 2.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "hatch.linewidth": 0.5,
    "svg.hashsalt": "mdcg",  # equal drawings are equal files
    "axes.unicode_minus": True,
    "text.parse_math": False,  # a folder's name may hold $
}
#: Colours that most people can tell apart (Okabe and Ito), the dark ones first, each with its own dashes and marker.
LOOKS: list[dict[str, Any]] = [
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    {"color": "#000000", "linestyle": (0, (5, 1)), "marker": "v"},
    {"color": "#E69F00", "linestyle": (0, (3, 1, 1, 1)), "marker": "P"},
    {"color": "#56B4E9", "linestyle": (0, (1, 1)), "marker": "X"},
    {"color": "#8C6D1F", "linestyle": (0, (8, 2)), "marker": "<"},
    {"color": "#6A3D9A", "linestyle": (0, (4, 2, 1, 2)), "marker": ">"},
    {"color": "#666666", "linestyle": (0, (2, 2)), "marker": "*"},
    {"color": "#A6761D", "linestyle": (0, (6, 1, 1, 1, 1, 1)), "marker": "h"},
    {"color": "#1B9E77", "linestyle": (0, (3, 3)), "marker": "p"},
    {"color": "#999933", "linestyle": (0, (1, 3)), "marker": "d"},
    # Stars are slim, so they are larger.
    {"color": "#882255", "linestyle": (0, (9, 3, 2, 3)), "marker": (4, 1, 0), "markersize": 8},
    {"color": "#332288", "linestyle": (0, (2, 1, 2, 4)), "marker": (4, 1, 45), "markersize": 8},
    {"color": "#661100", "linestyle": (0, (7, 1, 1, 1, 1, 1, 1, 1)), "marker": (9, 1, 0), "markersize": 8},
]
#: These look the same in every figure: each has the look at its place.
METHODS = (
    *("md-cg", "replay", "der", "ld", "er-ace", "er-lode", "md", "ss-il", "rpc", "gem", "gdumb", "naive"),
    "cumulative",
)


def look_of(method: str, drawn: Sequence[str]) -> dict[str, Any]:
    """The colour, dashes and marker of a method, which no other one `drawn` has unless they are more than the looks."""
    if method in METHODS:
        return LOOKS[METHODS.index(method)]
    others = [name for name in drawn if name not in METHODS]
    free = [*LOOKS[len(METHODS) :], *(LOOKS[place] for place, name in enumerate(METHODS) if name not in drawn)]
    return free[others.index(method) % len(free)]


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save inside this context to get the style. A letter that the font lacks is a box, and no warning."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        yield


class Drawing(Figure):
    """A drawing that a notebook shows in the style, whether it has set up matplotlib or not."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        with styled():
            picture = content(self, "png")
        width, height = Image.open(BytesIO(picture)).size
        return picture, {"width": width * ON_SCREEN // DPI, "height": height * ON_SCREEN // DPI}


def panels(rows: int = 1, columns: int = 1, height: float = 2.4, **shared: Any) -> tuple[Drawing, list[Axes]]:
    """Make a page-wide drawing of so many panels, each `height` inches high; panels row by row."""
    drawing = Drawing(figsize=(WIDTH, height * rows), layout="constrained")
    grid = drawing.subplots(rows, columns, squeeze=False, **shared)
    return drawing, list(grid.flat)


def band(ax: Axes, x: Sequence[float], values: Matrix, label: str, look: dict[str, Any], every: int = 0) -> None:
    """Draw the mean over seeds (first axis) as a line, and one standard deviation on either side as a band."""
    mean = values.mean(0)
    ax.plot(x, mean, label=label, markevery=every or max(1, len(x) // 8), **look)
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        if len(x) == 1:  # a band without a width is not seen
            ax.errorbar(x, mean, spread, fmt="none", ecolor=look["color"], elinewidth=0.8, capsize=2.5, capthick=0.8)
        else:
            ax.fill_between(x, mean - spread, mean + spread, color=look["color"], alpha=0.15, linewidth=0)


def legend(drawing: Figure, axes: Sequence[Axes], columns: int = 4, title: str | None = None) -> None:
    """Draw one legend for all panels, below them."""
    found = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if found:
        drawing.legend(
            list(found.values()),
            list(found),
            loc="outside lower center",
            ncols=min(columns, len(found)),
            title=title,
        )


def heat_map(
    ax: Axes,
    values: Matrix,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    form: str = "{:.1f}",
    size: float = 8,
    **scale: Any,
) -> Any:
    """Draw a matrix as colours with its numbers in them, NaN left white; return the image, for a colour bar."""
    image = ax.imshow(values, cmap=MAP, aspect="auto", **scale)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.grid(False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(title)
    for (i, j), value in np.ndenumerate(values):
        if form and not math.isnan(value):
            dark = np.sum(image.to_rgba(np.array([value]))[0, :3]) < 1.5
            text = form.format(value).replace("-", "−")
            ax.text(j, i, text, ha="center", va="center", fontsize=size, color="white" if dark else "black")
    return image


def diverging_map(ax: Axes, edges: Matrix, values: Matrix, rows: Sequence[str]) -> Any:
    """Draw a matrix, its columns between `edges`, as colours on either side of zero, NaN left grey; return the image.

    In grey both sides darken alike, so cells below zero are hatched.
    """
    limit = max(float(np.nanmax(np.abs(values), initial=0)), 0.05)
    sides = np.arange(len(rows) + 1) - 0.5
    image = ax.pcolormesh(edges, sides, values, cmap=DIVERGING, vmin=-limit, vmax=limit, rasterized=True)
    below = np.ma.masked_where(~(values < 0), values)
    ax.pcolor(edges, sides, below, hatch="/////", facecolor="none", edgecolor="0.4", linewidth=0)
    ax.set_facecolor("0.8")
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), rows)
    ax.grid(False)
    ax.tick_params(axis="y", length=0)
    return image


def training_axis(ax: Axes, tasks: int, epochs: int, first: int = 1) -> None:
    """Let the x axis be epochs of training; thin lines and numbers say where tasks begin, from task `first` on."""
    start = (first - 1) * epochs
    ax.set_xlim(start, tasks * epochs)
    ax.set_xlabel("epochs of training, all tasks")
    if tasks > MANY:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    ax.set_xticks([task * epochs for task in range(first - 1, tasks + 1)])
    for task in range(first, tasks + 1):
        if task > first:
            ax.axvline((task - 1) * epochs, color=GREY, linewidth=0.7)
        ax.annotate(
            f"task {task}",
            ((task - 0.5) * epochs, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=7.5,
            color=GREY,
        )


def powers_of_ten(ax: Axes, values: Sequence[float]) -> None:
    """Make the y axis logarithmic, from one power of ten to another around these values; zero has its own place."""
    found = np.array(values, float)
    if not (positive := found[found > 0]).size:
        ax.set_ylim(bottom=0)
        return
    low, high = math.floor(np.log10(positive.min())), math.floor(np.log10(positive.max())) + 1
    labels: dict[float, str] = {}
    if zero := bool((found == 0).any()):
        ax.set_yscale("symlog", linthresh=10.0**low, linscale=0.5)
        labels[0.0] = "0"
    else:
        ax.set_yscale("log")
    labels |= {
        10.0**power: f"10{str(power).translate(RAISED)}" for power in range(low, high + 1, -(-(high - low) // POWERS))
    }
    ax.set_yticks(list(labels), list(labels.values()))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_ylim(0 if zero else 10.0**low, 10.0**high)


def finish(drawing: Figure, caption: str) -> None:
    """Write the caption below the drawing, over its whole width."""
    if (engine := drawing.get_layout_engine()) is not None:
        engine.execute(drawing)
    drawing.set_layout_engine("none")
    for key in drawing.legends:  # they stay in the drawing, when the caption is saved with it
        key.set_bbox_to_anchor((0, 0, 1, 1), transform=drawing.transFigure)
    width, height = drawing.get_size_inches()
    # Of what cannot be printed the file would be no SVG any more.
    text = "\n".join(textwrap.wrap(plain(caption), int(width * 18), break_on_hyphens=False))
    drawing.text(0, -0.06 / height, text, fontsize=7.5, color="0.25", ha="left", va="top", linespacing=1.3)


FIGURE = "a figure that this version of mdcg has drawn (older ones bear no mark)"
DRAWINGS = {  # each kind of file as it is told from others, see `outputs`
    "svg": Kind.told_by(FIGURE, marked(b"<?xml ", b"</svg>\n", f"<dc:title>{MADE_BY}</dc:title>".encode())),
    "png": Kind.told_by(FIGURE, marked(b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82", f"tEXtSoftware\0{MADE_BY}".encode())),
}


def content(drawing: Figure, kind: str) -> bytes:
    """The drawing as the content of a file, "svg" or "png": nothing is cut, and equal drawings give equal bytes."""
    file = BytesIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": MADE_BY} if kind == "svg" else {"Software": MADE_BY}
    drawing.savefig(file, format=kind, dpi=DPI, bbox_inches="tight", pad_inches=0.08, metadata=metadata)
    return file.getvalue()
