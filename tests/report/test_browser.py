"""The report in a real browser, from real runs; skipped where there is no playwright or no Chromium."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mdcg
from mdcg.cli import main
from mdcg.results.settings import gather
from tests.fake_runs import made_run
from tests.report import pages
from tests.report.test_report import EVIL

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
NUMBER = re.compile(r"-?\d+\.\d")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, mdcg.Result]:
    out = tmp_path_factory.mktemp("browser") / "runs"
    asked: dict[str, Any] = {"scenario": "digits-2", "epochs": 1, "memory": [20, 40], "out": out, "quiet": True}
    return mdcg.compare(methods=["naive", "replay", "md-cg"], seeds=[0, 1], **asked)


@pytest.fixture(scope="module")
def report(results: dict[str, mdcg.Result]) -> str:
    """The page's address."""
    runs = next(iter(results.values())).out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["mdcg", "report", str(runs), "--out", str(runs.parent / "report")])
        with pytest.raises(SystemExit) as left:
            main()
    assert not left.value.code
    return (runs.parent / "report" / "index.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as tools:
        chromium = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any, report: str) -> Iterator[Any]:
    """The page in a window of its own; whatever a test does, no error and no request but for the page itself."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    errors: list[str] = []
    requests: list[str] = []
    opened.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(report)
    yield opened
    context.close()
    assert errors == []
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [report]


def column(page: Any, title: str) -> list[str]:
    place = page.locator("thead th").all_inner_texts().index(title)
    return [row.locator("th, td").nth(place).inner_text() for row in page.locator("tbody tr").all()]


def first_numbers(texts: list[str]) -> list[float]:
    return [float(found[0]) for text in texts if (found := NUMBER.search(text))]


def heat_map(figure: Any) -> list[str]:
    return [text for text in figure.locator(".heatmap-label").all_text_contents() if text]


def shown(R: Any) -> list[str]:
    return sorted(f"{value:.1f}" for value in R.flatten().tolist() if value == value)


def test_rows_are_sorted_by_click_and_by_key(page: Any) -> None:
    head = page.locator("thead th", has_text="ACC")
    assert head.get_attribute("aria-sort") == "descending"
    start = first_numbers(column(page, "ACC"))
    assert len(start) == 5
    assert start == sorted(start, reverse=True)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert first_numbers(column(page, "ACC")) == sorted(start)
    memory = page.locator("thead th", has_text="memory")
    memory.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert memory.get_attribute("aria-sort") == "ascending"
    assert head.get_attribute("aria-sort") is None
    assert column(page, "memory") == ["–", "20", "20", "40", "40"]
    page.keyboard.press("Space")
    assert memory.get_attribute("aria-sort") == "descending"
    assert column(page, "memory") == ["40", "40", "20", "20", "–"]
    page.locator("thead th", has_text="method").get_by_role("button").click()
    assert column(page, "method") == ["md-cg", "md-cg", "naive", "replay", "replay"]


def test_a_panel_shows_the_accuracies(page: Any, results: dict[str, mdcg.Result]) -> None:
    result = results["md-cg, memory 40"]
    button = page.get_by_role("button", name="details of md-cg, memory 40")
    assert page.locator(".panel").count() == 0
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    panel = page.locator(f"#{button.get_attribute('aria-controls')}")
    figures = panel.locator("figure")
    assert sorted(heat_map(figures.nth(0))) == shown(result.R.mean(0))
    assert sorted(heat_map(figures.nth(1))) == shown(result.R[0])
    panel.locator("select").select_option("1")
    assert sorted(heat_map(panel.locator("figure").nth(1))) == shown(result.R[1])
    facts = panel.locator("dl").inner_text()
    for text in (result.records[1].spec.name, "smallconv", "images in memory", "classes of task 2", "computed in"):
        assert text in facts
    titles = panel.locator("figcaption span").all_inner_texts()
    assert len(titles) == 6
    assert all(svg.bounding_box()["width"] > 200 for svg in panel.locator(".plot > div").all())
    panel.get_by_role("button", name="close").click()
    assert page.locator(".panel").count() == 0
    assert button.get_attribute("aria-expanded") == "false"
    assert button.evaluate("node => node === document.activeElement")


def test_what_is_chosen_is_compared(page: Any) -> None:
    comparison = page.locator(".comparison")
    comparison.locator("figure").first.wait_for()
    assert len(comparison.locator(".legend li").all()) == 5
    assert comparison.locator("figcaption span").all_inner_texts()[0] == "Accuracy at the end, by memory"
    assert comparison.locator("figure").nth(1).locator(".scatterlayer .trace").count() == 5
    for name in ("replay, memory 20", "md-cg, memory 20"):
        page.get_by_role("checkbox", name=f"compare {name}").uncheck()
    assert comparison.locator(".legend li").all_inner_texts()[-1].endswith("naive")
    assert comparison.locator("figcaption span").all_inner_texts()[0] == "Accuracy at the end"
    assert comparison.locator("figure").nth(0).locator(".barlayer .point").count() == 3
    assert comparison.locator("figure").nth(1).locator(".scatterlayer .trace").count() == 3
    page.get_by_role("checkbox", name="compare all").check()
    assert len(comparison.locator(".legend li").all()) == 5
    page.get_by_role("checkbox", name="compare all").uncheck()
    assert comparison.inner_text() == "Choose settings in the table to compare them."


def test_a_narrow_screen_needs_no_sideways_scrolling(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.locator(".open").first.click()
    page.locator(".comparison figure").first.scroll_into_view_if_needed()
    page.wait_for_timeout(300)  # charts follow the window with a delay
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    # On a page that cannot be scrolled sideways a chart that were wider would be cut off, not seen.
    for box in page.locator("figure, .panel, .results th:first-child").all():
        bounds = box.bounding_box()
        assert bounds["x"] >= 0
        assert bounds["x"] + bounds["width"] <= 360


def test_charts_follow_the_colour_scheme(page: Any) -> None:
    def ink() -> str:
        text = page.locator(".comparison .xtick text").first
        return str(text.evaluate("node => getComputedStyle(node).fill"))

    page.locator(".comparison .xtick").first.wait_for()
    light = ink()
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(200)
    assert ink() != light


def test_a_chart_can_be_saved(page: Any, tmp_path: Path) -> None:
    page.locator(".comparison figure").first.wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="save as SVG").first.click()
    download.value.save_as(tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").read_text().startswith("<svg")
    assert download.value.suggested_filename.endswith(".svg")


def test_names_stay_text(browser: Any, tmp_path: Path) -> None:
    """Also as plotly draws them, and in panels."""
    runs = [made_run(method=EVIL, names=EVIL, folder=EVIL, memory=memory) for memory in (10, 20)]
    file = tmp_path / "evil.html"
    file.write_text(pages.page(gather(runs), EVIL), "utf-8")
    page = browser.new_page()
    trouble: list[str] = []
    page.on("dialog", lambda dialog: trouble.append(dialog.message))
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(file.as_uri())
    page.locator(".open").first.click()
    page.locator(".comparison figure").first.wait_for()
    page.locator(".comparison .point").first.hover(force=True)
    page.get_by_role("checkbox", name="memory 10").uncheck()
    assert page.locator("img").count() == 0
    assert EVIL in page.locator(".panel dl").inner_text()
    assert EVIL in page.locator(".comparison .ytick text").first.text_content()
    page.close()
    assert trouble == []


def test_very_long_names_leave_room(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "long.html"
    runs = [made_run(method=method, backbone="y" * 2000) for method in ("x" * 2000, "md", "replay")]
    file.write_text(pages.page(gather(runs), "long"), "utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(file.as_uri())
    assert page.locator(".results thead th").first.bounding_box()["width"] < 640
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()
