#!/usr/bin/env python3
"""The main job, on "neuron" and on the CPU side by side: sentence embeddings, then training and generation.

    make demo

Both examples run on both devices with the same weights and inputs, taking turns so that whatever else the machine
does hits them alike. The exit status is 1 if a result differs from the CPU's, an operator fell back to the CPU, or
the device is clearly slower than the CPU.
"""

import statistics
import sys
import time
import warnings

import sentence_embeddings
import torch
import train_llama
import transformers

DEVICES = ("neuron", "cpu")
STEPS = 100
SLOWER = 0.9  # below this speed relative to the CPU the demo fails
MATRIX_TOLERANCE = 1e-4
LOSS_TOLERANCE = 2e-3
LOGIT_TOLERANCE = 1e-3

failures = []


def check(holds, claim):
    """Prints a checked claim and remembers it if it does not hold."""
    print(f"  {'ok  ' if holds else 'FAIL'} {claim}")
    if not holds:
        failures.append(claim)


def check_speed(seconds, what):
    """Compares the two devices' times."""
    ratio = seconds["cpu"] / seconds["neuron"]
    check(
        ratio >= SLOWER,
        f"{what}: {seconds['neuron'] * 1e3:.1f} ms on neuron, {seconds['cpu'] * 1e3:.1f} ms on the CPU: {ratio:.2f}x",
    )


def timed(function):
    """The result of `function`, moved to the CPU, and its seconds."""
    start = time.perf_counter()
    result = function().cpu()
    return result, time.perf_counter() - start


def embeddings():
    """Part (a): the similarity of a few sentences, and the speed over a longer text."""
    print("\nSentence embeddings with all-MiniLM-L6-v2")
    models = {device: sentence_embeddings.load(device) for device in DEVICES}
    paragraphs = (train_llama.HERE / "data/constitution.txt").read_text().split("\n\n")
    paragraphs = [" ".join(paragraph.split()) for paragraph in paragraphs if len(paragraph) > 200][:32]

    def matrix(device, sentences):
        return sentence_embeddings.similarity(sentence_embeddings.embed(*models[device], sentences))

    small = {device: matrix(device, sentence_embeddings.SENTENCES).cpu() for device in DEVICES}
    print(sentence_embeddings.table(small["neuron"], sentence_embeddings.SENTENCES))
    seconds = {device: [] for device in DEVICES}
    large = {}
    for _ in range(3):
        for device in DEVICES:
            large[device], took = timed(lambda device=device: matrix(device, paragraphs))
            seconds[device].append(took)
    apart = max((on["neuron"] - on["cpu"]).abs().max().item() for on in (small, large))
    check(apart <= MATRIX_TOLERANCE, f"similarities differ by at most {apart:.1e} (allowed {MATRIX_TOLERANCE:.0e})")
    check_speed(
        {device: statistics.median(times) for device, times in seconds.items()},
        f"embedding {len(paragraphs)} paragraphs",
    )


def training():
    """Part (b), first half: the same training run on both devices. Returns the trained models."""
    print("\nTraining a small Llama on text")
    models = {device: train_llama.build(device) for device in DEVICES}
    text = train_llama.corpus()
    runs = {device: train_llama.train(models[device], train_llama.batches(text), STEPS) for device in DEVICES}
    losses = {device: [] for device in DEVICES}
    seconds = {device: [] for device in DEVICES}
    for step in range(1, STEPS + 1):
        for device in DEVICES:
            start = time.perf_counter()
            losses[device].append(next(runs[device]))
            seconds[device].append(time.perf_counter() - start)
        if step == 1 or step % 20 == 0:
            print(f"  step {step:3}  loss {losses['neuron'][-1]:.4f} (on the CPU {losses['cpu'][-1]:.4f})", flush=True)
    apart = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
    check(apart <= LOSS_TOLERANCE, f"losses differ by at most {apart:.1e} (allowed {LOSS_TOLERANCE:.0e})")
    check(statistics.mean(losses["neuron"][-5:]) < losses["neuron"][0] / 2, "the loss went down to less than half")
    check_speed({device: statistics.median(times) for device, times in seconds.items()}, "training step")
    return models


def generation(models):
    """Part (b), second half: text written by the model that was trained on the device."""
    print("\nGenerating with it")
    prompt = "We the People"
    models["cpu"].load_state_dict(models["neuron"].state_dict())
    tokens = {}
    seconds = {device: [] for device in DEVICES}
    for _ in range(3):
        for device in DEVICES:
            tokens[device], took = timed(lambda device=device: train_llama.write(models[device], prompt))
            seconds[device].append(took)
    print("  " + train_llama.decode(tokens["neuron"]).replace("\n", "\n  "))
    # Two tokens may be as likely as each other up to rounding, so each choice is judged by the CPU's own logits.
    with torch.inference_mode():
        logits = models["cpu"](input_ids=tokens["neuron"][None]).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, tokens["neuron"][len(prompt) :, None])[:, 0]
    behind = (logits.max(1).values - chosen).max().item()
    check(
        behind <= LOGIT_TOLERANCE,
        f"each of the {len(chosen)} tokens is the one the CPU chooses (logits at most {behind:.1e} apart)",
    )
    check_speed({device: statistics.median(times) for device, times in seconds.items()}, "generation")


def operators():
    """What ran on the device and what did not."""
    import torch_neuronx

    print("\nOperators")
    fallbacks = sorted(torch_neuronx.get_fallback_ops())
    print(f"  {len(torch_neuronx.get_executed_ops())} different operators ran on the device")
    check(not fallbacks, f"operators that fell back to the CPU: {', '.join(fallbacks) or 'none'}")


def main():
    warnings.simplefilter("ignore", FutureWarning)
    transformers.utils.logging.disable_progress_bar()
    start = time.perf_counter()
    accelerator = torch.accelerator.current_accelerator()
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads")
    print(f"{torch.accelerator.device_count()} {accelerator} devices: {torch.neuron.get_device_properties(0).name}")
    embeddings()
    generation(training())
    operators()
    verdict = f"{len(failures)} checks failed" if failures else "every check passed"
    print(f"\n{verdict}, in {time.perf_counter() - start:.0f} s")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
