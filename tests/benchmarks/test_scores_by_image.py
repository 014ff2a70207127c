"""Official scores of benchmarks with images, worked by hand; see scoring.py."""

import pytest
from scoring import check, row

from jaxevolve.benchmarks.table import headline


def test_mathvision():
    options = {"A": "12", "B": "48^\\circ", "C": "52^\\circ", "D": "90^\\circ", "E": "x"}
    choice = {"choices": list(options.values()), "options": options, "subject": "angle"}
    free = {"choices": [], "options": {}, "subject": "algebra", "level": "1"}
    cases = [
        (row(0, "C", level="1", **choice), "The angle is 52, so the answer is C.", "1"),
        (row(1, "C", level="1", **choice), "(C)\nSince both are equal.", "1"),
        (row(2, "C", level="1", **choice), "so \\boxed{52^\\circ}", "1"),  # the option's text
        (row(3, "C", level="2", **choice), "\\boxed{C. 52^\\circ}", "1"),
        (row(4, "C", level="2", **choice), "A nice one, and it is D.", "0"),  # A is an article
        (row(5, "C", level="2", **choice), "\\boxed{C} at first, but then \\boxed{D}", "0"),
        (row(6, "C", level="2", **choice), "The picture shows a triangle.", "-"),
        (row(7, "C", level="2", **choice), "I get \\boxed{", "-"),
        (row(8, "2.5", **free), "Hence the answer is 5/2", "1"),
        (row(9, "0.333", **free), "\\boxed{\\frac{1}{3}}", "1"),  # both are 0.33 at two decimals
        (row(10, "1.67", **free), "\\boxed{1.66}", "0"),
        (row(11, "(1,2)", **free), "\\boxed{(1.0, 2)}", "1"),  # tuples place by place
        (row(12, "(1,2)", **free), "\\boxed{(2,1)}", "0"),
        (row(13, "10", **free), "The number of people is 10.", "1"),  # behind the last "is "
        (row(14, "10", **free), "\\boxed{x = 10}", "1"),
        (row(15, "10", **free), "", "-"),
    ]
    figures = check("mathvision", cases)
    # Right: 0 1 2 3 of eight choices, 8 9 11 13 14 of eight open ones.
    assert figures["accuracy"] == 9 / 16
    assert figures["by_subject"] == {"algebra": 5 / 8, "angle": 4 / 8}
    assert figures["by_level"] == {"1": (3 + 5) / 11, "2": 1 / 5}
    assert figures["by_subject_and_level"]["angle, level 2"] == 1 / 5


def test_mathverse():
    options = {"A": "40°", "B": "60°", "C": "120°", "D": "140°"}

    def problem(number, version, gold, subject="Plane Geometry", letters=None):
        more = {"problem_version": version, "subject": subject, "subfield": "Angle"}
        return row(number, gold, options=letters or {}, **more)

    equation = "\\frac{x^2}{81}+\\frac{y^2}{9}=1"
    cases = [
        (problem(0, "Text Dominant", "C", letters=options), "Therefore \\boxed{C}", "1"),
        (problem(1, "Text Dominant", "C", letters=options), "so \\boxed{120^\\circ}", "1"),
        (problem(2, "Text Lite", "C", letters=options), "The answer is B: 60°", "0"),
        (problem(3, "Text Lite", equation, "Functions"), f"\\boxed{{{equation}}}", "1"),
        (problem(4, "Vision Intensive", equation, "Functions"), "\\boxed{x^2+9y^2=81}", "1"),
        (problem(5, "Vision Intensive", equation, "Functions"), "\\boxed{9x^2+y^2=81}", "0"),
        (problem(6, "Vision Dominant", "(-2,1]"), "\\boxed{(-2,1)}", "0"),  # open is not closed
        (problem(7, "Vision Dominant", "22.3"), "about 22.3 meters, \\boxed{22.3\\text{ m}}", "1"),
        (problem(8, "Vision Only", "C", letters=options), "I cannot see the picture.", "-"),
        (problem(9, "Vision Only", "C", letters=options), "<answer>C</answer>", "1"),
        (problem(10, "Text Only", "C", letters=options), "\\boxed{D}", "0"),
        (problem(11, "Text Only", "C", letters=options), "\\boxed{C}", "1"),
        (problem(12, "Text Only", "7"), "\\boxed{7}", "1"),
    ]
    figures = check("mathverse", cases)
    # Text Only is no part of the overall: 0 1 3 4 7 9 of ten.
    assert figures["overall"] == headline(figures) == 6 / 10
    assert figures["text_only"] == 2 / 3
    assert figures["by_version"] == {
        "Text Dominant": 1.0,
        "Text Lite": 0.5,
        "Text Only": 2 / 3,
        "Vision Dominant": 0.5,
        "Vision Intensive": 0.5,
        "Vision Only": 0.5,
    }
    assert figures["by_subject"] == {"Functions": 2 / 3, "Plane Geometry": 4 / 7}


