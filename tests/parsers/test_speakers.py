"""One case a line format: what each program prints, and the events that it gives."""

from typing import Any

import pytest

from parsers.events import to_fields
from parsers.reader import SourceReader

GIB = 1024**3
MIB = 1024**2
CASES: list[tuple[str, list[dict[str, Any]]]] = [
    # --- set-up (Megatron) ---
    ("[after megatron is initialized] datetime: 2021-06-10 20:47:50 ",
     [{"event": "milestone", "milestone": "initialized", "logged_at": "2021-06-10T20:47:50"}]),
    ("0: [after dataloaders are built] datetime: 2026-05-22 03:10:22.941771 ",
     [{"event": "milestone", "milestone": "dataloaders_built", "rank": 0}]),
    ("[before the start of training step] datetime: 2021-06-10 20:47:54 ", [{"milestone": "before_training_step"}]),
    ("[after training is done] datetime: 2021-06-10 20:47:54 ", [{"milestone": "training_done"}]),
    ("done with setup ...", [{"milestone": "setup_done"}]),
    ("done with setups ...", [{"milestone": "setup_done"}]),
    ("[default0]:training ...", [{"milestone": "training_started"}]),
    ("[exiting program at iteration 500] datetime: 2021-08-08 01:00:51 ",
     [{"event": "exit", "reason": "iterations", "iteration": 500, "logged_at": "2021-08-08T01:00:51"}]),
    ("[exiting program after 1190.0357275923093 minutes] datetime: 2021-08-08 01:00:51", [{"reason": "duration"}]),
    ("[exiting program after receiving SIGTERM.] datetime: 2021-08-08 01:00:51", [{"reason": "signal"}]),
    ("[Detected kill switch at /x/kill. Exiting] datetime: 2022-05-18 01:00:51", [{"reason": "kill_switch"}]),
    ("using world size: 64, data-parallel-size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 16 ",
     [{"event": "topology", "world_size": 64, "data_parallel_size": 1, "tensor_parallel_size": 4,
       "pipeline_parallel_size": 16}]),
    ("using world size: 8, data-parallel size: 2, context-parallel size: 2, hierarchical context-parallel sizes: None, "
     "tensor-model-parallel size: 2, pipeline-model-parallel size: 1",
     [{"world_size": 8, "data_parallel_size": 2, "context_parallel_size": 2, "tensor_parallel_size": 2}]),
    # --- validation ---
    (" validation loss at iteration 50 | lm loss value: 8.889540E+00 | lm loss PPL: 7.255679E+03 | ",
     [{"event": "validation", "iteration": 50, "dataset": "validation", "losses": {"lm loss": 8.88954},
       "perplexities": {"lm loss": 7255.679}}]),
    ("[default7]:valid loss at iteration 45000 | lm loss value: 2.327091E+00 | lm loss PPL: 1.024808E+01 |",
     [{"event": "validation", "iteration": 45000, "losses": {"lm loss": 2.327091}}]),
    (" validation loss at iteration 500 on 160-sample draw from validation set | lm loss value: 6.1E+00 | lm loss PPL: 4.4E+02 |",
     [{"iteration": 500, "samples": 160, "dataset": "validation"}]),
    (" validation loss at iteration 500 on 160-sample draw from test set | lm loss value: 6.1E+00 | lm loss PPL: 4.4E+02 |",
     [{"dataset": "test"}]),
    (" validation loss at the end of training for val data | lm loss value: 6.1E+00 | lm loss PPL: 4.4E+02 |",
     [{"event": "validation", "losses": {"lm loss": 6.1}}]),
    # --- checkpoints ---
    (" [2026-05-22 03:45:43.139017] saving checkpoint at iteration   15549 to /c/p in torch_dist format",
     [{"event": "checkpoint_save_started", "iteration": 15549, "logged_at": "2026-05-22T03:45:43.139017"}]),
    ("[2021-08-08 01:00:44,221] [INFO] [logging.py:68:log_dist] [Rank 0] Saving model checkpoint: /c/global_step33241/mp.pt",
     [{"event": "checkpoint_file", "iteration": 33241, "rank": 0}]),
    # --- reports ---
    ("[Rank 7] (after 20 iterations) memory (MB) | allocated: 21633.5 | max allocated: 24432.0 | reserved: 29316.0 | max "
     "reserved: 29316.0",
     [{"event": "memory", "rank": 7, "iteration": 20, "allocated_bytes": int(21633.5 * MIB), "max_reserved_bytes": 29316 * MIB}]),
    ("[Rank 7] (after 20 iterations) memory (MB) | allocated: 1.0 | max reserved: 2.0[Rank 6] (after 20 iterations) memory (MB) "
     "| allocated: 3.0 | max reserved: 4.0",
     [{"rank": 7, "max_reserved_bytes": 2 * MIB}, {"rank": 6, "allocated_bytes": 3 * MIB}]),
    ("after 1 iterations memory (MB) | allocated: 12335.0 | max allocated: 19976.0 | reserved: 23330.0 | max reserved: 23330.0",
     [{"event": "memory", "iteration": 1, "allocated_bytes": 12335 * MIB}]),
    ("0: [Rank 0] (before save_checkpoint for iteration 15549) memory (MB) | allocated: 4374.87 | max allocated: 43531.79",
     [{"iteration": 15549, "occasion": "before save_checkpoint for iteration 15549"}]),
    ("time (ms) | forward-compute: 306.62 | backward-compute: 527.58 | batch-generator: 2.97",
     [{"event": "timers", "speaker": "megatron", "timers": {"forward-compute": (0.30662, 0.30662),
                                                            "backward-compute": (0.52758, 0.52758),
                                                            "batch-generator": (0.00297, 0.00297)}}]),
    ("    forward-backward ...............................: (4714.98, 4715.22)",
     [{"event": "timers", "timers": {"forward-backward": (4.71498, 4.71522)}}]),
    (" 0: INFO:megatron.core.utils:[2024-03-14 23:07:56] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | MnPwr/Rnk: 601796W/8 "
     "| MnEtpt/Rnk: 296.02TF/0 |",
     [{"event": "straggler", "values": {"MnRtt": (3.45308, 8), "MxRtt": (3.4682, 0), "MnPwr": (601.796, 8), "MnEtpt": (296.02, 0)}}]),
    # --- environment ---
    ("+ export CUDA_LAUNCH_BLOCKING=1", [{"event": "environment", "name": "CUDA_LAUNCH_BLOCKING", "value": "1"}]),
    ("++ NCCL_DEBUG=info", [{"name": "NCCL_DEBUG", "value": "info"}]),
    ("[2023-10-19 23:07:45,931] [INFO] [launch.py:138:main] 0 NCCL_IB_DISABLE=1", [{"name": "NCCL_IB_DISABLE", "value": "1"}]),
    ("n1:12:34 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib0", [{"name": "NCCL_SOCKET_IFNAME", "value": "ib0"}]),
    ("[2023-10-19 23:07:45,931] [INFO] [runner.py:1:main] cmd = pdsh -S -w h1,h2 export NCCL_DEBUG=INFO; export WANDB_API_KEY=xyz; cd /x;",
     [{"event": "milestone", "milestone": "launched"}]),
    ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2022-03-24T21:42:11 DUE TO TASK FAILURE ***",
     [{"event": "failure", "failure": "killed", "consequence": True}, {"event": "process_terminated"}]),
    ("[rank0]: RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 2816 vs 2710",
     [{"event": "failure", "failure": "disk_full", "rank": 0}]),
    ("[rank0]: RuntimeError: basic_ios::clear: iostream error", [{"event": "failure", "failure": "disk_full", "rank": 0}]),
    ("reader 3: basic_ios::clear: iostream error, trying again", []),
    # --- GPU names ---
    # --- DeepSpeed ---
    ("steps: 1 loss: 11.0643 iter time (s): 2.474 samples/sec: 206.954",
     [{"event": "engine_step", "form": "steps", "step": 1, "loss": 11.0643, "seconds_per_step": 2.474, "samples_per_second": 206.954}]),
    ("steps: 7 loss: 2.5 moe loss: 0.1 iter time (s): 2.474 samples/sec: 206.954", [{"step": 7, "losses": {"moe loss": 0.1}}]),
    ("[2023-04-18 01:46:59,142] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=6, lr=[9.6e-06, 9.6e-06], mom=[(0.9, 0.95)]",
     [{"form": "step", "step": 10, "skipped_steps": 6, "learning_rate": 9.6e-06, "rank": 0}]),
    ("[2022-01-18 01:46:59,142] [INFO] [timer.py:181:stop] 0/20, SamplesPerSec=232.7, MemAllocated=0.5GB, MaxMemAllocated=15.0GB",
     [{"form": "throughput", "step": 20, "samples_per_second": 232.7, "allocated_bytes": GIB // 2, "max_allocated_bytes": 15 * GIB}]),
    ("[2022-08-18 01:46:59,142] [INFO] [timer.py:181:stop] 0/20, RunningAvgSamplesPerSec=232.5, CurrSamplesPerSec=227.5, MemAllocated=0.5GB",
     [{"step": 20, "samples_per_second": 227.5, "average_samples_per_second": 232.5}]),
    ("[2023-04-18 01:46:59,171] [INFO] [timer.py:199:stop] epoch=0/micro_step=20/global_step=10, RunningAvgSamplesPerSec=46.5, "
     "CurrSamplesPerSec=50.5, MemAllocated=5.5GB, MaxMemAllocated=8.5GB",
     [{"step": 10, "micro_step": 20, "epoch": 0, "samples_per_second": 50.5}]),
    ("[deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 256, reducing to 128.0",
     [{"event": "overflow", "loss_scale": 256, "new_loss_scale": 128}]),
    ("[2023-04-18 01:46:52,554] [INFO] [loss_scaler.py:188:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted "
     "loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1", [{"loss_scale": 65536, "hysteresis": 1}]),
    ("Overflow detected. Skipping step. Attempted loss scale: 64.0, reducing to 32.0",
     [{"event": "overflow", "loss_scale": 64.0, "new_loss_scale": 32.0}]),
    ("[deepspeed] fp16 dynamic loss scale overflow! Skipping step. Attempted loss scale: 64.0, reducing to 32.0",
     [{"loss_scale": 64, "new_loss_scale": 32}]),
    ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", [{"event": "loss_scale_exhausted"}]),
    ("[2026-11-21 03:11:29,841] [INFO] [logging.py:128:log_dist] [Rank 0] time (ms) | fwd: 101.5 | bwd: 107.5",
     [{"event": "timers", "speaker": "deepspeed", "timers": {"fwd": (0.1015, 0.1015), "bwd": (0.1075, 0.1075)}}]),
    ("[2026-11-21 02:57:19,531] [INFO] [utils.py:782:see_memory_usage] MA 3.5 GB         Max_MA 5.5 GB         CA 7.5 GB         Max_CA 8 GB ",
     [{"event": "memory", "allocated_bytes": int(3.5 * GIB), "max_reserved_bytes": 8 * GIB}]),
    ("[2026-11-21 02:57:19,531] [INFO] [utils.py:789:see_memory_usage] CPU Virtual Memory:  used = 40.5 GB, percent = 21.6%",
     [{"host_used_bytes": int(40.5 * GIB), "host_used_ratio": 0.216}]),
    ("[2021-05-25 22:30:04,196] [INFO] [config.py:752:print]   zero_optimization_stage ...... 3", [{"name": "zero_stage", "value": 3}]),
    ("[2021-05-25 22:30:04,196] [INFO] [config.py:752:print]   train_batch_size ............. 768", [{"name": "global_batch_size", "value": 768}]),
    ("torch version .................... 2.9.1+cu128", [{"event": "software", "name": "torch", "version": "2.9.1+cu128"}]),
    ("**** Git info for Megatron: git_hash=ff4477e git_branch=main ****", [{"name": "megatron", "version": "ff4477e"}]),
    # --- HF Trainer ---
    ("{'loss': 1.921, 'learning_rate': 4e-08, 'epoch': 0.0}", [{"event": "trainer_log", "loss": 1.921, "learning_rate": 4e-08, "epoch": 0.0}]),
    ("{'loss': nan, 'grad_norm': inf, 'learning_rate': 4e-08, 'epoch': 0.5}", [{"event": "trainer_log", "epoch": 0.5}]),
    ("Train:   3%|x         | 1/30 [00:09<04:49,  9.97s/it]   {'loss': '2.383', 'grad_norm': '219', 'learning_rate': '3.33e-06', "
     "'epoch': '0.001222', 'global_step/max_steps': '1/30', 'memory(GiB)': '64.5', 'train_speed(s/it)': '9.976'}",
     [{"event": "trainer_progress", "step": 1, "total": 30, "seconds_per_step": 9.97, "description": "Train", "elapsed_seconds": 9.0,
       "remaining_seconds": 289.0},
      {"event": "trainer_log", "step": 1, "max_steps": 30, "loss": 2.383, "grad_norm": 219.0, "memory_bytes": int(64.5 * GIB),
       "seconds_per_step": 9.976}]),
    (" 25%|xx        | 2/8 [03:45<11:17,  2.00it/s]", [{"step": 2, "total": 8, "seconds_per_step": 0.5}]),
    ("{'train_runtime': 896.0007, 'train_samples_per_second': 1.116, 'train_steps_per_second': 0.009, 'epoch': 1.0}",
     [{"event": "trainer_summary", "train_runtime_seconds": 896.0007, "samples_per_second": 1.116}]),
    ("***** Running training *****", [{"event": "trainer_setting", "name": "running_training"}]),
    ("[INFO|trainer.py:1165] 2021-05-25 07:09:47,832 >>   Total optimization steps = 1,500", [{"name": "total optimization steps", "value": 1500}]),
    ("[INFO|trainer_pt_utils.py:912] 2021-05-25 07:09:47,832 >>   train_runtime            = 0:14:55.5", [{"train_runtime_seconds": 895.5}]),
    # --- launchers ---
    ("[2026-11-21 03:11:32,046] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u'] exits with return code = -9",
     [{"event": "failure", "failure": "killed", "exit_code": -9}, {"event": "process_exit", "exit_code": -9}]),
    ("E0318 14:02:51.365000 1 torch/x/api.py:984] failed (exitcode: -11) local_rank: 1 (pid: 3677234) of binary: /usr/bin/python3",
     [{"failure": "segfault", "exit_code": -11}, {"event": "process_exit", "local_rank": 1}]),
    ("mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).",
     [{"failure": "killed", "rank": 3, "node": "n1"}, {"event": "process_exit", "exit_code": -9}]),
    ("/var/spool/job1/slurm_script: line 28:  8156 Killed                  python3 pretrain_gpt.py",
     [{"failure": "killed", "by": "shell"}, {"event": "process_exit", "pid": 8156}]),
    ("Killed", [{"failure": "killed", "message": "the shell: Killed"}, {"event": "process_exit"}]),
    ("./train.sh: line 12:  4242 Hangup                  python pretrain_gpt.py",
     [{"failure": "killed", "message": "process 4242: Hangup"}, {"event": "process_exit", "pid": 4242}]),
    ("./train.sh: line 12:  4242 Illegal instruction     (core dumped) python pretrain_gpt.py",
     [{"failure": "unknown", "consequence": False}, {"event": "process_exit", "pid": 4242}]),
    ("W0402 15:10:00.100000 4242 torch/distributed/elastic/agent/server/api.py:723] Received 1 death signal, shutting down workers",
     [{"failure": "killed", "message": "torchrun received SIGHUP", "consequence": True, "by": "launcher"}]),
    ("W0402 15:10:00.100000 4242 torch/distributed/elastic/agent/server/api.py:723] Received Signals.SIGHUP death signal, "
     "shutting down workers", [{"failure": "killed", "message": "torchrun received SIGHUP"}]),
    ("W0402 15:10:00.100000 4242 torch/distributed/elastic/agent/server/api.py:723] Received 2 death signal, shutting down workers",
     [{"failure": "stopped", "message": "torchrun received SIGINT"}]),
    # --- Slurm ---
    ("slurmstepd: error: *** STEP 1999616.0 ON r6i4n5 CANCELLED AT 2021-05-27T21:42:11 DUE TO TIME LIMIT ***",
     [{"event": "failure", "failure": "time_limit", "node": "r6i4n5", "logged_at": "2021-05-27T21:42:11", "by": "slurm",
       "notice": "step_cancelled"}, {"event": "process_terminated"}]),
    ("slurmstepd-node-05: error: *** JOB 7 ON node-01 CANCELLED AT 2026-04-12T21:18:22 DUE to SIGNAL Terminated ***",
     [{"failure": "stopped", "notice": "job_cancelled", "node": "node-01"}, {"event": "process_terminated", "node": "node-05"}]),
    ("slurmstepd-node-05: error: *** STEP 4242.0 ON node-01 FAILED (non-zero exit code or other failure mode) ***",
     [{"failure": "unknown", "consequence": True, "by": "slurm", "node": None}, {"event": "process_terminated", "node": "node-05"}]),
    ("0: slurmstepd: error: *** JOB 7 ON n1 UNCORRECTABLE MEMORY ERROR AT 2026-04-12T21:18:22 ***",
     [{"failure": "node_failure", "fatal": False, "node": None, "rank": None, "logged_at": "2026-04-12T21:18:22"}]),
    ("slurmstepd-node-05: error: Detected 1 oom_kill event in StepId=4242.0. Some of the step tasks have been OOM Killed.",
     [{"failure": "host_oom", "by": "slurm", "node": "node-05"}]),
    ("[2026-09-21T10:00:00.123] error: Detected 2 oom_kill events in StepId=7.0. Some of the step tasks have been OOM Killed.",
     [{"failure": "host_oom", "node": None, "logged_at": "2026-09-21T10:00:00.123"}]),
    ("slurmstepd-lulu: error: Exceeded job memory limit", [{"failure": "host_oom", "node": "lulu"}]),
    ("srun: error: n1: task 0: Out Of Memory", [{"failure": "host_oom", "by": "slurm"}, {"event": "process_exit"}]),
    ("srun: error: n1: tasks 0-3: Illegal instruction (core dumped)",
     [{"failure": "unknown", "message": "task 0-3 on n1: Illegal instruction"}, {"event": "process_exit"}]),
    ("srun: error: n1: task 3: Aborted (core dumped)", [{"failure": "unknown", "consequence": True}, {"event": "process_exit"}]),
    ("srun: error: n1: task 3: User defined signal 1", [{"failure": "killed"}, {"event": "process_exit"}]),
    ("srun: error: n1: task 3: Hangup", [{"failure": "killed"}, {"event": "process_exit"}]),
    ("0: slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-04-12T21:18:22 DUE TO PREEMPTION ***", [{"failure": "preempted"}, {"event": "process_terminated"}]),
    ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-04-12T21:18:22 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
     [{"failure": "node_failure"}, {"event": "process_terminated"}]),
    ("slurmstepd: error: *** JOB 1839551 ON nid006149 CANCELLED AT 2026-04-12T21:18:22 ***", [{"failure": "stopped"}, {"event": "process_terminated"}]),
    ("srun: error: nid006913: task 0: Exited with exit code 1", [{"event": "process_exit", "exit_code": 1, "node": "nid006913", "tasks": "0"}]),
    ("srun: error: nid006270: tasks 37,39: Segmentation fault", [{"failure": "segfault"}, {"event": "process_exit", "tasks": "37,39"}]),
    ("srun: error: nid0: tasks 0-1,3: Terminated", [{"failure": "stopped", "consequence": True}, {"event": "process_exit"}]),
    # --- failures ---
    ("RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.50 GiB total capacity; 8.57 MiB already allocated)",
     [{"failure": "cuda_oom", "requested_bytes": int(12.5 * MIB), "device_bytes": int(10.5 * GIB)}]),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 23.50 GiB of which",
     [{"failure": "cuda_oom", "device_bytes": int(23.5 * GIB)}]),
    ("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 95.00 GiB",
     [{"failure": "cuda_oom", "rank": 3, "device_bytes": 95 * GIB}]),
    ("RuntimeError: CUDA error: out of memory", [{"failure": "cuda_oom"}]),
    ("RuntimeError: transform: failed to synchronize: cudaErrorECCUncorrectable: uncorrectable ECC error encountered", [{"failure": "ecc"}]),
    ("[default3]:  what():  CUDA error: unknown error", [{"failure": "cuda_error"}]),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", [{"failure": "cuda_error"}]),
    ("[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=469508, OpType=ALLREDUCE, "
     "Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.",
     [{"event": "nccl_watchdog", "group_rank": 1, "sequence": 469508, "operation": "ALLREDUCE", "timeout_seconds": 1800.0,
       "waited_seconds": 1802.212}]),
    ("39: [rank39]:[E522 03:55:59.960586137 ProcessGroupNCCL.cpp:694] [Rank 1] Watchdog caught collective operation timeout: "
     "WorkNCCL(SeqNum=805827, OpType=BROADCAST, NumelIn=32768, NumelOut=32768, Timeout(ms)=600000) ran for 600012 milliseconds before",
     [{"event": "nccl_watchdog", "rank": 39, "group_rank": 1, "waited_seconds": 600.012}]),
    ("35:   what():  [PG ID 5 PG GUID 110(TENSOR_MODEL_PARALLEL_GROUP) Rank 1] Process group watchdog thread terminated with exception: "
     "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=805827, OpType=BROADCAST) ran for 600006 milliseconds",
     [{"failure": "nccl", "consequence": True}]),
    ("RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:825, unhandled system error, NCCL version 2.7.8",
     [{"failure": "nccl"}]),
    ("RuntimeError: DataLoader worker (pid 30882) is killed by signal: Bus error. It is possible that workers are out of shared memory.",
     [{"failure": "bus_error"}]),
    ("OSError: [Errno 28] No space left on device", [{"failure": "disk_full"}]),
    ("(raylet, ip=10.0.0.7) node_manager.cc:3193: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers "
     "crashed due to other reasons at node", [{"failure": "host_oom", "fatal": False}]),
    ("Hangup", [{"failure": "killed", "by": "shell"}, {"event": "process_exit"}]),
    ("Segmentation fault (core dumped)", [{"failure": "segfault"}, {"event": "process_exit"}]),
]  # fmt: skip
NOTHING = [
    "0 Workers (tasks / actors) killed due to memory pressure (OOM), 1 Workers crashed due to other reasons at node",
    "catching std::bad_alloc and trying a smaller batch",
    "Hangup of the modem",
    "srun: error: n1: task 3: a plugin's sentence",
    "./train.sh: line 12: Hangup: command not found",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1.",
    "# export CUDA_LAUNCH_BLOCKING=1",
    "+ export WANDB_API_KEY=0123456789",
    "n1:12:34 [0] NCCL INFO NET/IB : Error out of memory of something",
    "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x42",
    "  error_injection_type ............................ transient_error",
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    "WARNING:urllib3.connectionpool:Retrying after connection broken by 'NewConnectionError(...)': [Errno 101] Network is unreachable",
    "['Traceback (most recent call last):\\n', '  File \"x.py\", line 1']",
    "time (ms)",
    "Map: 100%|##########| 1000/1000 [00:01<00:00, 812.11 examples/s]",
    "Downloading: 100%|##########| 1.2G/1.2G [00:01<00:00, 1.1GB/s]",
    "WORLD INFO DICT: {'localhost': [0, 1]}",
    "{'train_batch_size': 32, 'fp16': {'enabled': True, 'loss_scale': 0}}",
    " > loading doc-idx mapping from /x/meg-gpt2_text_document_train_indexmap_1024000ns_1024sl_1234s_doc_idx.npy",
    "     0: EmbeddingPipe",
    "done with setup",
    "We are training ... a model",
    "Failed to check the \"should dump\" flag on TCPStore",
]  # fmt: skip


