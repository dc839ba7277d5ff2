"""Every interactive picture as a learner meets it: in JupyterLab, light and dark, in Notebook 7, and in exported HTML.

To add a picture, add its name to its chapter in PICTURES. Set COURSE_TEST_SCREENSHOTS to a folder to get a screenshot
of each.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest
from browser import ROOT, Lab, Page
from nbclient import NotebookClient
from nbconvert import HTMLExporter

pytestmark = pytest.mark.slow

#: The chapters with pictures, and the names of their pictures.
PICTURES = {
    "01_softmax": ["Winner takes almost all"],
    "02_single_head": ["The spotlight", "One spotlight or three"],
    "03_multi_head": ["Head explorer", "Split and combine"],
    "04_output_mixing": ["The mixing desk", "Head explorer"],
    "05_kv_cache": ["The KV cache, step by step"],
    "06_gqa": ["The wiring"],
}
PLACED = [(chapter, name) for chapter, names in PICTURES.items() for name in names]
#: Where a notebook is opened: the part of the address that says which application, and the theme.
PLACES = {"lab-light": ("doc/tree", "light"), "lab-dark": ("doc/tree", "dark"), "notebook-7": ("notebooks", "light")}
#: What is said aloud, and the drawings themselves; both are what a choice may change.
STAGE, CHOICES = ".touch-stage", "[role=radiogroup]"
#: Milliseconds from a key to the next frame that the browser has drawn.
MEASURE = """
    window.steps = [];
    addEventListener("change", () => {
        const start = performance.now();
        requestAnimationFrame(() => setTimeout(() => window.steps.push(Math.round(performance.now() - start))));
    }, true);
"""


#: What can be seen of a picture: which elements, where, how large, in which colours, with which words. A picture of the
#: screen would not do: it changes when the page scrolls by half a pixel.
SEEN = """picture => {
    const at = picture.getBoundingClientRect();
    const shown = element => element.checkVisibility({ visibilityProperty: true });
    const place = element => {
        const box = element.getBoundingClientRect(), style = getComputedStyle(element);
        const numbers = [box.x - at.x, box.y - at.y, box.width, box.height].map(Math.round);
        return [...numbers, style.fill, style.opacity, element.childElementCount ? "" : element.textContent].join(" ");
    };
    return [...picture.querySelectorAll(".touch-stage *, .touch-grid label")].filter(shown).map(place).join("; ");
}"""


@dataclass
class OpenChapter:
    """A chapter in a browser after all of its cells have run."""

    page: Page
    lab: Lab
    notebook: str
    place: str

    def picture(self, name: str) -> Any:
        return picture_on(self.page, name)


def picture_on(page: Page, name: str) -> Any:
    """The picture's live part on a page."""
    return page.tab.get_by_role("group", name=name, exact=True)


@pytest.fixture(scope="module", params=[(chapter, place) for chapter in PICTURES for place in PLACES], ids="-".join)
def opened(request: pytest.FixtureRequest, chromium: Any, lab: Lab) -> Iterator[OpenChapter]:
    chapter, place = request.param
    application, theme = PLACES[place]
    notebook = f"{chapter}/{chapter}.ipynb"
    shutil.copytree(ROOT / "notebooks" / chapter, lab.root / chapter, dirs_exist_ok=True)
    lab.use_theme(theme)
    page = Page(chromium)
    page.open_in(lab, notebook, application)
    page.run_all(lab, notebook)
    page.tab.evaluate(MEASURE)
    yield OpenChapter(page, lab, notebook, place)
    page.context.close()


def tab_to(page: Page, group: Any) -> None:
    """Press Tab, from the group's cell on, until something in the group has the focus."""
    group.evaluate(
        "group => { const cell = group.closest('.jp-Cell'); cell?.setAttribute('tabindex', 0); cell?.focus() }"
    )
    for _ in range(40):
        page.tab.keyboard.press("Tab")
        if group.evaluate("group => group.contains(document.activeElement)"):
            return
    raise AssertionError("Tab does not lead to this choice")


