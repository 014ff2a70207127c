"""Tiny folders that several test files read; nobody writes to them."""

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """An untied model, its weights in one file."""
    pytest.importorskip("torch")
    import tiny

    return tiny.make_folder(tmp_path_factory.mktemp("models") / "untied")


@pytest.fixture(scope="session")
def tied_folder(tmp_path_factory):
    """A tied model, its weights in several files."""
    pytest.importorskip("torch")
    import tiny

    path = tmp_path_factory.mktemp("models") / "tied"
    return tiny.make_folder(path, tied=True, seed=1, max_shard_size="200KB")


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    """A text-only qwen2."""
    pytest.importorskip("torch")
    import tiny

    return tiny.make_folder(tmp_path_factory.mktemp("models") / "text", vision=False)
