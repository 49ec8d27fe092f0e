"""Headings of invented functions: prompts whose answers can be checked without anybody's labels."""

import random

MODULES = ("pandas.core.tools", "numpy.lib.tools", "scipy.stats.tools")
FUNCTIONS = (
    "apply merge combine transform select reduce filter convert align split join rank".split()
)
SUMMARIES = (
    "Compute the sum of an array",
    "Return the index of each label",
    "Merge the values of two tables",
    "Find the norm of a vector",
    "Draw samples from a distribution",
    "Convert a string to a date",
    "Fit a curve to points",
    "Select rows of a table",
)
NAMES = (
    "a b c x y z arr axis axes bins bounds by cols columns copy cov data date deg dim engine "
    "fill_value fit fmt freq func fun grid height how index indices inputs k kernel key kind "
    "labels left level limit loc mask matrix max_iter maxsize mean method metric mode n name "
    "names ndim norm obj on order other out p path points q rank rate ratio right rows rule "
    "rtol seed sep side sigma size sort start step stop string target tol type units value "
    "weights where window"
).split()
HELD_OUT = (
    "alpha array buffer centers depth dtype width offset order_by scale shape degree values "
    "index_col knots threshold title weight"
).split()


def headings(count: int, seed: int, *, held_out: bool = False) -> list[str]:
    """Draw headings of functions with two parameters, each with a summary and a section begun.

    Example:
        >>> print(headings(1, seed=0)[0])
        ## numpy.lib.tools.filter(z, k)
        <BLANKLINE>
        Select rows of a table.
        <BLANKLINE>
        Parameters
        ----------

    Args:
        count: how many.
        seed: of the draw.
        held_out: whether the names of the parameters are among those that no other heading has.
    Returns:
        The prompts, each of which ends with a line break.
    """
    generator = random.Random(seed)
    prompts = []
    for _ in range(count):
        module, function = generator.choice(MODULES), generator.choice(FUNCTIONS)
        parameters = ", ".join(generator.sample(HELD_OUT if held_out else NAMES, 2))
        summary = generator.choice(SUMMARIES)
        prompts.append(
            f"## {module}.{function}({parameters})\n\n{summary}.\n\nParameters\n----------\n"
        )
    return prompts
