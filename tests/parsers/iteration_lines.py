"""A line of every emitter of iteration lines, with what it gives."""

from typing import Any

from parsers.events import IterationLogged
from parsers.reader import SourceReader


def read(text: str) -> list[IterationLogged]:
    """The iterations that a source holding `text` tells."""
    return [event for event in events(text) if isinstance(event, IterationLogged)]


def events(text: str) -> list[Any]:
    """Every event that a source holding `text` tells."""
    reader = SourceReader()
    return [entry.event for entry in [*reader.feed(text.encode()), *reader.flush()]]


FORMS = {
    "2019, no colons": (
        " iteration      200/  320000 | elapsed time per iteration (ms): 512.4 | learning rate 1.500E-05 |"
        " lm loss 8.125000E+00 | loss scale 65536.0 |",
        {
            "iteration": 200,
            "train_iterations": 320000,
            "seconds_per_iteration": 0.5124,
            "learning_rate": 1.5e-05,
            "lm_loss": 8.125,
            "loss_scale": 65536.0,
            "dialect": "megatron-lm",
        },
    ),
    "v1.1.5": (
        " iteration        7/     900 | elapsed time per iteration (ms): 98765.4 | learning rate: 2.500E-05 |"
        " lm loss: 1.175000E+01 | loss scale: 512.0 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |",
        {
            "iteration": 7,
            "train_iterations": 900,
            "seconds_per_iteration": 98.7654,
            "learning_rate": 2.5e-05,
            "lm_loss": 11.75,
            "loss_scale": 512.0,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "dialect": "megatron-lm",
        },
    ),
    "2021, BERT": (
        " iteration       40/    2000 | consumed samples:          640 | elapsed time per iteration (ms): 1402.5 |"
        " learning rate: 1.250E-04 | global batch size:    16 | lm loss: 9.500000E+00 | sop loss: 6.875000E-01 |"
        " loss scale: 16384.0 | grad norm: 6.999 | num zeros: 12.0 | params norm: 1234.567 |"
        " number of skipped iterations:   2 | number of nan iterations:   1 |",
        {
            "iteration": 40,
            "train_iterations": 2000,
            "consumed_samples": 640,
            "seconds_per_iteration": 1.4025,
            "learning_rate": 1.25e-04,
            "global_batch_size": 16,
            "lm_loss": 9.5,
            "losses": {"sop loss": 0.6875},
            "loss_scale": 16384.0,
            "grad_norm": 6.999,
            "num_zeros": 12.0,
            "params_norm": 1234.567,
            "skipped_iterations": 2,
            "nan_iterations": 1,
            "dialect": "megatron-lm",
        },
    ),
    "NVIDIA 2025, mixture of experts": (
        "12: [default3]: [2026-02-03 04:05:06.789012] iteration       33/   60000 | consumed samples:        33792 |"
        " skipped samples:            8 | elapsed time per iteration (ms): 6125.5 |"
        " throughput per GPU (TFLOP/s/GPU): 177.7 | energy per GPU (J/iter/GPU): 3100.5 |"
        " power per GPU (W/GPU): 514.6 |"
        " learning rate: 3.000000E-04 | decoupled learning rate: 6.000000E-04 | global batch size:  1024 |"
        " lm loss: 4.500000E+00 | load_balancing_loss: 1.015625E+00 | z_loss: 2.500000E-02 | mtp_1 loss: 5.000000E+00 |"
        " loss scale: 1.0 | grad norm: 0.750 | num zeros: 1299 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |",
        {
            "logged_at": "2026-02-03T04:05:06.789012",
            "iteration": 33,
            "train_iterations": 60000,
            "consumed_samples": 33792,
            "seconds_per_iteration": 6.1255,
            "tflops": 177.7,
            "learning_rate": 3e-4,
            "global_batch_size": 1024,
            "lm_loss": 4.5,
            "losses": {"load_balancing_loss": 1.015625, "z_loss": 0.025, "mtp_1 loss": 5.0},
            "loss_scale": 1.0,
            "grad_norm": 0.75,
            "num_zeros": 1299.0,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "extra": {
                "skipped samples": 8.0,
                "energy per GPU (J/iter/GPU)": 3100.5,
                "power per GPU (W/GPU)": 514.6,
                "decoupled learning rate": 6e-4,
            },
            "dialect": "megatron-lm",
        },
    ),
    "endless": (
        " iteration       12/infinity | consumed samples:           96 | elapsed time per iteration (ms): 250.0 |",
        {
            "iteration": 12,
            "consumed_samples": 96,
            "seconds_per_iteration": 0.25,
            "dialect": "megatron-lm",
        },
    ),
    "BigScience 2021": (
        " iteration        5/    1000 | consumed samples:         5120 | elapsed time per iteration (ms): 140250.5 |"
        " learning rate: 9.375E-05 | global batch size:  1024 | lm-loss: 3.250000E+01 | loss scale: -1.0 |"
        " grad norm: 0.000 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        {
            "iteration": 5,
            "train_iterations": 1000,
            "consumed_samples": 5120,
            "seconds_per_iteration": 140.2505,
            "learning_rate": 9.375e-05,
            "global_batch_size": 1024,
            "lm_loss": 32.5,
            "loss_scale": -1.0,
            "grad_norm": 0.0,
            "num_zeros": 0.0,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "dialect": "bigscience",
        },
    ),
    "BigScience 2022, curriculum": (
        "[default7]: iteration    23456/  115311 | consumed samples:     31234567 | consumed tokens:  63968393216 |"
        " elapsed time per iteration (s): 104.25 | learning rate: 5.500E-05 | global batch size:  2048 |"
        " lm loss: 2.250000E+00 | grad norm: 0.125 | num zeros: 0.0 | curriculum seqlen:  1024 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 19.645 |"
        " TFLOPs: 150.41 |",
        {
            "iteration": 23456,
            "train_iterations": 115311,
            "consumed_samples": 31234567,
            "consumed_tokens": 63968393216,
            "seconds_per_iteration": 104.25,
            "learning_rate": 5.5e-05,
            "global_batch_size": 2048,
            "lm_loss": 2.25,
            "grad_norm": 0.125,
            "num_zeros": 0.0,
            "sequence_length": 1024,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "samples_per_second": 19.645,
            "tflops": 150.41,
            "dialect": "bigscience",
        },
    ),
    "microsoft": (
        "worker-3:  iteration        9/     500 | consumed samples:          144 | consumed tokens:       294912 |"
        " elapsed time per iteration (ms): 15250.5 | learning rate: 1.800E-06 | global batch size:    16 |"
        " lm loss: 1.225000E+01 | moe loss: 6.250000E-02 | loss scale: 1.0 | grad norm: 17.125 | num zeros: 0.0 |"
        " curriculum seqlen:  1024 | random ltd reserved length:   512 | actual seqlen:  2048 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 1.049 |"
        " tokens per gpu per second (tgs): 134.285 | TFLOPs: 7.95 |",
        {
            "node": "worker-3",
            "iteration": 9,
            "train_iterations": 500,
            "consumed_samples": 144,
            "consumed_tokens": 294912,
            "seconds_per_iteration": 15.2505,
            "learning_rate": 1.8e-06,
            "global_batch_size": 16,
            "lm_loss": 12.25,
            "losses": {"moe loss": 0.0625},
            "loss_scale": 1.0,
            "grad_norm": 17.125,
            "num_zeros": 0.0,
            "sequence_length": 2048,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "samples_per_second": 1.049,
            "tokens_per_second_per_gpu": 134.285,
            "tflops": 7.95,
            "extra": {"curriculum seqlen": 1024, "random ltd reserved length": 512.0},
            "dialect": "microsoft",
        },
    ),
    "microsoft 2022": (
        " iteration        9/     500 | consumed samples:          144 | consumed tokens:       294912 |"
        " elapsed time per iteration (ms): 2000.0 | global batch size:    16 | samples per second: 8.000 |"
        " TFLOPs: 7.95 |",
        {
            "iteration": 9,
            "train_iterations": 500,
            "consumed_samples": 144,
            "consumed_tokens": 294912,
            "seconds_per_iteration": 2.0,
            "global_batch_size": 16,
            "samples_per_second": 8.0,
            "tflops": 7.95,
            "dialect": "microsoft",
        },
    ),
    "Ascend's misspelling": (
        " iteration  3/50000 | consumed samples: 768 | consumed tokens:  1572864 | elapsed time per iteration (ms):"
        "  34250.0 | learning rate:    1.500E-07 | gloabl batch size:  256 | lm loss:  1.250000E+01 |"
        " loss scale:  1.0 | grad norm:    8.125 | actual seqlen:  2048 |",
        {
            "iteration": 3,
            "train_iterations": 50000,
            "consumed_samples": 768,
            "consumed_tokens": 1572864,
            "seconds_per_iteration": 34.25,
            "learning_rate": 1.5e-07,
            "global_batch_size": 256,
            "lm_loss": 12.5,
            "loss_scale": 1.0,
            "grad_norm": 8.125,
            "sequence_length": 2048,
            "dialect": "microsoft",
        },
    ),
    "Argonne": (
        "[2024-07-22 11:51:43][INFO][training_log:661] -  iteration=       4/  317892 | consumed_samples=        3072 |"
        " consumed_tokens=    12582912 | elapsed_time_per_iteration_ms=29250.0 | learning_rate=9.125e-09 |"
        " global_batch_size=768 | lm loss=11.125000 | loss_scale=1.0 | grad_norm=6.125 | actual_seqlen= 4096 |"
        " number_of_skipped_iterations=  0 | number_of_nan_iterations=  0 | samples_per_second=26.256 |"
        " tokens_per_gpu_per_second_tgs=4481.094 | [LM]TFLOPs=20.50 | [DS]TFLOPs=26.44 |",
        {
            "logged_at": "2024-07-22T11:51:43",
            "iteration": 4,
            "train_iterations": 317892,
            "consumed_samples": 3072,
            "consumed_tokens": 12582912,
            "seconds_per_iteration": 29.25,
            "learning_rate": 9.125e-09,
            "global_batch_size": 768,
            "lm_loss": 11.125,
            "loss_scale": 1.0,
            "grad_norm": 6.125,
            "sequence_length": 4096,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "samples_per_second": 26.256,
            "tokens_per_second_per_gpu": 4481.094,
            "tflops": 20.5,
            "extra": {"[DS]TFLOPs": 26.44},
            "dialect": "argonne",
        },
    ),
    "Argonne, all underscores": (
        "iteration=1/1000 | consumed_samples=768 | elapsed_time_per_iteration_ms=12345.6 | lm_loss=11.25 | TFLOPs=9.75",
        {
            "iteration": 1,
            "train_iterations": 1000,
            "consumed_samples": 768,
            "seconds_per_iteration": 12.3456,
            "lm_loss": 11.25,
            "tflops": 9.75,
            "dialect": "argonne",
        },
    ),
    "gpt-neox": (
        " samples/sec: 204.538 | iteration        1/     512 | elapsed time per iteration (ms): 2503.2 |"
        " learning rate: 1.000E-05 | approx flops per GPU: 12.6TFLOPS | MFU: 35.8% | HFU: 47.75% |"
        " lm_loss: 1.125000E+01 | loss scale: 4096.0 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |",
        {
            "iteration": 1,
            "train_iterations": 512,
            "samples_per_second": 204.538,
            "seconds_per_iteration": 2.5032,
            "learning_rate": 1e-05,
            "tflops": 12.6,
            "mfu": 0.358,
            "hfu": 0.4775,
            "lm_loss": 11.25,
            "loss_scale": 4096.0,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "dialect": "gpt-neox",
        },
    ),
    "AMD Primus": (
        "[\x1b[32m20251203 07:58:29\x1b[0m][\x1b[36mrank-7/8\x1b[0m][\x1b[1mINFO \x1b[0m] \x1b[1m"
        "[--------trainer.py:2560] :  iteration     4000/    5000 | consumed samples:       512000 |"
        " elapsed time per iteration (ms): 13250.0/13375.5 |"
        " hip mem usage/free/total/usage_ratio: 150.00GB/105.98GB/255.98GB/58.60% |"
        " throughput per GPU (TFLOP/s/GPU): 571.5/566.1 | tokens per GPU (tokens/s/GPU): 9875.5/9780.0 |"
        " lm loss: 4.250000E-03 |\x1b[0m",
        {
            "rank": 7,
            "logged_at": "2025-12-03T07:58:29",
            "iteration": 4000,
            "train_iterations": 5000,
            "consumed_samples": 512000,
            "seconds_per_iteration": 13.25,
            "tflops": 571.5,
            "tokens_per_second_per_gpu": 9875.5,
            "lm_loss": 0.00425,
            "extra": {"hip mem usage/free/total/usage_ratio": "150.00GB/105.98GB/255.98GB/58.60%"},
            "dialect": "primus",
        },
    ),
    "AMD Primus 2026": (
        "[20260303 07:58:29][rank-0/8][INFO ] [--------trainer.py:2560] : iteration 8/ 50 |"
        " compute per GPU (TFLOP/s/GPU): 625.5 (avg 620.1) | tokens/s/GPU inst/harmonic mean: 12041.5/12000.0 |",
        {
            "rank": 0,
            "logged_at": "2026-03-03T07:58:29",
            "iteration": 8,
            "train_iterations": 50,
            "tflops": 625.5,
            "tokens_per_second_per_gpu": 12041.5,
            "dialect": "primus",
        },
    ),
    "a vendor's logger": (
        "2023-11-27 22:32:17,419 [Rank 15]:  iteration       20/   20 | elapsed time per iteration (ms): 3750.0 |"
        " lm loss: 8.750000E+00 | TFLOPs: 331.25 | tokens-per-second-per-gpu: 2184.53 |",
        {
            "rank": 15,
            "logged_at": "2023-11-27T22:32:17.419",
            "iteration": 20,
            "train_iterations": 20,
            "seconds_per_iteration": 3.75,
            "lm_loss": 8.75,
            "tflops": 331.25,
            "tokens_per_second_per_gpu": 2184.53,
            "dialect": "microsoft",
        },
    ),
    "two fields in one piece": (
        " [2024-09-22 11:20:43] iteration        4/   25000 | consumed samples:         4096 |"
        " iteration time: 265.625 s samples/sec: 3.9 | lm loss: 2.125000E+00 | tokens/sec/GPU: 75250 |",
        {
            "logged_at": "2024-09-22T11:20:43",
            "iteration": 4,
            "train_iterations": 25000,
            "consumed_samples": 4096,
            "seconds_per_iteration": 265.625,
            "samples_per_second": 3.9,
            "lm_loss": 2.125,
            "tokens_per_second_per_gpu": 75250.0,
            "dialect": "megatron-lm",
        },
    ),
}
