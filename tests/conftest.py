"""How many examples Hypothesis draws: few for every day, many for `make test-full`, which sets
HYPOTHESIS_PROFILE=full. What fails is printed with the decorator that draws it again."""

import os

from hypothesis import settings

settings.register_profile("quick", max_examples=40, deadline=None, print_blob=True)
settings.register_profile("full", settings.get_profile("quick"), max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
