"""Embeddings against transformers' own BERT, and what hashed n-grams tell apart."""

import re
import sys

import numpy as np
import pytest
import tiny

from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.sentences import PACKAGE, WORD, embed, hashed_ngrams, spread

TEXTS = ["the sum is 180", "so x = 40 .", "the sum is 180 so x = 40", "the " * 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random BERT in Hugging Face layout."""
    torch = pytest.importorskip("torch")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    path = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "sum", "is", "180", "so", "x", "=", "40"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=16,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(path)
    return path


def test_a_bert_gives_the_states_that_transformers_gives(folder):
    torch = pytest.importorskip("torch")
    from tokenizers import Tokenizer
    from transformers import BertModel

    model = BertModel.from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(16)
    expected = []
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            expected.append(model(ids).last_hidden_state[0].mean(0).numpy())
    expected = np.stack(expected)
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    found, name = embed(TEXTS, str(folder))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert name == folder.name


def test_a_folder_that_is_no_bert_is_refused(tmp_path, folder):
    with pytest.raises(UserError, match=r"nowhere cannot be read .* --encoder=ngrams"):
        embed(TEXTS, str(tmp_path / "nowhere"))
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = tiny.read_json(tmp_path / "config.json") | {"model_type": "gpt2"}
    tiny.write_json(tmp_path / "config.json", config)
    with pytest.raises(UserError, match="is a gpt2, not a bert"):
        embed(TEXTS, str(tmp_path))


def test_n_grams_know_order_and_not_case():
    made = hashed_ngrams(["The sum is 180", "the sum is 180", "180 is sum the", "x = 40", ""])
    np.testing.assert_allclose(np.linalg.norm(made[:4], axis=-1), 1, rtol=1e-6)
    alike = made @ made.T
    assert alike[0, 1] == pytest.approx(1)
    assert alike[0, 3] < alike[0, 2] < 0.9
    assert not made[4].any()
    assert re.findall(WORD, "∠ABC_1 = 3.5°") == ["∠", "ABC", "_", "1", "=", "3", ".", "5", "°"]


def test_without_minilm_n_grams_stand_in_and_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    found, name = embed(TEXTS)
    np.testing.assert_array_equal(found, embed(TEXTS, "ngrams")[0])
    assert name == "hashed n-grams of words (the extra embeddings has MiniLM)"


def test_the_spread_of_a_source_does_not_depend_on_how_much_is_drawn():
    numbers = np.random.default_rng(0)
    few, many = (
        np.mean([spread(numbers.normal(size=(n, 50))) for _ in range(50)]) for n in (8, 40)
    )
    assert few == pytest.approx(many, rel=0.02)
    assert spread(np.ones((3, 2))) == 0
