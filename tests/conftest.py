"""How many examples Hypothesis draws: some for every day, few for `make test-unit` and many for
`make test-full`, which set HYPOTHESIS_PROFILE to few and full. What fails is printed with the
decorator that draws it again."""

import gc
import os

from hypothesis import settings

import tests.environment  # noqa: F401  before any other conftest changes it

settings.register_profile("quick", max_examples=40, deadline=None, print_blob=True)
settings.register_profile("few", settings.get_profile("quick"), max_examples=10)
settings.register_profile("full", settings.get_profile("quick"), max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_collection_finish() -> None:
    """What was collected stays to the end. To look through it again and again took the garbage
    collector a quarter of the unit tests' CPU time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
