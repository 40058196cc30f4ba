#!/bin/sh
# Takes one instance out of service, does some work, and puts it back. No request fails by it: those
# that run there move to other instances, and no new ones come.
#
#     examples/drain-for-maintenance.sh i-1 ./update-driver.sh --quiet
#
# LLUMCTL_CLUSTER_NAME says which cluster, MAINTENANCE_DEADLINE how long the drain may take (10m).
# Exit codes: that of the work; 124 if requests could not leave in time, and then nothing was done;
# 4 and 5 if there is no such instance or it must not be drained.
set -eu

if [ $# -lt 2 ]; then
    echo "usage: $0 INSTANCE COMMAND..." >&2
    exit 2
fi
instance=$1
shift

# However this script ends from here on, by Ctrl-C too, the instance serves again afterwards.
trap 'llumctl undrain "$instance" --reason "maintenance is over" >&2' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Follows the drain on stderr, and returns once the instance is safe to delete. --yes: nobody is
# there to be asked. What cannot move is named; at the deadline it ends with 124.
llumctl drain "$instance" --yes --deadline "${MAINTENANCE_DEADLINE:-10m}" \
    --reason "maintenance" >&2

# Nothing runs on the instance now, and nothing will until it is undrained.
"$@"
