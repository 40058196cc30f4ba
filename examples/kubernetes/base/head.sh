#!/bin/bash
# The head pod: Ray's head, then `llumctl up` in its place, which ends when Ray or the cluster does.
set -euo pipefail
ulimit -n "$(ulimit -Hn)" # Ray wants 65,536; as many as the container may have

# llumctl reads a secret only from a file that is its own, with mode 0600. Files of a mounted secret
# belong to root.
mkdir -p -m 700 "$HOME/secrets"
for file in /secrets/*/*; do
    if [ -e "$file" ]; then install -m 600 "$file" "$HOME/secrets/"; fi
done

# The token of authOptions: KubeRay gives it as a variable, and llumctl names a file to its processes.
if [ -n "${RAY_AUTH_TOKEN:-}" ]; then
    (umask 077 && printf %s "$RAY_AUTH_TOKEN" > "$HOME/secrets/ray-token")
    export RAY_AUTH_TOKEN_PATH="$HOME/secrets/ray-token"
fi

# KubeRay's own command stays in the foreground (--block).
$KUBERAY_GEN_RAY_START_CMD &
until ray health-check --address "$POD_IP:6379" 2>/dev/null; do
    kill -0 $! # if Ray has ended, this ends too
    sleep 1
done

# The state folder outlives the pod, and says that a cluster runs on the Ray of the pod before.
llumctl down --now

# Instances are launched only where there are GPUs, so `up` waits for the workers.
exec llumctl up --config /etc/llumctl/llumctl.toml --ray-address "$POD_IP:6379"
