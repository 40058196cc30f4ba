"""Which llumctl this is."""


def own_version() -> str:
    """As installed; empty where it runs from a folder that was not."""
    from importlib import metadata  # here: most commands never ask

    try:
        return metadata.version("llumctl")
    except metadata.PackageNotFoundError:
        return ""