def test_mathvista():
    def problem(number, gold, kind, precision=None, choices=(), task="figure"):
        question = "multi_choice" if choices else "free_form"
        more = {"question_type": question, "answer_type": kind, "precision": precision}
        return row(number, gold, choices=list(choices), task=task, skills=["s", task], **more)

    angles = ("135°", "140°", "145°", "150°")
    cases = [
        (problem(0, "145°", "text", choices=angles, task="gps"), "So (C) is right", "1"),
        (problem(1, "145°", "text", choices=angles, task="gps"), "145°", "1"),
        (problem(2, "145°", "text", choices=angles, task="gps"), 'The answer is "D".', "0"),
        # Not a choice, so the nearest in spelling: one edit from 145°, two from the others.
        (problem(3, "145°", "text", choices=angles, task="gps"), "\\boxed{145}", "1"),
        (problem(4, "145°", "text", choices=angles, task="gps"), "I am not sure", "-"),
        (problem(5, "no", "text", choices=("yes", "no")), "The answer is no.", "1"),
        (problem(6, "1.67", "float", 2), "\\boxed{1.6666667}", "1"),  # rounded to two places
        (problem(7, "1.66", "float", 2), "\\boxed{1.6666667}", "0"),
        (problem(8, "1.2", "float", 1), "The distance is \\boxed{1.24} m", "1"),
        (problem(9, "11", "integer"), "\\boxed{11.9}", "1"),  # cut, not rounded
        (problem(10, "12", "integer"), "\\boxed{11.9}", "0"),
        (problem(11, "1284", "integer"), "\\boxed{1,284}", "1"),
        (problem(12, "[2, 5]", "list"), "\\boxed{[2,5]}", "1"),
        (problem(13, "[2, 5]", "list"), "\\boxed{[5, 2]}", "0"),
        (problem(14, "6", "integer"), "They are of the same age", "-"),
        (problem(15, "6", "integer"), "\\boxed{}", "-"),
        (problem(16, "6", "integer"), "The answer is 6 years of age.", "1"),
        (problem(17, "6", "integer"), "\\boxed{x + 6}", "-"),  # no number
    ]
    figures = check("mathvista", cases)
    assert figures["accuracy"] == 10 / 18
    assert figures["by_question_type"] == {"free_form": 6 / 12, "multi_choice": 4 / 6}
    assert figures["by_answer_type"] == {
        "float": 2 / 3,
        "integer": 3 / 7,
        "list": 1 / 2,
        "text": 4 / 6,
    }
    assert figures["by_task"] == {"figure": 7 / 13, "gps": 3 / 5}
    assert figures["by_skills"] == {"figure": 7 / 13, "gps": 3 / 5, "s": 10 / 18}


