"""Set-up, before and between the iterations: arguments, layout, versions, milestones."""

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
    """The whole arguments dump, once it has ended. Values stand as printed, gpt-neox's origin word cut off."""

    values: dict[str, str]
    complete: bool = True


class TopologyLogged(Event, frozen=True, kw_only=True, gc=False, tag="topology"):
    """`using world size: 64, data-parallel-size: 1, ...`, DeepSpeed's and the launchers' forms of it."""

    world_size: int | None = None
    data_parallel_size: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    context_parallel_size: int | None = None
    nodes: int | None = None
    processes_per_node: int | None = None


class ModelSettingLogged(Event, frozen=True, kw_only=True, gc=False, tag="model_setting"):
    """One more input of the model told outside the arguments dump, e.g. `padded_vocab_size`, `micro_batches`,
    `parameters_billions`, `zero_stage`; `name` is Megatron's argument name where there is one.
    """

    name: str
    value: float | str


class SizesReported(Remark, frozen=True, kw_only=True, gc=False, tag="sizes"):
    """Sizes of an attempt or its model that programs which do not train print too, by the names of `Topology`."""

    values: dict[str, int]
    default: bool = False
    """Holds only where nothing else tells."""


class ParametersCounted(Event, frozen=True, kw_only=True, gc=False, tag="parameters"):
    """` > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 1236`."""

    parameters: int
    tensor_rank: int | None = None
    pipeline_rank: int | None = None


class BatchSizeRampupPlanned(Event, frozen=True, kw_only=True, gc=False, tag="batch_size_rampup"):
    """The global batch size will grow during the run: a legal slowdown."""

    start: int
    end: int
    increment: int
    samples: int


class MilestoneReached(Event, frozen=True, kw_only=True, gc=False, tag="milestone"):
    """A set-up step was announced."""

    milestone: Milestone


class IterationsSkipped(Event, frozen=True, kw_only=True, gc=False, tag="iterations_skipped"):
    """BigScience's `--skip-train-iteration-range`: the iteration jumps forward legally."""

    first: int
    last: int


class TimeShown(Remark, frozen=True, kw_only=True, gc=False, tag="time"):
    """A line that says nothing that is known here, but when it was written: a site's status line, a library's note."""


class SoftwareSeen(Remark, frozen=True, kw_only=True, gc=False, tag="software"):
    """A version that ds_report or a banner tells."""

    name: str
    version: str


class EnvironmentVariableSeen(Remark, frozen=True, kw_only=True, gc=False, tag="environment"):
    """One variable of the allow-list (environment.py). Secrets stand in the same dumps: never by wildcard."""

    name: str
    value: str


CLOCK = "GPU_CLOCK_MHZ"
"""Not a variable of the system: shown among them, as it is none of the training's own settings either (gpu.yaml)."""


class DocumentSeen(Remark, frozen=True, kw_only=True, gc=False, tag="document"):
    """The file is a text that quotes what programs print, or a report of tests: what fails in it ended no training."""


class HostSeen(Remark, frozen=True, kw_only=True, gc=False, tag="host"):
    """A host as the program knows it: its own, or the one that all of its attempt meet at."""

    host: str
    """Without the domain."""
    domain: str = ""
    """The first part of it: in Kubernetes a pod's subdomain."""
    own: bool = True
