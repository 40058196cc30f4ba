"""The environment that the tests were started in. Contract tests change it for the engines in their
process, and the clusters that other tests start must not find that done."""

import os

AT_START = dict(os.environ)