def test_wemath():
    letters = dict.fromkeys("ABCDE", "")

    def problem(group, steps, step, gold, concept="c", field="f"):
        more = {"group": group, "steps": steps, "step": step, "concept": concept, "field": field}
        return row(f"{group}/{step}", gold, options=letters, **more)

    # Group: what of steps 1, 2(, 3) and the whole is right -> four-way class.
    cases = [
        # g1: 1 1 | 1: complete mastery
        (problem("g1", "2", "1", "A"), "Answer: <A>", "1"),
        (problem("g1", "2", "2", "B", "d"), "The Answer is 7.\nAnswer: B.", "1"),
        (problem("g1", "2", "multi", "C"), "\\boxed{\\text{C}}", "1"),
        # g2: 1 0 | 1: strict rote memorization, loose mastery
        (problem("g2", "2", "1", "A"), "A. 300", "1"),
        (problem("g2", "2", "2", "B", "d"), "Answer: (B)", "-"),  # a bracket is no letter
        (problem("g2", "2", "multi", "C"), "<Answer>: C", "1"),
        # g3: 1 1 | 0: inadequate generalization
        (problem("g3", "2", "1", "A"), "Answer: A", "1"),
        (problem("g3", "2", "2", "B", "d"), "Answer: B", "1"),
        (problem("g3", "2", "multi", "C"), "Answer: D", "0"),
        # g4: 0 0 | 1: rote memorization, strict and loose
        (problem("g4", "2", "1", "A"), "no idea", "-"),
        (problem("g4", "2", "2", "B", "d"), "Answer: C", "0"),
        (problem("g4", "2", "multi", "C"), "\\boxed{C}", "1"),
        # g5: 1 1 0 | 0: insufficient knowledge
        (problem("g5", "3", "1", "A"), "Answer: A", "1"),
        (problem("g5", "3", "2", "B", "d"), "Answer: B", "1"),
        (problem("g5", "3", "3", "C", "e", "g"), "Answer: A", "0"),
        (problem("g5", "3", "multi", "D"), "Answer: E", "0"),
        # g6: 1 1 1 | 1: complete mastery
        (problem("g6", "3", "1", "A"), "Answer: A", "1"),
        (problem("g6", "3", "2", "B", "d"), "Answer: B", "1"),
        (problem("g6", "3", "3", "C", "e", "g"), "Answer: C", "1"),
        (problem("g6", "3", "multi", "D"), "Answer: D", "1"),
        # g7 is not complete, and counts among the steps only.
        (problem("g7", "2", "1", "A"), "Answer: A", "1"),
    ]
    figures = check("wemath", cases)
    assert figures["groups"] == 6
    assert figures["score_strict"] == headline(figures) == pytest.approx(2 / 6 + 0.5 / 6)
    assert figures["score_loose"] == pytest.approx(3 / 6 + 0.5 / 6)
    assert figures["insufficient_knowledge"] == 1 / 6
    assert figures["inadequate_generalization"] == 1 / 6
    assert figures["complete_mastery_strict"] == 2 / 6
    assert figures["complete_mastery_loose"] == 3 / 6
    assert figures["rote_memorization_strict"] == 2 / 4  # g2, g4 of g1, g2, g4, g6
    assert figures["rote_memorization_loose"] == 1 / 4  # g4
    # Steps right: g1 2, g2 1, g3 2, g4 0, g5 2, g6 3, g7 1 of 2+2+2+2+3+3+1.
    assert figures["one_step"] == 11 / 15
    assert figures["two_steps"] == 3 / 4
    assert figures["three_steps"] == 1 / 2
    # Concept c: six of seven, d: four of six, and their mean is the field's; e: one of two.
    assert figures["by_field"] == {"f": pytest.approx((6 / 7 + 4 / 6) / 2), "g": 1 / 2}


