"""What the method's steps are made of: code that a cell depends on and no entry point names."""


def length(draw: float, rate: float) -> float:
    """The length of one step."""
    return rate * draw
