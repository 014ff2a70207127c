"""The package works outside of jaxevolve: copied under another name, beside nothing else."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "jaxevolve" / "answers"
OTHERS = sys.stdlib_module_names | {"numpy", "sympy", "math_verify"}


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*.py")), ids=lambda file: file.stem)
def test_a_module_imports_nothing_else_of_jaxevolve(file):
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            assert name.startswith("jaxevolve.answers") or name.partition(".")[0] in OTHERS


def test_a_copy_under_another_name_works(tmp_path):
    copy = shutil.copytree(PACKAGE, tmp_path / "fair", ignore=shutil.ignore_patterns("__pycache__"))
    for file in copy.glob("*.py"):
        file.write_text(file.read_text().replace("jaxevolve.answers", "fair"))
    code = """
import sys
from fair import classes, equal, judge
assert equal(gold="(x+1)^2", pred="x^2+2x+1")
assert judge(gold="C", pred="52", options={"A": "12", "C": "52"}).state == "right"
assert classes(["41", "41°"]).tolist() == [0, 0]
assert "jaxevolve" not in sys.modules
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True, timeout=60, cwd=tmp_path, env=environment)
