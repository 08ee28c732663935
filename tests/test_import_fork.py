"""Importing, autoloading, forking, compiling: what must not start, break or print anything."""

import subprocess
import sys

import pytest
import torch

neuron = torch.neuron


def test_importing_pytorch_is_enough(run_python):
    assert run_python("import torch; print(torch.ones(2, device='neuron').tolist())") == "[1.0, 1.0]"


def test_the_package_may_be_imported_first(run_python):
    program = """
        import os, torch_neuronx
        assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in os.environ
        import torch
        print(torch.neuron.device_count(), torch_neuronx.device_count(), torch.ones(2, device="neuron").tolist())
    """
    assert run_python(program) == "4 4 [1.0, 1.0]"


def test_without_autoload_the_package_registers_the_device(run_python):
    program = """
        import torch
        assert not hasattr(torch, "neuron")
        import torch_neuronx
        print(torch.ones(2, device="neuron").tolist())
    """
    assert run_python(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "[1.0, 1.0]"


def test_import_prints_nothing_and_starts_nothing(run_python):
    result = run_python(
        """
        import threading, os
        import torch
        assert threading.active_count() == 1
        assert not torch.neuron.is_initialized()
        import sys
        heavy = [m for m in ("torch._dynamo", "torch._inductor", "torch.distributed.tensor") if m in sys.modules]
        assert not heavy, heavy
        """,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_import_is_quick(run_python):
    program = """
        import os, time
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        import torch, importlib.metadata
        importlib.metadata.entry_points(group="torch.backends")
        start = time.perf_counter()
        import torch_neuronx
        print((time.perf_counter() - start) * 1e3)
    """
    assert min(float(run_python(program)) for _ in range(5)) < 50


def test_a_broken_installation_does_not_break_pytorch(run_python):
    program = """
        import sys, types
        class Broken:
            def find_spec(self, name, path=None, target=None):
                if name == "torch_neuronx._C":
                    raise ImportError("libsomething.so: cannot open shared object file")
        sys.meta_path.insert(0, Broken())
        import torch
        assert torch.ones(2).sum() == 2
        assert not torch.neuron.is_available() and torch.neuron.device_count() == 0
        assert not hasattr(torch.neuron, "synchronize")
        torch.manual_seed(3)
        import torch_neuronx
        try:
            torch_neuronx.synchronize()
        except RuntimeError as error:
            print(error)
    """
    assert "libsomething.so: cannot open shared object file" in run_python(program)


def test_another_pytorch_is_refused_with_the_reason(run_python):
    program = """
        import os
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        import torch
        torch.__version__ = "2.16.0"
        import torch_neuronx
        try:
            torch_neuronx.device_count()
        except RuntimeError as error:
            print(error)
    """
    assert "was built for PyTorch 2.15.x, this is PyTorch 2.16.0" in run_python(program)


def test_another_external_device_is_left_alone(run_python):
    program = """
        import os
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        import torch
        torch.utils.rename_privateuse1_backend("other")
        import torch_neuronx
        assert torch._C._get_privateuse1_backend_name() == "other"
        print(torch.neuron.is_available())
    """
    assert run_python(program) == "False"


FORK = """
    import os, torch
    {before}
    child = os.fork()
    if child == 0:
        try:
            assert torch.neuron.is_available() and torch.neuron.device_count() == 4
            {inside}
        except BaseException as error:
            print("child failed:", type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    print("parent:", torch.ones(2, device="neuron").sum().item())
"""


def test_forking_before_first_use_is_fine(run_python):
    program = FORK.format(
        before="torch.manual_seed(1)",
        inside="assert not torch.neuron._is_in_bad_fork() and torch.ones(2, device='neuron').sum().item() == 2",
    )
    assert run_python(program) == "parent: 2.0"


@pytest.mark.parametrize(
    "use",
    [
        "torch.ones(2, device='neuron')",
        "torch.ones(2).to('neuron')",
        "torch.neuron.init()",
        "torch.neuron._lazy_init()",
        "torch.neuron.synchronize()",
        "old + 1",
        "old.cpu()",
    ],
)
def test_forking_after_first_use_is_a_clear_error(run_python, use):
    inside = f"""
            assert torch.neuron._is_in_bad_fork()
            torch.manual_seed(3)
            torch.ones(2).sum()
            try:
                {use}
            except RuntimeError as error:
                assert "forked subprocess" in str(error) and "spawn" in str(error), error
            else:
                raise AssertionError("no error")
    """.strip()
    program = FORK.format(before="old = torch.ones(2, device='neuron')", inside=inside)
    assert run_python(program) == "parent: 2.0"


def test_data_loader_workers_forked_after_first_use(run_python):
    program = """
        import torch
        torch.ones(1, device="neuron")
        data = torch.utils.data.TensorDataset(torch.arange(8.0))
        options = dict(batch_size=2, num_workers=2, pin_memory=True, multiprocessing_context="fork")
        loader = torch.utils.data.DataLoader(data, **options)
        print(sum(batch.to("neuron").sum().item() for (batch,) in loader))
    """
    assert run_python(program) == "28.0"


def test_spawned_children_use_the_device(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(
        "import torch, torch.multiprocessing as mp\n"
        "def child(rank):\n"
        "    assert torch.full((2,), rank, device=f'neuron:{rank}').sum().item() == 2 * rank\n"
        "if __name__ == '__main__':\n"
        "    torch.ones(1, device='neuron')\n"
        "    mp.spawn(child, nprocs=2)\n"
        "    print('ok')\n"
    )
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.strip() == "ok", result.stderr


def test_work_pending_at_exit_ends_well(run_python):
    program = """
        import torch
        x = torch.rand(400, 400, device="neuron")
        stream = torch.neuron.Stream()
        with torch.neuron.stream(stream):
            for _ in range(20):
                x = x @ x / 400
        event = stream.record_event()
        keep = [x, event, torch.Generator("neuron"), torch.empty(10, pin_memory=True)]
    """
    run_python(program)


def test_threads_that_hold_work_at_exit(run_python):
    # Idle, because a daemon thread inside an operator aborts at exit on the CPU as well.
    program = """
        import threading, torch
        held, done = [], threading.Event()
        def work():
            with torch.neuron.stream(torch.neuron.Stream()):
                held.append(torch.ones(10, device="neuron") + 1)
                done.set()
                threading.Event().wait()
        threading.Thread(target=work, daemon=True).start()
        done.wait()
    """
    run_python(program)


def test_interrupting_a_wait(run_python):
    program = """
        import os, signal, threading, time, torch
        x = torch.rand(1500, 1500, device="neuron")
        for _ in range(60):
            x = x @ x
            x = x / 1500
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.perf_counter()
        try:
            torch.neuron.synchronize()
            print("done before the signal")
            time.sleep(1)
        except KeyboardInterrupt:
            print("interrupted")
        torch.neuron.synchronize()
        assert torch.ones(2, device="neuron").sum().item() == 2
    """
    result = run_python(program, check=False)
    assert result.stdout.strip() in ("interrupted", "done before the signal"), result.stderr


def test_compiling_cpu_code_starts_nothing(run_python):
    program = """
        import torch
        compiled = torch.compile(lambda x: x.sin() + 1, backend="aot_eager")
        compiled(torch.ones(3))
        assert not torch.neuron.is_initialized()
    """
    run_python(program)


def test_making_a_profiler_starts_nothing(run_python):
    program = """
        import torch
        with torch.profiler.profile() as p:
            torch.ones(3).sin()
        assert not torch.neuron.is_initialized()
    """
    run_python(program)


def test_dynamo_knows_the_device(run_python):
    program = """
        import sys, torch
        assert "torch._dynamo" not in sys.modules
        from torch._dynamo.device_interface import get_interface_for_device
        interface = get_interface_for_device("neuron")
        assert not torch.neuron.is_initialized()
        assert interface.device_count() == 4 and interface.is_bf16_supported()
        assert issubclass(interface.Stream, torch.Stream) and issubclass(interface.Event, torch.Event)
        assert interface.Worker.get_device_properties("neuron:1").name == "trn2"
        assert interface.get_compute_capability() == (3, 0)
        interface.synchronize()
        with interface.device(1):
            assert interface.current_device() == 1 and interface.get_raw_stream(1) == 0
        import inspect
        assert "class DeviceInterface" in inspect.getsource(sys.modules["torch._dynamo.device_interface"])
        print(interface.__name__)
    """
    assert run_python(program) == "NeuronInterface"


def test_dynamo_imported_before_the_package(run_python):
    program = """
        import os
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        import torch, torch._dynamo
        import torch_neuronx
        from torch._dynamo.device_interface import get_interface_for_device
        print(get_interface_for_device("neuron").__name__)
    """
    assert run_python(program) == "NeuronInterface"


def test_compiled_code_gives_eager_results():
    assert "neuron" in torch._dynamo.list_backends()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).to("neuron")
    x = torch.randn(3, 4).to("neuron")
    expected = model(x)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    import torch_neuronx

    torch_neuronx.reset_dynamo_metrics()
    compiled = torch.compile(model, backend="neuron", fullgraph=True, options={"model_name": "mlp"})
    result = compiled(x)
    result.sum().backward()
    torch.testing.assert_close(result, expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    graphs = torch_neuronx.get_dynamo_metrics()
    assert [g.model_name for g in graphs] == ["mlp", "mlp"]
    assert graphs[0].graph_name == "mlp_0"
    assert graphs[0].graph_node_count > 3


def test_compiled_code_at_two_shapes():
    compiled = torch.compile(lambda x: (x * 2).relu(), backend="neuron")
    for size in (3, 5, 9):
        assert compiled(torch.full((size,), 1.0, device="neuron")).tolist() == [2.0] * size


def test_compile_options():
    def f(x):
        return x + 1

    x = torch.ones(2, device="neuron")
    with pytest.raises(Exception, match="Unknown options for backend 'neuron'"):
        torch.compile(f, backend="neuron", options={"nonsense": 1})(x)
    with pytest.warns(UserWarning, match="one mode"):
        torch.compile(f, backend="neuron", mode="max-autotune")(x)


def test_compiled_code_with_streams_and_mutation():
    @torch.compile(backend="neuron")
    def f(x, buffer):
        buffer.add_(x)
        return buffer * 2

    buffer = torch.zeros(3, device="neuron")
    assert f(torch.ones(3, device="neuron"), buffer).tolist() == [2.0] * 3
    assert buffer.tolist() == [1.0] * 3
