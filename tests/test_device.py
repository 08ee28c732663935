"""Devices: counting, choosing, naming and describing them."""

import threading

import pytest
import torch

neuron = torch.neuron


def test_the_device_is_there():
    assert neuron.is_available()
    assert neuron.device_count() == 4
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.accelerator.device_count() == neuron.device_count()
    assert torch._C._get_privateuse1_backend_name() == "neuron"


@pytest.mark.parametrize("spec", [1, "neuron:1", torch.device("neuron", 1)])
def test_set_device_takes_every_spelling(spec):
    neuron.set_device(spec)
    assert neuron.current_device() == 1
    assert torch.accelerator.current_device_index() == 1
    assert torch.empty(1, device="neuron").device == torch.device("neuron:1")


def test_set_device_without_an_index_changes_nothing():
    neuron.set_device(2)
    neuron.set_device("neuron")
    assert neuron.current_device() == 2


@pytest.mark.parametrize("index", [4, 99, -1])
def test_set_device_out_of_range(index):
    with pytest.raises(RuntimeError, match=f"Device index {index} is out of range. Valid range is 0 to 3"):
        neuron.set_device(index)
    assert neuron.current_device() == 0


@pytest.mark.parametrize("spec", ["cpu", "cuda:0", torch.device("meta")])
def test_set_device_of_another_type(spec):
    with pytest.raises(ValueError, match="Expected a neuron device"):
        neuron.set_device(spec)


def test_set_device_of_a_wrong_type():
    with pytest.raises(TypeError, match="Expected a device index"):
        neuron.set_device(1.5)


def test_tensors_on_a_device_that_does_not_exist():
    with pytest.raises(RuntimeError, match="out of range"):
        torch.empty(1, device="neuron:7")


def test_every_device_holds_tensors():
    for index in range(neuron.device_count()):
        tensor = torch.full((3,), index, device=f"neuron:{index}")
        assert tensor.device.index == index
        assert tensor.get_device() == index
        assert tensor.tolist() == [index] * 3


def test_the_current_device_is_of_the_thread():
    neuron.set_device(3)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(neuron.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert neuron.current_device() == 3


def test_device_context_manager_nests_and_survives_errors():
    with neuron.device(1):
        with neuron.device("neuron:2"):
            assert neuron.current_device() == 2
        with pytest.raises(KeyError), neuron.device(torch.device("neuron", 3)):
            raise KeyError
        assert neuron.current_device() == 1
    assert neuron.current_device() == 0


def test_device_context_manager_with_nothing():
    neuron.set_device(1)
    for nothing in (None, -1):
        with neuron.device(nothing):
            assert neuron.current_device() == 1


def test_device_of():
    with neuron.device_of(torch.empty(1, device="neuron:2")):
        assert neuron.current_device() == 2
    with neuron.device_of(torch.empty(1)):
        assert neuron.current_device() == 0


def test_accelerator_device_index():
    with torch.accelerator.device_index(3):
        assert neuron.current_device() == 3
    assert neuron.current_device() == 0


def test_properties():
    properties = neuron.get_device_properties("neuron:1")
    assert properties.name == "trn2"
    assert properties.total_memory == neuron.mem_get_info(1)[1] > 0
    assert repr(properties) == f"<NeuronDeviceProperties(name='trn2', total_memory={properties.total_memory})>"
    assert neuron.get_device_properties() == properties


@pytest.mark.parametrize("index", [4, -1, 2**32, 2**40])
def test_properties_of_a_device_that_does_not_exist(index):
    with pytest.raises((RuntimeError, IndexError, ValueError, OverflowError)):
        neuron.get_device_properties(index)


def test_names_and_capability():
    assert neuron.get_device_name() == "neuron:0"
    assert neuron.get_device_name(2) == "neuron:2"
    assert neuron.get_device_capability() == (3, 0)
    supported = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool} <= set(supported)
    assert torch.complex64 not in supported


def test_target_profile_and_core_count(run_python):
    program = "import torch; n = torch.neuron; print(n.device_count(), n.get_device_properties().name)"
    assert run_python(program, NEURON_RT_NUM_CORES="2") == "2 trn2"
    assert run_python(program, NEURON_RT_VISIBLE_CORES="0,2-3") == "3 trn2"
    assert run_python(program, NEURON_PLATFORM_TARGET_OVERRIDE="trn3") == "4 trn3"


def test_methods_of_tensors_modules_and_storages():
    tensor = torch.ones(2).neuron()
    assert tensor.is_neuron
    assert tensor.neuron(1).device.index == 1
    assert not torch.ones(2).is_neuron
    assert next(torch.nn.Linear(2, 2).neuron().parameters()).is_neuron
    assert torch.ones(2).untyped_storage().neuron().is_neuron


def test_dispatch_key_names_of_meta_and_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(2, device="neuron")
        assert fake.device == torch.device("neuron:0")
        assert (fake + 1).device.type == "neuron"


def test_repr_of_tensors_everywhere():
    tensor = torch.arange(3.0, device="neuron:1")
    assert repr(tensor) == "tensor([0., 1., 2.], device='neuron:1')"
    assert "device='neuron:1'" in repr(torch.empty(0, device="neuron:1"))
    assert "device='neuron:0'" in repr(torch.empty(3, 0, device="neuron"))
    assert repr(torch.tensor(True, device="neuron")) == "tensor(True, device='neuron:0')"


def test_every_promised_name_exists():
    names = """
        is_initialized is_available init device_count current_device set_device get_device_name get_device_properties
        device get_amp_supported_dtype is_bf16_supported _is_in_bad_fork manual_seed manual_seed_all seed seed_all
        initial_seed get_rng_state set_rng_state get_rng_state_all set_rng_state_all Stream Event stream current_stream
        default_stream set_stream synchronize wait_stream wait_event record_event query memory_stats memory_allocated
        max_memory_allocated memory_reserved max_memory_reserved reset_peak_memory_stats
        reset_accumulated_memory_stats memory_summary empty_cache get_dynamo_metrics reset_dynamo_metrics memory random
        amp StreamContext get_device_capability mem_get_info default_generators _lazy_init _utils
    """
    for name in names.split():
        assert getattr(neuron, name) is not None, name
    import torch_neuronx

    names = """
        _autoload is_neuron_runtime_initialized device_count current_device set_device get_device_properties empty_cache
        get_fallback_ops get_executed_ops clear_op_tracking synchronize current_stream default_stream set_stream stream
        StreamContext Stream Event device memory_allocated max_memory_allocated memory_reserved memory_stats
        memory_summary reset_peak_memory_stats reset_accumulated_memory_stats get_dynamo_metrics reset_dynamo_metrics
        _lazy_init _is_in_bad_fork _get_device_index
    """
    for name in names.split():
        assert getattr(torch_neuronx, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = torch_neuronx.nothing
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = neuron.nothing


def test_everything_public_is_documented():
    for name in neuron.__all__:
        value = getattr(neuron, name)
        if name != "default_generators":
            assert value.__doc__, name


def test_submodules_are_the_same_objects():
    import torch.neuron.memory as by_import
    import torch_neuronx.neuron.memory as original

    assert by_import is original is neuron.memory
