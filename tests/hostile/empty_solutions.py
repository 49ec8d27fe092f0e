"""Solutions that let torch do the exercise, and right ones that only mention it."""

_GRU = "def gru_step(x, h, W_x, W_h, b_x, b_h):\n    cell = {cell}\n"
_REST = """\
    cell = cell(x.shape[1], h.shape[1]).double()
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    cell.load_state_dict(dict(zip(names, (W_x, W_h, b_x, b_h))))
    return cell(x, h)
"""

# What stands where `cell` does, and what stands above the function.
FORBIDDEN = {
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
    "a name made at run time": ("getattr(nn, ''.join(reversed('lleCURG')))", ""),
}
FORBIDDEN = {
    name: f"{above}\n\n{_GRU.format(cell=cell)}{_REST}" for name, (cell, above) in FORBIDDEN.items()
}

# What is added to a right solution.
ALLOWED = {
    "a comment": "# nn.GRUCell does the same\n",
    "a string": "text = 'nn.GRUCell'\n",
    "an experiment": "theirs = nn.GRUCell(3, 4)\n",
    "an annotation": "def compare(cell: nn.GRUCell) -> nn.GRUCell:\n    return cell\n",
}
