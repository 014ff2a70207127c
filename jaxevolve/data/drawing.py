"""How is a figure drawn? Points, lines, arcs and labels become a small, clean RGB image."""

import functools
import math
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

CANVAS = 112.0  # all coordinates of a figure are on a square of this side, y pointing down
FONT = 19.0
SUPERSAMPLE = 4
LINE_COLOR = (70, 80, 100)
MARK_COLOR = (30, 120, 210)
TEXT_COLOR = (0, 0, 0)

Point = tuple[float, float]


@dataclass(frozen=True)
class Label:
    """A text centered on a point of the canvas."""

    text: str
    x: float
    y: float

    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the drawn text on the canvas."""
        left, top, right, bottom = _font(4.0).getbbox(self.text, stroke_width=2, anchor="ls")
        # Numbers share one base line, so every label is centered by the height of a digit.
        height = -_font(4.0).getbbox("0", anchor="ls")[1]
        dx, dy = self.x - (left + right) / 8, self.y + height / 8
        return left / 4 + dx, top / 4 + dy, right / 4 + dx, bottom / 4 + dy


@dataclass(frozen=True)
class Figure:
    """A drawing on the canvas, before it becomes pixels.

    Attributes:
        points: named points.
        lines: pairs of names that are joined by a stroke.
        angles: (arm, vertex, arm) triples of names that get an arc.
        labels: texts; the first ones are the given numbers in the order of the problem's values.
        ticks: pairs of names of segments that are marked as equally long.
        arrows: points where a line that runs to the right is marked as parallel.
    """

    points: dict[str, Point]
    lines: tuple[str, ...]
    labels: tuple[Label, ...]
    angles: tuple[str, ...] = ()
    ticks: tuple[str, ...] = ()
    arrows: tuple[Point, ...] = ()

    def angle(self, name: str) -> float:
        """The drawn angle arm-vertex-arm in degrees, between 0 and 180."""
        arm, vertex, other = (self.points[letter] for letter in name)
        turn = _direction(vertex, other) - _direction(vertex, arm)
        return abs((turn + 180) % 360 - 180)

    def length(self, name: str) -> float:
        """The drawn length of the segment between two named points, in canvas units."""
        return math.dist(self.points[name[0]], self.points[name[1]])


def render(figure: Figure, size: int) -> Image.Image:
    """Draws a figure in dark strokes on a white square.

    Args:
        figure: what to draw.
        size: side of the image in pixels.

    Returns:
        An RGB image, drawn larger and reduced so that strokes have smooth edges.
    """
    scale = SUPERSAMPLE * size / CANVAS
    side = SUPERSAMPLE * size
    image = Image.new("RGB", (side, side), "white")
    draw = ImageDraw.Draw(image)

    def stroke(points: list[Point], color: tuple[int, int, int], width: float) -> None:
        draw.line([(x * scale, y * scale) for x, y in points], color, round(width * scale), "curve")

    for name in figure.angles:
        arm, vertex, other = (figure.points[letter] for letter in name)
        start, end = _direction(vertex, arm), _direction(vertex, other)
        if (end - start) % 360 > 180:
            start, end = end, start
        sweep, radius = (end - start) % 360, 9.0
        steps = [math.radians(start + sweep * k / 16) for k in range(17)]
        arc = [(vertex[0] + radius * math.cos(t), vertex[1] + radius * math.sin(t)) for t in steps]
        stroke(arc, MARK_COLOR, 1.2)
    for name in figure.ticks:
        (x0, y0), (x1, y1) = (figure.points[letter] for letter in name)
        length = math.dist((x0, y0), (x1, y1))
        x, y, nx, ny = (x0 + x1) / 2, (y0 + y1) / 2, (y0 - y1) / length, (x1 - x0) / length
        stroke([(x - 3.5 * nx, y - 3.5 * ny), (x + 3.5 * nx, y + 3.5 * ny)], MARK_COLOR, 1.4)
    for x, y in figure.arrows:
        stroke([(x - 3, y - 3.5), (x + 1, y), (x - 3, y + 3.5)], MARK_COLOR, 1.4)
    for name in figure.lines:
        stroke([figure.points[letter] for letter in name], LINE_COLOR, 1.5)
    font = _font(scale)
    for label in figure.labels:
        left, _, right, _ = font.getbbox(label.text, anchor="ls")
        height = -font.getbbox("0", anchor="ls")[1]
        at = (label.x * scale - (left + right) / 2, label.y * scale + height / 2)
        # A white rim keeps a number legible where a line passes close by.
        draw.text(at, label.text, "white", font, "ls", stroke_width=round(2.0 * scale))
        draw.text(at, label.text, TEXT_COLOR, font, "ls", stroke_width=round(0.25 * scale))
    return image.reduce(SUPERSAMPLE)


def _direction(start: Point, end: Point) -> float:
    """Direction of a ray in degrees, clockwise from the right as y points down."""
    return math.degrees(math.atan2(end[1] - start[1], end[0] - start[0]))


@functools.cache
def _font(scale: float) -> ImageFont.FreeTypeFont:
    """The outline font that comes with pillow: the same on every machine."""
    return ImageFont.load_default(FONT * scale)
