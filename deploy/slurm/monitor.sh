# shellcheck shell=bash
# Source this file in a job script to start a monitor that ends with the job.
#
#   . monitor.sh
#   monitor_start --name "$SLURM_JOB_NAME" "$(monitor_literal "$LOG")"
#   srun ... > "$LOG" 2>&1
#
# monitor_start takes the arguments of `megatron-monitor run`. monitor_literal escapes wildcards in a path. Neither can fail the
# job. Environment variables:
#   MEGATRON_MONITOR          the program (megatron-monitor)
#   MEGATRON_MONITOR_LISTEN   address (0.0.0.0 and a port derived from the job's number, because several jobs may share a node).
#                             Everyone who reaches the port can read the page; `web:` in config.yaml has TLS and passwords
#   MEGATRON_MONITOR_TARGETS  directory of Prometheus's target files (file_sd); if unset, no file is written
#   MEGATRON_MONITOR_LINGER   seconds that the monitor outlives the training (3), to read its last lines. Then it is
#                             stopped. It answers one more scrape, so that Prometheus knows that the stop is intended
#   MEGATRON_MONITOR_LOG      log file of the monitor (megatron-monitor.JOB.log)

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
        # Write a temporary file and rename it, because Prometheus may read at any time and reads only names that end in .yml. Its
        # name is random, because another user could plant a link in a shared directory.
        local beside
        beside=$(mktemp "$directory/.job-$job.XXXXXX") &&
            printf -- "- targets: ['%s:%s']\n  labels: {monitor_job: '%s'}\n" \
                "${SLURMD_NODENAME:-$(hostname)}" "${listen##*:}" "$job" >"$beside" &&
            chmod 644 "$beside" && mv -fT "$beside" "$monitor_target" ||
            echo "monitor.sh: cannot write $monitor_target; Prometheus will not find this job" >&2
    fi
}

# Runs at the end of the job script in any case, and keeps its exit status.
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
