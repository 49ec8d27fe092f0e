"""A user's browser window: what it asked for, and pictures of it."""

from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Request

from autograder.assignment import ROOT

SCREENSHOTS = ROOT / "build" / "screenshots"
SECONDS = 120  # the longest wait: continuous integration is slow and busy
WIDTH, HEIGHT, HIGHEST = 1400, 1000, 16_000  # pixels
LOCAL = ("127.0.0.1", "localhost")


def open_window(browser: Browser, folder: Path, user: str, **options) -> "Window":
    """Open a window of a user who is new to the browser."""
    size = {"width": WIDTH, "height": HEIGHT}
    return Window(browser.new_context(viewport=size, locale="en-US", **options), folder, user)


class Window:
    """A page with a memory of where its requests went.

    Args:
        context: the user's session in the browser.
        folder: where pictures go.
        user: whose window it is.
    """

    def __init__(self, context: BrowserContext, folder: Path, user: str):
        context.set_default_timeout(1000 * SECONDS)
        context.on("request", self._remember)
        self._context = context
        self.folder = folder
        self._user = user
        self._pictures = 0
        self.elsewhere: set[str] = set()
        self.page = context.new_page()

    def picture(self, name: str, of: str | None = None) -> None:
        """Keep a picture of what the user sees.

        Args:
            name: what it shows.
            of: a part that scrolls; for the picture the window is as high as this part's content.
        """
        if of is not None:
            height = self.page.locator(of).evaluate("part => part.scrollHeight")
            self.page.set_viewport_size({"width": WIDTH, "height": min(height + 150, HIGHEST)})
        self._pictures += 1
        path = self.folder / f"{self._user}_{self._pictures:02}_{name}.png"
        self.page.screenshot(path=path)
        if of is not None:
            self.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})

    def close(self) -> None:
        """End the session."""
        self._context.close()

    def _remember(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme in ("http", "https", "ws", "wss") and address.hostname not in LOCAL:
            self.elsewhere.add(request.url)
