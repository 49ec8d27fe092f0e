"""The Jupyter server on which graders work; `make lab` and JupyterHub's course server read this."""

c = get_config()  # Jupyter defines this name for its configuration files.
c.ServerApp.jpserver_extensions = {"autograder.classroom.formgrader": True}
