#!/usr/bin/env python3
"""Controls for `switchyard bench ep --device cuda`: NCCL's all-to-all of the same rows and copies between the same GPUs.

    python3 bench/ep_controls.py [--gpus 2] [--json]

Rows are sent evenly: each rank keeps its share and sends the others theirs, as a dispatch does in which every token goes to
every rank. Figures stand beside those stored from two idle H200s (torch 2.11, NCCL of that release); a copy that is more than
5% off means that the machine is not in that state, and the exit code is 1.
"""
import argparse
import json
import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# tokens of a rank, hidden, µs on two idle H200s
ROWS = [(4096, 7168, 226.1), (4096, 2048, 83.8), (128, 7168, 51.7)]
COPY_BYTES, COPY_GB_PER_S = 512 << 20, 379.0
TOLERANCE = 0.05


def median_us(run, repetitions=20):
    for _ in range(5):
        run()
    times = []
    for _ in range(repetitions):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    slowest = torch.tensor([statistics.median(times)], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def work(rank, gpus, results):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29533")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=gpus, device_id=torch.device("cuda", rank))
    for tokens, hidden, stored in ROWS:
        x = torch.randn(gpus * tokens, hidden, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(x)
        us = median_us(lambda: dist.all_to_all_single(out, x))
        if rank == 0:
            gbs = (gpus - 1) * tokens * hidden * 2 / us / 1e3
            results.append(dict(what="NCCL all-to-all", shape=f"{tokens}x{hidden}", us=us, gbs=gbs, stored=stored, control=False))
    here = torch.empty(COPY_BYTES, device="cuda", dtype=torch.uint8)
    there = torch.empty(COPY_BYTES, device=f"cuda:{(rank + 1) % gpus}", dtype=torch.uint8)
    us = median_us(lambda: there.copy_(here, non_blocking=True))
    if rank == 0:
        gbs = COPY_BYTES / us / 1e3
        results.append(dict(what="copies, all ranks at once", shape="512 MiB", us=us, gbs=gbs, stored=COPY_BYTES / COPY_GB_PER_S / 1e3, control=True))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with mp.Manager() as manager:
        results = manager.list()
        mp.spawn(work, (args.gpus, results), nprocs=args.gpus)
        found = list(results)
    void = [r for r in found if r["control"] and abs(r["us"] / r["stored"] - 1) > TOLERANCE]
    if args.json:
        print(json.dumps(dict(results=found, void=bool(void))))
    else:
        for r in found:
            print(f"{r['what']:28} {r['shape']:10} {r['us']:8.1f} µs {r['gbs']:6.0f} GB/s one way   stored {r['stored']:.1f} µs")
        if void:
            print("more than 5% off the stored copy: comparisons with stored figures are void")
    return 1 if void else 0


if __name__ == "__main__":
    sys.exit(main())
