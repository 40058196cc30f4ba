"""Ends a cluster's actors on a Ray that is not ours: `... kill_actors ADDRESS NAMESPACE`."""

import sys


def main(address: str, namespace: str) -> None:
    import ray

    from controller.adapters.ray.ray_launcher import kill_actors

    ray.init(address=address, namespace=namespace, log_to_driver=False)
    kill_actors(namespace)


if __name__ == "__main__":
    main(*sys.argv[1:3])