def events(line: str) -> list[dict[str, Any]]:
    """The events of one line, as `parse --json` shows them."""
    reader = SourceReader()
    return [to_fields(entry.event) for entry in reader.feed(line.encode() + b"\n") + reader.flush()]


@pytest.mark.parametrize(("line", "expected"), CASES, ids=[case[0].strip()[:60] for case in CASES])
def test_a_line_gives_its_events(line: str, expected: list[dict[str, Any]]) -> None:
    """The line gives as many events as expected, each with the values that are listed."""
    found = events(line)
    assert len(found) == len(expected), found
    for event, values in zip(found, expected, strict=True):
        assert {name: event.get(name) for name in values} == values


@pytest.mark.parametrize("line", NOTHING)
def test_false_friends_give_nothing(line: str) -> None:
    """Lines that hold a known word and are none of ours."""
    assert events(line) == []


def test_a_torchrun_report_gives_one_failure() -> None:
    """The root-cause block over several lines, labels of another rank in between."""
    block = """Root Cause (first observed failure):
[0]:
  time      : 2026-03-24_17:34:38
  host      : nid006913
12: another rank speaks
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 194956)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 194956"""
    failure, end = events(block)
    assert (failure["failure"], failure["rank"], failure["node"]) == ("killed", 5, "nid006913")
    assert (end["event"], end["exit_code"]) == ("process_exit", -9)
    assert (failure["logged_at"], failure["consequence"]) == ("2026-03-24T17:34:38", False)


