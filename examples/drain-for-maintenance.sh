#!/bin/sh
# Takes one instance out of service, does some work, and puts it back. No request fails by it: those
# that run there move to other instances, and no new ones come.
#
#     examples/drain-for-maintenance.sh i-1 ./update-driver.sh --quiet
#
# LLUMCTL_CLUSTER_NAME says which cluster, MAINTENANCE_DEADLINE how long the drain may take (10m).
# Exit codes: that of the work; 124 if requests could not leave in time, and then nothing was done;
# 4 if there is no such instance, 5 if it must not be drained or somebody drains it already, 6 if
# somebody changed the cluster at that moment. If it cannot be put back, the code of that.
set -eu

if [ $# -lt 2 ]; then
    echo "usage: $0 INSTANCE COMMAND..." >&2
    exit 2
fi
instance=$1
shift

# The cluster's revision; or 5, for whoever drains the instance already, to scale in perhaps, or has
# cordoned it, must not find that undone.
look() {
    python3 -c '
import json, sys
status, name = json.load(sys.stdin), sys.argv[1]
for item in status["instances"]:
    if item["id"] == name and (item.get("drain") or "cordoned" in item.get("closed_by", ())):
        what = "being drained" if item.get("drain") else "cordoned"
        print(f"{name} is {what} already: nothing was done", file=sys.stderr)
        sys.exit(5)
print(status["revision"])
' "$instance"
}

status=$(llumctl status -o json)
revision=$(printf '%s\n' "$status" | look)

# However this script ends from here on, by Ctrl-C too, the instance serves again afterwards. A
# shell may run no EXIT trap when a signal ends it: so each of them is an exit.
trap 'llumctl uncordon "$instance" --reason "maintenance is over" >&2' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Follows the drain on stderr, and returns once the instance is safe to delete. --yes: nobody is
# there to be asked. What cannot move is named; at the deadline it ends with 124.
code=0
llumctl drain "$instance" --yes --if-revision "$revision" \
    --deadline "${MAINTENANCE_DEADLINE:-10m}" --reason "maintenance" >&2 || code=$?
case $code in
    0) ;;
    2 | 4 | 5 | 6) # Refused: there is nothing of ours to be undone.
        trap - EXIT
        exit "$code"
        ;;
    *) exit "$code" ;;
esac

# Nothing runs on the instance now, and nothing will until it is uncordoned.
"$@"