def operate(page: Page, picture: Any) -> None:
    """Change each choice by keyboard alone; AssertionError for one that changes nothing to be seen."""
    for number in range(picture.locator(CHOICES).count()):
        tab_to(page, picture.locator(CHOICES).nth(number))
        before = picture.evaluate(SEEN)
        page.tab.keyboard.press("ArrowRight")
        assert picture.evaluate(SEEN) != before, f"choice {number} changes nothing"
        page.tab.keyboard.press("ArrowLeft")
        assert picture.evaluate(SEEN) == before, f"choice {number} cannot be taken back"


def assert_words_for_all(picture: Any) -> None:
    """Each drawing that can be seen has a text alternative, and each panel a headline."""
    picture.scroll_into_view_if_needed()  # JupyterLab does not lay out what is far away
    drawings = picture.locator(f"{STAGE} svg[role=img]:visible")
    assert drawings.count() > 0
    for drawing in drawings.all():
        assert len(drawing.get_attribute("aria-label").split()) >= 5
    for status in picture.get_by_role("status").all():
        assert status.inner_text().strip()


def violations(page: Page, picture: Any) -> list[str]:
    """What axe-core finds that is serious or critical, in the picture's output."""
    from axe_playwright_python.sync_playwright import Axe  # brings playwright, without which these tests skip

    picture.evaluate("picture => picture.parentElement.setAttribute('data-axe', '')")
    found = Axe().run(page.tab, "[data-axe]").response["violations"]
    picture.evaluate("picture => picture.parentElement.removeAttribute('data-axe')")
    return [f"{v['id']}: {v['help']}" for v in found if v["impact"] in ("serious", "critical")]


def test_every_picture_of_the_chapter_appears(opened: OpenChapter):
    chapter = opened.notebook.split("/")[0]
    names = PICTURES[chapter]
    for name in names:
        opened.picture(name).wait_for()  # Notebook 7 puts cells that are far away on the page when it has time
    live = opened.page.tab.locator(".touch-live:visible")
    assert sorted({picture.get_attribute("aria-label") for picture in live.all()}) == sorted(names)
    for name in names:
        opened.picture(name).scroll_into_view_if_needed()
        keep_screenshot(opened.picture(name), f"{name} {chapter} {opened.place}")


def test_pictures_are_operated_by_keyboard_while_the_kernel_is_stopped(opened: OpenChapter):
    with opened.lab.kernel_of(opened.notebook).frozen():
        for name in PICTURES[opened.notebook.split("/")[0]]:
            operate(opened.page, opened.picture(name))
    print(f"{opened.notebook}, {opened.place}: milliseconds per step", opened.page.tab.evaluate("steps"))


def test_a_click_changes_the_picture(opened: OpenChapter):
    for name in PICTURES[opened.notebook.split("/")[0]]:
        picture = opened.picture(name)
        before = picture.evaluate(SEEN)
        picture.locator(f"{CHOICES} label:not(:has(:checked))").first.click()
        assert picture.evaluate(SEEN) != before


def test_pictures_speak_and_have_no_serious_barrier(opened: OpenChapter):
    for name in PICTURES[opened.notebook.split("/")[0]]:
        assert_words_for_all(opened.picture(name))
        assert violations(opened.page, opened.picture(name)) == []


def test_nothing_is_asked_of_other_hosts_and_nothing_goes_wrong(opened: OpenChapter):
    assert opened.page.hosts == {"127.0.0.1"}
    # Notebook 7 has errors of its own: fonts that its server refuses, a setting that it looks for in vain.
    assert [error for error in opened.page.errors if "/static/notebook/" not in error] == []


@cache
def executed(chapter: str) -> nbformat.NotebookNode:
    """The released notebook after a run."""
    folder = ROOT / "notebooks" / chapter
    notebook = nbformat.read(folder / f"{chapter}.ipynb", as_version=4)
    return NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()


def displayed(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output for output in outputs if output.output_type in ("display_data", "execute_result")]


@pytest.mark.parametrize("chapter", PICTURES)
def test_pictures_add_less_than_2_mb_to_a_saved_chapter(chapter):
    pages = [output.data.get("text/html", "") for output in displayed(executed(chapter))]
    sizes = [len(page.encode()) for page in pages if "touch-live" in page]
    print(f"{chapter}: bytes per picture", sizes)
    assert len(sizes) >= len(PICTURES[chapter])
    assert sum(sizes) < 2e6
    assert "widgets" not in executed(chapter).metadata