def test_a_sigterm_victim_is_a_consequence() -> None:
    """A block whose first failure is SIGTERM names a victim."""
    block = "Root Cause (first observed failure):\n  exitcode  : -15 (pid: 1)\n  traceback : Signal 15 (SIGTERM) received by PID 1"
    assert [event.get("consequence") for event in events(block)] == [True, None]


@pytest.mark.parametrize(
    ("frames", "top_level"),
    [
        (('File "train.py", line 215, in <module>', 'File "train.py", line 90, in train_step'), True),
        (('File "<frozen runpy>", line 198, in _run_module_as_main', 'File "/x/train.py", line 3, in <module>'), True),
        (('File "train.py", line 90, in train_step', 'File "model.py", line 7, in forward'), None),
        (('File "/x/threading.py", line 1045, in _bootstrap_inner', 'File "save.py", line 7, in write'), None),
        ((), None),
    ],
)
def test_a_traceback_that_nobody_caught_begins_at_a_module(frames: tuple[str, ...], top_level: bool | None) -> None:
    """Python prints a caught one from the function that catches it, an uncaught one from the program's top."""
    rows = ["Traceback (most recent call last):", *(f"  {frame}" for frame in frames), "ValueError: bad batch"]
    for prefix in ("", "[rank3]: ", "[default3]:"):
        told = [event for event in events("\n".join(prefix + row for row in rows)) if event["event"] == "traceback"]
        assert [event.get("top_level") for event in told] == [top_level]


