"""Solutions that let torch do the exercise, and right ones that only mention it."""

_STEP = "def gru_step(x, h, W_x, W_h, b_x, b_h):\n"
_BY_CLASS = (
    _STEP
    + """\
    cell = {cell}
    cell = cell(x.shape[1], h.shape[1]).double()
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    cell.load_state_dict(dict(zip(names, (W_x, W_h, b_x, b_h))))
    return cell(x, h)
"""
)
_BY_FUNCTION = _STEP + "    return ({function})(x, h, W_x, W_h, b_x, b_h)\n"
_ARGUMENTS = "x, h, W_x, W_h, b_x, b_h"
_NAME = "''.join(['gru', '_cell'])"  # which nobody finds who only reads
_TENSORS = "x: Tensor, h: Tensor, W_x: Tensor, W_h: Tensor, b_x: Tensor, b_h: Tensor"

# What stands where the class does, and what stands above the solution.
_CLASSES = {
    "the class": ("nn.GRUCell", ""),
    "its full name": ("torch.nn.modules.rnn.GRUCell", ""),
    "from import": ("Cell", "from torch.nn import GRUCell as Cell"),
    "import as": ("t.nn.GRUCell", "import torch as t"),
    "an alias": ("Cell", "layers = nn\nCell = layers.GRUCell"),
    "getattr": ("getattr(nn, 'GRUCell')", ""),
    "getattr of a sum": ("getattr(torch.nn, 'GRU' + 'Cell')", ""),
    "a dictionary": ("vars(nn)['GRUCell']", ""),
    "import_module": ("importlib.import_module('torch.nn').GRUCell", "import importlib"),
    "eval": ("eval('nn.GRUCell')", ""),
    "a helper": ("make()", "def make():\n    return nn.GRUCell\n"),
    "a subclass": ("Cell", "class Cell(nn.GRUCell):\n    pass"),
    "a name made at run time": ("getattr(nn, ''.join(reversed('lleCURG')))", ""),
    "subclasses": (
        "next(c for c in nn.RNNCellBase.__subclasses__() if c.__name__[0] == 'G')",
        "",
    ),
    "a copy of the module": (
        "copy.GRUCell",
        "import importlib.util as util\n\n"
        "spec = util.find_spec('torch.nn.modules.rnn')\ncopy = util.module_from_spec(spec)\n"
        "spec.loader.exec_module(copy)",
    ),
}
# What stands where the function does.
_FUNCTIONS = {
    "the function": ("torch.gru_cell", ""),
    "exec": ("step", "exec('from torch import gru_cell as step')"),
    "globals": ("step", "globals()['step'] = torch.gru_cell"),
    "locals": ("step", "locals().update(step=torch.gru_cell)"),
    "builtins": ("step", "import builtins\n\nbuiltins.step = torch.gru_cell"),
    "the shell": ("step", "get_ipython().push({'step': torch.gru_cell})"),
    "a file": (
        "helper.step",
        "open('helper.py', 'w').write('from torch import gru_cell as step')\nimport helper",
    ),
    "pickle": ("step", "import pickle\n\nstep = pickle.loads(b'ctorch\\ngru_cell\\n.')"),
    "attrgetter": (
        "step",
        "from operator import attrgetter\n\nstep = attrgetter('gru_cell')(torch)",
    ),
    "a function kept": ("kept[0]", "kept = []\nkept.append(torch.gru_cell)"),
    "a default": ("step()", "def step(f=torch.gru_cell):\n    return f\n"),
    "partial": ("step", "from functools import partial\n\nstep = partial(torch.gru_cell)"),
    "VF": ("torch._VF.gru_cell", ""),
    "the module's VF": ("torch.nn.modules.rnn._VF.gru_cell", ""),
    "VariableFunctions": ("torch._C._VariableFunctions.gru_cell", ""),
    "sys modules": ("sys.modules['torch'].gru_cell", "import sys"),
    "aten": ("torch.ops.aten.gru_cell", ""),
    "an overload": ("torch.ops.aten.gru_cell.default", ""),
    "an operator by name": ("torch._C._jit_get_operation('aten::gru_cell')[0]", ""),
    "TorchScript": (
        "step",
        f"@torch.jit.script\ndef step({_TENSORS}):\n    return torch.gru_cell({_ARGUMENTS})\n",
    ),
    "TorchScript from text": (
        "step",
        f"text = 'def step({_ARGUMENTS}):\\n  return torch.' + 'gru_' + 'cell({_ARGUMENTS})\\n'\n"
        "step = torch.jit.CompilationUnit(text).step",
    ),
    "vmap": (
        "step",
        "each = torch.vmap(lambda x, h, *parts: torch.gru_cell(x[None], h[None], *parts)[0],\n"
        "                  in_dims=(0, 0, None, None, None, None))\n"
        "step = lambda *parts: each(*parts)",
    ),
    "a thread": (
        "step",
        "from concurrent.futures import ThreadPoolExecutor\n\n\n"
        "def step(*parts):\n    with ThreadPoolExecutor() as pool:\n"
        "        return pool.submit(torch.gru_cell, *parts).result()\n",
    ),
    "a sequence of one": (
        f"lambda {_ARGUMENTS}: torch.gru(x[:, None], h[None], [W_x, W_h, b_x, b_h],"
        " True, 1, 0.0, False, False, True)[0][:, 0]",
        "",
    ),
    "a decomposition": (
        f"lambda {_ARGUMENTS}: gru(x[:, None], h[None], [W_x, W_h, b_x, b_h],"
        " True, 1, 0.0, False, False, True)[0][:, 0]",
        "from torch._decomp import decomposition_table as table\n\n"
        "gru = table[torch.ops.aten.gru.input]",
    ),
    "the Python dispatcher": (
        "step",
        "from torch._dispatch.python import enable_python_dispatcher\n\n\n"
        f"def step({_ARGUMENTS}):\n    with enable_python_dispatcher():\n"
        "        return torch.gru(x[:, None], h[None], [W_x, W_h, b_x, b_h],\n"
        "                         True, 1, 0.0, False, False, True)[0][:, 0]\n",
    ),
}
FORBIDDEN = {
    name: f"{above}\n\n{_BY_CLASS.format(cell=cell)}" for name, (cell, above) in _CLASSES.items()
} | {
    name: f"{above}\n\n{_BY_FUNCTION.format(function=function)}"
    for name, (function, above) in _FUNCTIONS.items()
}
_CAPTURED = "%%capture\nfrom torch import gru_cell as step\n\n\n"
FORBIDDEN["capture"] = _CAPTURED + _BY_FUNCTION.format(function="step")
# None of them gets points. Of these, reading does not tell what they use.
UNREAD = {
    "a name made at run time",
    "exec",
    "globals",
    "locals",
    "builtins",
    "the shell",
    "a file",
    "subclasses",
    "pickle",
    "attrgetter",
    "a copy of the module",
    "a function kept",
    "an operator by name",
}

