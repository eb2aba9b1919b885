"""Set-up before and between the iterations: arguments, layout, versions, milestones."""

from typing import Literal

from megatron_monitor.parsers.events.base import Event, Remark

Milestone = Literal[
    "launched",
    "initialized",
    "model_built",
    "dataloaders_built",
    "setup_done",
    "training_started",
    "before_training_step",
    "training_done",
]
"""Set-up steps that the training loop announces, in their usual order."""


class ArgumentsDumped(Event, frozen=True, kw_only=True, gc=False, tag="arguments"):
    """The complete arguments dump. Values are as printed, without gpt-neox's word about their origin."""

    values: dict[str, str]
    complete: bool = True


class TopologyLogged(Event, frozen=True, kw_only=True, gc=False, tag="topology"):
    """`using world size: 64, data-parallel-size: 1, ...`, and the forms of DeepSpeed and the launchers."""

    world_size: int | None = None
    data_parallel_size: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    context_parallel_size: int | None = None
    nodes: int | None = None
    processes_per_node: int | None = None


class ModelSettingLogged(Event, frozen=True, kw_only=True, gc=False, tag="model_setting"):
    """A size of the model outside the arguments dump, such as `padded_vocab_size`, `micro_batches`,
    `parameters_billions` or `zero_stage`. `name` is Megatron's argument name if there is one.
    """

    name: str
    value: float | str


class SizesReported(Remark, frozen=True, kw_only=True, gc=False, tag="sizes"):
    """Sizes of an attempt or its model, by the names of `Topology`. Programs that do not train print them as well."""

    values: dict[str, int]
    default: bool = False
    """True if other lines with the same size override it."""


class ParametersCounted(Event, frozen=True, kw_only=True, gc=False, tag="parameters"):
    """` > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 1236`."""

    parameters: int
    tensor_rank: int | None = None
    pipeline_rank: int | None = None


class BatchSizeRampupPlanned(Event, frozen=True, kw_only=True, gc=False, tag="batch_size_rampup"):
    """The global batch size will grow during the run, so that longer iterations are expected."""

    start: int
    end: int
    increment: int
    samples: int


class MilestoneReached(Event, frozen=True, kw_only=True, gc=False, tag="milestone"):
    """A set-up step was announced."""

    milestone: Milestone


class LauncherStarted(Remark, frozen=True, kw_only=True, gc=False, tag="launcher_started"):
    """torchrun's agent has started on a node, for a training or for another program."""


class IterationsSkipped(Event, frozen=True, kw_only=True, gc=False, tag="iterations_skipped"):
    """BigScience's `--skip-train-iteration-range`: the iteration jumps forward as planned."""

    first: int
    last: int


class TimeShown(Remark, frozen=True, kw_only=True, gc=False, tag="time"):
    """A line of which only the time is known: a status line of a site or a library's note."""

    logged_at: str


class SoftwareSeen(Remark, frozen=True, kw_only=True, gc=False, tag="software"):
    """A version from ds_report or a banner."""

    name: str
    version: str


class EnvironmentVariableSeen(Remark, frozen=True, kw_only=True, gc=False, tag="environment"):
    """One variable of the allow-list (environment.py). The same dumps contain secrets, so there are no wildcards."""

    name: str
    value: str


CLOCK = "GPU_CLOCK_MHZ"
"""Not an environment variable. It is shown among them because the training does not set it (gpu.yaml)."""


class DocumentSeen(Remark, frozen=True, kw_only=True, gc=False, tag="document"):
    """The file is a text that quotes program output, or a test report. Its failures ended no training."""


class HostSeen(Remark, frozen=True, kw_only=True, gc=False, tag="host"):
    """A host name as the program prints it: its own host, or the host at which the attempt's processes meet."""

    host: str
    """Without the domain."""
    domain: str = ""
    """First part of the domain: in Kubernetes a pod's subdomain."""
    own: bool = True
