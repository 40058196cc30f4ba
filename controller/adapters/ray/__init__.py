"""Members as Ray actors: how their processes are started, restarted, logged and ended."""
