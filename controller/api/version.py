"""The version of this llumctl."""


def own_version() -> str:
    """The installed version; empty if llumctl runs from a folder that is not installed."""
    from importlib import metadata  # here: most commands never ask

    try:
        return metadata.version("llumctl")
    except metadata.PackageNotFoundError:
        return ""
