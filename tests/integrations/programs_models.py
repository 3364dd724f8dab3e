"""Models of transformers, timm, diffusers, peft and torch-geometric, with random weights of tiny configurations."""

from __future__ import annotations

from contextvars import ContextVar

import torch
from torch import nn

from tests.integrations.judging import Tensors, case


def tokens(*shape: int, vocabulary: int = 64) -> torch.Tensor:
    return torch.randint(1, vocabulary, shape, generator=torch.Generator().manual_seed(1))


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers that are the same in every dtype."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype)


#: Whether models on the device are compiled.
COMPILED: ContextVar[bool] = ContextVar("COMPILED", default=False)


def placed(model: nn.Module, device: str, dtype: torch.dtype) -> nn.Module:
    model = model.to(device=device, dtype=dtype)
    if COMPILED.get() and device != "cpu":
        model.compile(backend="bringup")
    return model


def with_gradients(model: nn.Module, loss: torch.Tensor, **results: torch.Tensor) -> Tensors:
    """The results, the loss and the gradient of every parameter that has one."""
    loss.backward()
    gradients = {
        f"gradient of {name}": parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    assert gradients
    return {"loss": loss.detach(), **{name: result.detach() for name, result in results.items()}, **gradients}


@case("transformers", "BERT: masked language model, gradients")
def bert(device: str, dtype: torch.dtype) -> Tensors:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = placed(BertForMaskedLM(config), device, dtype)
    ids = tokens(2, 12).to(device)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    out = model(input_ids=ids, attention_mask=mask.to(device), labels=ids)
    return with_gradients(model, out.loss, logits=out.logits)


def gpt2_model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_positions=48, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


@case("transformers", "GPT-2: loss, gradients")
def gpt2(device: str, dtype: torch.dtype) -> Tensors:
    model = placed(gpt2_model(), device, dtype)
    ids = tokens(2, 16).to(device)
    out = model(input_ids=ids, labels=ids)
    return with_gradients(model, out.loss, logits=out.logits)


def generated(model: nn.Module, device: str, **inputs: torch.Tensor | object) -> Tensors:
    placed_inputs = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()
    }
    with torch.no_grad():
        out = model.eval().generate(
            **placed_inputs, max_new_tokens=8, do_sample=False, return_dict_in_generate=True, output_logits=True,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    return {"tokens": out.sequences, "logits": torch.stack(out.logits)}


@case("transformers", "GPT-2: greedy generate")
def gpt2_generate(device: str, dtype: torch.dtype) -> Tensors:
    return generated(placed(gpt2_model(), device, dtype), device, input_ids=tokens(2, 5))


@case("transformers", "GPT-2: beam search")
def gpt2_beams(device: str, dtype: torch.dtype) -> Tensors:
    model = placed(gpt2_model(), device, dtype).eval()
    with torch.no_grad():
        ids = tokens(2, 5).to(device)
        found = model.generate(input_ids=ids, max_new_tokens=6, num_beams=3, do_sample=False, pad_token_id=0)
    return {"tokens": found}


@case("transformers", "Llama: generate with a static cache")
def llama_static_cache(device: str, dtype: torch.dtype) -> Tensors:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = placed(LlamaForCausalLM(config), device, dtype)
    return generated(model, device, input_ids=tokens(2, 5), cache_implementation="static")


@case("transformers", "ViT: classification, gradients")
def vit(device: str, dtype: torch.dtype) -> Tensors:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=5,
    )  # fmt: skip
    model = placed(ViTForImageClassification(config), device, dtype)
    out = model(pixel_values=numbers(2, 3, 32, 32, dtype=dtype).to(device), labels=torch.tensor([1, 3]).to(device))
    return with_gradients(model, out.loss, logits=out.logits)


def whisper_model() -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(  # thirty seconds of sound, as in the real models: 80 x 3000 in, 1500 positions
        vocab_size=64, num_mel_bins=80, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64, dropout=0.0,
        max_source_positions=1500, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, begin_suppress_tokens=None, suppress_tokens=None,
    )  # fmt: skip
    return WhisperForConditionalGeneration(config)


@case("transformers", "Whisper: loss of 80 x 3000 features, gradients")
def whisper(device: str, dtype: torch.dtype) -> Tensors:
    model = placed(whisper_model(), device, dtype)
    out = model(input_features=numbers(1, 80, 3000, dtype=dtype).to(device), labels=tokens(1, 6).to(device))
    return with_gradients(model, out.loss, logits=out.logits)


@case("transformers", "Whisper: generate")
def whisper_generate(device: str, dtype: torch.dtype) -> Tensors:
    model = placed(whisper_model(), device, dtype).eval()
    with torch.no_grad():
        features = numbers(1, 80, 3000, dtype=dtype).to(device)
        found = model.generate(input_features=features, max_new_tokens=5, do_sample=False)
    return {"tokens": found}


