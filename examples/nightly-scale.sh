#!/bin/sh
# Few instances at night, many by day. In a crontab, where paths are absolute and PATH must name the
# folder of llumctl:
#
#     PATH=/home/USER/venv/bin:/usr/local/bin:/usr/bin:/bin
#     0 22 * * 1-5   /home/USER/llumctl/examples/nightly-scale.sh 2
#     30 6 * * 1-5   /home/USER/llumctl/examples/nightly-scale.sh 8
#
# Instances that go are drained first: their requests move, and none fails. LLUMCTL_CLUSTER_NAME
# says which cluster, SCALE_DEADLINE how long the drains may take (30m).
#
# The number is set only on what this script has seen: if somebody changes the cluster between the
# look and the deed, `--if-revision` refuses with exit code 6, and it looks again. While an operator
# has an instance drained, it leaves the cluster alone. It ends with the exit code of the command
# that failed.
set -eu

if [ $# -ne 1 ]; then
    echo "usage: $0 INSTANCES" >&2
    exit 2
fi
target=$1

# "REVISION DRAINED...": the drained instances, but not those that an earlier scale-in takes away.
look() {
    python3 -c '
import json, sys
status = json.load(sys.stdin)
drains = {item["id"]: item.get("drain") for item in status["instances"]}
print(status["revision"], *(name for name, drain in drains.items() if drain and not drain["removes"]))
'
}

for attempt in 1 2 3; do
    status=$(llumctl status -o json)
    seen=$(printf '%s\n' "$status" | look)
    revision=${seen%% *}
    if [ "$seen" != "$revision" ]; then
        echo "left alone: an operator has drained ${seen#* }" >&2
        exit 0
    fi
    # --wait: returns when new instances serve and others are gone. --yes: nobody can be asked.
    code=0
    llumctl scale "$target" --if-revision "$revision" --yes --wait \
        --deadline "${SCALE_DEADLINE:-30m}" --reason "nightly scale" || code=$?
    if [ "$code" -ne 6 ]; then
        exit "$code"
    fi
    echo "attempt $attempt: somebody changed the cluster meanwhile" >&2
done
exit 6
