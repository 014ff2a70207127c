"""The model against transformers in torch, float32, random weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from PIL import Image

torch = pytest.importorskip("torch")

from jaxevolve import load_policy  # noqa: E402
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL, head  # noqa: E402
from jaxevolve.models.qwen2_5_vl import unstacked as per_layer  # noqa: E402

# Image sizes in patches (height, width); a window is 8 x 8 patches.
GRIDS = {
    "one token": [(2, 2)],
    "under a window": [(4, 6)],
    "not a multiple of the window": [(18, 10)],
    "over a thousand patches": [(34, 36)],
    "two sizes in one prompt": [(6, 10), (12, 4)],
    "text only": [],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        tied: tiny.make_folder(root / f"tied_{tied}", tied=tied, seed=3) for tied in (True, False)
    }


def image(size, seed):
    height, width = size
    pixels = np.random.default_rng(seed).integers(0, 256, (height * 14, width * 14, 3), np.uint8)
    return Image.fromarray(pixels)


def row(grids):
    marks = "".join(f"<image> figure {i}. " for i in range(len(grids)))
    return {"question": f"{marks}Find x.", "images": [image(g, i) for i, g in enumerate(grids)]}


def reference_inputs(prompts, p, response):
    """Torch inputs of one prompt and response, with pixels normalized in float64."""
    tokens = np.concatenate([prompts.tokens[p, : prompts.length[p]], response])
    image_id = tiny.SPECIAL_ID["<|image_pad|>"]
    return {
        "input_ids": torch.tensor(tokens[None].astype(np.int64)),
        "attention_mask": torch.ones((1, len(tokens)), dtype=torch.long),
        "mm_token_type_ids": torch.tensor((tokens[None] == image_id).astype(np.int64)),
    }


def reference_logits(folder, rows, prompts, responses):
    """Logits that predict each response token, from transformers' own processing of the rows."""
    model, processor = tiny.reference_model(folder), tiny.reference_processor(folder)
    result = []
    for p, r in enumerate(rows):
        inputs = reference_inputs(prompts, p, responses[p])
        if r["images"]:
            pixels = processor.image_processor(images=r["images"], return_tensors="pt")
            inputs |= {k: pixels[k] for k in ("pixel_values", "image_grid_thw")}
        with torch.no_grad():
            logits = model(**inputs).logits[0].numpy()
        start = prompts.length[p] - 1
        result.append(logits[start : start + len(responses[p])])
    return np.stack(result)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_transformers_for_every_image_shape_in_one_batch(folders, tied):
    policy = load_policy(folders[tied])
    rows = [row(grids) for grids in GRIDS.values()]
    prompts = policy.prompts(rows)
    responses = np.random.default_rng(0).integers(0, 300, (len(rows), 7))
    forward = jax.jit(
        lambda p, x, y: Qwen2_5_VL.apply(policy.model, {"params": p}, x, y) @ head(p).T
    )
    ours = forward(policy.params, jax.tree.map(jnp.asarray, prompts), jnp.array(responses)[:, None])
    wanted = reference_logits(folders[tied], rows, prompts, responses)
    np.testing.assert_allclose(ours[:, 0], wanted, atol=1e-4)
    assert np.abs(wanted).max() > 1  # else closeness would say nothing


def test_a_row_does_not_depend_on_the_order_of_the_batch(folders):
    policy = load_policy(folders[False])
    rows = [row(grids) for grids in list(GRIDS.values())[1:]]
    tokens = np.random.default_rng(1).integers(0, 300, (len(rows), 1, 5))
    lengths = np.full((len(rows), 1), 5)
    one = policy.logprobs(policy.prompts(rows), tokens, lengths)
    other = policy.logprobs(policy.prompts(rows[::-1]), tokens[::-1], lengths)
    np.testing.assert_allclose(one, other[::-1], atol=1e-5)


