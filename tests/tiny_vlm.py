"""A random Qwen3-VL of a hundred thousand parameters and its processor, built in seconds without a hub.

It carries the chat template that TRL recognises by its exact text. Qwen3-VL's own processor wants one for videos, which
needs torchvision; that of PaddleOCR-VL makes the same of still images, and is loaded by name like any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tiny_policy import CONTEXT_LENGTH, build_tokenizer, read_template

__all__ = ["IMAGE_TOKEN", "build_tiny_vlm"]

IMAGE_TOKEN = "<|image_pad|>"
_VISION_TOKENS = {
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
    "image_token": IMAGE_TOKEN,
    "video_token": "<|video_pad|>",
}
_PATCH_SIZE = 4
_MERGE_SIZE = 2


def build_tiny_vlm(folder: Path, *, seed: int = 0) -> Path:
    """Save model and processor to the folder, which transformers and TRL take as a model's name."""
    import torch
    from transformers import Qwen3VLForConditionalGeneration

    processor = _build_processor()
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(_configure(processor.tokenizer))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _configure(tokenizer: Any) -> Any:
    from transformers import Qwen3VLConfig

    start, end, image, video = tokenizer.convert_tokens_to_ids(list(_VISION_TOKENS.values()))
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": CONTEXT_LENGTH,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.08,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 32,
        "patch_size": _PATCH_SIZE,
        "spatial_merge_size": _MERGE_SIZE,
        "temporal_patch_size": 2,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )


def _build_processor() -> Any:
    """Images of up to 16 tokens."""
    from transformers import PaddleOCRVLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    side = _PATCH_SIZE * _MERGE_SIZE
    images = Qwen2VLImageProcessorPil(
        patch_size=_PATCH_SIZE,
        merge_size=_MERGE_SIZE,
        temporal_patch_size=2,
        min_pixels=4 * side**2,
        max_pixels=16 * side**2,
        return_tensors="pt",
    )
    template = read_template("qwen3_vl")
    tokenizer = build_tokenizer(template, named_tokens=_VISION_TOKENS)
    return PaddleOCRVLProcessor(image_processor=images, tokenizer=tokenizer, chat_template=template)