# What follows a right solution and keeps its points; a person looks at it.
FLAGGED = {
    "a branch that never runs": "\n\nright = gru_step\n\n\n"
    "def gru_step(*parts):\n    return right(*parts) if parts else nn.GRUCell(3, 4)\n",
    "an attempt": "\n\nright = gru_step\n\n\n"
    "def gru_step(*parts):\n    try:\n        return torch.gru_cell(*parts)\n"
    "    except RuntimeError:\n        return right(*parts)\n",
    "a lifted rule": "\n\nfrom contextlib import nullcontext\n\n"
    "from course_pkg.remote import server\n\nserver.enforced = nullcontext\n"
    f"step = getattr(torch, {_NAME})\n\n\ndef gru_step(*parts):\n    return step(*parts)\n",
    # The operators that are left of a function once it has been traced are anybody's.
    "a trace": "\n\nsizes = (2, 3), (2, 4), (12, 3), (12, 4), (12,), (12,)\n"
    "parts = tuple(torch.randn(*size).double() for size in sizes)\n"
    f"traced = torch.jit.trace(lambda *parts: getattr(torch, {_NAME})(*parts), parts)\n\n\n"
    f"def gru_step({_ARGUMENTS}):\n    return traced({_ARGUMENTS})\n",
}

# What is added to a right solution.
ALLOWED = {
    "a comment": "# nn.GRUCell does the same\n",
    "a string": "text = 'nn.GRUCell'\n",
    "an experiment": "theirs = nn.GRUCell(3, 4)\n",
    "an annotation": "def compare(cell: nn.GRUCell) -> nn.GRUCell:\n    return cell\n",
}
