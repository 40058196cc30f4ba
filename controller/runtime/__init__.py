"""Shells around the core: the llumlet, the frontend's router and the controller.

They carry out the core's instructions on the ports (asyncio, one engine thread), without Ray.
"""
