"""Which run a log's lines are of: two jobs of one name, two nodes of one job, copies, two programs in one job."""

import logging

import pytest

from megatron_monitor.follow.messages import Restarted
from tests.monitor.core.following import Following, arguments, step
from tests.monitor.extended import slurm

PODS = "runs=[{paths: ['/var/log/pods/*/trainer/*.log'], name_from: '_(?P<run>[a-z]+)-'}]"
FOLDER = "runs=[{paths: ['/l/*/*'], name_from: '/l/(?P<run>[^/]+)/'}]"
PLAIN = "runs=[{paths: ['/l/*']}]"


def pod(name: str) -> str:
    """A container's log on its node."""
    return f"/var/log/pods/ml_{name}_6f1c/trainer/0.log"


def cri(text: str, second: int) -> str:
    """As a container runtime writes lines."""
    stamp = f"2026-04-02T14:{second // 60:02d}:{second % 60:02d}.350000000Z stdout F "
    return "".join(f"{stamp}{line}\n" for line in text.splitlines())


OOM = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "/m/pretrain_gpt.py", line 255, in <module>\n'
    "[rank3]:     pretrain(\n"
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)


def test_two_nodes_of_one_training_are_one_run() -> None:
    """Rank 0's node prints arguments, saves and the crash, the last rank's the iterations: no hang on either, one crash
    with its rank, and the sizes.
    """
    logs = Following(PODS)
    first, last = pod("gpt-7-worker-0"), pod("gpt-7-worker-7")
    logs.write(first, arguments())
    for number in range(1, 41):
        logs.wait(10)
        logs.write(last, step(number))
        if number == 20:
            logs.write(first, "saving checkpoint at iteration      20 to /ckpt in torch format\n")
            logs.write(first, "  successfully saved checkpoint from iteration      20 to /ckpt\n")
    assert logs.reported == []
    logs.write(first, OOM)
    logs.wait(300)
    assert logs.firing("hang") == []
    (crash,) = [one for one in logs.reported if one.incident == "crash" and one.status == "firing"]
    assert (crash.evidence["failure"], crash.evidence["rank"]) == ("cuda_oom", 3)
    (page,) = logs.pages().values()
    assert (page["run"], page["iteration"], page["restarts"]) == ("gpt", 40, 0)
    assert page["topology"]["world_size"] == "16"  # type: ignore[index]
    assert [one["why"] for one in page["identity"]["streams"]] == ["name_from"] * 2  # type: ignore[index]


@pytest.mark.parametrize("order", [("gpt-7-worker-0", "gpt-7-worker-7"), ("gpt-7-worker-7", "gpt-7-worker-0")])
def test_two_nodes_as_history(order: tuple[str, str]) -> None:
    """Whichever file is read first: one run that crashed after its 40 iterations."""
    logs = Following(PODS)
    texts = {
        "gpt-7-worker-0": cri(arguments(), 1) + cri(OOM, 50),
        "gpt-7-worker-7": "".join(cri(step(number, seconds=1), 5 + number) for number in range(1, 41)),
    }
    for name in order:
        logs.open(pod(name), texts[name], age=3600)
    logs.wait(5)
    (page,) = logs.pages().values()
    assert (page["state"], page["iteration"], page["restarts"]) == ("crashed", 40, 0)
    assert str(page["failure"]).startswith("cuda_oom")


def test_two_jobs_of_one_name_at_once_are_two_runs(caplog: pytest.LogCaptureFixture) -> None:
    """Both compute the same numbers at the same time. One warning names the pattern; one's hang is not hidden by the
    other's progress.
    """
    caplog.set_level(logging.WARNING)
    logs = Following(PODS)
    one, two = pod("sweep-1-x7k2p"), pod("sweep-2-x7k2p")
    for number in range(1, 31):
        logs.wait(5)
        logs.write(one, step(number))
        logs.wait(5)
        logs.write(two, step(number))
    assert logs.totals() == {"sweep": 30, "sweep:sweep-2": 30}
    assert logs.totals("megatron_restarts_total") == {"sweep": 0, "sweep:sweep-2": 0}
    assert logs.reported == []
    (warning,) = [record for record in caplog.records if "same name" in record.getMessage()]
    assert "/var/log/pods/*/trainer/*.log" in warning.getMessage()
    for number in range(31, 71):
        logs.wait(10)
        logs.write(two, step(number))
    assert logs.firing("hang") == ["sweep"]
    logs.killed()
    logs.write(two, step(71))
    assert logs.totals() == {"sweep": 30, "sweep:sweep-2": 71}


