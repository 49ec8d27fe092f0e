"""What a person does in JupyterLab, by its menus, buttons and keys."""

import re
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.browser.window import Window

CELL = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell"


class Lab:
    """JupyterLab in a window.

    Args:
        window: the window.
        address: of the server, with what logs in.
    """

    def __init__(self, window: Window, address: str):
        self.window = window
        self.page = window.page
        self.page.goto(address)
        expect(self.page.locator(".jp-DirListing-content")).to_be_visible()

    def menu(self, *labels: str) -> None:
        """Choose an item of a menu."""
        first, *others = labels
        self.page.click(f'.lm-MenuBar-itemLabel:text-is("{first}")')
        for label in others:
            self.page.click(f'.lm-Menu-itemLabel:text-is("{label}")')

    def open(self, name: str) -> None:
        """Open a file, or a folder, of the file browser by a double click."""
        names = self.page.locator(".jp-DirListing-itemText")
        names.filter(has_text=re.compile(f"^{re.escape(name)}$")).dblclick()

    def open_alone(self, path: Path) -> None:
        """Close everything and open a file, by its path."""
        self.menu("File", "Close All Tabs")
        self.menu("File", "Open from Path…")
        self.page.fill(".jp-Dialog input", str(path))
        self.page.keyboard.press("Enter")
        expect(self.page.locator(".jp-MainAreaWidget:not(.lm-mod-hidden)")).to_have_count(1)
        label = self.page.locator("#jp-main-dock-panel .lm-mod-current .lm-TabBar-tabLabel")
        expect(label).to_have_text(path.name)

    def cell(self, source: str) -> Locator:
        """The cell whose source begins with a text."""
        editor = self.page.locator(".cm-content", has_text=re.compile("^" + re.escape(source)))
        return self.page.locator(CELL, has=editor)

    def write(self, cell: Locator, line: str, text: str, *, lines: int = 1) -> None:
        """Select whole lines of a cell, without the first one's indentation, and type a text.

        Args:
            cell: the cell.
            line: what the first line contains.
            text: what replaces the lines.
            lines: how many.
        """
        keyboard = self.page.keyboard
        cell.locator(".cm-line", has_text=line).click()
        for key in ("Home", *["Shift+ArrowDown"] * (lines - 1), "Shift+End"):
            keyboard.press(key)
        first, *others = text.splitlines()
        keyboard.type(first)
        for other in others:
            keyboard.press("Enter")
            keyboard.press("Shift+Home")  # the indentation that the editor has guessed
            keyboard.type(other)

    def run(self, cell: Locator) -> Locator:
        """Run a cell, wait until it has run, and return its output."""
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        self.ran(cell)
        return cell.locator(".jp-OutputArea-output").first

    def ran(self, cell: Locator) -> None:
        """Wait until a cell has a number, and no star."""
        prompt = cell.locator(".jp-InputPrompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]:"))
