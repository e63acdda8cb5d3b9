"""Results whose names would be code, markup or formulas, if anything took them for more than text.

A report is made of several runs with such names wherever a result can hold a text. Its page is opened in Chromium:
nothing runs, nothing is asked for, every name is there to the letter, and all charts are drawn. Its tables are read as
those who get them would: Markdown by a parser, LaTeX and CSV sign by sign.
"""

from __future__ import annotations

import csv
import importlib
import io
import itertools
import json
import os
import random
import re
import shutil
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from mdcg.runs.record import Record
from mdcg.runs.store import RESULT
from mdcg.testing.abuse.campaign import CannotTry, Failure, Part

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
WIDE, HIGH = 1280, 900  # the window, in pixels
METHODS = ("md-cg", "replay", "naive")
HOSTILE = (
    # HTML, scripts and styles
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<!--<script>", "-->", "<![CDATA[x]]>",
    "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "\"><img src=x onerror=alert(1)>", "</title><h1>x</h1>",
    "' onmouseover='alert(1)", "\" autofocus onfocus=\"alert(1)", "<a href=\"javascript:alert(1)\">x</a>",
    "<iframe src=\"javascript:alert(1)\">", "<style>*{display:none}</style>", "</style>", "javascript:alert(1)",
    "</textarea></select></table>", "x;background:url(https://evil.example/x)", "expression(alert(1))", "&lt;b&gt;",
    "&#60;script&#62;", "&nbsp;&amp;", "<base href=https://evil.example>", "<meta http-equiv=refresh content=0>",
    # templates, and what plotly makes of texts
    "{{ 7 * 7 }}", "{% raw %}", "{# x", "${alert(1)}", "%{x}", "%{customdata[1]}<extra></extra>", "<b>b</b><br>i",
    "<a href='https://evil.example'>link</a>", "$\\frac{1}{0}$", "$", "$$x$$", "__proto__", "constructor",
    # LaTeX and Markdown
    "\\", "\\end{table}", "\\input{/etc/passwd}", "100 % & more_of #1 ^2 ~{}", "\"quoted\"", "| a | b |\n|---|---|",
    "**b** _i_ `c` [x](javascript:alert(1)) ![y](https://evil.example/z)", "~~gone~~ ***", "# title\n===", "- [ ] x",
    "http://evil.example/?a=1&b=2 www.evil.example", "<https://evil.example>", "\\|\\", "`` ` ``", "[^1]: x",
    # formulas
    "=1+1", "+1", "-1", "@SUM(A1)", "\t=1+1", "\r=1+1", "\n=1+1", " =1+1", "=cmd|' /C calc'!A0", "\x00=1+1",
    # signs
    "\x00", "a\x00b", "\x1b[31mred\x07\x7f", "\u202eesrever\u202c", "\u200b\u200d\ufeff", "a\u2028b\u2029c\x85d",
    "\ufffe", "a\r\nb\rc\nd", "x" * 3000, "wide " * 300, "é" * 300, "日本語" * 60, "مرحبا عالم", "🧪" * 40, " ", "a  b",
)  # fmt: skip
#: Texts of a record, by where they stand.
FIELDS = (
    "spec.scenario", "spec.fingerprint", "spec.method", "spec.head", "spec.backbone", "spec.precision", "spec.code",
    "spec.weights", "spec.augment", "hyperparameter", "hyperparameter's value", "head's setting", "class",
    "classes of a task", "history", "environment.platform", "environment.precision", "environment.finished",
    "environment.versions.mdcg", "environment.versions.torch", "environment.hardware.cpu", "environment.hardware.gpu",
    "environment.source.revision", "folder",
)  # fmt: skip
#: Those that a setting's panel tells to the letter.
TOLD = {
    *("spec.scenario", "spec.method", "spec.head", "spec.backbone", "spec.precision", "spec.weights", "spec.augment"),
    *("hyperparameter", "hyperparameter's value", "head's setting", "class", "environment.platform"),
    *("environment.precision", "environment.finished", "environment.versions.mdcg", "environment.versions.torch"),
    *("environment.hardware.cpu", "environment.hardware.gpu"),
}
Names = Mapping[tuple[int, str], str]  # by run and field


