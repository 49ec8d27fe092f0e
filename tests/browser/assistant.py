"""A teaching assistant at work: the Formgrader."""

from playwright.sync_api import FrameLocator, Locator, Response, expect

from tests.browser.lab import Lab


class Assistant(Lab):
    """A teaching assistant in JupyterLab."""

    @property
    def frame(self) -> FrameLocator:
        """The Formgrader's page."""
        return self.page.frame_locator('iframe[src*="formgrader"]')

    def go(self, *links: str) -> None:
        """Follow links of the Formgrader, in its side bar or its tables."""
        for link in links:
            self.frame.get_by_role("link", name=link, exact=True).click()
            title = link.removeprefix("Manage ")
            expect(self.frame.locator(".breadcrumb .active")).to_contain_text(title)

    def row(self, text: str) -> Locator:
        """The row of the Formgrader's table that has a text."""
        return self.frame.locator("#main-table tr").filter(has_text=text)

    def press(self, text: str, column: str, answer: str) -> None:
        """Press the icon in a column of a row, and read that it worked."""
        self.row(text).locator(f"td.{column} .glyphicon").click()
        dialog = self.frame.locator(".modal.in")
        expect(dialog).to_contain_text(answer)
        dialog.locator(".modal-footer button").click()
        expect(self.frame.locator(".modal")).to_have_count(0)

    def grade(self, question: str, score: float, comment: str) -> None:
        """Write a score and a comment at an answer; both are saved when the field is left."""
        cell = self.frame.locator(".nbgrader_cell", has=self.frame.locator(f'[id="{question}"]'))
        # The page shows them when it has loaded what is in the gradebook.
        for selector in ("input.extra-credit[placeholder]", "textarea.comment[placeholder]"):
            expect(cell.locator(selector)).to_be_visible()
        for selector, text in (("input.score", f"{score:g}"), ("textarea.comment", comment)):
            cell.locator(selector).fill(text)
            with self.page.expect_response(_saved):
                cell.locator(selector).press("Tab")


def _saved(response: Response) -> bool:
    return response.request.method == "PUT" and response.ok