@case("timm", "ResNet-10t: training step with batch norm")
def timm_resnet(device: str, dtype: torch.dtype) -> Tensors:
    import timm

    torch.manual_seed(0)
    model = placed(timm.create_model("resnet10t", pretrained=False, num_classes=5), device, dtype).train()
    logits = model(numbers(4, 3, 64, 64, dtype=dtype).to(device))
    loss = nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 3]).to(device))
    return with_gradients(model, loss, logits=logits)


@case("timm", "ConvNeXt: forward, gradients")
def timm_convnext(device: str, dtype: torch.dtype) -> Tensors:
    import timm

    torch.manual_seed(0)
    options = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32), "num_classes": 5}
    model = placed(timm.create_model("convnext_atto", pretrained=False, **options), device, dtype)
    logits = model(numbers(2, 3, 64, 64, dtype=dtype).to(device))
    return with_gradients(model, logits.square().mean(), logits=logits)


@case("timm", "Vision transformer: forward, gradients")
def timm_vit(device: str, dtype: torch.dtype) -> Tensors:
    import timm

    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
    model = placed(timm.create_model("vit_tiny_patch16_224", pretrained=False, **options), device, dtype)
    logits = model(numbers(2, 3, 32, 32, dtype=dtype).to(device))
    return with_gradients(model, logits.square().mean(), logits=logits)


def unet_model() -> nn.Module:
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(16, 32),
        norm_num_groups=4, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8,
    )  # fmt: skip


@case("diffusers", "UNet: noise prediction, gradients")
def unet(device: str, dtype: torch.dtype) -> Tensors:
    model = placed(unet_model(), device, dtype)
    found = model(numbers(2, 3, 16, 16, dtype=dtype).to(device), torch.tensor([3, 17]).to(device)).sample
    return with_gradients(model, found.square().mean(), sample=found)


@case("diffusers", "UNet: three steps of denoising")
def denoising(device: str, dtype: torch.dtype) -> Tensors:
    from diffusers import DDIMScheduler

    model = placed(unet_model(), device, dtype).eval()
    scheduler = DDIMScheduler(num_train_timesteps=100)
    scheduler.set_timesteps(3, device=device)
    image = numbers(1, 3, 16, 16, dtype=dtype).to(device)
    with torch.no_grad():
        for step in scheduler.timesteps:
            image = scheduler.step(model(image, step).sample, step, image).prev_sample
    return {"image": image}


@case("diffusers", "AutoencoderKL: encode, decode, gradients")
def autoencoder(device: str, dtype: torch.dtype) -> Tensors:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    model = AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(16, 32), norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, layers_per_block=1,
    )  # fmt: skip
    model = placed(model, device, dtype)
    image = numbers(1, 3, 16, 16, dtype=dtype).to(device)
    latent = model.encode(image).latent_dist.mode()
    found = model.decode(latent).sample
    return with_gradients(model, (found - image).square().mean(), latent=latent, image=found)


@case("peft", "LoRA on GPT-2: gradients of the adapters, merged weights")
def lora(device: str, dtype: torch.dtype) -> Tensors:
    from peft import LoraConfig, get_peft_model

    base = gpt2_model()
    torch.manual_seed(3)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    model = placed(get_peft_model(base, config), device, dtype)
    ids = tokens(2, 12).to(device)
    out = model(input_ids=ids, labels=ids)
    found = with_gradients(model, out.loss, logits=out.logits)
    assert all("lora" in name for name in found if name.startswith("gradient"))
    merged = model.merge_and_unload()
    return {**found, "merged": merged.transformer.h[0].attn.c_attn.weight.detach()}


def graph() -> tuple[torch.Tensor, torch.Tensor]:
    """Edges of twelve nodes, and the graph that each node is in."""
    found = torch.randint(0, 12, (2, 40), generator=torch.Generator().manual_seed(4))
    return found, torch.tensor([0] * 7 + [1] * 5)


@case("torch-geometric", "GCN and GAT layers, pooling: gradients")
def graph_network(device: str, dtype: torch.dtype) -> Tensors:
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_max_pool, global_mean_pool

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = GCNConv(6, 8), GATConv(8, 4, heads=2), SAGEConv(8, 8)

        def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            x = self.first(x, edges).relu()
            x = self.third(self.second(x, edges).relu(), edges)
            return torch.cat([global_mean_pool(x, batch), global_max_pool(x, batch)], 1)

    torch.manual_seed(0)
    model = placed(Network(), device, dtype)
    edges, batch = (part.to(device) for part in graph())
    out = model(numbers(12, 6, dtype=dtype).to(device), edges, batch)
    return with_gradients(model, out.square().sum(), out=out)
