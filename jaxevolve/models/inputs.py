"""What a model reads: the arrays of a batch of prompts and of their responses."""

import jax
from flax import struct
from jax.typing import ArrayLike


@struct.dataclass
class Prompts:
    """A batch of prompts, one row each, padded on the right.

    Shapes use P prompts, T tokens, W windows of Q patches, C pixel values a patch; m is the side
    of the square of patches that the vision tower merges to one token. Fields are numpy arrays
    when the processor makes them, device arrays afterwards.

    Images lie in window layout. An image of h x w patches has (h/m) x (w/m) merged units. It is
    covered in raster order by windows of v x v units; every window has all its v * v slots, in
    raster order, and a slot outside the image is padding. A unit slot holds its m * m patches row
    by row, so Q = v * v * m * m. The windows of a row's images follow each other.

    Attributes:
        tokens: i32[P, T], image placeholders expanded, 0 after `length`.
        length: i32[P].
        positions: i32[P, T, 3], M-RoPE positions (time, height, width).
        next_position: i32[P], the position on all three axes of the token after the prompt.
        ids: u32[P], the sample id that randomness is derived from: a hash of the row's content and
            of its occurrence number among equal rows of the batch.
        image_token: i32[P, T], the merged vision token that stands here as an index into the row's
            W * Q / (m * m) merged slots, or -1 for text. Tokens of an image come in its raster
            order, so this index undoes the window layout.
        pixels: u8[P, W, Q, C], resized RGB values, C = 3 * patch * patch as (channel, row, column).
            W is 0 in a batch without images.
        patch_hw: i32[P, W, Q, 2], row and column of a patch in its image.
        segment: i32[P, W, Q], which image of the row (1, 2, ...) a patch belongs to, 0 for padding.
    """

    tokens: ArrayLike
    length: ArrayLike
    positions: ArrayLike
    next_position: ArrayLike
    ids: ArrayLike
    image_token: ArrayLike
    pixels: ArrayLike
    patch_hw: ArrayLike
    segment: ArrayLike


@struct.dataclass
class Rows:
    """One token of each of B responses that are decoded together, in any order.

    Attributes:
        token: i32[B].
        index: i32[B], tokens that each has read before this one, its own keys so far.
        position: i32[B], the position of this token on all three axes.
        prefix: i32[B], which of N prefixes each follows; anything for a row that is not in use.
        number: i32[B], below C, different for the rows of one prefix.
        cells: i32[N, C], the row that follows prefix n as number c; anything where there is none.
        length: i32[N], tokens of each prefix.
        order: i32[N], the prefixes, those that are in use first.
        used: i32[], how many are in use.
        reach: i32[2], the longest prefix and the most own keys, this one included, of rows in use.
    """

    token: jax.Array
    index: jax.Array
    position: jax.Array
    prefix: jax.Array
    number: jax.Array
    cells: jax.Array
    length: jax.Array
    order: jax.Array
    used: jax.Array
    reach: jax.Array
