"""How do numbers become pictures? Small SVG charts that need no script and no color.

A chart is one <figure>: a title, a legend that doubles as a read-out, the drawing, a note. Every
step has an invisible column whose <title> holds the values, so hovering tells them without script;
with it (assets/report/page.js) the legend follows the pointer, a finger or the arrow keys. Colors
are style-sheet variables; lines differ by their dashes and markers too and layers by their
lightness, so both survive a black-and-white printer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

WIDTH, HEIGHT = 300, 184
LEFT, RIGHT, TOP, BOTTOM = 44, 296, 8, 156
FEW = 25  # points on a line that get a marker each
LINES = 8  # lines of a chart that the style sheet and the markers can tell apart

MINUS = "\N{MINUS SIGN}"

Format = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: in the legend.
        x: steps, rising.
        y: values of the steps; None leaves a gap.
        spread: half the height of a band around the line, or None where there is no band.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    spread: Sequence[float | None] | None = None

    @property
    def points(self) -> list[tuple[float, float]]:
        """What can be drawn: (x, y) where y is known."""
        return [(x, y) for x, y in zip(self.x, self.y) if y is not None]


def number(value: float) -> str:
    """A value for people, to three figures: 0.125, 31.4, 12,345 or 2.1e-6."""
    if value < 0:
        return MINUS + number(-value)
    if 0 < value < 1e-3:
        return f"{value:.1e}".replace("e-0", "e-")
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(value: float) -> str:
    """A share of 1 in percent, with one decimal."""
    return f"{100 * value:.1f}%"


def seconds(value: float) -> str:
    """A duration: 0.25 s, 41 s, 3 min 20 s or 2 h 5 min."""
    if value < 60:
        return f"{number(value)} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def ticks(low: float, high: float, most: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers that cover [low, high], rising by 1, 2 or 5 times a power of ten.

    Args:
        low: the smallest value.
        high: the largest; where both are equal, zero is covered too.
        most: largest number of steps between the ticks.
        whole: only whole numbers.
    """
    if not high > low:
        low, high = min(low, 0.0), max(high, 0.0) or float(low == 0)
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    sizes = [power * factor for factor in (1, 2, 5, 10, 20)]
    for size in sizes:
        size = max(size, 1.0) if whole else size
        first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
        if last - first <= most:
            break
    return [float(f"{i * size:.12g}") for i in range(first, last + 1)]


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    form: Format = number,
    limits: tuple[float, float] | None = None,
    note: str = "",
    at: Format = lambda x: f"step {x:g}",
    mark: Format | None = None,
    events: Sequence[float] = (),
) -> Markup:
    """Lines over steps, or over something else.

    Args:
        title: of the figure.
        lines: at most `LINES`; lines without any value are left out.
        form: writes a value.
        limits: of the vertical axis; by default they follow from the values.
        note: one sentence under the drawing: what is this, and what should one look for?
        at: names a place on the horizontal axis.
        mark: writes its tick; None where places are whole numbers.
        events: places that are marked by an upright line.

    Returns:
        The figure, or nothing where no line has a value.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return Markup("")
    columns = sorted({x for line in lines for x, _ in line.points})
    edges = [edge for line in lines for edge in _edges(line)]
    low, high = limits or (min(edges), max(edges))
    if limits is None and 0 < low < 0.6 * high:
        low = 0.0
    marks = ticks(low, high)
    across = Axis(columns[0], columns[-1], LEFT + 6, RIGHT - 6)
    up = Axis(marks[0], marks[-1], BOTTOM, TOP)
    places = _places(columns, whole=mark is None)
    parts = [_frame(marks, up, places, across, form, mark or "{:g}".format)]
    parts += [_band(line, across, up, i) for i, line in enumerate(lines) if line.spread]
    parts += [_event(across(x)) for x in events if columns[0] <= x <= columns[-1]]
    parts += [_line(line, across, up, i) for i, line in enumerate(lines)]
    values = [dict(line.points) for line in lines]
    names = [line.name for line in lines]
    texts = [
        _reading(at(x), [(n, form(v[x])) for n, v in zip(names, values) if x in v]) for x in columns
    ]
    parts += _columns([across(x) for x in columns], texts)
    legend = [(f"line s{i}", line.name, form(line.points[-1][1])) for i, line in enumerate(lines)]
    spoken = "; ".join(_spoken(line, form, at) for line in lines)
    return figure(title, at(columns[-1]), legend, parts, spoken, note)


def stacked_chart(
    title: str,
    steps: Sequence[float],
    layers: Sequence[tuple[str, Sequence[float]]],
    *,
    note: str = "",
) -> Markup:
    """Seconds by phase, a column a step; the legend tells each phase's share of all time.

    Columns of more than three times the median leave the drawing at its top and are named in the
    note: the first steps compile.

    Args:
        title: of the figure.
        steps: numbers of the steps, rising.
        layers: (name, seconds of every step) from the bottom to the top.
        note: one sentence under the drawing.

    Returns:
        The figure, or nothing where there is no time to show.
    """
    totals = [sum(column) for column in zip(*(values for _, values in layers))]
    whole = sum(totals)
    if not whole:
        return Markup("")
    layers = [(name, values) for name, values in layers if sum(values) > 0.002 * whole]
    usual = 3 * sorted(totals)[(len(totals) - 1) // 2]
    marks = ticks(0.0, max(total for total in totals if total <= usual))
    up = Axis(0.0, marks[-1], BOTTOM, TOP)
    gap = min((b - a for a, b in pairwise(steps)), default=1)
    across = Axis(steps[0] - gap / 2, steps[-1] + gap / 2, LEFT, RIGHT)
    wide = abs(across(gap) - across(0))
    parts = [_frame(marks, up, _places(steps), across, seconds)]
    for column, (step, total) in enumerate(zip(steps, totals)):
        base, x = 0.0, across(step) - 0.45 * wide
        for layer, (_, values) in enumerate(layers):
            top = min(base + values[column], marks[-1])
            y, height = up(top), up(base) - up(top)
            base = top
            parts.append(
                f'<rect class="layer l{layer}" x="{x:.1f}" y="{y:.1f}" '
                f'width="{0.9 * wide:.1f}" height="{height:.1f}"/>'
            )
        if total > marks[-1]:
            middle = x + 0.45 * wide
            parts.append(
                f'<path class="beyond" d="M{middle - 5:.1f},{TOP + 7} h10 l-5,-7 z">'
                f"<title>{seconds(total)}</title></path>"
            )
    texts = [
        _reading(
            f"step {step:g}",
            [(name, seconds(values[i])) for name, values in layers] + [("all", seconds(totals[i]))],
        )
        for i, step in enumerate(steps)
    ]
    parts += _columns([across(step) for step in steps], texts)
    legend = [(f"box l{i}", name, percent(sum(v) / whole)) for i, (name, v) in enumerate(layers)]
    legend = [*reversed(legend), ("", "all", seconds(whole / len(steps)))]
    spoken = "; ".join(f"{name}: {value}" for _, name, value in reversed(legend))
    beyond = [(s, t) for s, t in zip(steps, totals) if t > marks[-1]]
    if beyond:
        named = ", ".join(f"step {s:g} ({seconds(t)})" for s, t in beyond[:4])
        more = f" and {len(beyond) - 4} more" if len(beyond) > 4 else ""
        note = f"{note} Columns with an arrow are taller than the drawing: {named}{more}.".strip()
    return figure(title, "average step", legend, parts, spoken, note)


@dataclass(frozen=True)
class Axis:
    """Maps [low, high] onto [start, end] of the drawing; a single value goes to the middle."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.high == self.low:
            return (self.start + self.end) / 2
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _places(columns: Sequence[float], whole: bool = True) -> list[float]:
    """Ticks inside the range of the columns, of steps at whole numbers."""
    low, high = columns[0], columns[-1]
    return [t for t in ticks(low, high, 6, whole=whole) if low <= t <= high] or [low]


