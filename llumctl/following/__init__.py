"""Commands that go on asking: watching the status, drains and conditions."""
