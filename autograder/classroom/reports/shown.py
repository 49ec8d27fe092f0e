"""What nbgrader's pages show of a notebook; nothing else of it reaches their templates."""

import secrets

from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode

# Without scripts, and without widgets and diagrams, which only scripts draw.
_KINDS = ("text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png", "image/jpeg")
_KINDS += ("text/plain",)


class OnlyWhatIsShown(Preprocessor):
    """Drop what templates write into a page as it is; bring what the page's own scripts need."""

    enabled = True

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Keep texts, outputs and nbgrader's metadata, which are the instructor's."""
        nb.metadata = NotebookNode(language_info={"name": "python"})
        for cell in nb.cells:
            kept = {key: cell.metadata[key] for key in ("nbgrader",) if key in cell.metadata}
            cell.metadata = NotebookNode(kept)
            for output in cell.get("outputs", []):
                if "data" in output:
                    kept = {kind: output.data[kind] for kind in _KINDS if kind in output.data}
                    output.data, output.metadata = NotebookNode(kept), NotebookNode()
        resources["nonce"] = secrets.token_urlsafe()  # no script without it runs
        return nb, resources
