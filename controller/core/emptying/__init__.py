"""Emptying: which requests leave an instance, and for which other instance.

claims      who wants an instance empty, and what happens to the instance then
drains      the machine of drains: what is told, asked and done until the instance is empty
rounds      the controller's machine: it pairs sources with destinations
room_plan   room for blocked requests: which ones get it, where, and which requests leave for it
openness    which instances take moves now, and which are avoided for a while
relieving   the machine of a source, which carries out what a round ordered
relief      the rules of a source: which request leaves next, and why others do not
by_hand     moves that operators order: where to, when it is their turn, and what is tried next
forecast    what a drain would do, by the rules of the rounds and of the source
"""
