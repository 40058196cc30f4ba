#!/bin/sh
# Writes llumctl's notice file (evacuate.notice_file) when the cloud says that this spot machine
# will be taken away. Run it on each machine, for example as a service:
#
#     notice-from-metadata.sh aws|gcp /run/llumctl/leave
set -eu
cloud=$1 file=$2 every_s=${EVERY_S:-5} metadata=${METADATA:-http://169.254.169.254}
ask() { curl -sf --max-time 3 "$@"; }

notice() {
    case $cloud in
    aws)
        token=$(ask -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/latest/api/token")
        # 404, and so no notice, until the machine is to be taken away.
        ask -H "X-aws-ec2-metadata-token: $token" "$metadata/latest/meta-data/spot/instance-action"
        ;;
    gcp) # TRUE or FALSE
        ask -H 'Metadata-Flavor: Google' "$metadata/computeMetadata/v1/instance/preempted"
        ;;
    *)
        echo "usage: $0 aws|gcp FILE" >&2
        exit 2
        ;;
    esac
}

case $cloud in aws | gcp) ;; *) notice ;; esac
mkdir -p "$(dirname "$file")"
while :; do
    if notice >"$file.new" && [ "$(cat "$file.new")" != FALSE ]; then
        # Only once: a number or an empty file would count from each time that it is written.
        cmp -s "$file.new" "$file" || mv "$file.new" "$file"
    fi
    rm -f "$file.new"
    sleep "$every_s"
done
