"""A student at work: the Assignment List, Validate and feedback."""

from playwright.sync_api import FrameLocator, Locator, expect

from tests.browser.lab import Lab

LISTS = {"Released": "released", "Downloaded": "fetched", "Submitted": "submitted"}


class Student(Lab):
    """A student in JupyterLab."""

    def listed(self, title: str, assignment: str) -> Locator:
        """The row of an assignment in one of the lists of the Assignment List."""
        rows = self.page.locator(f"#{LISTS[title]}_assignments_list > .list_item")
        return rows.filter(has_text=assignment)

    def press(self, title: str, assignment: str, label: str) -> None:
        """Press the button of an assignment."""
        self.listed(title, assignment).get_by_role("button", name=label, exact=True).click()

    def fetch(self, assignment: str) -> None:
        """Fetch an assignment from the Assignment List, and open its notebook there."""
        self.menu("Nbgrader", "Assignment List")
        self.press("Released", assignment, "Fetch")
        row = self.listed("Downloaded", assignment)
        row.locator(".assignment-notebooks-link").click()
        row.locator(".nested_list_item .item_name a").click()
        expect(self.page.locator("#jp-main-statusbar")).to_contain_text("(ipykernel) | Idle")

    def solve(self, exercise: str, body: str) -> None:
        """Type the body of a function where it says YOUR CODE HERE."""
        self.write(self.cell(f"def {exercise}("), "# YOUR CODE HERE", body, lines=2)

    def answer(self, number: int, text: str) -> None:
        """Type the answer to a question, and render it."""
        cell = self.page.locator(".jp-MarkdownCell", has_text="YOUR ANSWER HERE").nth(number)
        cell.dblclick()
        self.write(cell, "YOUR ANSWER HERE", text)
        self.page.keyboard.press("Control+Enter")

    def validate(self) -> Locator:
        """Press Validate, which saves; return the dialog."""
        self.page.click(".validate-button")
        return self.page.locator(".jp-Dialog:has(#validation-message)")

    def close_dialog(self) -> None:
        """Press the dialog's button."""
        self.page.click(".jp-Dialog .jp-mod-accept")
        expect(self.page.locator(".jp-Dialog")).to_have_count(0)

    def save(self) -> None:
        """Save the notebook, and wait until it is saved."""
        self.page.keyboard.press("Control+s")
        expect(self.page.locator(".lm-TabBar-tab.jp-mod-dirty")).to_have_count(0)

    def submit(self, assignment: str) -> None:
        """Submit in the Assignment List, and wait until it lists the submission."""
        self.menu("Nbgrader", "Assignment List")
        self.press("Downloaded", assignment, "Submit")
        expect(self.listed("Submitted", assignment)).to_be_visible()

    def feedback(self, assignment: str) -> FrameLocator:
        """Fetch the feedback, view its folder, and open the page that lies there."""
        self.menu("Nbgrader", "Assignment List")
        self.page.click("#refresh_assignments_list")
        row = self.listed("Submitted", assignment)
        expect(row).to_contain_text("(feedback available to fetch)")
        self.press("Submitted", assignment, "Fetch Feedback")
        row.get_by_text("(view feedback)").click()
        self.open(f"{assignment}.html")
        return self.page.frame_locator(".jp-HTMLViewer iframe")
