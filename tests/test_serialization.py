"""Saving, loading, copying and handing over tensors."""

import copy
import io
import pickle

import pytest
import torch

neuron = torch.neuron


def save_and_load(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8])
def test_tensors_come_back_on_their_device(dtype):
    tensor = torch.arange(12).reshape(3, 4).to(dtype).to("neuron:1")
    loaded = save_and_load(tensor)
    assert loaded.device == torch.device("neuron:1")
    assert loaded.dtype == dtype
    assert torch.equal(loaded.cpu(), tensor.cpu())


@pytest.mark.parametrize(
    ("location", "device"),
    [
        ("cpu", "cpu"),
        ("neuron", "neuron:0"),
        ("neuron:2", "neuron:2"),
        (torch.device("neuron", 3), "neuron:3"),
        ({"neuron:1": "neuron:2"}, "neuron:2"),
        (lambda storage, tag: storage.neuron(3), "neuron:3"),
    ],
)
def test_map_location(location, device):
    tensor = torch.arange(5.0, device="neuron:1")
    loaded = save_and_load(tensor, map_location=location, weights_only=not callable(location))
    assert loaded.device == torch.device(device)
    assert loaded.tolist() == [0, 1, 2, 3, 4]


def test_cpu_tensors_load_onto_the_device():
    assert save_and_load(torch.ones(3), map_location="neuron").device.type == "neuron"


def test_a_device_that_does_not_exist():
    tensor = torch.ones(3, device="neuron")
    with pytest.raises(RuntimeError, match=r"out of range|device_count"):
        save_and_load(tensor, map_location="neuron:17")


def test_views_share_their_storage_after_loading():
    base = torch.arange(10.0, device="neuron")
    loaded_base, loaded_view = save_and_load((base, base[2:5]))
    loaded_view.fill_(-1)
    assert loaded_base.tolist() == [0, 1, -1, -1, -1, 5, 6, 7, 8, 9]
    assert loaded_view.storage_offset() == 2


def test_strides_survive():
    tensor = torch.arange(6.0, device="neuron").reshape(2, 3).t()
    loaded = save_and_load(tensor)
    assert loaded.stride() == (1, 3)
    assert torch.equal(loaded.cpu(), tensor.cpu())


def test_empty_and_scalar_tensors():
    for tensor in (
        torch.empty(0, device="neuron"),
        torch.empty(2, 0, device="neuron"),
        torch.tensor(3.5, device="neuron"),
    ):
        loaded = save_and_load(tensor)
        assert loaded.shape == tensor.shape
        assert loaded.device == tensor.device


def test_parameters_modules_and_optimizers():
    module = torch.nn.Linear(3, 2).to("neuron")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.ones(1, 3, device="neuron")).sum().backward()
    optimizer.step()
    loaded = save_and_load({"model": module.state_dict(), "optimizer": optimizer.state_dict()})
    other = torch.nn.Linear(3, 2).to("neuron")
    other.load_state_dict(loaded["model"])
    assert torch.equal(other.weight.cpu(), module.weight.cpu())
    again = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    again.load_state_dict(loaded["optimizer"])
    assert again.state_dict()["state"][0]["momentum_buffer"].device.type == "neuron"


def test_requires_grad_survives():
    assert save_and_load(torch.ones(2, device="neuron", requires_grad=True)).requires_grad


def test_pickle_and_deepcopy():
    tensor = torch.arange(4.0, device="neuron:1")
    for copied in (pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor)):
        assert copied.device == tensor.device
        assert copied.data_ptr() != tensor.data_ptr()
        assert torch.equal(copied.cpu(), tensor.cpu())
    module = copy.deepcopy(torch.nn.Linear(2, 2).to("neuron"))
    assert module.weight.device.type == "neuron"
    pair = copy.deepcopy([tensor, tensor[1:]])
    pair[0].zero_()
    assert pair[1].tolist() == [0, 0, 0]


def test_generators_pickle():
    generator = torch.Generator("neuron").manual_seed(9)
    generator.set_offset(4)
    loaded = pickle.loads(pickle.dumps(generator))
    assert (loaded.initial_seed(), loaded.get_offset()) == (9, 4)


def test_memory_mapped_loading(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"a": torch.arange(1000.0)}, path)
    loaded = torch.load(path, mmap=True, map_location="neuron")
    assert loaded["a"].device.type == "neuron"
    assert loaded["a"].sum().item() == 499500


def test_loading_into_a_module_on_the_meta_device():
    with torch.device("meta"):
        module = torch.nn.Linear(4, 4)
    module.to_empty(device="neuron")
    module.load_state_dict({"weight": torch.ones(4, 4), "bias": torch.zeros(4)})
    assert module(torch.ones(1, 4, device="neuron")).tolist() == [[4.0] * 4]


def test_numpy_and_lists_go_both_ways():
    import numpy

    array = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    tensor = torch.from_numpy(array).to("neuron")
    assert tensor.tolist() == array.tolist()
    assert (tensor.cpu().numpy() == array).all()
    with pytest.raises(TypeError, match="can't convert neuron:0 device type tensor to numpy"):
        tensor.numpy()


def test_dlpack_round_trip():
    tensor = torch.arange(5.0, device="neuron:1")
    again = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensor))
    assert again.device == tensor.device
    assert again.data_ptr() == tensor.data_ptr()
    again[0] = 9
    assert tensor[0].item() == 9


def test_tensors_do_not_go_through_queues():
    import multiprocessing.reduction

    import torch.multiprocessing  # registers PyTorch's reductions

    for value in (torch.ones(2, device="neuron"), torch.nn.Parameter(torch.ones(2, device="neuron"))):
        with pytest.raises(RuntimeError, match=r"device memory belongs to the process.*tensor.cpu\(\)"):
            multiprocessing.reduction.ForkingPickler.dumps(value)
    assert multiprocessing.reduction.ForkingPickler.dumps(torch.ones(2))
