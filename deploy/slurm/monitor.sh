# shellcheck shell=bash
# Source this in a job script: a monitor beside the job, ended with it.
#
#   . monitor.sh
#   monitor_start --name "$SLURM_JOB_NAME" "$(monitor_literal "$LOG")"
#   srun ... > "$LOG" 2>&1
#
# monitor_start takes the arguments of `megatron-monitor run`; monitor_literal a path of which no character is a wildcard,
# whatever the job is called. It never fails the job: a training without a monitor is
# better than none. What may be set before:
#   MEGATRON_MONITOR          the program (megatron-monitor)
#   MEGATRON_MONITOR_LISTEN   address (0.0.0.0 and a port from the job's number: several jobs may share a node).
#                             Whoever reaches the port reads the page; see web: in config.yaml for TLS and passwords
#   MEGATRON_MONITOR_TARGETS  directory where Prometheus looks for targets (file_sd); none: nothing is written
#   MEGATRON_MONITOR_LINGER   seconds that the monitor outlives the training (3), to read its last lines. Then it is
#                             ended, and by itself serves one scrape more, so that Prometheus sees the end as an end
#   MEGATRON_MONITOR_LOG      what the monitor says (megatron-monitor.JOB.log)

monitor_pid=""
monitor_target=""

monitor_literal() {
    printf '%s' "$1" | sed 's/[[*?]/[&]/g'
}

monitor_start() {
    local job="${SLURM_JOB_ID:-$$}"
    local listen="${MEGATRON_MONITOR_LISTEN:-0.0.0.0:$((20000 + job % 10000))}"
    local directory="${MEGATRON_MONITOR_TARGETS:-}"
    "${MEGATRON_MONITOR:-megatron-monitor}" run --listen "$listen" \
        --set "state_dir=${TMPDIR:-/tmp}/megatron-monitor-$job" --set ends_with_job=true "$@" \
        >>"${MEGATRON_MONITOR_LOG:-megatron-monitor.$job.log}" 2>&1 &
    monitor_pid=$!
    trap monitor_end EXIT
    if [ -n "$directory" ]; then
        monitor_target="$directory/job-$job.yml"
        # Whole or not at all: Prometheus may look at any time, and reads only names that end in .yml. A name that nobody
        # can foresee: in a directory for all, somebody else could lay a link there.
        local beside
        beside=$(mktemp "$directory/.job-$job.XXXXXX") &&
            printf -- "- targets: ['%s:%s']\n  labels: {monitor_job: '%s'}\n" \
                "${SLURMD_NODENAME:-$(hostname)}" "${listen##*:}" "$job" >"$beside" &&
            chmod 644 "$beside" && mv -fT "$beside" "$monitor_target" ||
            echo "monitor.sh: cannot write $monitor_target; Prometheus will not find this job" >&2
    fi
}

# Runs at the end of the job script, whichever way it ends, and keeps its exit status.
monitor_end() {
    local status=$?
    trap - EXIT
    if kill -0 "$monitor_pid" 2>/dev/null; then
        sleep "${MEGATRON_MONITOR_LINGER:-3}"
    fi
    kill -TERM "$monitor_pid" 2>/dev/null
    wait "$monitor_pid" 2>/dev/null
    if [ -n "$monitor_target" ]; then
        rm -f "$monitor_target"
    fi
    exit "$status"
}
