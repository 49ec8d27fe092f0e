"""Templates of the pages that graders and students see."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, Template

FOLDER = Path(__file__).parent


def template(name: str, **filters) -> Template:
    """Load a template of a page; what it is given is text, unless a filter says otherwise."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= filters
    return environment.get_template(name)