def _edges(line: Line) -> list[float]:
    """Every height that a line and its band reach."""
    spread = line.spread or [None] * len(line.x)
    known = [(y, s or 0.0) for y, s in zip(line.y, spread) if y is not None]
    return [y + sign * s for y, s in known for sign in (-1, 1)]


def _frame(
    marks: Sequence[float],
    up: Axis,
    places: Sequence[float],
    across: Axis,
    form: Format,
    mark: Format = "{:g}".format,
) -> str:
    """Grid lines with their values, and steps or other places below."""
    drawn = []
    for value in marks:
        y = up(value)
        label = _tick(value, form)
        drawn.append(
            f'<line class="{"grid" if value else "grid zero"}" x1="{LEFT}" x2="{RIGHT}" '
            f'y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="y" x="{LEFT - 6}" y="{y + 4:.1f}">{label}</text>'
        )
    for place in places:
        x = across(place)
        drawn.append(
            f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{BOTTOM}" y2="{BOTTOM + 4}"/>'
            f'<text class="x" x="{x:.1f}" y="{BOTTOM + 18}">{mark(place)}</text>'
        )
    return "".join(drawn)


def _tick(value: float, form: Format) -> str:
    """A round value without trailing zeros."""
    if value < 0:
        return MINUS + _tick(-value, form)
    if form is percent:
        return f"{100 * value:g}%"
    if 0 < value < 1e-3:
        return f"{value:.2g}".replace("e-0", "e-")
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"


def _line(line: Line, across: Axis, up: Axis, style: int) -> str:
    """One stroke for every stretch without gaps, with a marker on each point where few are."""
    strokes, stretch = [], []
    for x, y in [*zip(line.x, line.y), (None, None)]:
        if y is not None:
            stretch.append(f"{across(x):.1f},{up(y):.1f}")
        elif stretch:
            strokes.append(stretch)
            stretch = []
    drawn = [
        f'<polyline class="line s{style}" points="{" ".join(points)}"/>'
        for points in strokes
        if len(points) > 1
    ]
    few = len(line.points) <= FEW
    dots = [p for points in strokes for p in points if few or len(points) == 1]
    for dot in dots:
        drawn.append(_marker(style, *map(float, dot.split(","))))
    return "".join(drawn)


