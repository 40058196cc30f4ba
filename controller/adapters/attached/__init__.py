"""Attached servers behind the Engine port: each request becomes a call to the server."""
