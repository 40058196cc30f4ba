"""Admission: which request goes where, and what waits.

scheduler         (in `core`) the controller's machine; `waiting_requests` are those it holds
instance_pool     the instances, what was sent to each, and the choice of one of them
policies          how an instance is scored and picked
placement         late binding: which waiting request goes where, what is reserved for whom
room_orders       for which blocked requests a round makes room, and where
api_keys          what keys use, and which of their requests are refused
asking            the frontend's machine: it asks where its requests go, or decides alone
waiting_reasons   what is held and why, for people
records           what of all this is put on record, and how rarely
"""