class Browser(Part):
    """Results with hostile names as a page in a browser, and as tables: text everywhere, and all charts drawn."""

    name, usual = "browser", 40

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        path = next(filter(None, map(shutil.which, CHROMIUM)), None)
        if path is None:
            raise CannotTry("there is no Chromium")
        try:
            tools = importlib.import_module("playwright.sync_api")
        except ImportError:
            raise CannotTry("playwright is not installed") from None
        self._server = self.server()
        playwright = self._closing.enter_context(tools.sync_playwright())
        self._chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        self._closing.callback(self._chromium.close)

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        runs, often = rng.randint(2, 5), rng.choice((0.1, 0.4, 0.9))
        chosen = rng.sample(HOSTILE, 2) if number % 2 else HOSTILE
        places = [(run, field) for run in range(runs) for field in FIELDS if rng.random() < often]
        names = {place: rng.choice(chosen) for place in places}
        error = self._look(runs, names)
        return None if error is None else self._shortest(runs, names, error)

    def _shortest(self, runs: int, names: Names, error: str) -> Failure:
        """The failure with the fewest names that lead to it: half of them are left out, then a quarter, then one."""
        size = (len(names) + 1) // 2
        while size:
            places = list(names)
            for start in range(0, len(places), size):
                fewer = {place: names[place] for place in places if place not in places[start : start + size]}
                found = self._look(runs, fewer)
                if found is not None:
                    names, error = fewer, found
                    break
            else:
                size //= 2
        told = [f"{field} of run {run} = {name[:100]!r}" for (run, field), name in names.items()]
        return Failure(f"{runs} runs; {'; '.join(told)}", error)

    def _look(self, runs: int, names: Names) -> str | None:
        """Make a report of runs with these names; say what is wrong with it, if anything is."""
        place = self.folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        for run in range(runs):
            _write(place / "runs", run, {field: name for (of, field), name in names.items() if of == run})
        done = self._server.run("report", "runs", "--out", "report", cwd=str(place))
        if done.returncode or done.stderr:
            return f"'mdcg report' ended with code {done.returncode}: {done.stderr}"
        try:
            self._check_page((place / "report" / "index.html").as_uri(), runs, names)
            check_markdown((place / "report" / "table.md").read_text("utf-8"), _methods(runs, names))
            check_latex((place / "report" / "table.tex").read_text("utf-8"))
            check_csv((place / "report" / "table.csv").read_text("utf-8"))
        except AssertionError as error:
            return str(error)
        return None

    def _check_page(self, address: str, runs: int, names: Names) -> None:
        with self._opened(address) as page:
            sections = page.locator("section[data-section]").count()
            shown = [page.locator(".open").nth(place) for place in range(page.locator(".open").count())]
            texts = [button.text_content() for button in shown]
            for method in _methods(runs, names):
                _expect(any(_as_parsed(method) in text for text in texts), f"no line of the tables has {method!r}")
            facts = ""
            for button in shown:
                button.evaluate("button => button.click()")  # wherever it is
                panel = page.locator(f"#{button.get_attribute('aria-controls')}")
                _drawn(panel, "a panel")
                choice = panel.locator("select")
                for option in range(choice.locator("option").count()):
                    choice.select_option(index=option)
                    facts += panel.locator("dl").text_content()
            _expect(page.locator(".panel").count() == len(shown), "not every panel is open")
            for (run, field), name in names.items():
                if field in TOLD and name:
                    _expect(name in facts, f"{field} of run {run} is not told in a panel")
            for place in range(sections):
                comparison = page.locator(".comparison").nth(place)
                comparison.scroll_into_view_if_needed()
                comparison.locator("figure").first.wait_for()
                _drawn(comparison, "a comparison")
                every = page.locator(".every").nth(place)
                every.evaluate("box => box.click()")
                every.evaluate("box => box.click()")
                _hover(page, comparison)
            left_out = page.locator(".figures .faint").all_text_contents()
            _expect(not left_out, f"a figure is missing: {left_out}")
            broken = page.evaluate("[...document.images].filter((one) => !one.naturalWidth).map((one) => one.alt)")
            _expect(not broken, f"a figure is no picture: {broken}")
            for head in page.locator(".results thead th:first-child").all():
                _expect(head.bounding_box()["width"] < WIDE / 2, "the names leave no room for the numbers")
            _check_elements(page)
            page.set_viewport_size({"width": 360, "height": 740})
            page.wait_for_timeout(200)  # charts follow the window with a delay
            _expect(page.evaluate("document.documentElement.scrollWidth") == 360, "a narrow page scrolls sideways")

    @contextmanager
    def _opened(self, address: str) -> Iterator[Any]:
        """The page in a window of its own; whatever is done to it, nothing may run and nothing be asked for."""
        context = self._chromium.new_context(viewport={"width": WIDE, "height": HIGH})
        try:
            page = context.new_page()
            page.set_default_timeout(20_000)
            trouble: list[str] = []

            def refuse(dialog: Any) -> None:
                trouble.append(f"a dialog: {dialog.message}")
                dialog.dismiss()

            page.on("dialog", refuse)
            page.on("console", lambda message: trouble.append(f"the console: {message.text}"))
            page.on("pageerror", lambda error: trouble.append(f"an error: {error}"))
            page.on("request", lambda request: trouble.append(f"a request: {request.url[:200]}"))
            page.goto(address)
            yield page
            page.wait_for_timeout(50)
            own = (f"a request: {address}", "a request: data:", "a request: blob:")
            _expect(not (found := [text for text in trouble if not text.startswith(own)]), "; ".join(found))
        finally:
            context.close()


