"""Shells around the core: the llumlet, the frontend's router and the controller.

They run the core's instructions on the ports (asyncio, one engine thread); no Ray here.
"""
