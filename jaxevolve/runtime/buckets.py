"""Which shapes may a program have? One table, used by warm-up and at run time alike."""


def bucket(size: int) -> int:
    """Rounds a size up to the ladder 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, ...

    Powers of two and the numbers half-way between: at most a third of a shape is padding, and
    the number of shapes, hence of compilations, grows with the logarithm of the largest size.

    Args:
        size: a number of tokens, windows or rows, at least 0.

    Returns:
        The smallest number of the ladder that is at least `size`.
    """
    if size <= 2:
        return size
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power
