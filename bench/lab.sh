#!/usr/bin/env bash
# Times the lab against a plain shell script of the same steps, in one run and with warm caches, and prints ratios.
# `make bench` calls it. Everything is named bench and removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
name=bench
state=$PWD/.state/$name
rendered=$PWD/.state/$name-plain
log=$PWD/.state/$name.log
play() { ansible-playbook -i inventories/lab -e "lab_name=$name" "$@"; }
finish() {
    if [ -e "$rendered/lab.env" ]; then bench/plain.sh down "$name" "$rendered"; fi
    play playbooks/teardown.yml >>"$log" 2>&1
    rm -rf "$rendered"
}
seconds() { # LABEL COMMAND...: runs it, sets $took
    local begun=$EPOCHREALTIME
    echo "... $1" >&2
    "${@:2}" >>"$log" 2>&1 || { echo "$1 failed; see $log" >&2; return 1; }
    took=$(awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.1f", b - a}')
}
# Memory that the lab's processes hold, page cache left out: Pss of every process in its containers.
memory_mib() {
    local engine=$1
    for pid in $("$engine" ps -q --filter "label=tenantry.gpu.lab=$name" | xargs -r "$engine" inspect --format '{{.State.Pid}}'); do
        for process in /proc/[0-9]*; do
            # A pod's process has a cgroup namespace of its own, so its ancestors are asked.
            echo "${process#/proc/} $(awk '/^PPid:/ {print $2}' "$process/status" 2>/dev/null)"
        done | awk -v root="$pid" '{parent[$1] = $2} END {for (p in parent) {q = p; while (q > 1) {if (q == root) {print p; break} q = parent[q]}}}'
    done | sort -u | while read -r process; do awk '/^Pss:/ {print $2}' "/proc/$process/smaps_rollup" 2>/dev/null || true; done |
        awk '{sum += $1} END {printf "%d", sum / 1024}'
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.2f", a / b}'; }

mkdir -p .state
: >"$log"
rm -rf "$rendered"
play playbooks/teardown.yml >>"$log" 2>&1
trap finish EXIT

seconds "make lab, from nothing" make --no-print-directory lab ARGS="-e lab_name=$name"
first=$took
seconds "site.yml, a second time" play playbooks/site.yml
second=$took
changed=$(tail -n 40 "$log" | grep -oE 'changed=[0-9]+' | awk -F= '{sum += $2} END {print sum}')
play bench/render.yml -e "bench_dir=$rendered" >>"$log" 2>&1
cp "$state/containers.conf" "$rendered/" 2>/dev/null || true
memory=$(memory_mib "$(sed -n 's/^ENGINE=//p' "$rendered/lab.env")")
play playbooks/teardown.yml >>"$log" 2>&1

seconds "the same steps by a plain shell script" bench/plain.sh up "$name" "$rendered"
plain=$took

cat <<TABLE
what                          figure
make lab, from nothing        $first s
plain shell script            $plain s
ratio lab / plain             $(ratio "$first" "$plain")
site.yml, a second time       $second s, changed=$changed
ratio second / first          $(ratio "$second" "$first")
memory of the whole lab       $memory MiB (Pss of its processes)
TABLE
