"""Results are the same to the last bit from run to run and for any number of threads."""

PROGRAM = """
    import hashlib
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    device = "neuron"

    def draw(*shape):
        return torch.randn(*shape, device=device)

    def backward(f, *tensors):
        tensors = [t.requires_grad_() for t in tensors]
        out = f(*tensors)
        out.sum().backward()
        return [out, *(t.grad for t in tensors)]

    index = torch.randint(0, 50, (40000,), device=device)
    results = [
        draw(300, 700) @ draw(700, 130),
        (draw(300, 700).bfloat16() @ draw(700, 130).bfloat16()).float(),
        draw(1, 4096) @ draw(4096, 2048),
        draw(1 << 20).sum(), draw(1000, 1000).sum(0), draw(1000, 1000).var(1), draw(1 << 20).norm(),
        draw(1 << 20).cumsum(0), draw(2000, 333).softmax(-1), draw(7, 100, 9).logsumexp(1),
        draw(50, 64).index_add(0, index, draw(40000, 64)),
        draw(50).scatter_add(0, index, draw(40000)),
        torch.zeros(50, device=device).index_put((index,), draw(40000), accumulate=True),
        *backward(lambda x, w, b: F.layer_norm(x, (512,), w, b), draw(999, 512), draw(512), draw(512)),
        *backward(lambda x, w: F.conv2d(x, w, padding=1), draw(3, 16, 33, 33), draw(24, 16, 3, 3)),
        *backward(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), draw(8, 30, 20, 20), draw(30), draw(30)),
        *backward(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                  draw(2, 8, 200, 64), draw(2, 8, 200, 64), draw(2, 8, 200, 64)),
        *backward(lambda w: F.embedding(index, w), draw(50, 64)),
        *backward(lambda x: F.cross_entropy(x, index % 10), draw(40000, 10)),
        F.dropout(draw(100000), 0.3), torch.rand(100001, device=device), torch.randperm(10000, device=device),
        draw(100000).sort().values, draw(100, 1000).topk(17).indices,
    ]
    print(*(hashlib.sha256(r.detach().cpu().numpy().tobytes()).hexdigest()[:16] for r in results))
"""


def test_bits_do_not_depend_on_threads(run_python):
    digests = [run_python(PROGRAM, OMP_NUM_THREADS=threads).split() for threads in ("1", "2", "4", "2")]
    for number, of_one_result in enumerate(zip(*digests, strict=True)):
        assert len(set(of_one_result)) == 1, f"result {number} differs between runs with 1, 2, 4 and 2 threads"
