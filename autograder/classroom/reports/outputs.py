"""What a page is made from: of a notebook's metadata, only what nbgrader's pages need."""

import secrets

from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode


class WithoutMetadata(Preprocessor):
    """Drop metadata that templates write into a page as they are, and bring the page's nonce."""

    enabled = True

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Keep nbgrader's metadata, which come from the instructor's notebook."""
        nb.metadata = NotebookNode(language_info={"name": "python"})
        for cell in nb.cells:
            kept = {key: cell.metadata[key] for key in ("nbgrader",) if key in cell.metadata}
            cell.metadata = NotebookNode(kept)
            for output in cell.get("outputs", []):
                if "metadata" in output:
                    output.metadata = NotebookNode()
        resources["nonce"] = secrets.token_urlsafe()
        return nb, resources