def test_two_jobs_of_one_name_as_history() -> None:
    """By the stamps of their lines, in whichever order the files are read."""
    names = ["sweep-1-x7k2p", "sweep-2-x7k2p"]
    for order in (names, names[::-1]):
        logs = Following(PODS)
        for name in order:
            begin = names.index(name)
            lines = "".join(cri(step(number, seconds=1), begin + number) for number in range(1, 51))
            logs.open(pod(name), lines, age=86400)
        logs.wait(2)
        assert sorted(logs.totals().values()) == [50, 50]
        assert set(logs.totals("megatron_restarts_total").values()) == {0}


@pytest.mark.parametrize("second", ["/l/tr/slurm-77.copy.out", "/l/tee-77.log", "/l/backup/slurm-77.out"])
def test_a_second_log_of_a_job_that_stops_is_no_hang(second: str) -> None:
    """A tee's copy, a copy of the file, under the same name or another: the job's own log goes on."""
    logs = Following("runs=[{paths: ['/l/**/*.out', '/l/*.log']}]")
    own, environment = "/l/tr/slurm-77.out", "SLURM_JOB_ID=77\n"
    for path in (own, second):
        logs.write(path, environment)
    for number in range(1, 101):
        logs.wait(10)
        logs.write(own, step(number))
        if number <= 40:
            logs.write(second, step(number))
    assert logs.reported == []
    assert list(logs.totals().values()) == [100]
    (page,) = logs.pages().values()
    assert "copy of" in str(page["identity"])


def test_a_node_of_a_job_that_falls_silent_is_no_hang() -> None:
    """A log per node, under names of their own: one prints arguments and then nothing, one iterations."""
    logs = Following(PLAIN)
    logs.write("/l/node-0.log", "SLURM_JOB_ID=77\n" + arguments())
    logs.write("/l/node-1.log", "SLURM_JOB_ID=77\n")
    for number in range(1, 301):
        logs.wait(30)
        logs.write("/l/node-1.log", step(number, seconds=30))
    assert logs.reported == []
    assert logs.totals() == {"node-1": 300}


@pytest.mark.parametrize(
    ("setting", "names"), [(PLAIN, {"a", "b"}), ("runs=[{name: both, paths: ['/l/*']}]", {"both", "both:b"})]
)
def test_two_programs_in_one_job_are_two_runs_that_know_it(setting: str, names: set[str]) -> None:
    """`srun a & srun b`: each is judged alone; also over a kill, and when one was compared only just before."""
    logs = Following(setting)
    for path, layers in (("/l/a.log", 24), ("/l/b.log", 48)):
        logs.write(path, "SLURM_JOB_ID=77\n" + arguments(num_layers=layers))
    for number in range(1, 41):
        logs.wait(10)
        logs.write("/l/a.log", step(number))
        logs.write("/l/b.log", step(number, loss=5.0))
        if number in (1, 2, 20):
            logs.killed()
    totals = logs.totals()
    assert set(totals) == names
    assert set(totals.values()) == {40}
    pages = logs.pages()
    one, two = sorted(names)
    assert pages[one]["identity"]["shares_job_with"] == [two]  # type: ignore[index]
    assert pages[two]["identity"]["shares_job_with"] == [one]  # type: ignore[index]
    for number in range(41, 81):
        logs.wait(10)
        logs.write("/l/b.log", step(number, loss=5.0))
    assert logs.firing("hang") == [one]


