"""Names of runs: what the configuration says, else what the path says below the pattern's fixed part."""

import unicodedata
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.config import Watch
from megatron_monitor.identity import naming


def run_name(path: str, watches: Sequence[Watch] = ()) -> str:
    """The name by the configuration alone."""
    return naming.named(path, watches).name


def named(path: str, *patterns: str) -> str:
    """The name under a single watch."""
    return run_name(path, [Watch(paths=patterns)])


@pytest.mark.parametrize(
    ("path", "patterns", "name"),
    [
        ("logs/nvidia/2340723.out", ["logs/nvidia/*"], "2340723"),
        ("logs/nvidia/2340723.err", ["logs/nvidia/*"], "2340723"),
        ("logs/nvidia/2340723.out", ["logs/**/*"], "nvidia/2340723"),
        ("logs/nvidia/2340723.out", ["logs/**"], "nvidia/2340723"),
        ("/logs/tr11/main_log.txt", ["/logs/tr11/main_log.txt"], "main_log"),
        ("/logs/tr11/main_log.txt", ["/logs/*/main_log.txt"], "tr11/main_log"),
        ("/logs/tr11/train.log.1", ["/logs/tr11/*"], "train"),
        ("/logs/tr11/train.log-20220314.gz", ["/logs/tr11/*"], "train"),
        ("/logs/tr11/opt-1.3b", ["/logs/tr11/*"], "opt-1.3b"),
        ("main_log.2", ["main_log"], "main_log"),
        ("x.log", ["*.log"], "x"),
        ("./a/../x.log", ["x.log"], "x"),
        ("/x.log", ["/*.log"], "x"),
        ("logs/deep/down/x.log", ["logs"], "deep/down/x"),
        ("logs/x.log", ["logs/"], "x"),
        ("logs/.log", ["logs/*"], ".log"),
        ("logs/a.log", ["logs/[ab].log"], "a"),
        ("logs/c.log", ["logs/[!ab].log"], "c"),
        ("logs/tr1/a.log", ["logs/tr?/a.log"], "tr1/a"),
        ("elsewhere/x.log", ["logs/*.log"], "x"),
        ("logs/tr11/deep/main.log", ["logs/tr*"], "tr11/deep/main"),
        ("logs/[z-a].log", ["logs/[z-a].log"], "[z-a]"),
        *((f"/l/{name}.log", ["/l/*"], name) for name in ("error_analysis", "terr", "std", "my-std", "train.e1x")),
        (b"/l/tr\xff\n11.log".decode("utf-8", "surrogateescape"), ["/l/*"], "tr\ufffd\ufffd11"),
    ],
)
def test_default_name(path: str, patterns: list[str], name: str) -> None:
    """The name is the path from the first wildcard's directory on, without a log's suffix."""
    assert named(path, *patterns) == name


@pytest.mark.parametrize(
    ("watches", "names"),
    [
        # `name:` names every source of its paths.
        ([Watch(paths=("/a/*.out", "/b/x.err"), name="tr11-176B")],
         {"/a/1.out": "tr11-176B", "/b/x.err": "tr11-176B"}),
        # `name_from:` takes the name from its group; a path that it does not fit keeps the default name.
        ([Watch(paths=("/logs/**/*.out",), name_from=r"/logs/(?P<run>tr[^/]+)/")],
         {"/logs/tr11/a/1.out": "tr11", "/logs/other/1.out": "other/1"}),
        # Directories whose last parts are equal are distinguished by more of them.
        ([Watch(paths=("/x/a/logs/main.log", "/x/b/logs/main.log", "main.log"))],
         {"/x/a/logs/main.log": "a/logs/main", "/x/b/logs/main.log": "b/logs/main", "main.log": "main"}),
        # One wildcard in two directories gives two sets of runs.
        ([Watch(paths=("/l/tr11/*.log",)), Watch(paths=("/l/tr12/*.log",))],
         {"/l/tr11/main.log": "tr11/main", "/l/tr12/main.log": "tr12/main"}),
        # Two directories given as such do not mix their files; a file named beside them changes nothing.
        ([Watch(paths=("/l/a", "/l/b", "/m/main.log"))], {"/l/a/x.log": "a/x", "/l/b/x.log": "b/x"}),
        ([Watch(paths=("/l/a", "/m/main.log"))], {"/l/a/x.log": "x"}),
        # A path whose pattern is not in the configuration is led back by its own shape, else named by its stem.
        ([Watch(paths=("/l/*.out",), name="tr11")], {"/l/1.out": "tr11", "/m/1.out": "1"}),
        ([], {"/m/1.out": "1"}),
        # Whoever knows the path alone gives it for the pattern: a file that was named stands before any wildcard.
        ([Watch(paths=("/l/**/*.log",)), Watch(paths=("/l/a/main.log",), name="tr11")],
         {"/l/a/main.log": "tr11", "/l/b/main.log": "b/main"}),
        # Two files named alike are two runs, in one watch or in two, and in either order.
        ([Watch(paths=("/x/b/m.txt",)), Watch(paths=("/x/a/m.txt",))], {"/x/a/m.txt": "a/m", "/x/b/m.txt": "b/m"}),
        # What a scheduler writes to two files is one run by two patterns, too.
        ([Watch(paths=("/l/out/*.out", "/l/err/*.err"))], {"/l/out/77.out": "77", "/l/err/77.err": "77"}),
    ],
)  # fmt: skip
def test_names(watches: list[Watch], names: dict[str, str]) -> None:
    """What a path's run is called where these are watched."""
    assert {path: run_name(path, watches) for path in names} == names


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        ("77.out", "77.err", "77"),
        ("train.log.out", "train.log.err", "train"),
        ("train.out.log", "train.err.log", "train"),
        ("train_stdout", "train_stderr", "train"),
        ("train_stdout.log", "train_stderr.log", "train"),
        ("77.stdout", "77.stderr", "77"),
        ("77-stdout.txt", "77-stderr.txt", "77"),
        ("stdout_77.txt", "stderr_77.txt", "77"),
        ("77_out.log", "77_err.log", "77_out"),
        ("output_77.log", "error_77.log", "output_77"),
        ("job.o54745", "job.e54745", "job.o54745"),
        ("stdout.log", "stderr.log", "stdout"),
        ("out.log", "err.log", "out"),
        ("stdout", "stderr", "stdout"),
        ("log.out", "log.err", "log"),
        ("neox_77_77-%T.out", "neox_77_77-%T.err", "neox_77_77-%T"),
    ],
)
def test_the_two_streams_of_a_job(one: str, other: str, name: str) -> None:
    """However a site calls them; of a directory each, they are two runs."""
    for pattern in ("/l/*", "/l"):
        assert named(f"/l/{one}", pattern) == named(f"/l/{other}", pattern) == name
    files = Watch(paths=(f"/l/{one}", f"/l/{other}"))
    assert {run_name(path, [files]) for path in files.paths} == {name}
    assert named(f"/l/1/{one}", "/l/**") == named(f"/l/1/{other}", "/l/**") == f"1/{name}"