def test_vision_features_equal_transformers_in_raster_order(folders):
    policy = load_policy(folders[False])
    grids = [(2, 2), (4, 6), (18, 10), (10, 22)]
    rows = [row([g]) for g in grids]
    prompts = policy.prompts(rows)
    features = policy.model.apply(
        {"params": policy.params}, jax.tree.map(jnp.asarray, prompts), method="encode"
    )
    model, processor = (
        tiny.reference_model(folders[False]),
        tiny.reference_processor(folders[False]),
    )
    for p, r in enumerate(rows):
        pixels = processor.image_processor(images=r["images"], return_tensors="pt")
        with torch.no_grad():
            wanted = model.model.get_image_features(**pixels).pooler_output[0].numpy()
        place = prompts.image_token[p]
        ours = np.asarray(features[p])[place[place >= 0]]
        np.testing.assert_allclose(ours, wanted, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_equal_torch_in_both_towers(folders, tied):
    policy = load_policy(folders[tied])
    r = row([(6, 10), (12, 4)])
    prompts = policy.prompts([r])
    response = np.random.default_rng(2).integers(0, 300, 6)

    def loss(params):
        x = jax.tree.map(jnp.asarray, prompts)
        hidden = policy.model.apply({"params": params}, x, jnp.array(response)[None, None])
        logprobs = jax.nn.log_softmax(hidden[0, 0] @ head(params).T)
        return -logprobs[jnp.arange(6), response].sum()

    ours = jax.grad(loss)(policy.params)
    model, processor = tiny.reference_model(folders[tied]), tiny.reference_processor(folders[tied])
    inputs = reference_inputs(prompts, 0, response)
    pixels = processor.image_processor(images=r["images"], return_tensors="pt")
    inputs |= {k: pixels[k] for k in ("pixel_values", "image_grid_thw")}
    start = prompts.length[0] - 1
    logits = torch.log_softmax(model(**inputs).logits[0, start : start + 6], -1)
    (-logits[torch.arange(6), torch.tensor(response)].sum()).backward()
    checked = 0
    for name, parameter in model.named_parameters():
        path = name.replace("model.visual.", "visual.").replace("language_model.", "")
        mine = ours
        for part in path.split("."):
            layered = part.isdigit() and "0" not in mine
            mine = jax.tree.map(lambda x, i=part: x[int(i)], mine) if layered else mine[part]
        wanted = parameter.grad.numpy()
        error = np.abs(np.asarray(mine) - wanted).max() / np.abs(wanted).max()
        assert error < 1e-3, f"{name}: {error}"
        checked += 1
    assert checked == len(list(model.parameters()))


def test_text_only_qwen2_5_equals_transformers(tmp_path):
    folder = tiny.make_folder(tmp_path / "text", vision=False)
    policy = load_policy(folder)
    prompts = policy.prompts([{"question": "Find x."}, {"question": "What is the angle at B?"}])
    response = np.random.default_rng(0).integers(0, 300, (2, 1, 6))
    ours = policy.logprobs(prompts, response, np.full((2, 1), 6))
    model = tiny.reference_model(folder, vision=False)
    for p in range(2):
        tokens = np.concatenate([prompts.tokens[p, : prompts.length[p]], response[p, 0]])
        with torch.no_grad():
            logits = torch.log_softmax(model(torch.tensor(tokens)[None].long()).logits[0], -1)
        start = prompts.length[p] - 1
        wanted = logits[start : start + 6].numpy()[np.arange(6), response[p, 0]]
        np.testing.assert_allclose(ours[p, 0], wanted, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_greedy_generation_equals_transformers_token_for_token(folders, tied):
    policy = load_policy(folders[tied])
    rows = [row([(4, 6)]), row([]), row([(6, 10), (12, 4)])]
    prompts = policy.prompts(rows)
    ours = policy.generate(prompts, n=1, temperature=0, max_tokens=32)
    model, processor = tiny.reference_model(folders[tied]), tiny.reference_processor(folders[tied])
    for p, r in enumerate(rows):
        inputs = reference_inputs(prompts, p, np.zeros(0, int))
        if r["images"]:
            pixels = processor.image_processor(images=r["images"], return_tensors="pt")
            inputs |= {k: pixels[k] for k in ("pixel_values", "image_grid_thw")}
        tokens = model.generate(
            **inputs,
            max_new_tokens=32,
            do_sample=False,
            suppress_tokens=policy.processor.banned_ids.tolist(),
            eos_token_id=list(policy.processor.stop_ids),
        )[0, prompts.length[p] :].numpy()
        assert ours.tokens[p, 0, : ours.lengths[p, 0]].tolist() == tokens.tolist()


def test_bfloat16_compute_is_finite_and_near(folders):
    full, half = load_policy(folders[False]), load_policy(folders[False], dtype="bfloat16")
    prompts = full.prompts([row([(6, 10)]), row([])])
    tokens = np.random.default_rng(1).integers(0, 300, (2, 2, 5))
    lengths = np.full((2, 2), 5)
    near = half.logprobs(prompts, tokens, lengths)
    assert np.isfinite(near).all()
    np.testing.assert_allclose(near, full.logprobs(prompts, tokens, lengths), atol=0.5)


def test_unrolled_and_scanned_layers_are_one_function(folders):
    policy = load_policy(folders[False])
    prompts = jax.tree.map(jnp.asarray, policy.prompts([row([(4, 6)])]))
    tokens = jnp.array([[[1, 2, 3]]])
    one = policy.model.apply({"params": policy.params}, prompts, tokens)
    other = policy.model.apply({"params": per_layer(policy.params)}, prompts, tokens)
    np.testing.assert_allclose(one, other, atol=1e-5)
