"""Further kinds of architecture: experts, state spaces, CTC, windows, conditioning by attention, sparse adjacency."""

from __future__ import annotations

import torch
from torch import nn

from tests.integrations.judging import Tensors, case
from tests.integrations.programs_models import gpt2_model, graph, numbers, placed, tokens, with_gradients

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def next_tokens(model: nn.Module, device: str) -> Tensors:
    """The logits, loss and gradients of a language model for a few tokens."""
    ids = tokens(2, 12).to(device)
    out = model(input_ids=ids, labels=ids)
    return with_gradients(model, out.loss, logits=out.logits)


@case("transformers", "T5: encoder and decoder, gradients")
def t5(device: str, dtype: torch.dtype) -> Tensors:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    model = placed(T5ForConditionalGeneration(config), device, dtype)
    out = model(input_ids=tokens(2, 12).to(device), labels=tokens(2, 7).to(device))
    return with_gradients(model, out.loss, logits=out.logits)


@case("transformers", "Mixtral: experts, gradients")
def mixtral(device: str, dtype: torch.dtype) -> Tensors:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    # Eager: torch's grouped products have no float64.
    config = MixtralConfig(num_key_value_heads=2, num_local_experts=4, experts_implementation="eager", **SMALL)
    return next_tokens(placed(MixtralForCausalLM(config), device, dtype), device)


@case("transformers", "Mamba: state space, gradients")
def mamba(device: str, dtype: torch.dtype) -> Tensors:
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(vocab_size=64, hidden_size=32, state_size=8, num_hidden_layers=2)
    return next_tokens(placed(MambaForCausalLM(config), device, dtype), device)


@case("transformers", "wav2vec 2.0: convolutions over sound, CTC loss, gradients")
def wav2vec2(device: str, dtype: torch.dtype) -> Tensors:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=20, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48,
        conv_dim=(16, 16, 16), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3), num_feat_extract_layers=3,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, hidden_dropout=0.0, attention_dropout=0.0,
        feat_proj_dropout=0.0, activation_dropout=0.0, final_dropout=0.0, layerdrop=0.0, apply_spec_augment=False,
        pad_token_id=0, ctc_loss_reduction="mean",
    )  # fmt: skip
    model = placed(Wav2Vec2ForCTC(config), device, dtype)
    labels = tokens(2, 5, vocabulary=20).to(device)
    out = model(input_values=numbers(2, 1000, dtype=dtype).to(device), labels=labels)
    return with_gradients(model, out.loss, logits=out.logits)


@case("transformers", "Swin: shifted windows, gradients")
def swin(device: str, dtype: torch.dtype) -> Tensors:
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(0)
    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, drop_path_rate=0.0,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=4,
    )  # fmt: skip
    model = placed(SwinForImageClassification(config), device, dtype)
    out = model(pixel_values=numbers(2, 3, 32, 32, dtype=dtype).to(device), labels=torch.tensor([0, 2]).to(device))
    return with_gradients(model, out.loss, logits=out.logits)


@case("diffusers", "UNet conditioned on text: gradients")
def conditioned_unet(device: str, dtype: torch.dtype) -> Tensors:
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    model = UNet2DConditionModel(
        sample_size=8, block_out_channels=(16, 32), layers_per_block=1, cross_attention_dim=16, norm_num_groups=4,
        attention_head_dim=4, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    model = placed(model, device, dtype)
    text = numbers(1, 7, 16, dtype=dtype).to(device)
    found = model(numbers(1, 4, 8, 8, dtype=dtype).to(device), torch.tensor([5]).to(device), text).sample
    return with_gradients(model, found.square().mean(), sample=found)


@case("peft", "DoRA on GPT-2: gradients of the adapters")
def dora(device: str, dtype: torch.dtype) -> Tensors:
    from peft import LoraConfig, get_peft_model

    base = gpt2_model()
    torch.manual_seed(3)
    options = {"target_modules": ["c_attn"], "fan_in_fan_out": True, "init_lora_weights": False}
    return next_tokens(placed(get_peft_model(base, LoraConfig(r=4, use_dora=True, **options)), device, dtype), device)


@case("torch-geometric", "Graph U-Net: pooling, products of sparse matrices, gradients")
def graph_unet(device: str, dtype: torch.dtype) -> Tensors:
    from torch_geometric.nn import GraphUNet

    torch.manual_seed(0)
    model: nn.Module = placed(GraphUNet(6, 8, 4, depth=2), device, dtype)
    edges, _ = graph()
    out = model(numbers(12, 6, dtype=dtype).to(device), edges.to(device))
    return with_gradients(model, out.square().sum(), out=out)
