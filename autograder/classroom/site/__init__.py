"""The course's site: pages from the notebooks and docs, for a browser and without a server."""
