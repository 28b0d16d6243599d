"""The printed form of a bar."""


def verdict(what: str, figure: float, bar: float, *, at_least: bool) -> bool:
    """Print one bar and whether it is met."""
    met = figure >= bar if at_least else figure <= bar
    print(f"{'met    ' if met else 'NOT met'}  {what}: {figure:,.2f} (bar: {'≥' if at_least else '≤'} {bar:,.2f})")
    return met
