"""Emptying: which requests leave which instance for which other one.

claims      who wants an instance empty, and what comes then
drains      the machine of drains: what is told, asked and done until it is empty
rounds      the controller's machine: who relieves itself towards whom, and where room is made
openness    which instances take moves now, and who is avoided for a while
relieving   the machine of a source, which carries out what a round ordered
relief      the rules of a source: which request leaves next, and why others do not
room_plan   which requests of a source make room for a blocked one, all of them or none
by_hand     moves that operators order: where to, in turn, and what is tried next
forecast    what a drain would do, by the rules of the rounds and of the source
"""
