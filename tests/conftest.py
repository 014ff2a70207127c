"""Makes the helper modules beside this file importable, and one tiny model that answers."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
# Nearly all of a test's time goes into compiling programs that run once: half of it is saved.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# Time is never asserted, and what compiles takes seconds once.
settings.register_profile("jaxevolve", deadline=None)
settings.load_profile("jaxevolve")


@pytest.fixture(scope="session")
def answering(tmp_path_factory):
    """The folder of the model of answerer.py; nobody writes to it."""
    import answerer

    return answerer.make_folder(tmp_path_factory.mktemp("answering") / "model")


@pytest.fixture(scope="session")
def policy(answering):
    """The same, loaded."""
    from jaxevolve.policy import load_policy

    return load_policy(answering)
