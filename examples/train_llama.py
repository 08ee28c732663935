#!/usr/bin/env python3
"""Trains a small Llama on real text, byte by byte, then lets it write.

    python examples/train_llama.py [--device neuron] [--steps 200] [--dtype float32]

The text is that of examples/data and of this project's LICENSE. Only standard PyTorch and transformers calls: the
name of the device is all that differs from running it on another one.
"""

import argparse
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).resolve().parent
TEXTS = [HERE / "data/constitution.txt", HERE / "data/declaration.txt", HERE.parent / "LICENSE"]


def corpus():
    """The training text as one tensor of bytes."""
    return torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in TEXTS)), dtype=torch.uint8)


def build(device, seed=0):
    """A Llama of 3 million parameters whose tokens are bytes."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).to(device)


def batches(text, size=8, length=128, seed=0):
    """Endless batches of `size` random excerpts of `length` bytes, the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - length, (size,), generator=generator)
        yield torch.stack([text[start : start + length] for start in starts]).long()


def train(model, data, steps, lr=2e-3):
    """Trains for `steps` steps, yielding the loss of each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    model.train()
    for _ in range(steps):
        tokens = next(data).to(model.device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        yield loss.item()


@torch.inference_mode()
def write(model, prompt, count=160):
    """Continues `prompt` by `count` bytes, always the likeliest one. Returns all token ids, on the CPU."""
    model.eval()
    tokens = torch.tensor([list(prompt.encode())], device=model.device)
    mask = torch.ones_like(tokens)
    return model.generate(tokens, attention_mask=mask, max_new_tokens=count, do_sample=False)[0].cpu()


def decode(tokens):
    """The text of byte tokens."""
    return bytes(tokens.tolist()).decode(errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    args = parser.parse_args()
    model = build(args.device).to(getattr(torch, args.dtype))
    for step, loss in enumerate(train(model, batches(corpus()), args.steps), 1):
        if step == 1 or step % 20 == 0:
            print(f"step {step:4}  loss {loss:.3f}", flush=True)
    print(decode(write(model, "We the People")))


if __name__ == "__main__":
    main()
