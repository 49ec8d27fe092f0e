"""Requests to serve, for which a kernel need not run a cell: that takes longer and touches more."""

REQUEST, REPLY = "serve_request", "serve_reply"


def offer(shell) -> None:
    """Let a kernel of ipykernel answer requests to serve what its notebook has defined.

    Args:
        shell: what get_ipython() gives in it.
    """
    kernel = shell.kernel

    async def serve_request(stream, identity, message) -> None:
        from course_pkg.remote.server import serve  # imports torch, which a kernel may do later

        serve(message["content"]["address"], shell.user_ns)
        kernel.session.send(stream, REPLY, {"status": "ok"}, message, identity)

    kernel.shell_handlers[REQUEST] = serve_request
