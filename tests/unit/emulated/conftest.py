"""Lets tests be on virtual time."""

from tests.unit.runtime.fakes import loop_factories

pytest_asyncio_loop_factories = loop_factories
