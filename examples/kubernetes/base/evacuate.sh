#!/bin/bash
# The preStop hook of a worker: its instances leave as after `llumctl drain --remove --within`, and
# this returns when their processes have ended, after 100 s at the latest. To the process of an
# instance SIGTERM means that its machine goes away; how long it takes then is evacuate.notice_s. A
# second SIGTERM would end the process at once, so each gets one only.
within_s=${1:-100}
role='^ray::(.*:)?RayMember' # the titles that Ray gives to llumctl's processes

pids=$(pgrep -d, -f "$role") || exit 0
kill -TERM ${pids//,/ } 2>/dev/null
deadline_s=$((SECONDS + within_s))
while [ $SECONDS -lt $deadline_s ] && ps -o stat= -p "$pids" | grep -qv Z; do
    sleep 0.5
done
