"""Whole models of transformers, forward and backward, against the CPU."""

import copy
import sys
from pathlib import Path

import pytest
import torch
import transformers
from against_cpu import DEVICE, assert_same

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import sentence_embeddings
import train_llama

IDS = torch.randint(3, 90, (2, 11), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS)
MASK[1, 8:] = 0
SIZES = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA_LIKE = {**SIZES, "num_key_value_heads": 2, "head_dim": 12}


def images(size=32):
    return {"pixel_values": torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))}


TEXT = {"input_ids": IDS, "attention_mask": MASK}
CAUSAL = {**TEXT, "labels": IDS}
CLASSES = {"labels": torch.tensor([1, 0])}

# Class, sizes of its configuration, inputs.
MODELS = {
    "bert": ("BertForSequenceClassification", SIZES, TEXT | CLASSES),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"vocab_size": 96, "dim": 48, "hidden_dim": 80, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
        CAUSAL,
    ),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 96, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}, CAUSAL),
    "opt": ("OPTForCausalLM", SIZES | {"ffn_dim": 80, "word_embed_proj_dim": 48}, CAUSAL),
    "llama": ("LlamaForCausalLM", LLAMA_LIKE, CAUSAL),
    "qwen3": ("Qwen3ForCausalLM", LLAMA_LIKE, CAUSAL),
    "gemma2": ("Gemma2ForCausalLM", LLAMA_LIKE, CAUSAL),
    "mixtral": ("MixtralForCausalLM", LLAMA_LIKE | {"num_local_experts": 4}, CAUSAL),
    "t5": (
        "T5ForConditionalGeneration",
        {
            "vocab_size": 96,
            "d_model": 48,
            "d_kv": 12,
            "d_ff": 80,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        CAUSAL,
    ),
    "bart": (
        "BartForConditionalGeneration",
        {"vocab_size": 96, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 64}
        | {
            f"{half}_{what}": value
            for half in ("encoder", "decoder")
            for what, value in (("attention_heads", 4), ("ffn_dim", 80))
        },
        CAUSAL,
    ),
    "vit": ("ViTForImageClassification", SIZES | {"image_size": 32, "patch_size": 8}, images() | CLASSES),
    "resnet": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        images() | CLASSES,
    ),
    "mamba": (
        "MambaForCausalLM",
        {"vocab_size": 96, "hidden_size": 48, "state_size": 8, "num_hidden_layers": 2, "pad_token_id": 0},
        {"input_ids": IDS, "labels": IDS},
    ),
}


def build(name):
    """The model on the CPU, without dropout, and the same on the device."""
    cls, sizes, inputs = MODELS[name]
    cls = getattr(transformers, cls)
    config = cls.config_class(**sizes)
    for key, value in config.to_dict().items():
        if "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0)
    torch.manual_seed(0)
    model = cls(config).train()
    return model, copy.deepcopy(model).to(DEVICE), inputs


def backward(model, inputs):
    """Loss, and the gradient of each parameter by name."""
    result = model(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
    result.loss.backward()
    return result.loss, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_those_of_the_cpu(name):
    on_cpu, on_device, inputs = build(name)
    assert_same(backward(on_device, inputs), backward(on_cpu, inputs), tolerance=(2e-3, 2e-5))


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "t5"])
def test_greedy_generation_is_that_of_the_cpu(name):
    models = build(name)[:2]
    got = {}
    for model in models:
        model.eval()
        inputs = {key: tensor.to(model.device) for key, tensor in TEXT.items()}
        inputs = {key: tensor[:1] for key, tensor in inputs.items()}
        with torch.inference_mode():
            tokens = model.generate(**inputs, max_new_tokens=12, min_new_tokens=12, do_sample=False)
        got[model.device.type] = tokens.tolist()
    assert got[DEVICE] == got["cpu"]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_implementations_agree(implementation):
    on_cpu, on_device, inputs = build("llama")
    on_device.set_attn_implementation(implementation)
    assert_same(backward(on_device, inputs), backward(on_cpu, inputs), tolerance=(2e-3, 2e-5))


