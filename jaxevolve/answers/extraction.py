r"""Where in a response is its answer?

In this order: the last <answer> ... </answer> scope; the last \boxed{} (or \fbox{}); and, only
where it is allowed, the last line that announces a final answer. The text is a response alone,
without its prompt.
"""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# What `\boxed` without braces takes: a number or a command with its arguments, up to a space or $.
# Prose such as "put it in \boxed as asked" must not match, so a letter counts only as a capital
# that stands alone.
_BARE = re.compile(r"[+-]?(?:[\d.]|\\[A-Za-z])[^\s$]*|[A-Z](?![\w'])")
_NOTHING = re.compile(r"\\(?:text|mbox|mathrm|mathbf|quad)(?![A-Za-z])|\\[ ,;:!()\[\]]|[\s{}$~]")
_FINAL_LINE = re.compile(
    r"(?:final\s+answer|answer)\W*?(?:\s+is\b|[:：=])[\s:：*]*(?P<answer>[^\n]*)", re.IGNORECASE
)


def _closings(text: str) -> dict[int, int]:
    """Maps the position of every opening brace that is closed to that of its closing brace."""
    stack: list[int] = []
    pairs = {}
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            stack.append(brace.start())
        elif brace[0] == "}" and stack:
            pairs[stack.pop()] = brace.start()
    return pairs


def boxes(text: str) -> list[str | None]:
    r"""Finds the boxes of a text, in order and without those inside another box.

    Returns:
        The content of each, None for one that is never closed (a truncated response). A `\boxed`
        that no group or number follows is no box.
    """
    closings = _closings(text) if "\\" in text else {}
    found: list[str | None] = []
    end = 0
    for match in _BOX.finditer(text):
        start = match.end()
        if match.start() < end:
            continue
        if text.startswith("{", start):
            closing = closings.get(start)
            found.append(None if closing is None else text[start + 1 : closing].strip())
            end = start if closing is None else closing
        elif bare := _BARE.match(text, start):
            found.append(bare[0].rstrip(".,;"))
            end = bare.end()
    return found


def _unwrap(answer: str | None) -> str | None:
    """Takes boxes off that enclose all of an answer; nothing visible is no answer."""
    while answer is not None and (match := _BOX.match(answer)):
        if _closings(answer).get(match.end()) != len(answer) - 1:
            break
        answer = answer[match.end() + 1 : -1].strip()
    return answer if answer and _NOTHING.sub("", answer) else None


def is_marked(text: str) -> bool:
    r"""Tells whether a text marks its answer, by an <answer> scope or a box."""
    scope = "<answer>" in text and text.find("<answer>") < text.rfind("</answer>")
    return scope or bool(boxes(text))


def extract(text: str, *, final_line: bool = False) -> str | None:
    r"""Extracts the answer of a response.

    The last box decides: if it is empty or was cut off, there is no answer, and an earlier box that
    the response went on from does not stand in for it. A box is taken whole, however long.

    Args:
        text: a response, without its prompt.
        final_line: also accept, in a text without any box, a line such as "Final answer: 91" or
            "Answer: $13$".

    Returns:
        The answer as it was written, or None.
    """
    close = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(close, 0))
    if start >= 0:
        text = text[start + len("<answer>") : close].strip()
    found = boxes(text)
    if found:
        return _unwrap(found[-1])
    if start >= 0:
        return _unwrap(text)
    if final_line and (lines := list(_FINAL_LINE.finditer(text))):
        return _unwrap(lines[-1]["answer"].strip(" \t*$`").rstrip(".。") or None)
    return None
