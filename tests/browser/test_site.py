"""The site as its readers see it: from the disk, on a screen and a phone, in light and dark."""

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from lxml import html
from playwright.sync_api import Page, expect

from autograder.assignment import ROOT, Assignment, assignments
from autograder.handout.exercise import BEGIN, END, exercises, stub

AXE = ROOT / "build" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
INSTALL = "npm install --prefix build/npm axe-core@4.14.1"
# One page of each kind.
LOOKED_AT = (
    "index.html",
    "map.html",
    "graders.html",
    "search.html",
    "assignments/02_lstm.html",
    "api/lstm.html",
    "docs/teaching_assistants.html",
)
PHONE = {"width": 390, "height": 844}
NOTHING_IS_WIDER = """() => {
  const wide = [...document.querySelectorAll("article *")].filter(
    (e) => e.getBoundingClientRect().right > innerWidth + 1 && e.checkVisibility());
  const scrolls = document.documentElement.scrollWidth > innerWidth;
  return scrolls ? wide.slice(0, 3).map((e) => e.outerHTML.slice(0, 200)) : [];
}"""
# What is opened fades in; only then has it the contrast that it keeps.
UNFOLD = """() => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const animation of document.getAnimations()) animation.finish();
}"""
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser-site")]


@cache
def tree(path: Path) -> html.HtmlElement:
    return html.fromstring(path.read_text(encoding="utf-8"))


@cache
def anchors(path: Path) -> set[str]:
    return set(tree(path).xpath("//@id"))


def pages(site: Path) -> list[Path]:
    found = sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)
    assert len(found) > 50
    return found


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def solution_lines(reference: list[Path]) -> dict[str, list[str]]:
    """What students write, in pairs of lines: one alone is often said by another text, too."""
    given = squeezed("".join(map(stub, reference)))
    found = {}
    for name, source in exercises(reference).items():
        lines, inside = [], False
        for line in source.splitlines():
            if BEGIN in line or END in line:
                inside = BEGIN in line
            elif inside and (code := squeezed(line.partition("  # ")[0])):
                lines.append(code)
        pairs = [first + second for first, second in pairwise(lines)] + lines
        found[name] = [pair for pair in pairs if len(pair) >= 40 and pair not in given]
    return found


def given_code(assignment: Assignment) -> str:
    nb = nbformat.read(assignment.student, as_version=4)
    return squeezed("".join(cell.source for cell in nb.cells))


def test_no_solution_is_shown(site):
    texts = {path: squeezed(tree(path).text_content()) for path in pages(site)}
    texts[site / "searchindex.js"] = squeezed((site / "searchindex.js").read_text())
    given = "".join(map(given_code, assignments()))  # a later notebook may show a line of its own
    looked_for = 0
    for assignment in assignments():
        for name, lines in solution_lines(assignment.reference).items():
            lines = [line for line in lines if line not in given]
            looked_for += len(lines)
            for path, text in texts.items():
                shown = [line for line in lines if line in text]
                assert not shown, f"{path.relative_to(site)} shows {name}: {shown[0]}"
    assert looked_for > 1000


def test_no_rubric_and_no_hidden_check_is_shown(site):
    for path in pages(site):
        text = tree(path).text_content()
        assert "BEGIN HIDDEN TESTS" not in text and "MARK SCHEME" not in text, path
        if path.parent.name == "assignments":
            assert "Rubric" not in text and "YOUR ANSWER HERE" not in text, path


def test_sources_do_not_come_along(site):
    assert not list(site.rglob("*.ipynb")) and not list(site.rglob("*.py"))


def test_no_link_is_dead(site):
    for path in pages(site):
        for link in tree(path).xpath("//a/@href"):
            target = urlsplit(link)
            if target.scheme or (not target.path and target.fragment in ("", "top")):
                continue
            other = (path.parent / unquote(target.path)).resolve() if target.path else path
            where = f"{path.relative_to(site)}: {link}"
            assert other.is_file(), where
            if target.fragment and other.suffix == ".html" and target.fragment != "top":
                assert unquote(target.fragment) in anchors(other), where


def test_every_picture_says_what_it_shows(site):
    pictures = 0
    for path in pages(site):
        for picture in tree(path).xpath("//article//img"):
            pictures += 1
            words = picture.get("alt", "").split()
            assert len(words) >= 3, f"{path.relative_to(site)}: {picture.get('src')}"
    assert pictures > 200


def test_no_page_loads_from_elsewhere(site):
    for path in [*pages(site), *site.rglob("*.css")]:
        text = path.read_text(encoding="utf-8")
        loads = r"""(?:<script[^>]*\ssrc=|<link(?![^>]*"canonical")[^>]*\shref="""
        loads += r"""|<img[^>]*\ssrc=|url\(|@import )["']?"""
        assert not re.search(loads + r"(https?:)?//", text), path


def test_a_reader_finds_their_way(site, window):
    reader = window("reader")
    page = reader.page
    page.goto((site / "index.html").as_uri())
    reader.picture("front")
    page.get_by_role("link", name="Look at an assignment").click()
    expect(page.locator("article h1")).to_contain_text("LSTM and GRU")
    reader.picture("assignment")
    assert_formulas_are_drawn(page)
    page.locator("button.search-button-field:visible").first.click()
    page.locator("input[type=search]:visible").fill("block table")
    page.keyboard.press("Enter")
    expect(page.locator("#search-results")).to_contain_text("13 · Paged attention")
    reader.picture("found")
    assert not reader.elsewhere


def assert_formulas_are_drawn(page: Page) -> None:
    """Each has a place on the page, and is set in the font that comes along."""
    assert page.evaluate(
        "document.fonts.ready.then(() => document.fonts.check('16px STIX Two Math'))"
    )
    drawn = page.evaluate(
        "[...document.querySelectorAll('math')].filter((m) => m.checkVisibility())"
        ".map((m) => m.getBoundingClientRect()).map((r) => r.width > 2 && r.height > 5)"
    )
    assert len(drawn) > 50 and all(drawn)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_does_not_scroll_sideways(site, window, scheme):
    phone = window(f"phone_{scheme}", color_scheme=scheme)
    phone.page.set_viewport_size(PHONE)
    wider = {}
    for path in pages(site) if scheme == "light" else [site / name for name in LOOKED_AT]:
        phone.page.goto(path.as_uri())
        if found := phone.page.evaluate(NOTHING_IS_WIDER):
            wider[str(path.relative_to(site))] = found
    assert not wider
    phone.page.goto((site / "index.html").as_uri())
    phone.picture("front")


@pytest.mark.skipif(not AXE.exists(), reason=f"no axe-core: {INSTALL}")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(site, window, scheme):
    reader = window(f"axe_{scheme}", color_scheme=scheme)
    # What a theme changes is the contrast.
    rules = "" if scheme == "light" else "{runOnly: ['color-contrast']}"
    found = []
    for name in LOOKED_AT:
        reader.page.goto((site / name).as_uri())
        reader.page.evaluate(UNFOLD)
        reader.page.evaluate(AXE.read_text(encoding="utf-8"))
        result = reader.page.evaluate(f"axe.run({rules})")
        for violation in result["violations"]:
            node = violation["nodes"][0]
            where = f"{len(violation['nodes'])} × {node['html'][:200]}"
            found.append(f"{name}: {violation['id']}: {where}: {node['failureSummary'][:300]}")
    reader.picture("last")
    assert not found, "\n\n".join(found)
