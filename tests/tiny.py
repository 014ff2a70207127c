"""A tiny random Qwen2.5-VL in Hugging Face layout, and reference implementations to test against.

    folder = tiny.make_folder(tmp_path / "model", tied=False, seed=0, vision=True)
    model = tiny.reference_model(folder)            # transformers' own classes in torch, float32
    processor = tiny.reference_processor(folder)    # transformers' Qwen2_5_VLProcessor, no video

Vision: 3 layers (layer 1 has full attention), width 32, 2 heads, patch 14, merge 2, window 112, so
4 x 4 merged units. Text: 2 layers, width 64, 4 heads, 2 key-value heads of 16, mrope_section
[2, 3, 3]. Weights are drawn wide (0.15) and norms are moved away from 1, so that a wrong head,
section, window or scale shows in the logits. Embedding rows outnumber the tokenizer's ids, as in
the released models. Needs torch: call `pytest.importorskip("torch")` first. Run with
OMP_NUM_THREADS=1 on a small machine.
"""

import json
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TEXT_VOCAB = 300
SPECIAL_ID = {token: TEXT_VOCAB + i for i, token in enumerate(SPECIALS)}
EOS, PAD = SPECIAL_ID["<|im_end|>"], SPECIAL_ID["<|endoftext|>"]
CORPUS = [
    "In the figure, find the length of the side x of the triangle ABC.",
    "What is the angle at B? The answer is \\boxed{41^\\circ}.",
    "You are a helpful assistant. user system assistant 0123456789 + - * / = ( ) { }",
]


def make_tokenizer(path: str | Path, chat_template: bool = True) -> None:
    """Writes a byte-level BPE of 300 ids plus Qwen's special tokens, and the chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from jaxevolve.hf.chat import QWEN2_5_VL_TEMPLATE

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_VOCAB,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    if chat_template:
        fast.chat_template = QWEN2_5_VL_TEMPLATE
    fast.save_pretrained(path)
    assert fast.convert_tokens_to_ids("<|image_pad|>") == SPECIAL_ID["<|image_pad|>"]


def torch_config(tied: bool = False, vision: bool = True, vocab: int = 384):
    """The tiny model's transformers config."""
    from transformers import Qwen2_5_VLConfig, Qwen2Config

    text = dict(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        max_position_embeddings=4096,
        bos_token_id=PAD,
        eos_token_id=EOS,
    )
    if not vision:
        rope = {"rope_type": "default", "rope_theta": 1e4}
        return Qwen2Config(**text, rope_parameters=rope, tie_word_embeddings=tied)
    text["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 1e6,
        "mrope_section": [2, 3, 3],
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=dict(
            depth=3,
            hidden_size=32,
            intermediate_size=40,
            num_heads=2,
            out_hidden_size=64,
            window_size=112,
            fullatt_block_indexes=[1],
        ),
        image_token_id=SPECIAL_ID["<|image_pad|>"],
        video_token_id=SPECIAL_ID["<|video_pad|>"],
        vision_start_token_id=SPECIAL_ID["<|vision_start|>"],
        vision_end_token_id=SPECIAL_ID["<|vision_end|>"],
        tie_word_embeddings=tied,
    )


def make_folder(
    path: str | Path,
    tied: bool = False,
    seed: int = 0,
    vision: bool = True,
    vocab: int = 384,
    max_pixels: int = 28 * 28 * 1280,
    dtype: str = "float32",
    max_shard_size: str = "5GB",
) -> Path:
    """Writes a random model with tokenizer, chat template, image processor and generation config.

    Args:
        path: the folder to make.
        tied: whether the head is the embedding (then no lm_head is written).
        seed: of the weights.
        vision: False writes a text-only `qwen2`.
        vocab: rows of the embedding, at least 308.
        max_pixels: the image processor's limit.
        dtype: of the weights on disk, "float32" or "bfloat16".
        max_shard_size: of the weight files, as transformers spells it.

    Returns:
        The folder.
    """
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2ForCausalLM

    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    kind = Qwen2_5_VLForConditionalGeneration if vision else Qwen2ForCausalLM
    model = kind(torch_config(tied, vision, vocab))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name or "ln_q" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif "embed_tokens" in name:
                parameter.copy_((0.15 if tied else 0.5) * noise)
            else:
                parameter.copy_(0.15 * noise)
    model.to(getattr(torch, dtype)).save_pretrained(path, max_shard_size=max_shard_size)
    make_tokenizer(path)
    write_json(
        path / "generation_config.json",
        {"eos_token_id": [EOS, PAD], "pad_token_id": PAD, "bos_token_id": PAD, "do_sample": True},
    )
    if vision:
        write_json(path / "preprocessor_config.json", preprocessor_config(max_pixels))
    return path


def preprocessor_config(max_pixels: int = 28 * 28 * 1280) -> dict:
    """preprocessor_config.json with the keys of the released models."""
    return {
        "min_pixels": 56 * 56,
        "max_pixels": max_pixels,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
    }


def reference_model(folder: str | Path, vision: bool = True):
    """The folder's model in torch, float32, evaluation mode, plain attention."""
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2ForCausalLM

    kind = Qwen2_5_VLForConditionalGeneration if vision else Qwen2ForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def reference_processor(folder: str | Path):
    """Transformers' Qwen2_5_VLProcessor; its video half, which needs torchvision, is left out."""
    from transformers import AutoTokenizer, Qwen2_5_VLProcessor, Qwen2VLImageProcessorPil

    class StillProcessor(Qwen2_5_VLProcessor):
        def __init__(self, image_processor=None, tokenizer=None, chat_template=None, **kwargs):
            super().__init__(
                image_processor=image_processor,
                tokenizer=tokenizer,
                video_processor=None,
                chat_template=chat_template,
                **kwargs,
            )

        @classmethod
        def get_attributes(cls):
            return ["image_processor", "tokenizer"]

        def check_argument_for_proper_class(self, name, argument):
            return type(argument)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return StillProcessor(
        image_processor=Qwen2VLImageProcessorPil.from_pretrained(folder),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )


def flat_config(nested: dict) -> dict:
    """config.json of transformers 5.24, respelled as in the released models (transformers 4.41)."""
    text = dict(nested["text_config"])
    rope = text.pop("rope_parameters")
    vision = dict(nested["vision_config"])
    vision["in_chans"] = vision.pop("in_channels")
    vision["spatial_patch_size"] = vision["patch_size"]
    for key in ("model_type", "rope_parameters", "dtype"):
        vision.pop(key, None)
    for key in ("model_type", "dtype", "layer_types"):
        text.pop(key, None)
    return {
        **{k: v for k, v in nested.items() if k not in ("text_config", "vision_config", "dtype")},
        **text,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
        "vision_config": vision,
        "torch_dtype": nested["dtype"],
    }


def read_json(path: str | Path) -> dict:
    """A JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def write_json(path: str | Path, value: dict) -> None:
    """Writes a JSON file."""
    Path(path).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
