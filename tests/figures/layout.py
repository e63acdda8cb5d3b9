"""Whether anything in a drawing is cut, or lies over something else."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import numpy as np
import numpy.typing as npt
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Drawing
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image

from mdcg.figures import Figure, style
from mdcg.figures.base import Row

Named = tuple[str, Bbox]
Boxes = npt.NDArray[np.float64]  # (n, 4): left, bottom, right, top in pixels


def faults(drawn: Drawing) -> list[str]:
    """Of a finished drawing, in words; none, if it can be printed."""
    with style.styled():
        saved = Bbox(drawn.get_tightbbox().get_points() * drawn.dpi).padded(1)
        (caption,) = drawn.texts
        keys = [text for key in drawn.legends for text in key.findobj(Text)]
        texts = [text for text in _texts(drawn) if text is not caption and text not in keys]
        panels = [ax for ax in drawn.axes if ax.get_visible()]
        named = [(repr(text.get_text()), text.get_window_extent()) for text in texts]
        named += [(f"panel {place}", ax.get_window_extent()) for place, ax in enumerate(panels)]
        legends = [("a legend", key.get_window_extent()) for key in drawn.legends]
        below = ("the caption", caption.get_window_extent())
        found = [f"{name} is cut" for name, box in [*named, *legends, below] if _cut(box, saved)]
        found += _over([below], [*named, *legends])
        found += _over(legends, named)
        found += [f"panel {place} has a legend inside" for place, ax in enumerate(panels) if ax.get_legend()]
        return found + _texts_over_texts(texts)


def drawn(figure: Figure, rows: Sequence[Row]) -> Drawing:
    """As it is before it is saved."""
    with style.styled():
        drawing = figure.draw(rows)
        style.finish(drawing, figure.caption(rows))
    return drawing


def touches_the_edge(png: bytes) -> bool:
    """Whether something stands in the picture's first or last row or column."""
    pixels = np.asarray(Image.open(BytesIO(png)).convert("L"))
    return bool(min(edge.min() for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])) < 255)


def _texts(drawn: Drawing) -> list[Text]:
    """Those that are seen; an axis also has ticks beyond its ends, which are not."""
    hidden = {
        text
        for ax in drawn.axes
        for axis in (ax.xaxis, ax.yaxis)
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        for text in (tick.label1, tick.label2)
        if not (tick.get_visible() and _within(axis, tick.get_loc()))
    }
    return [
        text
        for text in drawn.findobj(Text)
        if isinstance(text, Text)
        and text.get_text().strip()
        and text.get_visible()
        and (text.axes is None or text.axes.get_visible())
        and text not in hidden
    ]


def _within(axis: Axis, place: float) -> bool:
    low, high = sorted(axis.get_view_interval())
    slack = 1e-6 * (high - low)
    return bool(low - slack <= place <= high + slack)


def _cut(box: Bbox, saved: Bbox) -> bool:
    return bool(box.x0 < saved.x0 or box.y0 < saved.y0 or box.x1 > saved.x1 or box.y1 > saved.y1)


def _over(some: list[Named], others: list[Named]) -> list[str]:
    return [f"{one} lies over {other}" for one, box in some for other, under in others if box.overlaps(under)]


def _texts_over_texts(texts: list[Text]) -> list[str]:
    """A pixel less on each side: a line's box is higher than its letters."""
    boxes: Boxes = np.array([text.get_window_extent().padded(-1).extents for text in texts])
    low, high = boxes[:, :2], boxes[:, 2:]
    meet = ((low[:, None] < high[None]) & (low[None] < high[:, None])).all(2)
    pairs = np.argwhere(np.triu(meet, 1))
    return [f"{texts[i].get_text()!r} lies over {texts[j].get_text()!r}" for i, j in pairs]
