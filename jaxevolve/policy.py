"""A model, its parameters and its processor in one hand: what a notebook uses.

The methods call the pure functions that training compiles.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxevolve.hf.config import read_config
from jaxevolve.hf.processor import Processor, load_processor
from jaxevolve.hf.weights import load_params
from jaxevolve.models.config import Config
from jaxevolve.models.inputs import Prompts
from jaxevolve.models.logprobs import token_logprobs
from jaxevolve.models.lora import init_adapters, merge
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL, head, init_params
from jaxevolve.objectives import response_mask
from jaxevolve.rollout.generate import Responses, generate
from jaxevolve.rollout.sampling import Sampling
from jaxevolve.runtime import checkpoint

# (path of a parameter, its shape) -> where it goes; None, in either place: the default device.
Place = Callable[[str, tuple[int, ...]], jax.sharding.Sharding | None] | None
ROWS, CHUNK = 128, 16  # most responses decoded together; tokens between two looks from the host
WIDTH = 8  # responses of a prompt that there is room for at least: a smaller n needs no program


@dataclass(frozen=True)
class Samples:
    """Responses to P prompts, n each.

    Attributes:
        texts: [P][n] strings, without stop ids.
        tokens: i32[P, n, L].
        lengths: i32[P, n], the stop id included.
        logprobs: f32[P, n, L], as sampled.
        stopped: bool[P, n]; False where the length limit cut a response.
    """

    texts: list[list[str]]
    tokens: np.ndarray
    lengths: np.ndarray
    logprobs: np.ndarray
    stopped: np.ndarray


@dataclass(frozen=True, eq=False)
class Policy:
    """A model that can be sampled from.

    Attributes:
        model: the Linen module; `model.apply({"params": params}, ...)` is the forward pass.
        params: its parameters.
        processor: rows to prompts, tokens to text.
    """

    model: Qwen2_5_VL
    params: Any
    processor: Processor

    def prompts(self, rows: Sequence[Mapping[str, Any]], instruction: str = "") -> Prompts:
        """Makes a batch of prompts.

        Args:
            rows: P mappings with "question", and optionally "images" (images, paths or encoded
                bytes, none or several) and "id". `<image>` in the question marks an image's place.
            instruction: text after every question.
        """
        return self.processor.prompts(rows, instruction)

    def generate(
        self,
        prompts: Prompts,
        *,
        n: int = 1,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        max_tokens: int = 64,
        seed: int = 0,
    ) -> Samples:
        """Samples n responses a prompt; temperature 0 is greedy.

        A sample depends on the seed, its prompt and its number in the group, and on nothing that
        stands beside it in the batch.
        """
        responses, _ = generate(
            self.model,
            self.params,
            prompts,
            n=n,
            max_tokens=max_tokens,
            key=step_key(seed, 0),
            temperature=temperature,
            rules=sampling_rules(self.processor, top_p, top_k),
            # A power of two: calls of about the same size share their programs.
            rows=min(ROWS, max(WIDTH, 1 << (n * len(prompts.length) - 1).bit_length())),
            # Greedy answers have a program of their own; other small groups share theirs.
            width=max(n, WIDTH) if n > 1 else 1,
            fewest=1 << (n.bit_length() - 1),
            chunk=CHUNK,
        )
        return read(self.processor, responses)

    def logprobs(
        self, prompts: Prompts, tokens: Any, lengths: Any, temperature: float = 1.0
    ) -> np.ndarray:
        """Log-probabilities of given responses, all tokens in parallel.

        Args:
            prompts: P prompts.
            tokens: i32[P, G, L].
            lengths: i32[P, G].
            temperature: what logits are divided by; that of sampling to compare with a sample's.

        Returns:
            f32[P, G, L], 0 after a response's end.
        """
        prompts, tokens = jax.tree.map(jnp.asarray, (prompts, tokens))
        values = _logprobs(self.model, self.params, prompts, tokens, temperature)
        return np.asarray(jnp.where(response_mask(lengths, tokens.shape[-1]), values, 0.0))


@jax.jit(static_argnames=("model", "temperature"))
def _logprobs(
    model: Qwen2_5_VL, params: Any, prompts: Prompts, tokens: jax.Array, temperature: float
) -> jax.Array:
    hidden = model.apply({"params": params}, prompts, tokens)
    return token_logprobs(hidden, head(params), tokens, temperature)[0]


def load_policy(
    folder: str | Path,
    dtype: str = "float32",
    place: Place = None,
) -> Policy:
    """Loads a Hugging Face folder or one of our checkpoints.

    Args:
        folder: a model folder; a work directory, its checkpoints/ or one checkpoint of it.
        dtype: of the parameters.
        place: (path, shape) -> where a parameter goes; the default device if None.

    Raises:
        UserError: something is missing or does not fit, by name.
    """
    processor = load_model_processor(folder)
    params = load_model_params(processor, dtype, place)
    return Policy(Qwen2_5_VL(processor.config), params, processor)


def load_model_processor(folder: str | Path) -> Processor:
    """The part of `load_policy` that reads no weights: the processor, which knows the config."""
    folder = Path(folder)
    if checkpoint.is_run(folder):
        folder = checkpoint.find(folder)
    return load_processor(folder, read_config(folder))


def load_model_params(processor: Processor, dtype: str = "float32", place: Place = None) -> Any:
    """The other part: the parameters of the folder or checkpoint that a processor is of."""
    if checkpoint.is_run(processor.folder):
        return _from_checkpoint(processor.folder, processor.config, dtype, place)
    return load_params(processor.folder, processor.config, dtype, place)


def _from_checkpoint(folder: Path, config: Config, dtype: str, place: Place) -> Any:
    """The parameters of a checkpoint; adapters are merged into the model that they adapt."""
    lora = checkpoint.read_meta(folder).get("lora")
    shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    if lora:
        key = jax.random.key(0)
        adapters = partial(init_adapters, rank=lora["rank"], targets=lora["targets"], key=key)
        shapes = jax.eval_shape(adapters, shapes)

    def wanted(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        where = place(name, leaf.shape) if place else SingleDeviceSharding(jax.local_devices()[0])
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    abstract = jax.tree_util.tree_map_with_path(wanted, shapes)
    params = checkpoint.load(folder, {"params": abstract})[0]["params"]
    if lora:
        base = load_policy(lora["base"], dtype, place).params
        return merge(base, params, lora["scale"])
    return jax.tree.map(lambda x: x.astype(dtype), params)


def sampling_rules(processor: Processor, top_p: float, top_k: int) -> Sampling:
    """Sampling rules with the stop ids and banned ids of a model's folder."""
    return Sampling(top_p, top_k, processor.stop_ids, tuple(map(int, processor.banned_ids)))


def step_key(seed: int, step: int) -> jax.Array:
    """The key of one step: with phase, sample id and member, all that a response depends on."""
    return jax.random.fold_in(jax.random.key(seed), step)


def read(processor: Processor, responses: Responses) -> Samples:
    """Makes responses text."""
    texts = [
        [processor.decode(tokens[:length]) for tokens, length in zip(group, lengths)]
        for group, lengths in zip(responses.tokens, responses.lengths)
    ]
    return Samples(
        texts, responses.tokens, responses.lengths, responses.logprobs, responses.stopped
    )