def test_sentence_embeddings_run_on_the_device_alone(no_fallback):
    want = sentence_embeddings.embed(*sentence_embeddings.load("cpu"), sentence_embeddings.SENTENCES)
    got = sentence_embeddings.embed(*sentence_embeddings.load(DEVICE), sentence_embeddings.SENTENCES)
    assert_same(got, want, tolerance=(1e-4, 1e-5))


def test_training_and_generation_run_on_the_device_alone(no_fallback):
    losses, texts = {}, {}
    for device in (DEVICE, "cpu"):
        model = train_llama.build(device)
        data = train_llama.batches(train_llama.corpus(), size=2, length=64)
        losses[device] = torch.tensor([*train_llama.train(model, data, 6)])
        texts[device] = train_llama.write(model, "We the People", 16).tolist()
    torch.testing.assert_close(losses[DEVICE], losses["cpu"], rtol=1e-4, atol=1e-4)
    assert texts[DEVICE] == texts["cpu"]


def test_moving_a_model_keeps_its_parameters():
    """Weights that are tied stay tied, and an optimizer made before the move steps what the model has."""
    model = build("gpt2")[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to(DEVICE)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}
    model.to("cpu")
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_trains(dtype):
    on_cpu, on_device, inputs = build("llama")
    with torch.autocast(DEVICE, dtype=dtype):
        got = backward(on_device, inputs)
    want = backward(on_cpu, inputs)
    assert torch.isclose(got[0].cpu(), want[0], rtol=2e-2)
    for name, gradient in want[1].items():
        similar = torch.nn.functional.cosine_similarity(got[1][name].cpu().flatten(), gradient.flatten(), dim=0)
        assert similar > 0.98, name


def test_checkpointed_layers_redraw_the_same_dropout():
    def gradients(checkpoint):
        model = build("llama")[1]
        for layer in model.model.layers:
            layer.mlp = torch.nn.Sequential(layer.mlp, torch.nn.Dropout(0.3))
        if checkpoint:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(3)
        return [*backward(model, CAUSAL)[1].values()]

    for plain, checkpointed in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(plain, checkpointed, rtol=1e-5, atol=1e-6)


def test_a_model_spread_over_two_devices():
    on_cpu, _, inputs = build("llama")
    split = copy.deepcopy(on_cpu)
    places = {
        "model.embed_tokens": 0,
        "model.layers.0": 0,
        "model.layers.1": 1,
        "model.norm": 1,
        "lm_head": 1,
        "model.rotary_emb": 0,
    }
    from accelerate import dispatch_model

    split = dispatch_model(split, device_map={name: f"{DEVICE}:{index}" for name, index in places.items()})
    with torch.inference_mode():
        got = split(input_ids=inputs["input_ids"].to(DEVICE), attention_mask=inputs["attention_mask"].to(DEVICE)).logits
        want = on_cpu(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-4)


def test_save_and_load_a_pretrained_model(tmp_path):
    on_cpu, on_device, inputs = build("gpt2")
    on_device.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map=DEVICE)
    assert loaded.device.type == DEVICE
    with torch.inference_mode():
        got = loaded(input_ids=inputs["input_ids"].to(DEVICE)).logits
        want = on_cpu.eval()(input_ids=inputs["input_ids"]).logits
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


def test_transformer_encoder_with_padding_in_evaluation():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    padded = torch.tensor([[False, False, True], [False, False, False]])
    x = torch.randn(2, 3, 16)
    on_device = torch.nn.TransformerEncoder(copy.deepcopy(layer), 2).eval()
    on_device.load_state_dict(model.state_dict())
    with torch.no_grad():
        want = model(x, src_key_padding_mask=padded)
        got = on_device.to("neuron")(x.to("neuron"), src_key_padding_mask=padded.to("neuron"))
    torch.testing.assert_close(got.cpu()[~padded], want[~padded], rtol=1e-4, atol=1e-5)
