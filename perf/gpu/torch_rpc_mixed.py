"""PyTorch RPC from a GPU to a peer's host memory and back, which its device maps cannot say: the program
copies by itself. Prints one line a size and direction; needs a GPU.

usage: torch_rpc_mixed.py SIZE...
"""
import statistics
import sys
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp


def take(tensor, device):
    tensor = tensor.to(device)
    torch.cuda.synchronize()
    return tensor.numel()


def measure(direction, tensor):
    def call():
        rpc.rpc_sync("worker1", take, args=(tensor.cpu(), direction[1]))

    for _ in range(3):
        call()
    times, end = [], time.perf_counter() + 2
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 2000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    p50 = statistics.median(times)
    size = tensor.numel()
    print(f"sink,{direction[0]},{direction[1]},{size},{p50 * 1e6:.1f},,,{size / p50 / 1e9:.3f} GB/s", flush=True)


def main(rank, sizes):
    options = rpc.TensorPipeRpcBackendOptions(init_method="tcp://127.0.0.1:29521", rpc_timeout=60)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        for direction in ("cuda:0", "cpu"), ("cpu", "cuda:0"):
            for size in sizes:
                measure(direction, torch.randint(0, 255, (size,), dtype=torch.uint8, device=direction[0]))
    rpc.shutdown()


if __name__ == "__main__":
    mp.spawn(main, args=([int(size) for size in sys.argv[1:]],), nprocs=2)
