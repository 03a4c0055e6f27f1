#!/usr/bin/env python3
"""Controls for `switchyard bench kernels --device cuda`: torch's grouped product and a copy at the same shapes on the same GPU.

    python3 bench/cuda_controls.py [--json]

Each figure stands beside the one stored from an idle H200 (torch 2.11). More than 5% off means that the machine is not in
the state in which the stored figures were taken: comparisons with them are void then, and the exit code is 1.
"""
import argparse
import json
import statistics
import sys

import torch

# groups, rows of each, N, K, µs on an idle H200
GROUPED = [(8, 1024, 4096, 7168, 613.0), (128, 8, 1536, 2048, 254.0), (128, 8, 2048, 768, 148.0)]
COPY_BYTES, COPY_TB_PER_S = 1 << 30, 4.107
MATMUL, MATMUL_TFLOP_PER_S = 8192, 804.0
TOLERANCE = 0.05


# Longer than the host needs to queue a product: without it the GPU waits for launches of small ones, and the wait is timed.
HEAD_START_CYCLES = 1_000_000


def median_us(run, repetitions=20, inner=1):
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repetitions):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(HEAD_START_CYCLES)
        begin.record()
        for _ in range(inner):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / inner)
    return statistics.median(times)


def bf16(*shape):
    return torch.rand(*shape, device="cuda", dtype=torch.bfloat16) * 2 - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args()
    rows = []

    def add(name, unit, value, stored):
        rows.append({"name": name, "unit": unit, "value": round(value, 3), "stored": stored, "off": round(value / stored - 1, 4)})

    source, target = torch.empty(COPY_BYTES, device="cuda", dtype=torch.uint8), torch.empty(COPY_BYTES, device="cuda", dtype=torch.uint8)
    add("copy of 1 GiB", "TB/s", 2 * COPY_BYTES / median_us(lambda: target.copy_(source)) / 1e6, COPY_TB_PER_S)
    del source, target
    a, b = bf16(MATMUL, MATMUL), bf16(MATMUL, MATMUL)
    add(f"matmul {MATMUL}³", "TFLOP/s", 2 * MATMUL**3 / median_us(lambda: a @ b) / 1e6, MATMUL_TFLOP_PER_S)
    del a, b
    for groups, each, n, k, stored in GROUPED:
        x, w = bf16(groups * each, k), bf16(groups, n, k)
        ends = torch.arange(1, groups + 1, device="cuda", dtype=torch.int32) * each
        add(f"torch._grouped_mm {groups} x {each} rows, N {n}, K {k}", "µs",
            # Several at a time where one is short; not of the long ones, which would warm the GPU and slow it.
            median_us(lambda: torch._grouped_mm(x, w.transpose(-2, -1), offs=ends), inner=5 if each < 100 else 1), stored)
        del x, w
    valid = all(abs(row["off"]) <= TOLERANCE for row in rows)
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "valid": valid, "rows": rows}
    if arguments.json:
        print(json.dumps(report))
    else:
        print(f"{report['device']}, torch {report['torch']}")
        for row in rows:
            print(f"{row['name']:48} {row['value']:10.2f} {row['unit']:8} stored {row['stored']:8.2f}  {100 * row['off']:+.1f}%")
        print("valid" if valid else f"VOID: more than {100 * TOLERANCE:.0f}% off the stored figures")
    return 0 if valid else 1


if __name__ == "__main__":
    sys.exit(main())
