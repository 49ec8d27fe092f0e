"""Fonts for the browser, the same on every machine: Chromium sees these and no others."""

from pathlib import Path
from typing import NamedTuple

import matplotlib
from playwright.sync_api import Page


class FontSet(NamedTuple):
    """What stands in for a machine's fonts."""

    name: str
    folder: Path
    text: str
    code: str
    package: str  # that brings them on Debian and Ubuntu

    @property
    def is_here(self) -> bool:
        return self.folder.is_dir()


# The widest that are usual, which matplotlib brings along, and those as wide as Arial and Courier.
DEJAVU = FontSet(
    "DejaVu",
    Path(matplotlib.get_data_path(), "fonts", "ttf"),
    "DejaVu Sans",
    "DejaVu Sans Mono",
    "fonts-dejavu",
)
LIBERATION = FontSet(
    "Liberation",
    Path("/usr/share/fonts/truetype/liberation"),
    "Liberation Sans",
    "Liberation Mono",
    "fonts-liberation",
)


def configure(path: Path) -> Path:
    """Write a configuration for fontconfig that knows the sets of this machine only."""
    found = [fonts for fonts in (DEJAVU, LIBERATION) if fonts.is_here]
    folders = "".join(f"<dir>{fonts.folder}</dir>" for fonts in found)
    aliases = "".join(
        f"<alias><family>{family}</family><prefer><family>{font}</family></prefer></alias>"
        for family, font in (("sans-serif", DEJAVU.text), ("monospace", DEJAVU.code))
    )
    cache = f"<cachedir>{path.with_suffix('.cache')}</cachedir>"
    path.write_text(f"<fontconfig>{folders}{aliases}{cache}</fontconfig>", encoding="utf-8")
    return path


def use(page: Page, fonts: FontSet) -> None:
    """Draw a page of JupyterLab with a set of fonts, in place of the ones of its style."""
    style = "".join(
        f"--jp-{part}-font-family: '{font}' !important; "
        for part, font in (("ui", fonts.text), ("content", fonts.text), ("code", fonts.code))
    )
    page.add_style_tag(content=f":root {{ {style}}}")
