"""A processor of the tiny model, and the real rows where they are at hand."""

from pathlib import Path

import pytest
import tiny

REAL_ROWS = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def processor(tmp_path_factory):
    from jaxevolve.hf.config import read_config
    from jaxevolve.hf.processor import load_processor

    folder = tmp_path_factory.mktemp("model")
    tiny.torch_config().save_pretrained(folder)
    tiny.make_tokenizer(folder)
    tiny.write_json(folder / "preprocessor_config.json", tiny.preprocessor_config())
    tiny.write_json(folder / "generation_config.json", {"eos_token_id": [tiny.EOS, tiny.PAD]})
    return load_processor(folder, read_config(folder))


@pytest.fixture(scope="session")
def real_rows():
    if not REAL_ROWS.is_dir():
        pytest.skip(f"the real rows are not at hand ({REAL_ROWS})")
    return REAL_ROWS