def _methods(runs: int, names: Names) -> set[str]:
    return {names.get((run, "spec.method"), METHODS[run % len(METHODS)]) for run in range(runs)}


# ---- results ----


def _write(folder: Path, run: int, names: Mapping[str, str]) -> None:
    """Write the result of a run whose texts are these, where they are not the usual ones."""
    record = _record(run)
    for field, name in names.items():
        _set(record, field, name)
    Record.model_validate(record)  # as mdcg would take it
    bytes_of = (
        names.get("folder", f"run {run}").encode("utf-8", "replace").replace(b"/", b"\xff").replace(b"\0", b"\xfe")
    )
    place = os.path.join(os.fsencode(folder), b"%d %s" % (run, bytes_of[:200]))  # noqa: PTH118 (no path of Python's can hold it)
    os.makedirs(place)  # noqa: PTH103
    (Path(os.fsdecode(place)) / RESULT).write_text(json.dumps(record), "utf-8")


def _record(run: int) -> dict[str, Any]:
    """The result of a short run, as JSON: the first two of three runs are of one setting."""
    method = METHODS[run % len(METHODS)]
    settings = {"md-cg": {"lam": 0.5}}.get(method, {})
    spec = {
        "scenario": "c10-2", "fingerprint": "f", "image_size": None, "method": method, "hyperparameters": settings,
        "memory": 0 if method == "naive" else 20 * (1 + run // 3), "head": "incremental", "head_settings": {},
        "backbone": "resnet20", "epochs": 2, "batch_size": 32, "lr": 0.01, "momentum": 0.8, "precision": "auto",
        "hold_out": 0.0, "evaluate_every": 0, "seed": run,
    }  # fmt: skip
    rows = itertools.product((1, 2), (1, 2))
    return {
        "format": 4, "spec": spec, "sizes": [2, 2], "order": [0, 1, 2, 3], "class_names": ["a", "b", "c", "d"],
        "correct": [[90, 80, 0, 0], [50 + run, 40, 90, 80]], "total": [100] * 4, "memory": {"0": [1, 2], "1": [3]},
        "history": [{"task": task, "epoch": epoch, "loss": 0.5, "train_accuracy": 80.0} for task, epoch in rows],
        "seconds": 1.5, "members": 1,
        "environment": {
            "versions": {"mdcg": "1"}, "hardware": {"threads": 1}, "source": {"revision": "abc", "uncommitted": False},
            "precision": "fp32", "finished": "2026-01-01T00:00:00+00:00",
        },
    }  # fmt: skip


def _set(record: dict[str, Any], field: str, name: str) -> None:
    """Put a name where a record can hold it."""
    spec = record["spec"]
    own: dict[str, Callable[[], object]] = {
        "spec.scenario": lambda: spec.update(scenario=f"{name}-2"),
        "hyperparameter": lambda: spec["hyperparameters"].update({name: 0.5}),
        "hyperparameter's value": lambda: spec["hyperparameters"].update(kind=name),
        "head's setting": lambda: spec["head_settings"].update({name: 1.5}),
        "class": lambda: record["class_names"].__setitem__(1, name),
        "classes of a task": lambda: spec.update(stream={"tasks": [["a", name], ["c", "d"]]}),
        "history": lambda: record["history"][0].update({name: name}),
        "folder": lambda: None,
    }
    if field in own:
        own[field]()
        return
    *parts, last = field.split(".")
    place = record
    for part in parts:
        place = place.setdefault(part, {})
    place[last] = name


# ---- what is looked at ----


def _drawn(place: Any, what: str) -> None:
    """Expect that every chart of a place has something in it that can be seen."""
    plots = place.locator(".plot")
    _expect(plots.count() > 0, f"{what} has no chart")
    for number in range(plots.count()):
        marks = plots.nth(number).locator(".trace, .point, .heatmaplayer image, .hm, .heatmap-label")
        _expect(marks.count() > 0, f"a chart of {what} is empty")
        area = plots.nth(number).locator(".bglayer rect, .plot .nsewdrag, .nsewdrag").first.bounding_box()
        _expect(
            area is not None and area["width"] > 60 and area["height"] > 20, f"a chart of {what} has no room: {area}"
        )


def _hover(page: Any, comparison: Any) -> None:
    """Point at the middle of each chart, so that plotly writes what is there."""
    for plot in comparison.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        for x, y in ((0.5, 0.5), (0.6, 0.3)):
            box = plot.bounding_box()
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])