def test_a_printed_id_changes_nothing() -> None:
    """In the middle of a training the line is text. Before a new attempt in the same file it is that attempt's."""
    logs = Following(PLAIN)
    logs.write("/l/a.log", "SLURM_JOB_ID=501\n")
    for number in range(1, 21):
        logs.wait(10)
        logs.write("/l/a.log", step(number))
        if number == 10:
            logs.write("/l/a.log", "SLURM_JOB_ID=500\n")
        if number == 12:
            logs.write("/l/a.log", "SLURM_JOB_ID=500\n" + step(number + 1))
    page = logs.pages()["a"]
    assert page["identity"]["job"]["id"] == "501"  # type: ignore[index]
    assert page["environment"] == {"SLURM_JOB_ID": "501"}
    (question,) = slurm(logs.core).questions(logs.now)
    assert question.job == "501"
    logs.write("/l/a.log", "SLURM_JOB_ID=502\n")
    for number in range(15, 25):
        logs.wait(10)
        logs.write("/l/a.log", step(number, loss=2.9))
    assert logs.pages()["a"]["identity"]["job"]["id"] == "502"  # type: ignore[index]
    assert logs.totals("megatron_restarts_total") == {"a": 1}


def test_the_monitors_own_job_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that names no job has none, wherever the monitor runs."""
    monkeypatch.setenv("SLURM_JOB_ID", "500")
    logs = Following(PLAIN)
    logs.write("/l/a.log", step(1) + step(2))
    logs.wait(2)
    assert slurm(logs.core).questions(logs.now) == []
    assert logs.pages()["a"]["identity"]["job"] is None  # type: ignore[index]


PUSHED = [f"/spool/ml/gpt/n{rank}~{rank:016x}~gpt-{rank}-7cd{rank + 4}n.log" for rank in range(3)]


@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize(
    ("files", "prefix", "runs"),
    [
        (PUSHED, "", 1), (["/spool/ml/gpt/a.log", "/spool/ml/gpt/b.log"], "[rank{}]:", 1),
        (["/spool/ml/gpt/a.log", "/spool/ml/gpt/b.log"], "", 2),
    ],
)  # fmt: skip
def test_ranks_with_a_loss_of_their_own(files: list[str], prefix: str, runs: int, lag: int) -> None:
    """Of one owner's pods, or by the ranks in their lines: what each tells is a copy, also behind a restart of all, and
    no progress when only those that lag go on. Without either they are trainings.
    """
    logs = Following("runs=[{paths: ['/spool/**/*.log'], name_from: '^/spool/(?P<run>.+)/[^/]+$'}]")
    for begin, end in ((1, 31), (21, 41)):
        for turn in range(begin, end + lag + 10):  # nobody writes while they are started again
            for rank, file in enumerate(files):
                number = turn - lag * (rank > 0)
                if begin <= number < end:
                    logs.write(file, prefix.format(rank) + step(number, 3.0 + rank / 10 + begin / 1000, seconds=1.0))
            logs.wait(1)
    assert len(logs.totals()) == runs
    if runs == 1:
        assert logs.totals() == {"ml/gpt": 50.0}
        assert logs.totals("megatron_restarts_total") == {"ml/gpt": 1.0}
        (reported,) = logs.totals("megatron_last_progress_timestamp_seconds").values()
        assert logs.now - reported >= 10 + lag


def test_indexes_that_are_trainings_of_their_own() -> None:
    """Pods of one owner that have printed other arguments."""
    logs = Following("runs=[{paths: ['/spool/**/*.log'], name_from: '^/spool/(?P<run>.+)/[^/]+$'}]")
    for rank, file in enumerate(PUSHED):
        logs.write(file, arguments(lr=rank))
    for number in range(1, 9):
        for rank, file in enumerate(PUSHED):
            logs.write(file, step(number, 3.0 + rank, seconds=1.0))
        logs.wait(1)
    assert sorted(logs.totals().values()) == [8.0, 8.0, 8.0]


@pytest.mark.parametrize(
    ("pods", "said", "run"),
    [
        (
            ["grid-0-7cdln", "grid-1-q9x2z"],
            "{host}:41:41 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n",
            "ml/grid",
        ),
        (
            ["phi-w-0-0-7cdln", "phi-w-1-0-q9x2z"],
            "export MASTER_ADDR=phi-w-0-0.phi\nexport HOSTNAME={host}\n",
            "ml/phi",
        ),
    ],
)
def test_the_host_that_is_printed_tells_the_owner(pods: list[str], said: str, run: str) -> None:
    """Pods of one owner that their names do not tell are one run from then on, with what was said before, also after a
    kill; a pod that prints none is one of its own, and says that it is not sure.
    """
    logs = Following("runs=[{paths: ['/var/log/pods/*/*/*.log']}]")
    files = [f"/var/log/pods/ml_{pod}_{number}b7d/main/0.log" for number, pod in enumerate([*pods, "lone-1-k4hdq"])]
    for file, pod in zip(files, pods, strict=False):
        logs.write(file, arguments())
        logs.wait(1)
        logs.write(file, said.format(host=pod[:-6]))
    for number in range(1, 9):
        for rank, file in enumerate(files):
            logs.write(file, step(number, 3.0 + rank, seconds=1.0))
        logs.wait(1)
        if number == 4:
            logs.killed()
    assert logs.totals() == {run: 8.0, "ml/lone-1": 8.0}
    assert logs.totals("megatron_restarts_total")[run] == 0.0
    info = {one.run: str(one.samples["megatron_run_info"]) for one in logs.core.snapshot(logs.now).runs}
    assert ("4096" in info[run], "4096" in info["ml/lone-1"]) == (True, False)
    identity = logs.pages()["ml/lone-1"]["identity"]
    assert "label it megatron-monitor/run" in str(identity)


def of_process(rank: int, attempt: int = 0, stream: str = "stdout") -> str:
    """The file of one process of an attempt, as `torchrun --log-dir` calls it."""
    return f"/l/77_k3x9a_1z/attempt_{attempt}/{rank}/{stream}.log"


ELASTIC = "runs=[{paths: ['/l/**/*.log']}]"


@pytest.mark.parametrize("own_loss", [False, True])
def test_the_processes_of_a_launch_are_one_run(own_loss: bool) -> None:
    """Rank 0 prints the arguments and what is saved, all ranks their iterations, with one loss or with losses of their
    own; one dies, and all go on in the files of a second attempt: one run, one restart, one crash with its rank.
    """
    logs = Following(ELASTIC)
    for attempt, begin, end in ((0, 1, 31), (1, 21, 41)):
        logs.write(of_process(0, attempt), arguments())
        for number in range(begin, end):
            for rank in range(4):
                logs.write(
                    of_process(rank, attempt), step(number, 3.0 + attempt / 100 + own_loss * rank / 10, seconds=1.0)
                )
            logs.wait(1)
        if attempt == 0:
            logs.write(of_process(3, stream="stderr"), OOM)
            logs.wait(20)
    assert logs.totals() == {"77": 50.0}
    assert logs.totals("megatron_restarts_total") == {"77": 1.0}
    (crash,) = [one for one in logs.reported if one.incident == "crash" and one.status == "firing"]
    assert (crash.evidence["failure"], crash.evidence["rank"]) == ("cuda_oom", 3)
    assert logs.firing("hang") == []


def test_a_bar_and_its_dicts_in_two_files_are_one_training() -> None:
    """HF Trainer draws its bar on one stream of a process and prints its dicts on the other."""
    logs = Following(ELASTIC)
    for number in range(10, 201, 10):
        logs.write(
            of_process(0, stream="stderr"),
            f"\r{number // 2:3d}%|###   | {number}/200 [00:{number // 4:02d}<00:30,  4.00it/s]",
        )
        logs.write(
            of_process(0),
            f"{{'loss': {3 - number / 200}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {number / 100}}}\n",
        )
        logs.wait(3)
    logs.write(of_process(0, stream="stderr"), "\n")
    (page,) = logs.pages().values()
    assert (page["run"], page["iteration"], page["restarts"]) == ("77", 200, 0)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
@pytest.mark.parametrize(("age", "state"), [(7200.0, "lost"), (600.0, "crashed")])
def test_an_undated_failure_of_an_old_file_is_not_the_last_launchs(
    order: tuple[int, ...], age: float, state: str
) -> None:
    """A file that was last written long before the loop's last line tells nothing of how that ended."""
    logs = Following(ELASTIC)
    files = [
        (of_process(0), "".join(step(number, seconds=1.0) for number in range(1, 31)), age),
        (of_process(3, stream="stderr"), OOM, age),
        (of_process(0, 1), "".join(step(number, 3.1, seconds=1.0) for number in range(31, 61)), 601.0),
    ]
    for number in order:
        path, text, written = files[number]
        logs.open(path, text, age=written)
    logs.wait(5)
    (page,) = logs.pages().values()
    assert (page["state"], page["iteration"]) == (state, 60)


