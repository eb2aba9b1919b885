#!/usr/bin/env bash
# Prints the stacks of a job's Python processes on this node. The action dump_stacks starts it once on each node of the job
# (srun --overlap), and the remediator keeps the output. Put it on a file system that the nodes can read.
#
#   PY_SPY   the program (py-spy): `pip install py-spy` into the job's environment, or a static copy in this directory.
#            It needs the right to trace: the same user, and kernel.yama.ptrace_scope 0 or CAP_SYS_PTRACE.
set -uo pipefail

py_spy="${PY_SPY:-$(command -v py-spy || echo "$(dirname "$0")/py-spy")}"
job="${SLURM_JOB_ID:?this runs under srun}"
echo "node ${SLURMD_NODENAME:-$(hostname)}, job $job, $(date -u +%FT%TZ)"

# Finds this job's Python processes on this node by their environment. Several slurmd may share a host, so the node is
# compared, too.
found=0
for directory in /proc/[0-9]*; do
    pid="${directory#/proc/}"
    if [ "$pid" = "$$" ] || [ ! -r "$directory/environ" ]; then continue; fi
    case "$(readlink "$directory/exe" 2>/dev/null)" in */python*) ;; *) continue ;; esac
    environment="$(tr '\0' '\n' <"$directory/environ" 2>/dev/null)" || continue
    grep -qx "SLURM_JOB_ID=$job" <<<"$environment" || continue
    grep -qx "SLURMD_NODENAME=${SLURMD_NODENAME:-}" <<<"$environment" || continue
    rank="$(sed -n 's/^RANK=//p' <<<"$environment" | head -1)"
    rank="${rank:-$(sed -n 's/^SLURM_PROCID=//p' <<<"$environment" | head -1)}"
    found=$((found + 1))
    echo "== rank ${rank:-?}, pid $pid: $(tr '\0' ' ' <"$directory/cmdline" | cut -c1-200)"
    timeout 30 "$py_spy" dump --pid "$pid" 2>&1 || echo "no stack of pid $pid"
done
echo "$found processes"
[ "$found" -gt 0 ]