def _check_elements(page: Any) -> None:
    """Expect no element that a name has made."""
    odd = page.evaluate(
        """() => [...document.querySelectorAll("*")].filter((node) =>
            ["a", "iframe", "object", "embed", "base", "link", "form"].includes(node.localName)
            || node.getAttributeNames().some((name) => name.startsWith("on")
              || (/^(xlink:)?(href|src)$/.test(name) && !node.getAttribute(name).startsWith("data:image/")))
        ).map((node) => node.outerHTML.slice(0, 200))"""
    )
    odd += page.evaluate("['h1', 'title'].filter((tag) => document.querySelectorAll(tag).length !== 1)")
    _expect(not odd, f"elements that nobody made: {odd}")


def _as_parsed(text: str) -> str:
    """A text as a parser of HTML hands it on: a new line is one sign, and NUL none."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")


def check_markdown(text: str, names: Iterable[str]) -> None:
    """Expect tables of equally wide lines that hold these names, and nothing but text and the emphasis of the best."""
    parser, width, cells, told = MarkdownIt("commonmark").enable(["table", "strikethrough"]), 0, 0, list[str]()
    for token in parser.parse(text):
        if token.type == "table_open":
            width = 0
        elif token.type == "tr_open":
            cells = 0
        elif token.type in ("th_open", "td_open"):
            cells += 1
        elif token.type == "tr_close":
            _expect(width in (0, cells), f"a line of a Markdown table has {cells} cells, the first one {width}")
            width = cells
        parts = token.children or []
        odd = {part.type for part in parts} - {
            "text",
            "text_special",
            *(f"{how}_{end}" for how in EMPHASIS for end in ENDS),
        }
        odd |= {token.type} & {"html_block", "code_block", "fence", "blockquote_open", "hr", "bullet_list_open"}
        _expect(not odd, f"Markdown takes a name for {odd}: {token.content[:200]!r}")
        told.append("".join(part.content for part in parts))
    for name in names:
        plain = " ".join(name.split()).replace("\x00", "\ufffd")
        _expect(any(plain in one for one in told), f"no line of a Markdown table has {name!r}")


EMPHASIS, ENDS = ("em", "strong"), ("open", "close")
MEANS_MORE = re.compile(r"[%#_~^<>|\"\\]")  # to LaTeX, where no backslash stands before it
COMMANDS = {
    *("begin", "end", "centering", "toprule", "midrule", "bottomrule", "multicolumn", "caption", "cellcolor", "pm"),
    *("textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater", "textbar"),
}


def check_latex(text: str) -> None:
    """Expect only commands of ours, signs that LaTeX prints, whole groups, and lines of equally many columns."""
    body = text.split("\n", 1)[1]  # without the comment that names the packages
    commands = re.findall(r"\\([A-Za-z]+|.)", body, re.DOTALL)
    unknown = {name for name in commands if name.isalpha()} - COMMANDS
    _expect(not unknown, f"LaTeX is given the commands {unknown}")
    _expect({name for name in commands if not name.isalpha()} <= {*"&%$#_{}\\"}, "LaTeX is given other commands")
    bare = re.sub(r"\\([A-Za-z]+|.)", " ", body, flags=re.DOTALL)
    found = MEANS_MORE.search(bare)
    near = bare[max(0, found.start() - 40) : found.end() + 40] if found else ""
    _expect(found is None, f"a sign that means something else to LaTeX: {near!r}")
    _expect(all(sign.isprintable() or sign == "\n" for sign in bare), "LaTeX is given a sign that it does not print")
    depth = 0
    for sign in bare:
        depth += {"{": 1, "}": -1}.get(sign, 0)
        _expect(depth >= 0, "LaTeX finds the end of a group that has no beginning")
    _expect(depth == 0 and bare.count("$") % 2 == 0, "LaTeX finds a group without an end")
    for table in re.findall(r"\\begin\{tabular\}\{l(r+)\}(.*?)\\end\{tabular\}", body, re.DOTALL):
        for line in re.sub(r"\\(?=[&])&", "", table[1]).split("\\\\\n"):
            columns = line.count("&") + line.count("\\multicolumn{2}")
            _expect(columns in (0, len(table[0])), f"a line of a LaTeX table has {columns} columns: {line[:200]!r}")


def check_csv(text: str) -> None:
    """Expect no cell that a spreadsheet takes for a formula: that begins like one, blanks apart, and is no number."""
    rows = list(csv.reader(io.StringIO(text, newline="")))
    _expect(len({len(row) for row in rows}) == 1, "lines of the CSV file differ in length")
    blank = string.whitespace + "\x00"
    for cell in itertools.chain.from_iterable(rows):
        if cell.strip(blank).startswith(("=", "+", "-", "@")):
            _expect(_is_number(cell), f"a spreadsheet takes this for a formula: {cell[:200]!r}")


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9.]+(?:e[-+]?[0-9]+)?", text) is not None


def _expect(so: bool, otherwise: str) -> None:
    if not so:
        raise AssertionError(otherwise)