@pytest.mark.parametrize("files", [["slurm-70.out", "slurm-71.out", "slurm-72.out"], ["a.log", "b.log", "c.log"]])
@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_a_chain_is_the_same_in_whichever_order_it_is_read(
    files: list[str], stamped: bool, live: bool, order: tuple[int, ...]
) -> None:
    """What moved last is read first, and is what the run does now; what came before it adds its attempts."""
    logs = Following(FOLDER)

    def reported(number: int, job: int) -> str:
        return f"[2026-04-0{job + 1} 10:{number // 60:02d}:{number % 60:02d}] " * stamped + step(number, 3 + job / 100)

    for job in order:
        text = "".join(reported(number, job) for number in range(1 + 20 * job, 31 + 20 * job))
        logs.open(f"/l/gpt/{files[job]}", arguments() + text, age=3600.0 * (2 - job) + (1 if live else 3600))
    for number in range(71, 80 if live else 71):
        logs.write(f"/l/gpt/{files[2]}", reported(number, 2))
        logs.wait(10)
    logs.wait(5)
    (page,) = logs.pages().values()
    assert (page["state"], page["iteration"]) == (("training", 79) if live else ("lost", 70))
    assert logs.totals() == {"gpt": 99 if live else 90}
    assert logs.totals("megatron_restarts_total") == {"gpt": 2}
    assert logs.totals("megatron_lost_iterations_total") == {"gpt": 20}
    assert logs.reported == []


