"""The files that `make lab` serves."""

from ipykernel.ipkernel import IPythonKernel
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager


class Contents(AsyncLargeFileManager):
    """Files as they are; but a notebook names its Python as the kernel will do.

    JupyterLab writes into an open notebook what its kernel says of itself. One that says something
    else would be unsaved as soon as it is open.
    """

    async def get(self, *args, **settings) -> dict:
        """Read a file or folder, as the contents API asks for it."""
        model = await super().get(*args, **settings)
        if model["type"] == "notebook" and model["content"]:
            metadata = model["content"]["metadata"]
            if metadata.get("kernelspec", {}).get("name") == "python3":
                metadata["kernelspec"]["display_name"] = "Python 3 (ipykernel)"
                metadata["language_info"] = dict(IPythonKernel.language_info)
        return model