def _marker(style: int, x: float, y: float) -> str:
    """A point of a line: circle, square, triangle or diamond; later styles have them hollow."""
    kind = f"dot s{style}" + (" hollow" if style > 4 else "")
    at = f"M{x:.1f},{y:.1f}"
    if style in (0, 5):
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    path = {
        1: "m-2.8,-2.8 h5.6 v5.6 h-5.6 z",
        2: "m0,-3.8 l3.6,6.2 h-7.2 z",
        3: "m0,-4 l4,4 l-4,4 l-4,-4 z",
        4: "m0,3.8 l3.6,-6.2 h-7.2 z",
        6: "m-2.8,-2.8 h5.6 v5.6 h-5.6 z",
        7: "m0,-3.8 l3.6,6.2 h-7.2 z",
    }[style]
    return f'<path class="{kind}" d="{at} {path}"/>'


def _band(line: Line, across: Axis, up: Axis, style: int) -> str:
    """The area of a line's value plus and minus its spread, as far as the axis goes."""
    known = [
        (x, y, s) for x, y, s in zip(line.x, line.y, line.spread) if None not in (y, s) and s >= 0
    ]
    if len(known) < 2:
        return ""
    inside = lambda y: up(min(max(y, up.low), up.high))
    above = [f"{across(x):.1f},{inside(y + s):.1f}" for x, y, s in known]
    below = [f"{across(x):.1f},{inside(y - s):.1f}" for x, y, s in reversed(known)]
    return f'<polygon class="band s{style}" points="{" ".join(above + below)}"/>'


def _reading(step: str, values: Sequence[tuple[str, str]]) -> Markup:
    """The text of a column: the step, and a line for every value."""
    return Markup("\n").join([step, *(f"{name}: {value}" for name, value in values)])


def _columns(centers: Sequence[float], texts: Sequence[Markup]) -> list[str]:
    """Invisible columns, each as wide as the part of the axis that is nearest to its step."""
    between = [(a + b) / 2 for a, b in pairwise(centers)]
    return [
        f'<rect class="hit" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" '
        f'height="{BOTTOM - TOP}"><title>{text}</title></rect>'
        for left, right, text in zip([LEFT, *between], [*between, RIGHT], texts)
    ]


def _event(x: float) -> str:
    """An upright line with a triangle on top."""
    return (
        f'<line class="event" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{BOTTOM}"/>'
        f'<path class="beyond" d="M{x - 5:.1f},{TOP - 7} h10 l-5,7 z"/>'
    )


def _spoken(line: Line, form: Format, at: Format) -> str:
    """A line in words."""
    (x0, y0), (x1, y1) = line.points[0], line.points[-1]
    if x0 == x1:
        return f"{line.name}: {form(y0)} at {at(x0)}"
    return f"{line.name}: {form(y0)} at {at(x0)}, {form(y1)} at {at(x1)}"


def figure(
    title: str,
    at: str,
    legend: Sequence[tuple[str | Markup, str, str]],
    drawing: Sequence[str],
    spoken: str,
    note: str,
) -> Markup:
    """Title, legend, drawing and note.

    Args:
        title: of the figure.
        at: what the values of the legend are of.
        legend: (class of a line or a layer, or a drawn sample; name; value).
        drawing: parts of the drawing, markup already.
        spoken: the drawing in words.
        note: under it.
    """
    entries = Markup("").join(
        Markup("<li>{}<span>{}</span> <b>{}</b></li>").format(
            style if isinstance(style, Markup) else _swatch(style), name, value
        )
        for style, name, value in legend
    )
    return Markup(
        '<figure class="chart"><figcaption><h3>{}</h3><span class="at">{}</span></figcaption>'
        '<ul class="legend" aria-live="polite">{}</ul>'
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
        '<p class="note">{}</p></figure>'
    ).format(
        title, at, entries, WIDTH, HEIGHT, f"{title}. {spoken}", Markup("".join(drawing)), note
    )


def _swatch(style: str) -> Markup:
    """The sample of a line or a layer beside its name."""
    kind = style.partition(" ")[0]
    inside = {
        "line": f'<line class="{style}" x1="0" x2="26" y1="6" y2="6"/>',
        "box": f'<rect class="layer {style}" x=".5" y=".5" width="15" height="11"/>',
    }.get(kind)
    if inside is None:
        return Markup("")
    if kind == "line":
        inside += _marker(int(style.rpartition(" s")[2]), 13, 6)
    width = 26 if kind == "line" else 16
    return Markup(
        f'<svg class="swatch" width="{width}" height="12" viewBox="0 0 {width} 12" '
        f'aria-hidden="true">{inside}</svg>'
    )
