"""Pictures of a paged cache: every block a square, coloured by the sequences that use it."""

import os
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

COLUMNS = 12
# Paul Tol's muted colours: nine that can be told apart with any kind of colour blindness.
COLOURS = ["#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255"]
COLOURS.append("#AA4499")
_MOST_OWNERS = 6  # the most that a block shows, as stripes


@dataclass(frozen=True)
class Frame:
    """What a cache holds at one moment.

    Attributes:
        blocks: how many blocks there are.
        block_size: slots in a block.
        tables: the blocks of each sequence, by its number.
        lengths: how many positions of each sequence are in use.
        cached: the blocks that no sequence uses but that can still be found by name.
        title: what is happening.
    """

    blocks: int
    block_size: int
    tables: dict[int, list[int]]
    lengths: dict[int, int]
    cached: frozenset[int]
    title: str = ""


def snapshot(engine, title: str = "") -> Frame:
    """Take a frame of an engine of serving."""
    allocator = engine.scheduler.manager.allocator
    tables = {n: engine.sequences[n].block_table for n in engine.scheduler.running}
    return Frame(
        blocks=len(allocator.references),
        block_size=engine.runner.cache.K.shape[3],
        tables={number: list(table.blocks) for number, table in tables.items()},
        lengths={number: table.length for number, table in tables.items()},
        cached=frozenset(allocator.idle),
        title=title,
    )


def draw(frame: Frame, ax: Axes | None = None, colours: dict[int, str] | None = None) -> Axes:
    """Draw a frame.

    A block that several sequences use has a stripe for each and a black border; its coloured part
    is as high as it is full. Grey: no sequence uses it, but its content can be found. White: free.

    Args:
        frame: the cache.
        ax: where to draw; a figure of its own when None.
        colours: the colour of each sequence; by its number when None.
    Returns:
        The axes.
    """
    rows = -(-frame.blocks // COLUMNS)
    if ax is None:
        ax = plt.subplots(figsize=(7.2, 0.55 * rows + 0.8))[1]
    owners: dict[int, list[int]] = {block: [] for block in range(frame.blocks)}
    filled = dict.fromkeys(owners, 0)
    for number, table in frame.tables.items():
        for place, block in enumerate(table):
            owners[block].append(number)
            used = min(frame.block_size, frame.lengths[number] - place * frame.block_size)
            filled[block] = max(filled[block], used)
    for block, users in owners.items():
        x, y = block % COLUMNS, -(block // COLUMNS)
        back = "#C9C9C9" if block in frame.cached else "white"
        ax.add_patch(Rectangle((x, y), 0.92, 0.92, facecolor=back, edgecolor="#B0B0B0", lw=0.6))
        shown = users[:_MOST_OWNERS]
        for stripe, number in enumerate(shown):
            width = 0.92 / len(shown)
            colour = COLOURS[number % len(COLOURS)] if colours is None else colours[number]
            height = 0.92 * filled[block] / frame.block_size
            ax.add_patch(Rectangle((x + stripe * width, y), width, height, facecolor=colour, lw=0))
        if len(users) > 1:
            ax.add_patch(Rectangle((x, y), 0.92, 0.92, fill=False, edgecolor="black", lw=1.6))
    ax.set(xlim=(-0.1, COLUMNS), ylim=(0.9 - rows, 1.05), aspect="equal")
    ax.set_title(frame.title, size=9.5, weight="normal")
    ax.axis("off")
    return ax


def strip(frames: list[Frame], title: str, columns: int = 3) -> Figure:
    """Draw several frames side by side, with one key of colours for all.

    Args:
        frames: the caches, of the same size.
        title: what the figure shows, as a sentence.
        columns: how many frames a row has.
    Returns:
        The figure.
    """
    rows = -(-len(frames) // columns)
    height = 2.55 * -(-frames[0].blocks // COLUMNS) / COLUMNS + 0.42
    figure, axes = plt.subplots(
        rows, columns, figsize=(8.4, rows * height + 0.75), squeeze=False, layout="constrained"
    )
    for ax in axes.flat:
        ax.axis("off")
    for frame, ax in zip(frames, axes.flat, strict=False):
        draw(frame, ax)
    numbers = sorted({number for frame in frames for number in frame.tables})
    names = {COLOURS[number % len(COLOURS)]: [] for number in numbers}
    for number in numbers:
        names[COLOURS[number % len(COLOURS)]].append(str(number))
    handles = [Rectangle((0, 0), 1, 1, facecolor=colour) for colour in names]
    labels = ["sequence " + ", ".join(each) for each in names.values()]
    handles += [
        Rectangle((0, 0), 1, 1, facecolor="white", edgecolor="black", lw=1.6),
        Rectangle((0, 0), 1, 1, facecolor="#C9C9C9"),
        Rectangle((0, 0), 1, 1, facecolor="white", edgecolor="#B0B0B0", lw=0.6),
    ]
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12.5)
    figure.legend(
        handles,
        [*labels, "shared", "cached", "free"],
        loc="outside lower left",
        ncols=5,
        frameon=False,
        fontsize=8.5,
    )
    return figure


def explore(frames: list[Frame], title: str, shown: list[int], columns: int = 3) -> None:
    """Step through frames with a slider in JupyterLab; elsewhere show some of them as a strip.

    Args:
        frames: the caches.
        title: what they show, as a sentence.
        shown: which frames the strip shows.
        columns: how many of them a row has.
    """
    if not _widgets_run():
        strip([frames[n] for n in shown], title, columns)
        return
    import ipywidgets
    from IPython.display import display

    def show(step: int) -> None:
        ax = draw(frames[step])
        ax.set_title(f"{title}\n{frames[step].title}", size=11)
        plt.show()

    slider = ipywidgets.IntSlider(value=0, min=0, max=len(frames) - 1, description="step")
    play = ipywidgets.Play(value=0, min=0, max=len(frames) - 1, interval=400)
    ipywidgets.jslink((play, "value"), (slider, "value"))
    output = ipywidgets.interactive_output(show, {"step": slider})
    display(ipywidgets.VBox([ipywidgets.HBox([play, slider]), output]))


def _widgets_run() -> bool:
    """Say whether somebody has this notebook open in Jupyter, with ipywidgets installed."""
    if "JPY_SESSION_NAME" not in os.environ:  # set by Jupyter's server, not by nbclient
        return False
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return False
    return True
