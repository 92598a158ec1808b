"""The devices of presets, with the sources of their numbers.

Peaks by dtype without sparsity, and memory bandwidths are the vendors' datasheet values, of tensor cores where there
are any; 16-bit products add up in 32 bits. bfloat16 has float16's peak, although GPUs before Ampere would emulate it.
Kernel launches cost about 5 us each.

Memories in MiB are the totals that nvidia-smi reports: a board of "80 GB" may have 85.9e9 bytes. The sources are a page
of Modal's (thundergolfer.com/blog/nvidia-gpu-memory-capacity) and users' reports (RTX 3090: issue 1128 of
noonghunna/club-3090; RTX 4090: issue 255 of RLinf/RLinf). Those in GB are datasheet values, as no such source was found
for P100, P40, V100 and B200, and a die of the K80 has 12.0e9 bytes by both.
"""

from __future__ import annotations

from placeto.problem.cluster.cluster import Device

# One GK210 die of a Tesla K80: half of the board's 8.2 TFLOP/s fp32 (boost), 480 GB/s and 24 GB; no faster dtype. The
# overhead, like the link constants of its presets, is the published Placeto simulator's for an AWS p2.8xlarge.
K80 = Device("k80", "k80", 4.1e12, memory_bandwidth=240e9, memory=12 * 10**9, overhead_us=5.7)


_MIB = 2**20
_GB = 10**9


def _gpu(kind: str, bandwidth: float, memory: int, overhead_us: float, **peaks: float) -> Device:
    """A GPU, from bytes/s of memory bandwidth, bytes of memory, microseconds of overhead, and peaks in TFLOP/s."""
    flops = {dtype: float(f"{peak!r}e12") for dtype, peak in peaks.items()}  # exactly the number that a file would have
    return Device(kind, kind, flops, memory_bandwidth=bandwidth, memory=memory, overhead_us=overhead_us)


# NVIDIA Tesla P100 (PCIe, 16 GB) datasheet, 2016.
P100 = _gpu("p100", 732e9, 16 * _GB, 5.0, float64=4.7, float32=9.3, float16=18.7)
# NVIDIA Tesla P40 datasheet, 2016; fp64 at 1/32 (GP102).
P40 = _gpu("p40", 346e9, 24 * _GB, 5.0, float64=0.375, float32=12.0, int8=47)
# NVIDIA V100 (SXM2, 16 GB) datasheet, 2017.
V100 = _gpu("v100", 900e9, 16 * _GB, 5.0, float64=7.8, float32=15.7, float16=125)
# NVIDIA T4 datasheet, 2018; fp64 at 1/32 (Turing whitepaper).
T4 = _gpu("t4", 300e9, 15360 * _MIB, 5.0, float64=0.253, float32=8.1, float16=65, int8=130)
# NVIDIA A100 datasheet, 2020 and 2021 (SXM, 40 and 80 GB).
_A100 = {"float64": 9.7, "float32": 19.5, "tf32": 156, "float16": 312, "int8": 624}
A100 = _gpu("a100", 2039e9, 81920 * _MIB, 4.0, **_A100)
A100_40GB = _gpu("a100-40gb", 1555e9, 40960 * _MIB, 4.0, **_A100)
# NVIDIA A10 datasheet, 2021; fp64 at 1/64 (GA102 whitepaper).
A10 = _gpu("a10", 600e9, 23028 * _MIB, 4.0, float64=0.488, float32=31.2, tf32=62.5, float16=125, int8=250)
# NVIDIA GA102 whitepaper, 2020: GeForce RTX 3090.
RTX3090 = _gpu("rtx3090", 936e9, 24576 * _MIB, 4.0, float64=0.556, float32=35.6, tf32=35.6, float16=71, int8=284)
# NVIDIA Ada GPU architecture whitepaper, 2022: GeForce RTX 4090.
RTX4090 = _gpu(
    "rtx4090", 1008e9, 24564 * _MIB, 4.0, float64=1.29, float32=82.6, tf32=82.6, float16=165.2, float8=330.3, int8=660.6
)
# NVIDIA L4 datasheet, 2023; fp64 at 1/64 (Ada whitepaper).
L4 = _gpu("l4", 300e9, 23034 * _MIB, 4.0, float64=0.473, float32=30.3, tf32=60, float16=121, float8=242.5, int8=242.5)
# NVIDIA H100 (SXM) datasheet, 2022, to the digits of the Hopper whitepaper; H200 (SXM) datasheet, 2023.
_H100 = {"float64": 33.5, "float32": 66.9, "tf32": 494, "float16": 989, "float8": 1979, "int8": 1979}
H100 = _gpu("h100", 3350e9, 81559 * _MIB, 4.0, **_H100)
H200 = _gpu("h200", 4800e9, 143771 * _MIB, 4.0, **_H100)
# NVIDIA HGX B200 datasheet, 2024: an eighth of the board.
B200 = _gpu(
    "b200", 8000e9, 180 * _GB, 4.0, float64=37, float32=75, tf32=1125, float16=2250, float8=4500, int8=4500
)  # fmt: skip
NVIDIA = {
    gpu.kind: gpu for gpu in (K80, P100, P40, V100, T4, A10, A100, A100_40GB, L4, RTX3090, RTX4090, H100, H200, B200)
}
"""Kind -> GPU of NVIDIA."""

# Apple Mac Studio technical specifications, 2023: M2 Ultra with 76 GPU cores (128 fp32 lanes each at 1.4 GHz) and
# 192 GB that the CPU shares, of which Metal gives the GPU three quarters by default.
M2_ULTRA = _gpu("m2-ultra", 800e9, 144 * _GB, 10.0, float32=27.2, float16=27.2)

# A 56-core Sapphire Rapids socket: 64 fp32 FLOPs a cycle and core at 2 GHz, eight channels of DDR5-4800; AMX tiles of
# 1024 bf16 multiply-adds a cycle and core at 1.9 GHz (Intel Xeon Platinum 8480+, 2023).
CPU = Device(
    "cpu",
    "cpu",
    {"float64": 3.6e12, "float32": 7.2e12, "bfloat16": 109e12, "float16": 7.2e12},
    memory_bandwidth=307e9,
    memory=512 * 10**9,
    overhead_us=2.0,
)
# AMD Ryzen 7 7840U product page, 2023: 8 Zen 4 cores, 32 fp32 FLOPs a cycle each, at their 3.3 GHz base clock; two
# channels of DDR5-5600.
CPU_LAPTOP = Device(
    "cpu-laptop",
    "cpu-laptop",
    {"float64": 0.42e12, "float32": 0.845e12, "bfloat16": 1.69e12, "float16": 0.845e12},
    memory_bandwidth=89.6e9,
    memory=16 * 10**9,
    overhead_us=2.0,
)
# The CPU of that Mac Studio: 16 performance cores, 4 x 4 fp32 multiply-adds a cycle at 3.5 GHz, and half of the
# processor's bandwidth, about what its cores can take: estimates.
CPU_M2_ULTRA = Device(
    "cpu-m2-ultra", "cpu-m2-ultra", 1.8e12, memory_bandwidth=400e9, memory=48 * 10**9, overhead_us=2.0
)
# One core of the 2-core Xeon virtual machine that Placeto is developed on, measured with torch 2.13 on one thread:
# 160 GFLOP/s (fp32 matmul, n = 256 and 1024), 14 GB/s (read + write of 64 MB), 2.2 us for an add of 4 numbers.
CPU_CORE = Device("cpu-core", "cpu-core", 160e9, memory_bandwidth=14e9, memory=10 * 10**9, overhead_us=2.0)
