"""What the documents and the packaging promise, held against the code."""

import ast
import importlib
import importlib.metadata
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

import jaxevolve
from jaxevolve.runtime import cli
from jaxevolve.runtime.metrics import flatten

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTS = PROJECT["optional-dependencies"]["test"]
MAPS = PROJECT["optional-dependencies"]["embeddings"]

# Needed without an import: ruff is a program, transformers fills chat templates by jinja2.
NOT_IMPORTED = {"jinja2", "pytest-xdist", "ruff"}

# What scripts/speed compares with; of the extra bench, and google-tunix beside it.
PEERS = {"datasets", "torch", "trl", "tunix"}

COMMAND_ONE = (
    "python -m pip install -c constraints.txt -e . "
    "&& python -m jaxevolve.train --config=configs/csrs.py"
)
INSTALL_TWO = 'python -m pip install -c constraints.txt -e ".[test]"'
TEST_COMMAND = "python -m pytest -n 2 --dist=loadfile"


def text(path):
    return path.read_text(encoding="utf-8")


def fenced(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text(path), re.DOTALL | re.MULTILINE)


def command_lines():
    """[document, words] of every command in a bash block, `&&` apart and continued lines joined."""
    found = []
    for path in DOCUMENTS:
        for block in fenced(path, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                for command in line.split("&&"):
                    if words := shlex.split(command, comments=True):
                        found.append((path.name, words))
    return found


def modules_run(prefix):
    return [
        pytest.param(words, id=f"{name}: {' '.join(words)}")
        for name, words in command_lines()
        if words[:2] == ["python", "-m"] and words[2].startswith(prefix)
    ]


def normal(name):
    """A distribution's name as the package index compares it, without extras and versions."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", name)[0]).lower()


def test_the_two_commands_stand_in_the_readme_as_they_are_promised():
    blocks = [block.strip() for block in fenced(ROOT / "README.md", "bash")]
    assert blocks[:2] == [COMMAND_ONE, f"{INSTALL_TWO} && {TEST_COMMAND}"]


def test_ci_installs_and_tests_as_the_readme_says():
    lines = [line.strip() for line in text(ROOT / ".ci" / "run").splitlines()]
    (install,) = (line for line in lines if "pip install" in line)
    quiet = re.sub(r" --(quiet|disable-pip-version-check)", "", install)
    assert quiet == INSTALL_TWO
    assert lines[-1] == TEST_COMMAND


@pytest.mark.parametrize("words", modules_run("jaxevolve."))
def test_every_command_in_the_documents_parses(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    module = importlib.import_module(words[2])
    argv = [f"{words[2].removeprefix('jaxevolve.')}.py", *words[3:]]
    takes_config = any(word.startswith("--config=") for word in words)
    if "--help" in words:
        with pytest.raises(SystemExit):
            cli.parse(argv, module.define, config=takes_config)
    else:
        cli.parse(argv, module.define, config=takes_config)


def test_every_extra_in_the_documents_exists():
    asked = {
        extra
        for _, words in command_lines()
        if "pip" in words
        for word in words
        for extra in re.findall(r"\.\[(\w+)\]", word)
    }
    assert asked == set(PROJECT["optional-dependencies"])


def test_every_setting_named_in_the_documents_exists():
    config = cli.load_config(str(ROOT / "configs" / "csrs.py"))
    known = set(flatten(config.to_dict()))
    groups = "|".join({key.split(".")[0] for key in known if "." in key})
    named = {
        (path.name, setting)
        for path in DOCUMENTS
        for setting in re.findall(rf"`(?:--config\.)?((?:{groups})\.\w+)(?:=[^`]*)?`", text(path))
        if not setting.endswith((".md", ".jsonl"))
    }
    assert len(named) > 20
    assert {setting for _, setting in named} <= known, sorted(named)


def test_every_default_named_in_the_choices_is_the_default():
    paper = cli.load_config(str(ROOT / "configs" / "csrs.py") + ":qwen2_5_vl_7b")
    defaults = flatten(paper.to_dict())
    table = text(ROOT / "docs" / "choices.md").split("## Ablations")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("|")]
    checked = 0
    for row in rows[2:]:
        for key, value in re.findall(r"`([a-z]+\.\w+)=([^`]+)`", row[2]):
            found = defaults[key]
            assert str(found).lower() == value or float(found) == float(value), key
            checked += 1
    assert checked > 12


def test_links_between_the_documents_lead_somewhere():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text(path)):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_files_and_folders_named_in_the_documents_exist():
    named = {
        name
        for path in DOCUMENTS
        for name in re.findall(r"`((?:jaxevolve|configs|scripts|tests)/[\w/.]*)`", text(path))
    }
    missing = [name for name in sorted(named) if not (ROOT / name).exists()]
    assert not missing
    packages = {path.parent.name for path in (ROOT / "jaxevolve").glob("*/__init__.py")}
    assert packages <= {name.split("/")[1] for name in named if name.startswith("jaxevolve/")}


def test_the_python_example_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (example,) = fenced(ROOT / "README.md", "python")
    names = {}
    exec(example, names)
    assert names["samples"].tokens.shape[:2] == (1, 8)
    assert len(names["answers"]) == 8
    assert capsys.readouterr().out


def test_constraints_are_exact_and_hold_no_address():
    lines = [line for line in text(ROOT / "constraints.txt").splitlines() if line[:1] != "#"]
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", line), line
    assert "torch==2.13.0" in lines
    pinned = {normal(line) for line in lines}
    assert len(pinned) == len(lines)
    assert {normal(name) for name in [*PROJECT["dependencies"], *TESTS]} <= pinned


@pytest.mark.parametrize(
    ("folders", "declared"),
    [
        (("jaxevolve", "configs", "scripts"), [*PROJECT["dependencies"], *MAPS]),
        (("tests",), [*PROJECT["dependencies"], *TESTS]),
    ],
    ids=["package", "tests"],
)
def test_what_is_imported_is_declared(folders, declared):
    assert not imported(folders) - {normal(name) for name in declared}


def test_what_is_declared_is_used():
    used = imported(("jaxevolve", "configs", "scripts")) | NOT_IMPORTED
    assert {normal(name) for name in PROJECT["dependencies"]} <= used
    assert {normal(name) for name in TESTS} <= used | imported(("tests",))


def test_scikit_learn_is_imported_where_a_map_is_drawn_alone():
    assert "sklearn" in names_imported("jaxevolve")
    assert "sklearn" not in names_imported("jaxevolve", ast.iter_child_nodes)


def test_peers_are_imported_by_the_comparisons_alone():
    assert names_imported("scripts/speed") >= PEERS
    assert not PEERS & (names_imported("jaxevolve") | names_imported("configs"))


def imported(folders):
    """Distributions that the files of some folders import, the peers of scripts/speed left out."""
    owners = importlib.metadata.packages_distributions()
    ours = {"jaxevolve", "configs", *(path.stem for path in (ROOT / "scripts").iterdir())}
    ours |= {path.stem for path in (ROOT / "tests").rglob("*.py")}
    names = set().union(*map(names_imported, folders))
    if "tests" not in folders:
        names -= PEERS
    unknown = names - set(sys.stdlib_module_names) - ours - set(owners)
    assert not unknown, f"imported and not installed: {unknown}"
    return {normal(owners[name][0]) for name in names if name in owners} - {"jaxevolve"}


def names_imported(folder, nodes=ast.walk):
    """Names of the packages that the files of a folder import, at the given nodes of each."""
    names = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in nodes(ast.parse(text(path))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module.split(".")[0])
    return names


def test_versions_agree_and_are_in_the_changelog():
    assert PROJECT["version"] == jaxevolve.__version__
    assert f"## {jaxevolve.__version__}" in text(ROOT / "CHANGELOG.md")
