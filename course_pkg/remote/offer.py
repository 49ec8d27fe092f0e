"""Requests to serve, for which a kernel need not run a cell: that takes longer and touches more."""

REQUEST, REPLY = "serve_request", "serve_reply"


def offer(shell) -> None:
    """Let a kernel of ipykernel answer requests to serve what its notebook has defined.

    Args:
        shell: what get_ipython() gives in it.
    """
    from course_pkg.remote.plain import do_not_compile

    do_not_compile()
    kernel = shell.kernel

    async def serve_request(stream, identity, message) -> None:
        from course_pkg.remote.server import serve

        serve(message["content"]["address"], shell.user_ns)
        kernel.session.send(stream, REPLY, {"status": "ok"}, message, identity)

    kernel.shell_handlers[REQUEST] = serve_request
