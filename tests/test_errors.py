"""Errors: the right exception, once, and a device that goes on working."""

import threading

import pytest
import torch
import torch_neuronx
from against_cpu import check_raises

neuron = torch.neuron


def works():
    return torch.ones(3, device="neuron").sum().item() == 3


def test_index_errors_surface_at_the_next_synchronization_once():
    table = torch.randn(10, 4).to("neuron")
    with pytest.raises(IndexError, match="index"):
        table[torch.tensor([1, 99], device="neuron")].cpu()
    neuron.synchronize()
    assert works()


def test_embedding_out_of_range():
    table = torch.randn(10, 4).to("neuron")
    with pytest.raises((IndexError, RuntimeError), match=r"index|range"):
        torch.nn.functional.embedding(torch.tensor([0, 10], device="neuron"), table).cpu()
    neuron.synchronize()
    assert works()


def test_shape_errors_are_pytorchs_and_immediate():
    with pytest.raises(RuntimeError, match="must match the size of tensor"):
        torch.ones(3, device="neuron") + torch.ones(4, device="neuron")
    with pytest.raises(RuntimeError, match=r"mat1 and mat2|inner"):
        torch.ones(2, 3, device="neuron") @ torch.ones(2, 3, device="neuron")
    assert works()


def test_tensors_on_different_devices():
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="neuron:0") + torch.ones(3, device="neuron:1")
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="neuron") + torch.ones(3)
    assert works()


def test_zero_division_of_integers():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.div(torch.ones(3, dtype=torch.long, device="neuron"), 0, rounding_mode="floor").cpu()
    neuron.synchronize()
    assert works()


def test_an_error_of_one_thread_is_not_anothers():
    errors = []

    def bad():
        try:
            with neuron.stream(neuron.Stream()):
                torch.zeros(3, device="neuron")[torch.tensor([5], device="neuron")].cpu()
        except IndexError as error:
            errors.append(error)

    for _ in range(5):
        thread = threading.Thread(target=bad)
        thread.start()
        thread.join()
    assert len(errors) == 5
    assert works()


def test_blocking_mode_raises_the_same_error(run_python):
    program = """
        import torch
        table, index = torch.zeros(3, device="neuron"), torch.tensor([5], device="neuron")
        try:
            result = table[index]
            where = "later"
            result.cpu()
        except IndexError as error:
            print("IndexError", "index" in str(error))
    """
    assert run_python(program) == run_python(program, NEURON_LAUNCH_BLOCKING="1") == "IndexError True"


def test_nonsense_in_the_environment_names_the_variable(run_python):
    program = """
        import torch
        assert torch.neuron.is_available()
        try:
            torch.ones(1, device="neuron")
        except (ValueError, RuntimeError) as error:
            print(error)
    """
    text = run_python(program, NEURON_RT_NUM_CORES="many")
    assert "NEURON_RT_NUM_CORES" in text
    assert "many" in text


def test_pinning_device_tensors():
    with pytest.raises(RuntimeError, match="pin"):
        torch.ones(3, device="neuron").pin_memory()


def test_quantized_tensors_are_refused_clearly():
    with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)quantize"):
        torch.quantize_per_tensor(torch.ones(2, device="neuron"), 0.1, 0, torch.qint8)
    assert torch.ones(2, device="neuron").sum().item() == 2


def test_errors_say_where_the_operator_was_issued(run_python):
    program = """
        import torch

        def look_up(table):
            return table.index_select(0, torch.full((1,), 7, device="neuron"))

        table = torch.ones(3, 2, device="neuron")
        rows = look_up(table)
        try:
            torch.neuron.synchronize()
        except IndexError as error:
            print(error)
    """
    assert "in look_up" in run_python(program, TORCH_NEURONX_ENABLE_STACK_TRACE="1")
    assert "look_up" not in run_python(program)


def test_values_that_do_not_fit_what_is_indexed():
    mask = torch.tensor([True, True, True, True, False, False])
    index = torch.tensor([0, 1])

    def assign(x, at, values):
        x[at] = values

    for at, values in [(mask, (3,)), (mask, (0,)), (index, (3,)), (index, (0,)), (mask, (2, 6))]:
        check_raises((RuntimeError, IndexError), assign, torch.zeros(6), at, torch.ones(values))
    check_raises(
        RuntimeError, lambda x, i, v: x.index_put_((i,), v, accumulate=True), torch.zeros(6), index, torch.ones(3)
    )
    check_raises(RuntimeError, assign, torch.zeros(3, 2), index, torch.ones(3, 1))


@pytest.mark.parametrize("update", ["add_", "mul_", "logical_and_", "atan2_"])
def test_a_number_on_the_host_is_not_written_by_the_device(update):
    total = torch.tensor(1.0)
    with pytest.raises(RuntimeError, match="same device"):
        getattr(total, update)(torch.ones(4, device="neuron").sum())
    with pytest.raises(RuntimeError, match="same device"):
        torch.add(torch.ones((), device="neuron"), 1, out=torch.tensor(0.0))
    assert total.item() == 1


def test_numbers_that_a_dtype_cannot_hold():
    check_raises(RuntimeError, lambda x: x.fill_(1e6), torch.zeros(2, dtype=torch.float16))
    check_raises(RuntimeError, lambda x: x.fill_(300), torch.zeros(2, dtype=torch.uint8))
    check_raises(RuntimeError, lambda x, m: x.masked_fill(m, -1e9), torch.zeros(2).half(), torch.tensor([True, False]))
    check_raises(RuntimeError, lambda x, m: x.masked_fill_(m, 1e9), torch.zeros(2).char(), torch.tensor([True, False]))
    check_raises(RuntimeError, lambda x: x**-1, torch.tensor([1, 2]))


def test_op_tracking():
    torch_neuronx.clear_op_tracking()
    assert torch_neuronx.get_executed_ops() == []
    assert torch_neuronx.get_fallback_ops() == []
    x = torch.ones(3, device="neuron")
    (x + x).cpu()
    seen = torch_neuronx.get_executed_ops() + torch_neuronx.get_fallback_ops()
    assert "aten::add.Tensor" in seen
    assert seen == sorted(set(torch_neuronx.get_executed_ops())) + sorted(set(torch_neuronx.get_fallback_ops()))


def test_fallbacks_have_reasons():
    torch_neuronx.clear_op_tracking()
    torch.linalg.svd(torch.randn(3, 3).to("neuron"))
    reasons = torch_neuronx.get_fallback_reasons()
    assert set(reasons) == set(torch_neuronx.get_fallback_ops())
    assert any("svd" in name for name in reasons)
    assert all(isinstance(r, str) and r and n > 0 for row in reasons.values() for r, n in row.items())
