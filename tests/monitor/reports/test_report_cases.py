"""A report says what the log says: figures that programs print in their own ways, each in a log of our own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron_monitor.model.flops import FORMULAS
from megatron_monitor.model.topology import Topology
from tests.commands import command
from tests.conftest import SHARED
from tests.lines import dump, line

Report = Callable[[str], dict[str, Any]]


def row_of(*paths: Path) -> dict[str, Any]:
    """The only row of `report --format json`."""
    done = command("report", "--format", "json", *paths)
    (row,) = json.loads(done.stdout)["rows"]
    return dict(row)


def top_of(path: Path) -> dict[str, str]:
    """The only row of `top --plain`, by column."""
    done = command("top", "--plain", path)
    head, row = (line.split() for line in done.stdout.splitlines())
    return dict(zip(head, row, strict=True))


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Write a log, and its row."""

    def read(text: str) -> dict[str, Any]:
        log = tmp_path / "run.log"
        log.write_text(text)
        return row_of(log)

    return read


def notes(row: dict[str, Any]) -> str:
    """In one text."""
    return "; ".join(row.get("notes", ()))


# --- printed beside the line ----------------------------------------------------------------------------------------

OLD = {
    "num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 1024, "world_size": 16,
    "model_parallel_size": 4, "batch_size": 8, "log_interval": 1, "checkpoint_activations": True, "train_iters": 100,
}  # fmt: skip


def effective_log(count: int = 6, last: bool = True) -> str:
    """Megatron of 2021 with DeepSpeed's flops calculator: its figure stands on a line of its own behind each line."""
    parameters, batch = 1.3e9, 32
    out = [dump(**OLD, global_batch_size=batch)]
    for number in range(1, count + 1):
        seconds = 10.0 + 0.01 * number + (5.0 if number == 1 else 0.0)
        rate = 8 * parameters * 1024 * batch / (seconds * 16 * 1e12)
        out.append(
            f" iteration {number:8d}/     100 | elapsed time per iteration (ms): {seconds * 1000:.1f} | learning rate: "
            f"1.875E-05 | lm loss: 1.25E+01 | loss scale: 1024.0 | number of skipped iterations:   0 | number of nan "
            "iterations:   0 |\n"
        )
        if last or number < count:
            out.append("time (ms) | forward: 100.0\n")
            out.append(f"Effective Tera Flops per GPU: {rate:.2f} and total parameters 1.3 B\n")
    return "".join(out)


@pytest.mark.parametrize("last", [True, False])
def test_effective_tera_flops_are_printed_tflops(report: Report, tmp_path: Path, last: bool) -> None:
    """In `report`, `top` and /metrics, also while the newest line's figure has not come."""
    row = report(effective_log(last=last))
    assert (row["tflops_source"], row["tflops_formula"]) == ("log", "effective_tera_flops")
    assert row["tflops"] == pytest.approx(2.12, abs=0.006)
    assert "reproduce" not in notes(row)
    assert float(top_of(tmp_path / "run.log")["TFLOPS"]) == row["tflops"]
    page = command("run", "--once", tmp_path / "run.log").stdout
    assert f'source="log"}} {row["tflops"]}' in page


# --- sizes of programs without Megatron's dump ----------------------------------------------------------------------