def test_logicvista():
    texts = {"A": "0.9", "B": "9.0", "C": "9.2", "D": "0.92", "E": "None of these"}
    bare = dict.fromkeys("ABCDE", "")

    def problem(number, gold, skill, options=bare):
        return row(number, gold, options=options, skill=[skill], capability=[], specific=[])

    cases = [
        (problem(0, "D", "numerical", texts), "The answer is D", "1"),
        (problem(1, "D", "numerical", texts), "\\boxed{0.92}", "1"),  # by the option's text
        (problem(2, "D", "numerical", texts), "0.9 seems right: \\boxed{A}", "0"),
        (problem(3, "D", "numerical", texts), "I cannot tell.", "-"),
        (problem(4, "A, C", "inductive"), "\\boxed{C, A}", "1"),  # a set
        (problem(5, "A, C", "inductive"), "\\boxed{A}", "0"),  # all of them are wanted
        (problem(6, "A, C", "inductive"), "The answer is AC", "1"),
        (problem(7, "A", "inductive"), "\\boxed{A and C}", "0"),  # and no other
        (problem(8, "b", "spatial"), "**B**", "1"),
        (problem(9, "B", "spatial"), "\\boxed{F}", "-"),  # there is no F
        (problem(10, "E", "mechanical", texts), "\\boxed{None of these}", "1"),
        (problem(11, "B", "deductive"), "A turned figure, so the answer is B.", "1"),
    ]
    figures = check("logicvista", cases)
    assert figures["accuracy"] == 7 / 12
    assert figures["by_skill"] == {
        "deductive": 1.0,
        "inductive": 0.5,
        "mechanical": 1.0,
        "numerical": 0.5,
        "spatial": 0.5,
    }


def test_dynamath():
    letters = {"A": "Yes", "B": "No"}

    def problem(seed, variant, kind, gold, subject="algebra"):
        options = letters if kind == "multiple choice" else {}
        more = {"seed": seed, "variant": variant, "answer_type": kind, "subject": subject}
        return row(f"{seed}-{variant}", gold, options=options, level="high school", **more)

    cases = [
        # Seed 1, numbers: all three right.
        (problem("1", "1", "float", "2.0944"), '{"solution": "..", "short answer": "2.094"}', "1"),
        (problem("1", "2", "float", "19.9998"), "\\boxed{20}", "1"),
        (problem("1", "3", "float", "3.1416"), '{"short answer": "1.0π"}', "1"),
        # Seed 2: 0.001 is the most that a number may differ by.
        (problem("2", "1", "float", "1.500"), "\\boxed{1.501}", "1"),
        (problem("2", "2", "float", "1.500"), "\\boxed{1.502}", "0"),
        (problem("2", "3", "float", "1.500"), "It cannot be told.", "-"),
        # Seed 3, choices.
        (problem("3", "1", "multiple choice", "A"), '{"short answer": "a"}', "1"),
        (problem("3", "2", "multiple choice", "B"), "The graph is not: \\boxed{No}", "1"),
        (problem("3", "3", "multiple choice", "B"), '{"short answer": "(B) No"}', "1"),
        (problem("3", "4", "multiple choice", "B"), '{"short answer": "A or B"}', "-"),
        # Seed 4, texts: the label holds the answer.
        (problem("4", "1", "text", "Sep", "statistics"), '{"short answer": "SEP"}', "1"),
        (problem("4", "2", "text", "4:45", "statistics"), "\\boxed{4:45}", "1"),
        (problem("4", "3", "text", "Sep", "statistics"), '{"short answer": "September"}', "0"),
        (problem("4", "4", "text", "Sep", "statistics"), '{"short answer": ""}', "-"),
        # A box in JSON that is not quite right: a comma is missing.
        (problem("5", "1", "float", "7.0"), '{"solution": "s" "short answer": "7.000"}', "1"),
    ]
    figures = check("dynamath", cases)
    assert figures["average"] == headline(figures) == 10 / 15
    assert figures["worst_case"] == 2 / 5  # seeds 1 and 5
    assert figures["average_by_subject"] == {"algebra": 8 / 11, "statistics": 2 / 4}
    assert figures["worst_case_by_subject"] == {"algebra": 2 / 4, "statistics": 0.0}
