"""What NVIDIA's DCGM exporter and AMD's device metrics exporter print for the nodes of two runs of the day: names,
labels and units as they have them. The third NVIDIA node runs hot and slow from the moment at which its run became
slower, has had an XID and errors on NVLink; the first one lacks a value, as old GPUs do.
"""

from collections.abc import Iterator

NVIDIA, AMD = "jpbo-034-[01-07]", "x1001c0s[0-1]b0n0"
"""As Slurm lists them."""
SICK = "jpbo-034-03"
SICK_SINCE = -3.3 * 3600.0  # seconds before the end of the day
BLANK = 9223372036854775794
GPUS = 2
DCGM = (
    "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
)  # fmt: skip
ROCM = (
    "gpu_clock", "gpu_package_power", "gpu_average_package_power", "gpu_junction_temperature", "gpu_edge_temperature",
    "gpu_ecc_uncorrect_total", "gpu_ecc_correct_xgmi_wafl", "gpu_ecc_uncorrect_xgmi_wafl",
)  # fmt: skip
_COUNTERS = ("_COUNT_TOTAL", "_REMAPPED_ROWS", "ecc_uncorrect_total", "xgmi_wafl")
KNOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    **{name: ("counter" if name.endswith(_COUNTERS) else "gauge", ("gpu", "Hostname")) for name in DCGM},
    **{
        name: (
            "counter" if name.endswith(_COUNTERS) else "gauge", ("gpu_id", "hostname", "clock_type", "partition_id"),
        )
        for name in ROCM
    },
}  # fmt: skip


def nodes() -> Iterator[tuple[str, str]]:
    """(what is scraped, the exporter's name), of every node."""
    yield from ((f"jpbo-034-0{number}:9400", "dcgm") for number in range(1, 8))
    yield from ((f"10.0.7.{number}:5000", "rocm") for number in range(2))


def page(instance: str, since: float) -> str:
    """The exporter's text, `since` seconds before the end of the day (negative)."""
    if instance.startswith("jpbo"):
        return "".join(_nvidia(instance.partition(":")[0], since))
    return "".join(_amd(f"x1001c0s{instance.partition(':')[0][-1]}b0n0"))


def _nvidia(node: str, since: float) -> Iterator[str]:
    sick = node == SICK and since >= SICK_SINCE
    errors = (since - SICK_SINCE) // 60 if sick else 0.0
    healthy = (1980.0, 655.25, 61.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    values = (1155.0, 402.5, 88.0, 94.0, 1.0, 0.0, errors, 0.0, 0.0) if sick else healthy
    for gpu in range(GPUS):
        labels = (
            f'gpu="{gpu}",UUID="GPU-{node}-{gpu}",pci_bus_id="00000000:0{gpu}:00.0",device="nvidia{gpu}",'
            f'modelName="NVIDIA H100 80GB HBM3",Hostname="{node}.juwels.example"'
        )
        for name, value in zip(DCGM, values if gpu == 1 else healthy, strict=True):
            blank = node.endswith("01") and name.endswith("REMAPPED_ROWS")
            yield f"{name}{{{labels}}} {BLANK if blank else value}\n"


def _amd(node: str) -> Iterator[str]:
    for gpu in range(GPUS):
        labels = f'gpu_id="{gpu}",card_model="AMD Instinct MI300X",serial_number="SN{gpu}",hostname="{node}"'
        clock = f'{labels},clock_index="0",clock_type="GPU_CLOCK_TYPE_'
        yield f'gpu_clock{{{clock}SYSTEM"}} 2100\ngpu_clock{{{clock}MEMORY"}} 1300\n'
        yield f'gpu_package_power{{{labels},partition_id="0"}} 740\ngpu_package_power{{{labels},partition_id="1"}} 0\n'
        yield f"gpu_junction_temperature{{{labels}}} 71\ngpu_ecc_uncorrect_total{{{labels}}} 0\n"
        yield f"gpu_ecc_correct_xgmi_wafl{{{labels}}} 0\n"