def hf_deepspeed_log() -> str:
    """HF's run_clm with DeepSpeed, 2021: 16 GPUs, started by a script that shows its commands."""
    stamp = "[2021-05-25 06:30:01,722] [INFO] [config.py:752:print]"
    bars = "\r".join(
        f" {25 * step}%|{'#' * step}| {step}/4 [{elapsed}<00:10, {100.0 + 20 / step:.2f}s/it]"
        for step, elapsed in ((1, "02:00"), (2, "03:40"), (3, "05:20"), (4, "07:00"))
    )
    return (
        "+ MSIZE=2\n+ NNODES=4\n"
        "WARNING:__main__:Process rank: 0, device: cuda:0, n_gpu: 1distributed training: True, 16-bits training: True\n"
        "INFO:__main__:Overriding config: n_embd=2048,n_head=16,n_layer=40,n_positions=1024,"
        "gradient_checkpointing=true\n"
        "[INFO|configuration_utils.py:553] 2021-05-25 06:29:50,976 >> Model config GPT2Config {\n"
        '  "model_type": "gpt2",\n  "n_embd": 768,\n  "n_head": 12,\n  "n_layer": 12,\n  "n_positions": 1024,\n'
        '  "task_specific_params": {\n    "max_length": 50\n  },\n  "vocab_size": 50257\n}\n\n'
        "[INFO|trainer.py:1143] 2021-05-25 06:30:55,249 >> ***** Running training *****\n"
        "[INFO|trainer.py:1146] 2021-05-25 06:30:55,249 >>   Instantaneous batch size per device = 4\n"
        "[INFO|trainer.py:1147] 2021-05-25 06:30:55,249 >>   Total train batch size (w. parallel, distributed & "
        "accumulation) = 128\n"
        "[INFO|trainer.py:1148] 2021-05-25 06:30:55,249 >>   Gradient Accumulation steps = 2\n"
        "[INFO|trainer.py:1149] 2021-05-25 06:30:55,249 >>   Total optimization steps = 4\n"
        f"{stamp}   gradient_accumulation_steps .. 2\n{stamp}   train_batch_size ............. 128\n"
        f"{stamp}   train_micro_batch_size_per_gpu  4\n{stamp}   world_size ................... 16\n"
        f"{stamp}   zero_optimization_stage ...... 3\n{stamp}   fp16_enabled ................. True\n"
        f"{bars}\n"
        "{'train_runtime': 420.0, 'train_samples_per_second': 1.2, 'train_steps_per_second': 0.009, 'epoch': 1.0}\n"
    )


def test_sizes_of_the_trainer_with_deepspeed(report: Report) -> None:
    """GPUs, sizes, batch and accumulation; the notes' rule of 2021 with the size that the script names."""
    row = report(hf_deepspeed_log())
    want = {"gpus": 16, "layers": 40, "hidden_size": 2048, "attention_heads": 16, "micro_batch_size": 4,
            "gradient_accumulation_steps": 2, "global_batch_size": 128, "data_parallel_size": 16, "zero_stage": 3,
            "sequence_length": 1024, "activation_checkpointing": "full", "tflops_formula": "seed"}  # fmt: skip
    assert {name: row.get(name) for name in want} == want
    rate = 8 * 2e9 * 1024 * 128 / (row["seconds_per_iteration"] * 16 * 1e12)
    assert row["tflops"] == pytest.approx(rate)


def test_the_total_batch_tells_the_gpus() -> None:
    """Without DeepSpeed's configuration: total / (batch x accumulation)."""
    from megatron_monitor.model.topology import apply
    from megatron_monitor.parsers.events import TrainerSetting

    topology = Topology()
    for name, value in (
        ("instantaneous batch size per device", 4.0),
        ("total train batch size (w. parallel, distributed & accumulation)", 256.0),
        ("gradient accumulation steps", 2.0),
    ):
        topology = apply(topology, TrainerSetting(name=name, value=value)) or topology
    assert (topology.world_size, topology.data_parallel_size) == (32, 32)


def swift_log(**changes: object) -> str:
    """ms-swift: its arguments one a line, a configuration in sections, bars and dicts over carriage returns."""
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "sequence_parallel_size": 2,
                 "gradient_checkpointing": False, **changes}  # fmt: skip
    given = "".join(f"{name}={value},\n" for name, value in arguments.items())
    steps = "".join(
        f"Train:  {10 * step}%|#  | {step}/10 [00:{9 * step:02d}<00:30,  9.00s/it]\r"
        f"{{'loss': '2.{step}', 'grad_norm': '2', 'learning_rate': '3e-06', 'epoch': '0.{step}', "
        f"'global_step/max_steps': '{step}/10', 'memory(GiB)': '64.9', 'train_speed(s/it)': '9.0'}}\n"
        for step in range(1, 11)
    )
    return (
        "[INFO:swift] rank: 0, local_rank: 0, world_size: 16, local_world_size: 8\n"
        f"[INFO:swift] args: SftArguments(\nfsdp_config={{'fsdp_version': 2, 'activation_checkpointing': True}},\n"
        f"{given})\n"
        "[INFO:swift] model_info: ModelInfo(model_type='own', torch_dtype=torch.bfloat16, config=OwnConfig {\n"
        '  "hidden_size": 64,\n  "text_config": {\n    "hidden_size": 2816,\n    "layer_types": [\n'
        '      "full"\n    ],\n'
        '    "num_attention_heads": 16,\n    "num_hidden_layers": 30,\n    "rms_norm_eps": 1e-06\n  },\n'
        '  "vision_config": {\n    "hidden_size": 1152,\n    "num_hidden_layers": 27\n  }\n}\n, num_labels=None)\n'
        f"{steps}"
    )