@pytest.mark.parametrize(("chapter", "name"), PLACED)
@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_exported_html_can_be_touched_without_a_network(chapter, name, scripts, chromium, tmp_path):
    file = tmp_path / "export.html"
    file.write_text(HTMLExporter().from_notebook_node(executed(chapter))[0])
    page = Page(chromium, java_script_enabled=scripts, offline=True)
    page.tab.goto(file.as_uri(), wait_until="commit")
    picture = picture_on(page, name)
    picture.wait_for()
    assert_words_for_all(picture)
    operate(page, picture)
    page.context.close()


@pytest.mark.parametrize(("chapter", "name"), PLACED)
def test_an_untrusted_notebook_shows_the_first_state_with_its_words(chapter, name, chromium, lab):
    notebook = f"{chapter} from elsewhere.ipynb"
    nbformat.write(executed(chapter), lab.root / notebook)
    page = Page(chromium)
    page.open_in(lab, notebook)
    still = page.tab.get_by_role("img", name=re.compile(re.escape(name)))
    still.scroll_into_view_if_needed()
    assert still.evaluate("image => image.complete && image.naturalWidth > 300")
    assert page.tab.locator(".touch-live:visible").count() == 0
    keep_screenshot(still, f"{name} {chapter} untrusted")
    page.context.close()


ODD_TOKENS = ["$x$", "costs $5 or $6", r"\(y\)", "$$z$$"]


def test_a_token_is_never_taken_for_a_formula(chromium, lab):
    cell = f"from helpers.widgets import spotlight\nspotlight([[0, 1, 2, 3]] * 4, {ODD_TOKENS})"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    notebook.cells.append(nbformat.v4.new_markdown_cell("$formula$"))
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.root / "formulas.ipynb")
    page = Page(chromium)
    page.open_in(lab, "formulas.ipynb")
    page.run_all(lab, "formulas.ipynb")
    page.tab.locator("mjx-container").first.wait_for()  # JupyterLab has looked for formulas, and found that of the text
    picture = picture_on(page, "The spotlight")
    assert picture.locator("mjx-container").count() == 0
    assert picture.locator("[role=radiogroup] >> nth=1").inner_text().split("\n")[1:] == ODD_TOKENS
    page.context.close()


@pytest.fixture(scope="module")
def all_pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a dark page with all pictures of the chapters, and nothing of JupyterLab."""
    outputs = [output for chapter in PICTURES for output in displayed(executed(chapter))]
    pages = [output.data["text/html"] for output in outputs if "touch-live" in output.data.get("text/html", "")]
    file = tmp_path_factory.mktemp("pictures") / "all.html"
    file.write_text(f'<!doctype html><meta charset="utf-8"><body style="background:#222;color:#eee">{"".join(pages)}')
    return file.as_uri()


@pytest.mark.parametrize("width", [1200, 900, 600])
def test_nothing_reaches_beyond_a_picture_in_a_narrow_window(width, all_pictures, chromium):
    page = Page(chromium)
    page.tab.set_viewport_size({"width": width, "height": 700})
    page.tab.goto(all_pictures)
    assert page.tab.locator(".touch-live:visible").count() >= len(PLACED)
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= width
    page.context.close()


#: The colours of pictures, words and buttons; a border has the colour of the words where it has none of its own.
COLOURS = """[...document.querySelectorAll(".touch-live, .touch-live :is(text, span, p), .touch-buttons input")].map(
    element => {
        const style = getComputedStyle(element);
        return [style.fill, style.backgroundColor, style.borderColor].join(" ");
    }
)"""


def test_forced_colours_leave_drawings_and_chosen_buttons_as_they_are(all_pictures, chromium):
    looks = []
    for forced in ("none", "active"):
        page = Page(chromium, forced_colors=forced, color_scheme="dark")
        page.tab.goto(all_pictures)
        looks.append(page.tab.evaluate(COLOURS))
        page.context.close()
    assert looks[0] == looks[1]


def keep_screenshot(picture: Any, name: str) -> None:
    if folder := os.environ.get("COURSE_TEST_SCREENSHOTS"):
        picture.screenshot(path=Path(folder) / f"{name.replace(' ', '_')}.png")