@pytest.mark.parametrize(
    ("pattern", "files", "names"),
    [
        # torchrun --log-dir: two nodes of one rendezvous, and its second attempt
        ("/l/**/*.log", ["77_k3x9a_1z/attempt_0/0/stdout.log", "77_q_2hd8xx/attempt_0/7/stderr.log",
                         "77_k3x9a_1z/attempt_1/0/stdout.log"], {"77"}),
        # without a rendezvous id an attempt is called by its folder alone
        ("/l/**/*.log", ["none_k3x9a_1z/attempt_0/0/stdout.log", "none_q_2hd8xx/attempt_0/0/stdout.log"],
         {"none_k3x9a_1z", "none_q_2hd8xx"}),
        ("/l/**/std*", ["gpt/1/rank.00/stdout", "gpt/1/rank.11/stderr"], {"gpt/1"}),  # mpirun --output-filename
        # deepspeed --enable_each_rank_log: an attempt has the time at which it began in its name
        ("/l/**/*.log", ["gpt/20260401120000_rank0.log", "gpt/20260401120000_rank15.log"], {"gpt/20260401120000"}),
        ("/l/**/worker*", ["gpt/workerlog.0", "gpt/workerlog.7"], {"gpt/workerlog"}),  # paddle --log_dir
        # what only looks alike: no launcher's folder, another word
        ("/l/**/*.log", ["try_1/0/stdout.log", "try_1/1/stdout.log"], {"try_1/0/stdout", "try_1/1/stdout"}),
        ("/l/**/*.log", ["gpt_rank0.log", "gpt_rank1.log"], {"gpt_rank0", "gpt_rank1"}),
    ],
)  # fmt: skip
def test_files_of_a_launchs_processes(pattern: str, files: list[str], names: set[str]) -> None:
    """What launchers call the file of each process tells no run apart; under a pattern or named one by one."""
    assert {named(f"/l/{file}", pattern) for file in files} == names
    watches = [Watch(paths=tuple(f"/l/{file}" for file in files))]
    assert len({run_name(f"/l/{file}", watches) for file in files}) == len(names)


def test_long_names_stay_apart() -> None:
    """Names are cut to 200 characters, and two that differ only beyond them still differ."""
    names = {named(f"/l/{'x' * 300}{tail}.log", "/l/*") for tail in "ab"}
    assert len(names) == 2
    assert {len(name) for name in names} == {200}


@given(st.text(min_size=1), st.text(alphabet="ab/*?[]!-^.~", min_size=1, max_size=12))
def test_any_path_has_a_name(path: str, pattern: str) -> None:
    """Whatever the path and the pattern, the name is not empty, bounded, printable and can be encoded."""
    name = run_name(path, [Watch(paths=(pattern,))])
    assert 0 < len(name) <= 200
    assert name.encode()
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in name)