def test_sizes_that_swift_prints(report: Report) -> None:
    """The language model's layers, not the eye's; ranks that share a sequence share a sample."""
    row = report(swift_log())
    want = {"gpus": 16, "nodes": 2, "context_parallel_size": 2, "data_parallel_size": 8, "micro_batch_size": 2,
            "gradient_accumulation_steps": 4, "global_batch_size": 64, "layers": 30, "hidden_size": 2816,
            "activation_checkpointing": "full", "iterations": 10}  # fmt: skip
    assert {name: row.get(name) for name in want} == want
    assert row["samples_per_second"] == pytest.approx(64 / 9.0)


def test_a_model_that_is_only_loaded_is_no_run(tmp_path: Path) -> None:
    """A configuration and a world size stand in the logs of programs that do not train."""
    log = tmp_path / "serve.log"
    log.write_text(swift_log().partition("Train:")[0])
    done = command("report", log, code=1)
    assert "no training line" in done.stderr


# --- by which formula -----------------------------------------------------------------------------------------------


def megatron_2021(date: str = "2021-05-23", script: str = "+ MSIZE=18\n", **more: object) -> str:
    """Megatron-LM as it was in 2021: no TFLOPs in its lines."""
    values = {**OLD, "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4, "global_batch_size": 4,
              "micro_batch_size": 1, "padded_vocab_size": 50688, **more}  # fmt: skip
    lines = "".join(line(number, 100, 1.381, 7.1, batch=4) for number in range(1, 8))
    return f"{script}{dump(**values)}[after megatron is initialized] datetime: {date} 08:41:04 \n{lines}"


def test_a_log_of_2021_is_computed_by_its_notes_rule(report: Report) -> None:
    """2 F P s B / (t W), P as the script calls it; a later one by its own program's formula."""
    row = report(megatron_2021())
    assert (row["tflops_formula"], row["tflops_source"]) == ("seed", "computed")
    assert row["tflops"] == pytest.approx(26.69, abs=0.01)
    assert "TFLOPs computed by seed" in notes(row)
    counted = report(megatron_2021(script=""))
    assert counted["tflops"] == pytest.approx(26.69 * counted["parameters"] / 18e9, rel=1e-3)
    later = report(megatron_2021(date="2026-05-23"))
    assert later["tflops_formula"] == "megatron_lm_2026"


GATED = Topology(
    world_size=8, layers=16, hidden_size=2048, ffn_hidden_size=8192, attention_heads=32, query_groups=8, kv_channels=64,
    padded_vocab_size=128256, glu=True, output_gate=True,
)  # fmt: skip