def test_what_was_caught_and_raised_again_is_uncaught() -> None:
    """The second part of a chain begins at the module; the first does not."""
    text = """Traceback (most recent call last):
  File "train.py", line 90, in train_step
ValueError: bad batch

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 215, in <module>
RuntimeError: giving up"""
    assert [event.get("top_level") for event in events(text)] == [None, True]


@pytest.mark.parametrize("how", ["in:", "while calling deallocator"])
def test_a_finalizers_traceback_is_no_failure(how: str) -> None:
    """Python reports what it ignored in the same form; the next real traceback is told."""
    text = f"""Exception ignored {how} <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>
Traceback (most recent call last):
  File "loader.py", line 1510, in __del__
    self._shutdown_workers()
AttributeError: 'NoneType' object has no attribute 'python_exit_status'
Traceback (most recent call last):
  File "pretrain_gpt.py", line 3, in <module>
ValueError: real"""
    assert [(event["event"], event["exception"]) for event in events(text)] == [("traceback", "ValueError")]


def test_arguments_survive_what_stands_between() -> None:
    """Labels, broken values, gpt-neox's origins, other ranks' lines; a second dump; an end that never comes."""
    dump = """0: ------------------------ arguments ------------------------
0:   num_layers ...................................... 24
3: WARNING: something else
0:   hidden_size .....................................
0: ................................................. 2048
0:   a_name_so_long_that_no_room_is_left_for_any_dots_at_all .. True
0:   empty_value .....................................\x20
0: -------------------- end of arguments ---------------------"""
    (event,) = events(dump)
    assert event["values"] == {
        "num_layers": "24",
        "hidden_size": "2048",
        "a_name_so_long_that_no_room_is_left_for_any_dots_at_all": "True",
        "empty_value": "",
    }
    neox = "-------------------- arguments --------------------\n  hidden_size ..................... 512.........................updated\n"
    neox += (
        "  save ............................ /saved-weights/updated\n---------------- end of arguments ----------------"
    )
    (event,) = events(neox)
    assert event["values"] == {"hidden_size": "512", "save": "/saved-weights/"}