@pytest.mark.parametrize(
    "files", [(of_process(0), of_process(7)), ("/l/gpt/1/rank.00/stdout", "/l/gpt/1/rank.07/stdout")]
)
def test_a_relaunch_that_hangs_in_its_set_up_is_told(files: tuple[str, str]) -> None:
    """Of two processes of an attempt the one prints the set-up and the other the steps; both go on in their files."""
    logs = Following("runs=[{paths: ['/l/**/*']}]")
    first, last = files
    logs.write(first, arguments())
    for number in range(1, 31):
        logs.wait(5)
        logs.write(last, step(number, seconds=5.0))
    logs.write(last, OOM)
    logs.wait(60)
    assert len(logs.firing("crash")) == 1
    logs.write(first, arguments())
    logs.wait(10)
    (page,) = logs.pages().values()
    assert (page["state"], page["restarts"]) == ("starting", 1)
    logs.wait(4 * 3600)
    assert len(logs.firing("hang")) == 1


def test_a_rotated_part_that_is_found_later_is_of_the_same_attempt() -> None:
    """A daemon that was killed finds a part of the log under its rotated name, while the log goes on."""
    logs = Following("runs=[{paths: ['/l/*']}]")
    for number in range(1, 31):
        logs.write("/l/train.log", step(number))
        logs.wait(10)
    logs.open("/l/train.log.1", "".join(step(number) for number in range(31, 41)))
    logs.core.handle(Restarted("/l/train.log", "rotated", ""), logs.now)
    logs.written["/l/train.log"] = b""
    for number in range(41, 61):
        logs.write("/l/train.log", step(number))
        logs.wait(10)
    assert logs.totals() == {"train": 60}
    assert logs.totals("megatron_restarts_total") == {"train": 0}
    assert logs.reported == []