def nvidia_log(vocabulary: bool = True, works: Callable[[int], float] = lambda _: 1.0, **more: object) -> str:
    """NVIDIA's Megatron-LM of 2026 with a gate in its attention; `works`: an iteration's share of the full FLOPs."""
    values = {
        "num_layers": 16, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 32,
        "group_query_attention": True, "num_query_groups": 8, "kv_channels": 64, "swiglu": True, "world_size": 8,
        "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "data_parallel_size": 8, "seq_length": 8192,
        "micro_batch_size": 1, "global_batch_size": 32, "recompute_granularity": None, "attention_output_gate": True,
        "train_iters": 40, "log_interval": 1, **more,
    }  # fmt: skip
    vocab = " > padded vocab (size: 128256) with 0 dummy tokens (new size: 128256)\n" if vocabulary else ""
    lines = []
    for number in range(1, 13):
        seconds = 1.4 + 0.013 * (number % 5)
        rate = FORMULAS["megatron_lm_2026"](GATED, seconds, 32, 8192)
        assert rate is not None
        lines.append(
            f" [2026-05-22 02:39:{10 + 2 * number:02d}.000000] iteration {number:8d}/      40 | consumed samples: "
            f"{32 * number:12d} | elapsed time per iteration (ms): {seconds * 1000:.1f} | throughput per GPU "
            f"(TFLOP/s/GPU): {rate * works(number):.1f} | learning rate: 5.1E-05 | global batch size:    32 | "
            "lm loss: 2.387E+00 | "
            "loss scale: 1.0 | grad norm: 0.120 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )
    return dump(**values) + vocab + "".join(lines)


def test_an_output_gate_is_counted(report: Report) -> None:
    """NVIDIA's formula counts its projection; without it the figures are 4 % off, and that is said."""
    row = report(nvidia_log())
    assert row["tflops_formula"] == "megatron_lm_2026"
    assert "reproduce" not in notes(row)
    assert row["parameters"] == pytest.approx(1.33e9, rel=0.02)
    without = report(nvidia_log(attention_output_gate=False))
    assert "do not reproduce" in notes(without)


def test_a_vocabulary_that_the_log_lacks(report: Report) -> None:
    """The one tokenizer's size with which every printed figure comes out; none if none does."""
    row = report(nvidia_log(vocabulary=False))
    assert row["tflops_formula"] == "megatron_lm_2026"
    assert "vocabulary of 128256" in notes(row)
    other = report(nvidia_log(vocabulary=False, works=lambda _: 0.97))
    assert other.get("tflops_formula") is None
    assert "vocabulary" not in notes(other)


@pytest.mark.parametrize(("more", "words"), [({"sft": True}, "sequences are packed (sft)"), ({}, "differ from line")])
def test_packed_sequences_are_said_as_such(report: Report, more: dict[str, object], words: str) -> None:
    """What an iteration computes depends on what was packed: no formula of the arguments gives it."""
    row = report(nvidia_log(works=lambda number: 0.7 + 0.05 * (number % 4), **more))
    assert words in notes(row)
    assert "cannot be recomputed" in notes(row)
    assert "reproduce" not in notes(row)


# --- what is no steady time -----------------------------------------------------------------------------------------


def test_two_iterations_have_no_steady_time(report: Report) -> None:
    """The first warms up, and one value has no median: its figure is shown, and said to be none."""
    text = megatron_2021().replace("1381.0", "2234000.0", 1)
    row = report("".join(text.splitlines(keepends=True)[:-5]))
    assert (row["iterations"], row["steady_iterations"]) == (2, 0)
    assert row["seconds_per_iteration"] == pytest.approx(1.381)
    assert "no steady time in 2 iterations: the second one's is shown" in notes(row)


def test_a_first_line_that_stands_for_ten_iterations(report: Report) -> None:
    """Its figure is a mean in which the first iteration is."""
    text = megatron_2021(log_interval=10).replace("iteration        1/", "iteration       10/")
    row = report("".join(text.splitlines(keepends=True)[:-6]))
    assert row["iterations"] == 10
    assert "from the first line alone, the mean of its iterations" in notes(row)


def test_a_bars_pace_is_what_its_elapsed_time_grows_by(report: Report) -> None:
    """The rate that it shows is a running mean, which has the slow first step in it for long."""
    row = report(hf_deepspeed_log())
    assert row["steady_iterations"] == 3
    assert row["seconds_per_iteration"] == 100.0


# --- DeepSpeed's engines --------------------------------------------------------------------------------------------


def engine_log(chat: bool = False) -> str:
    """DeepSpeed without Megatron: no line tells the batch size; two engines of a chat's training tell their own."""
    out = []
    for step in range(10, 110, 10):
        stamp = f"[2023-04-18 01:46:{step // 2:02d},142] [INFO]"
        out += [
            f"{stamp} [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, lr=[9.6e-06], mom=[(0.9, 0.95)]\n"
            f"{stamp} [timer.py:199:stop] epoch=0/micro_step={step}/global_step={step}, RunningAvgSamplesPerSec="
            f"{rate + 1}, CurrSamplesPerSec={rate}, MemAllocated=3.96GB, MaxMemAllocated=22.95GB\n"
            for rate in ((172.0, 80.0) if chat else (172.0,))
        ]
        if chat:
            out.append(
                "|E2E latency=7.99s |Gather latency=0.00s (0.00%) |CurSamplesPerSec=8.01 |AvgSamplesPerSec=8.02\n"
            )
    return "".join(out)


def test_samples_per_second_of_an_engine(report: Report, tmp_path: Path) -> None:
    """As it prints them, in `report`, `top` and on the page."""
    row = report(engine_log())
    assert row["samples_per_second"] == pytest.approx(172.0)
    top = top_of(tmp_path / "run.log")
    assert (float(top["SAMPLES/S"]), float(top["MEMORY"])) == (172.0, row["memory_bytes"])


def test_samples_per_second_of_a_chats_loop(report: Report) -> None:
    """The loop around two engines tells its own; theirs are parts of it."""
    assert report(engine_log(chat=True))["samples_per_second"] == pytest.approx(8.01)


# --- NeMo -----------------------------------------------------------------------------------------------------------


def test_nemos_printed_steps(report: Report) -> None:
    """`global_step` is the step: an epoch that begins again is no restart."""
    row = report(
        "".join(
            f"Training epoch {step // 100}, iteration {step % 100}/99 | lr: 0.0001 | global_batch_size: 128 | "
            f"global_step: {step} | reduced_train_loss: {9 - step / 100:.3f} | train_step_timing in s: "
            f"{44.9 if step == 0 else 6.08} | TFLOPS_per_GPU: 801.2 | consumed_samples: {128 * (step + 1)}\n"
            for step in range(150)
        )
    )
    assert (row["last_iteration"], row["restarts"], row["dialect"]) == (149, 0, "nemo")
    assert row["seconds_per_iteration"] == pytest.approx(6.08)
    assert row["samples_per_second"] == pytest.approx(128 / 6.08)
    assert row["tflops"] == pytest.approx(801.2)


def test_nemos_bar(report: Report) -> None:
    """Each bar is drawn with the figures of the step before, then with its own; from 1,000 on they lose digits."""
    out = []
    for done in range(1, 1100):
        for told in (done - 2, done - 1):
            step = f"{told:.3f}"[:5] if told < 1000 else f"{told:.2e}"
            out.append(
                f"Epoch 0: :  {done // 20}%|#   | {done}/2000 [00:49<07:25, v_num=None, reduced_train_loss="
                f"{11 - done / 1e3:.2f}, global_step={step}, consumed_samples={128.0 * (told + 1):.1f}, "
                "train_step_timing in s=4.680]\r"
            )
    row = report("".join(out) + "\n")
    assert (row["last_iteration"], row["train_iterations"], row["restarts"], row["iterations"]) == (1099, 2000, 0, 1099)
    assert row["seconds_per_iteration"] == pytest.approx(4.68)


# --- commands -------------------------------------------------------------------------------------------------------


def test_top_shows_what_report_shows(report: Report, tmp_path: Path) -> None:
    """Medians of the run, not its last iteration; a run that died before its first one too."""
    row = report(nvidia_log())
    top = top_of(tmp_path / "run.log")
    for column, name in (("S/ITERATION", "seconds_per_iteration"), ("TFLOPS", "tflops"),
                         ("SAMPLES/S", "samples_per_second")):  # fmt: skip
        assert float(top[column]) == pytest.approx(row[name], rel=1e-5)
    report(dump(**OLD) + "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert top_of(tmp_path / "run.log")["RUN"] == "run"


def test_once_of_a_missing_file_fails(tmp_path: Path) -> None:
    """Also beside one that is there."""
    log = tmp_path / "run.log"
    log.write_text(engine_log())
    command("run", "--once", log)
    for paths in ([tmp_path / "none.log"], [log, tmp_path / "none.log"], [tmp_path / "none*.log"]):
        command("run", "--once", *paths, code=1)


@pytest.mark.parametrize("fault", ["hang@999999", "hang@501", "hang@99999999999999999999", "hang@\u00b2"])
def test_a_fault_beyond_the_end_is_refused(fault: str) -> None:
    """With the number of iterations that there are."""
    done = command("simulate", "--fault", fault, code=2)
    assert "500 iterations" in done.stderr or "is no iteration" in done.stderr
    command("simulate", "--fault", "hang@20", "--iterations", "20")


# --- logs that others wrote -----------------------------------------------------------------------------------------


REAL = yaml.safe_load((Path(__file__).parent / "real-logs.yaml").read_text())


@pytest.mark.real_logs
@pytest.mark.parametrize(("path", "want"), REAL.items(), ids=REAL)
def test_what_is_true_of_real_logs(path: str, want: dict[str, Any]) -> None:
    """Figures that stand in the logs, or follow from what does."""
    if not (SHARED / path).exists():
        pytest.skip("no such log beside the project")
    row = row_of(SHARED / path)
    for name, value in want.items():
        assert row.get(name) == (pytest.approx(value, rel=1e-3) if isinstance(value, float) else value), name
    assert "reproduce" not in notes(row)
