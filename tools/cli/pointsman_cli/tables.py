"""Tables on the terminal: columns without lines between them."""

from rich.table import Column, Table


def borderless(*columns: Column | str) -> Table:
    """An empty table with these columns."""
    return Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)


def folding(*names: str) -> list[Column]:
    """Columns whose long texts take several lines."""
    return [Column(name, overflow="fold") for name in names]


def unbroken(*names: str) -> list[Column]:
    """Columns whose texts are never broken."""
    return [Column(name, no_wrap=True) for name in names]


def numbers(*names: str) -> list[Column]:
    """Columns of numbers."""
    return [Column(name, justify="right", no_wrap=True) for name in names]
